"""Starts the zygote and speaks its protocol: the host's end of the control socket."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from hrm_agent.environment.sandbox.protocol import HANDSHAKE_BYTES, REPLY, REQUEST, Reply, Request
from hrm_agent.errors import HrmError

__all__ = ["NAMESPACES", "WEAK", "ZygoteProcess", "start_zygote"]

NAMESPACES = "namespaces+rlimits"
WEAK = "rlimits"

_BOOT = "import sys; sys.path.insert(0, {!r}); from sandbox.zygote import main; del sys.path[0]; main()"
_HINT = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns;"
    " in a container: --security-opt seccomp=unconfined), or accept with --weak-isolation (in Python"
    " allow_weak_isolation=True) that model-written code can reach the network and read your files."
)


class ZygoteProcess:
    """A running fork server. `send` and `receive` may be used from two threads; `send` by one at a time."""

    def __init__(self, isolation: str) -> None:
        self.isolation = isolation
        self._control, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        boot = _BOOT.format(str(Path(__file__).parent))
        mode = "namespaces" if isolation == NAMESPACES else "weak"
        # A fixed hash seed, because the order of a set would otherwise change a snippet's output from run to run.
        self._process = subprocess.Popen(
            [_interpreter(), "-s", "-S", "-P", "-B", "-X", "utf8", "-c", boot, str(theirs.fileno()), mode],
            env={"PYTHONHASHSEED": "0"},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            cwd="/",
            start_new_session=True,
        )
        theirs.close()

    @property
    def pid(self) -> int:
        """Of the process that the zygote was started as; it lives as long as the zygote."""
        return self._process.pid

    def handshake(self) -> str:
        """Empty, or what stands in the way of this isolation."""
        message = self._receive(HANDSHAKE_BYTES)
        if message is None:
            return f"the sandbox process did not start ({self.last_words() or 'no message'})"
        return message.rstrip(b"\0").decode()

    def last_words(self) -> str:
        """The last line that the zygote wrote to stderr, for its own errors only: children never hold that file."""
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def send(self, request: Request, descriptors: list[int]) -> None:
        """Raises OSError if the zygote is gone."""
        socket.send_fds(self._control, [REQUEST.pack(*request)], descriptors)

    def receive(self) -> Reply | None:
        """The next reply; None when the zygote is gone."""
        message = self._receive(REPLY.size)
        return None if message is None else Reply(*REPLY.unpack(message))

    def hang_up(self) -> None:
        """End the zygote: it exits when its socket closes, and takes its children with it."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        """Until the zygote is gone."""
        self.hang_up()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()

    def _receive(self, size: int) -> bytes | None:
        try:
            message = self._control.recv(size, socket.MSG_WAITALL)
        except OSError:
            return None
        return message if len(message) == size else None


def start_zygote(*, allow_weak_isolation: bool) -> ZygoteProcess:
    """The strongest isolation that can be had. Raises HrmError where that is not enough."""
    if sys.platform != "linux":
        raise HrmError(f"LocalEnvironment isolates by Linux namespaces; this is {sys.platform}.", "Run it on Linux.")
    missing = ""
    for isolation in (NAMESPACES, WEAK) if allow_weak_isolation else (NAMESPACES,):
        zygote = ZygoteProcess(isolation)
        missing = zygote.handshake()
        if not missing:
            return zygote
        zygote.wait()
    raise HrmError(f"Model-written code cannot be isolated on this machine: {missing}.", _HINT)


def _interpreter() -> str:
    """The interpreter itself rather than a virtual environment's link to it."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
