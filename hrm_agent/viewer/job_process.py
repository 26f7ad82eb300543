"""Process of a fork or a replay. It runs the command line, and ends when the viewer that started it
ends.

The viewer holds the other end of a socket and never writes to it. However the viewer ends, the
kernel closes that end. Then this process kills its process group. PR_SET_PDEATHSIG cannot be used:
it takes effect at the end of the thread that started the process, and the viewer answers each
request in a separate thread.
"""

from __future__ import annotations

import os
import runpy
import signal
import threading

from hrm_agent.basics.worker_process import parent_socket

__all__ = ["main"]


def main() -> None:
    """Run `python -m hrm_agent.viewer.job_process DESCRIPTOR WORD...` as the leader of a process
    group.
    """
    viewer = parent_socket()

    def end_with_viewer() -> None:
        viewer.receive()  # returns when the other end is closed
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=end_with_viewer, name="viewer", daemon=True).start()
    runpy.run_module("hrm_agent", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
