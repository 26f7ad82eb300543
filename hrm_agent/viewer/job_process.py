"""Process of a fork or a replay: the command line, which ends with the viewer that started it.

The viewer holds the other end of a socket and never writes to it. However the viewer ends, the
kernel closes that end, and this process kills its group. PR_SET_PDEATHSIG is not enough: it follows
the thread that started a process, and the viewer answers each request in a separate thread.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

__all__ = ["main"]


def main() -> None:
    """Run `python -m hrm_agent.viewer.job_process DESCRIPTOR WORD...` as the leader of a process
    group.
    """
    descriptor = int(sys.argv.pop(1))
    os.set_inheritable(descriptor, False)  # else a graph's processes would hold it
    threading.Thread(
        target=_end_with_viewer, args=(descriptor,), name="viewer", daemon=True
    ).start()
    runpy.run_module("hrm_agent", run_name="__main__", alter_sys=True)


def _end_with_viewer(descriptor: int) -> None:
    os.read(descriptor, 1)  # until the other end is closed
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
