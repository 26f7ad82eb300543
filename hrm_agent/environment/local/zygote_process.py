"""Starts zygotes: the host's end of their control sockets."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from hrm_agent.environment.sandbox import cgroup
from hrm_agent.environment.sandbox.protocol import NEW_SLOT, READY_BYTES
from hrm_agent.errors import ConfigError, HrmError

__all__ = [
    "ZygoteHome",
    "ZygoteProcess",
    "bare_python",
    "installed",
    "is_hung_up",
    "locate",
    "missing_body",
    "wait_until",
]

_BOOT = (
    "import os, sys; folder = os.open({!r}, os.O_PATH); sys.path.insert(0,"
    " f'/proc/self/fd/{{folder}}'); from sandbox.{} import main; del sys.path[0]; os.close(folder);"
    " main()"
)
"""Code that starts a zygote. It imports by a path that reveals nothing about the host: snippets can
read the origin of the code around them.
"""
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment variables that keep libraries single-threaded. A process with threads cannot be
forked safely, and a snippet has at most one core.
"""

_GROUPS_HINT = (
    "L3 needs a cgroup that is delegated: start the program by `systemd-run --user --scope -p"
    " Delegate=yes COMMAND`, or name a folder with --cgroup (in Python cgroup=);"
    " docs/environment.md has the commands. Or accept L2."
)
STUCK_SECONDS = 10.0
"""Seconds after which a zygote that accepts no request is considered stuck. The time is short
because callers hold locks while they wait.
"""
PURE = "HRM_AGENT_PURE_SANDBOX"
"""Environment variable that makes slots run without their compiled body."""


def missing_body() -> str:
    """Reason why slots run without their compiled body (empty if they can have it, which also
    requires namespaces).
    """
    if os.environ.get(PURE):
        return f"{PURE} is set"
    try:
        body = importlib.import_module("hrm_agent.environment.sandbox._serve")
    except ImportError:
        return (
            "none was built when hrm-agent was installed: the build needs a C compiler and the"
            " interpreter's headers"
        )
    source = Path(__file__).parents[1] / "sandbox" / "_serve.c"
    if source.exists() and hashlib.sha256(source.read_bytes()).hexdigest()[:16] != body.SOURCE:
        return "it was built from another version of _serve.c: install hrm-agent again"
    return ""


class ZygoteHome:
    """Shared parts of one environment's zygotes: the packages that snippets may import, a folder of
    this process, and the parent cgroup of the slots.
    """

    def __init__(
        self,
        packages: Sequence[str],
        *,
        isolated: bool,
        grouped: bool = False,
        top: Path | None = None,
    ) -> None:
        """Make the shared parts. `grouped`: calls have cgroups, below `top` or below the cgroup of
        this process. Raises HrmError if these cgroups cannot be made.
        """
        self.packages = locate(tuple(packages))
        """Packages as path -> name."""
        self.isolated = isolated
        """True if the zygotes are in namespaces."""
        self.groups = ""
        """Path of the parent cgroup of all slots' cgroups (empty without cgroups)."""
        if isolated and grouped:
            try:
                self.groups = cgroup.claim(str(top) if top is not None else None)
            except OSError as error:
                raise HrmError(
                    f"Model-written code cannot have a cgroup: {error}.", _GROUPS_HINT
                ) from None
        self._folder = None if isolated else tempfile.TemporaryDirectory(prefix="snippets-")
        if self._folder is not None:
            Path(self.folder).chmod(0o711)
            site = Path(self.site)
            site.mkdir()
            for path, name in self.packages.items():
                (site / name).symlink_to(path)

    @property
    def folder(self) -> str:
        """Parent of the slots' working folders (empty in namespaces: there each has a /tmp)."""
        return self._folder.name if self._folder is not None else ""

    @property
    def site(self) -> str:
        """Folder that packages are imported from, outside namespaces."""
        return f"{self.folder}/site"

    def remove(self) -> None:
        """Remove the folder and the cgroup, once no zygote is left."""
        if self.groups:
            cgroup.discard(self.groups)
        if self._folder is not None:
            with suppress(OSError):
                self._folder.cleanup()


def wait_until(line: socket.socket, ready: int, seconds: float | None = None) -> None:
    """Wait until a non-blocking socket can be read (POLLIN) or written (POLLOUT).

    Raises TimeoutError after `seconds` (None: waits without limit).
    """
    poll = select.poll()
    poll.register(line, ready)
    if not poll.poll(None if seconds is None else seconds * 1000):
        raise TimeoutError(f"the socket was not ready within {seconds:g} s")


