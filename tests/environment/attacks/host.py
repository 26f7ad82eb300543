"""The machine as an attack might want it: secrets, open ports, processes to kill. And whether it is
as it was.

While a `Host` is entered, this process has a secret in its environment, a home folder with a key in
it, a working folder of its own, sockets that listen on loopback, and a child whose command line is
secret. `complaints` says what has changed since `settle`: processes, files, descriptors, a
connection that came in.
"""

from __future__ import annotations

import base64
import ctypes
import os
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = [
    "PATIENCE_SECONDS",
    "PROJECT",
    "Host",
    "descendants",
    "is_running",
    "open_descriptors",
    "orphans",
    "resident_bytes",
    "state_of",
]

PROJECT = Path(__file__).resolve().parents[3]
SHARED_FOLDERS = (
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/",
    "/usr",
    "/usr/lib",
    "/usr/bin",
    "/etc",
    "/home",
    "/root",
    "/var",
)
SHARED_MEMORY_KEY = 0x48524D
PATIENCE_SECONDS = 60.0
"""Longest wait for killed processes to be gone, and for a lost slot to be replaced, in seconds."""


def _stat_fields(pid: int) -> list[str]:
    """State, parent, ... of a process, from after its name; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 -- of every process, again and again
            return file.read().decode(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 -- likewise


def state_of(pid: int) -> str:
    """State letter of a process (empty if it is gone)."""
    return "".join(_stat_fields(pid)[:1])


def is_running(pid: int) -> bool:
    """True unless the process is gone or a zombie."""
    return _stat_fields(pid)[:1] not in ([], ["Z"], ["X"])


def descendants(pid: int) -> set[int]:
    """Processes below `pid`; one that has ended but was not waited for counts too."""
    children: dict[int, list[int]] = {}
    for each in _processes():
        if fields := _stat_fields(each):
            children.setdefault(int(fields[1]), []).append(each)
    found, open_ids = set[int](), [pid]
    while open_ids:
        below = children.get(open_ids.pop(), [])
        found.update(below)
        open_ids.extend(below)
    return found


def orphans() -> set[int]:
    """Processes of a process-id namespace that is not ours, whose parent is the first process of
    the machine.
    """
    ours = Path("/proc/self/ns/pid").readlink()
    found = set[int]()
    for each in _processes():
        with suppress(OSError):
            if _stat_fields(each)[1:2] == ["1"] and Path(f"/proc/{each}/ns/pid").readlink() != ours:
                found.add(each)
    return found


def open_descriptors(pid: int | str = "self") -> int:
    """Number of open file descriptors of a process (0 if it cannot be read)."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process in bytes (0 if it cannot be read). Shared memory counts in full."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


class Host:
    """Lays out the machine on entering, and puts it back on leaving."""

    def __init__(self) -> None:
        self.secret = f"CANARY-{secrets.token_hex(8)}"
        self.mark = f"hrm-mark-{secrets.token_hex(6)}"
        self._stack = ExitStack()
        self._listeners: dict[str, socket.socket] = {}
        self._files: dict[str, tuple[object, ...]] = {}
        self._processes = 0
        self._descriptors = 0
        self._orphans = set[int]()

    def __enter__(self) -> Self:
        # Not below a test's tmp_path: this must be where snippets could guess it, in the host's own
        # /tmp.
        self.scratch = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hrm-attacks-"))
        )
        self.scratch.chmod(0o777)
        for folder in ("home/.ssh", "work"):
            (self.scratch / folder).mkdir(parents=True, mode=0o777)
        for path in ("secret.txt", "home/.ssh/id_secret", "work/secret.txt"):
            (self.scratch / path).write_text(self.secret)
            (self.scratch / path).chmod(0o666)
        self._unprotected = _compiled(Path(__file__).with_name("unprotected.c"))
        self._variables()
        self._listen()
        sleep = f"import time; time.sleep(3600)  # {self.secret}"
        self.victim = subprocess.Popen([sys.executable, "-S", "-c", sleep], cwd="/")
        self._stack.callback(self.victim.wait)
        self._stack.callback(self.victim.kill)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _variables(self) -> None:
        before, folder = (
            {name: os.environ.get(name) for name in ("HOME", "HRM_ATTACK_SECRET")},
            Path.cwd(),
        )

        def restore() -> None:
            os.chdir(folder)
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({} if value is None else {name: value})

        self._stack.callback(restore)
        os.environ.update(HOME=str(self.scratch / "home"), HRM_ATTACK_SECRET=self.secret)
        os.chdir(self.scratch / "work")

    def _listen(self) -> None:
        """Open listeners on the loopback and on sockets of this machine that nothing else uses."""
        kinds = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "path": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.scratch / "socket")),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.mark}-host"),
        }
        for name, (family, kind, address) in kinds.items():
            listener = self._stack.enter_context(socket.socket(family, kind))
            listener.bind(address)
            listener.setblocking(False)
            if kind is socket.SOCK_STREAM:
                listener.listen()
            self._listeners[name] = listener
        (self.scratch / "socket").chmod(0o777)

    def words(self) -> dict[str, str]:
        """Replacements of `@WORD@` in an attack."""
        return {
            "SCRATCH": str(self.scratch),
            "HOME": str(self.scratch / "home"),
            "PROJECT": str(PROJECT),
            "SECRET_FILE": str(self.scratch / "secret.txt"),
            "TCP_PORT": str(self._listeners["tcp"].getsockname()[1]),
            "UDP_PORT": str(self._listeners["udp"].getsockname()[1]),
            "UNIX_PATH": str(self.scratch / "socket"),
            "ABSTRACT": f"{self.mark}-host",
            "HOST_PID": str(os.getpid()),
            "VICTIM_PID": str(self.victim.pid),
            "MARK": self.mark,
            "UNPROTECTED": base64.b64encode(self._unprotected).decode(),
            "NUL": "\0",
            "SURROGATE": "\ud800",
        }

    def settle(self) -> None:
        """Take the current state as the one expected after each attack. Call it once the
        environment is warm.
        """
        self._files = dict(self._snapshot())
        self._processes = len(descendants(os.getpid()))
        self._descriptors = open_descriptors()
        self._orphans = orphans()

    def complaints(self) -> list[str]:
        """Differences from the expected state. Waits a little for processes and files that are
        going away.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while (found := self._complaints()) and time.monotonic() < end:
            time.sleep(0.1)  # a look reads every process of the machine
        return found

    def _complaints(self) -> list[str]:
        found = list[str]()
        processes, descriptors = descendants(os.getpid()), open_descriptors()
        if len(processes) > self._processes:
            found.append(f"{len(processes)} processes, not {self._processes}: {_names(processes)}")
        if left := orphans() - self._orphans:
            found.append(f"processes without a parent: {_names(left)}")
        if descriptors > self._descriptors:
            found.append(f"{descriptors} open descriptors, not {self._descriptors}")
        if not is_running(self.victim.pid) or _stat_fields(self.victim.pid)[0] == "T":
            found.append("a process of the host was killed or stopped")
        found += [
            f"a connection to {name}"
            for name, listener in self._listeners.items()
            if _heard(listener)
        ]
        found += [f"changed: {path}" for path in self._changed()]
        if _shared_memory_exists():
            found.append("shared memory was left behind")
        return found

    def _changed(self) -> set[str]:
        files = dict(self._snapshot())
        changed = {
            path
            for path in files.keys() | self._files.keys()
            if files.get(path) != self._files.get(path)
        }
        for folder in map(Path, SHARED_FOLDERS):
            with suppress(OSError):
                changed.update(map(str, folder.glob(f"{self.mark}*")))
        return changed

    def _snapshot(self) -> Iterator[tuple[str, tuple[object, ...]]]:
        for folder, _, names in os.walk(self.scratch):
            for path in (Path(folder), *(Path(folder) / name for name in names)):
                what = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(what.st_mode) else b""
                yield (
                    str(path),
                    (
                        what.st_mode,
                        what.st_uid,
                        what.st_nlink,
                        what.st_mtime_ns,
                        content,
                    ),
                )


def _compiled(source: Path) -> bytes:
    """A program for snippets to run; empty where there is no compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        command = ["cc", "-O2", "-o", str(program), str(source), "-lpthread"]
        with suppress(OSError):
            subprocess.run(command, check=False, capture_output=True)
        return program.read_bytes() if program.exists() else b""


def _names(pids: set[int]) -> str:
    lines = list[str]()
    for pid in sorted(pids):
        with suppress(OSError, IndexError):  # gone in the meantime
            lines.append(
                f"{pid} {Path(f'/proc/{pid}/comm').read_text().strip()} {_stat_fields(pid)[0]}"
            )
    return ", ".join(lines)


def _heard(listener: socket.socket) -> bool:
    """True if something came in; it is taken out, so that the next attack is not blamed."""
    try:
        if listener.type is socket.SOCK_DGRAM:
            listener.recv(1)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _shared_memory_exists() -> bool:
    return ctypes.CDLL(None).shmget(SHARED_MEMORY_KEY, ctypes.c_size_t(0), 0) >= 0