def is_hung_up(line: socket.socket) -> bool:
    """True if the other end of a socket is closed."""
    poll = select.poll()
    poll.register(line, 0)
    return bool(poll.poll(0))


class ZygoteProcess:
    """Running fork server. Requests that are sent before it is ready wait in its socket.

    The socket is non-blocking, since slots are also requested from event loops, and some programs
    watch event loops for blocking calls.
    """

    def __init__(self, place: ZygoteHome, imports: Sequence[str]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        given = {"isolated": place.isolated, "packages": place.packages, "imports": [*imports]}
        given |= {
            "folder": place.folder,
            "site": place.site,
            "compiled": not missing_body(),
            "groups": place.groups,
        }
        # The hash seed is fixed: with a random one, the order of a set would change a snippet's
        # output from run to run.
        self._process = subprocess.Popen(
            bare_python("zygote", str(theirs.fileno()), json.dumps(given)),
            env={"PYTHONHASHSEED": "0", **_ONE_THREAD},
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
        """Process id that the zygote was started as. The process lives as long as the zygote."""
        return self._process.pid

    def handshake(self) -> str:
        """Wait until the zygote is ready. Returns the reason if it cannot start (empty if it is
        ready).
        """
        with suppress(OSError):
            wait_until(self.control, select.POLLIN)
            message = self.control.recv(READY_BYTES)
            if message:
                return message.decode("utf-8", "replace").strip()
        return f"the sandbox process did not start ({self.last_words() or 'no message'})"

    def has_ended(self) -> bool:
        """True if the zygote is gone. Its socket closes before its slots end."""
        return is_hung_up(self.control)

    def last_words(self) -> str:
        """Last line that the zygote wrote to stderr. Only the zygote writes to this file, which its
        children never hold.
        """
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")

    def new_slot(self, number: int, descriptors: Sequence[int]) -> None:
        """Request a slot with these descriptors. Raises OSError if the zygote is gone or stuck. A
        stuck zygote is also ended.
        """
        while True:
            with suppress(BlockingIOError):  # the socket is full of requests
                socket.send_fds(self.control, [NEW_SLOT.pack(number)], descriptors)
                return
            try:
                wait_until(self.control, select.POLLOUT, STUCK_SECONDS)
            except TimeoutError:
                self.control.shutdown(socket.SHUT_RDWR)
                raise

    def end(self) -> None:
        """Close the socket, which ends the zygote and its slots, and wait until it is gone."""
        with suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.control.close()
        self._errors.close()


def installed(packages: Sequence[str]) -> tuple[str, ...]:
    """Names among `packages` that are installed."""
    found: list[str] = []
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            metadata.distribution(name)
            found.append(name)
    return tuple(found)


@cache
def locate(packages: tuple[str, ...]) -> Mapping[str, str]:
    """Files and folders of installed distributions and of their requirements: path -> name. Raises
    ConfigError.

    The result is cached per process, since the list of a distribution's files has thousands of
    lines.
    """
    found: dict[str, str] = {}
    waiting = list(packages)
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            if name in packages:
                hint = (
                    f"`pip install {name}`, or leave it out of the packages that snippets may"
                    " import."
                )
                raise ConfigError(f"The package {name!r} is not installed.", hint) from None
            continue
        waiting += [
            re.split(r"[^\w.-]", needed, maxsplit=1)[0]
            for needed in distribution.requires or ()
            if "extra ==" not in needed
        ]
        # The thousands of files are in a handful of folders: only the folders are looked up on
        # disk.
        for top in dict.fromkeys(str(file).partition("/")[0] for file in distribution.files or ()):
            if top not in ("", "..", "__pycache__") and not top.endswith(".pth"):
                found[str(Path(str(distribution.locate_file(top))).resolve())] = top
    return {path: name for path, name in found.items() if os.path.exists(path)}  # noqa: PTH110


def bare_python(module: str, *words: str) -> list[str]:
    """Command that runs `main` of a module of `sandbox/` in an interpreter without site packages.

    The command names the interpreter itself, not a virtual environment's link to it.
    """
    interpreter = str(getattr(sys, "_base_executable", None) or sys.executable)
    boot = _BOOT.format(str(Path(__file__).parents[1]), module)
    return [interpreter, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", boot, *words]
