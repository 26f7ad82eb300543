"""Control groups (cgroup v2): the kernel limits and counts the resources of a call's whole process
tree.

    DELEGATED/host                        processes that were in DELEGATED itself, if that had to be divided
    DELEGATED/hrm-PID-START-.../slot-N/   one per slot, in a folder per environment
                                  slot    the slot
                                  call    the processes of its call, one call after another

A cgroup that delegates controllers may not hold processes itself, so all processes are in leaves. A
child is cloned into `call`, since moving a live process would wait for every processor. The slot
may clone into `call` because it owns `slot-N`, which is above both leaves. It opens the cgroup's
files before it is confined, and its children close them before any code of a snippet runs.

The process tree of a call is killed by the death of its first process, the init of its pid
namespace. `cgroup.kill` is only for cgroups that are not used again: after it was used on a cgroup,
Linux 6.12 kills every process that is cloned into that cgroup.

The host calls `claim` and `discard`, a slot's process `enter`, the zygote `leave`.
"""

from __future__ import annotations

# pathlib would cost memory in every child, and the package is loaded under another name (see __init__).
# ruff: noqa: PTH100, PTH103, PTH106, PTH110, PTH119, PTH120, PTH208, TID252
import fcntl
import os
import select
import time
from contextlib import suppress

from .memory import Tree, figure

__all__ = [
    "NO_GROUP",
    "CallTree",
    "SlotGroup",
    "claim",
    "delegated",
    "discard",
    "enter",
    "figure",
    "leave",
]

NO_GROUP = (-1, -1, -1, -1, 0, b"")
"""Argument of the compiled body if calls have no cgroup."""
CONTROLLERS = ("memory", "pids")
_PREFIX, _HOST = "hrm-", "host"
_FIRST_OWN = 16
"""Lowest descriptor for the files of a slot's cgroup. Lower numbers have fixed uses."""
_FREEZE_SECONDS = 1.0
"""Timeout in seconds for freezing a tree."""
_RETRIES = 100
_START_TIME = 19
"""Index of the start time among the fields that follow the process's name in its stat file."""


# called by the host


def claim(folder: str | None) -> str:
    """Make a cgroup for one environment below `folder`. Without `folder` it is made below the
    cgroup of this process, whose processes are moved into a leaf.

    Also removes the cgroups that dead hosts have left in the same place. Raises OSError with
    instructions.
    """
    top = delegated(folder)
    _move_to_leaf(top)
    _hand_on(top)
    _remove_stale(top)
    import tempfile  # only in the host: its imports would cost memory in snippets

    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_start_time('self')}-", dir=top)
    _hand_on(made)
    return made


def delegated(folder: str | None) -> str:
    """Cgroup below which `claim` would make one. Changes nothing. Raises OSError."""
    own = _own_folder()
    top = (
        os.path.abspath(folder)
        if folder
        else os.path.dirname(own)
        if os.path.basename(own) == _HOST
        else own
    )
    if not os.path.exists(f"{top}/cgroup.controllers"):
        raise OSError(f"{top} is not a cgroup of version 2")
    if lacking := [
        name for name in CONTROLLERS if name not in _text(f"{top}/cgroup.controllers").split()
    ]:
        wanted = " ".join(f"+{name}" for name in CONTROLLERS)
        raise OSError(
            f"{top} has no controller {' and '.join(lacking)}: write {wanted!r} to"
            f" {os.path.dirname(top)}/cgroup.subtree_control, as root"
        )
    for path in (top, f"{top}/cgroup.procs", f"{top}/cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise OSError(f"{path} may not be written by this user: the cgroup was not delegated")
    if set(_members(top)) - {str(os.getpid())} and not _is_marked(top):
        command = "`systemd-run --user --scope -p Delegate=yes COMMAND`"
        raise OSError(
            f"other processes are in {top}, which was not delegated: start this process with"
            f" {command}"
        )
    return top


def discard(folder: str) -> None:
    """Remove the cgroup of `claim` with all its processes and children."""
    with suppress(OSError):
        _put(f"{folder}/cgroup.kill", "1")
    for _ in range(_RETRIES):
        _remove(folder)
        if not os.path.exists(folder):
            return
        time.sleep(0.01)


def _own_folder() -> str:
    """Cgroup of this process. Raises OSError if no cgroups of version 2 are mounted."""
    mounts = [line.split() for line in _text("/proc/self/mounts").splitlines()]
    mount = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")
    path = next(
        (line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), ""
    )
    if not mount or not path:
        raise OSError("no cgroups of version 2 are mounted")
    return (mount + path).rstrip("/")


def _move_to_leaf(top: str) -> None:
    """Move the processes of `top` into a leaf: a cgroup with children may not hold processes
    itself.
    """
    for _ in range(_RETRIES):
        if not (members := _members(top)):
            return
        os.makedirs(f"{top}/{_HOST}", exist_ok=True)
        for pid in members:
            with suppress(ProcessLookupError):
                _put(f"{top}/{_HOST}/cgroup.procs", pid)


def _members(folder: str) -> list[str]:
    return _text(f"{folder}/cgroup.procs").split()


def _is_marked(folder: str) -> bool:
    """True if systemd has marked the cgroup as delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _remove_stale(top: str) -> None:
    """Remove the cgroups of dead hosts, except those that still have processes."""
    for name in os.listdir(top):
        pid, _, rest = name.removeprefix(_PREFIX).partition("-")
        if name.startswith(_PREFIX) and rest and _start_time(pid) != rest.partition("-")[0]:
            _remove(f"{top}/{name}")


def _remove(folder: str) -> None:
    with suppress(OSError):
        for path, _, _ in os.walk(folder, topdown=False):
            os.rmdir(path)


def _start_time(pid: str) -> str:
    """Start time of a process, which distinguishes it from an earlier one with the same pid (empty
    if it does not exist).
    """
    with suppress(OSError):
        return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[_START_TIME]
    return ""


# called by the slot


def enter(top: int, number: int, owner: int | None, processes: int) -> SlotGroup:
    """Make the cgroups of slot `number` and move this process into its own. `top`: descriptor of
    the folder that `claim` made.

    `owner`: user that the slot is going to be (None if its user does not change). `processes`: most
    processes of a call, including threads. Raises OSError.
    """
    slot = f"slot-{number}"
    for folder in (slot, f"{slot}/slot", f"{slot}/call"):
        os.mkdir(folder, 0o755, dir_fd=top)
    _hand_on(slot, top)
    for name, text in (
        ("memory.swap.max", "0"),
        ("memory.oom.group", "1"),
        ("pids.max", str(processes)),
    ):
        with suppress(FileNotFoundError):  # a kernel without swap accounting has no such file
            _put(f"{slot}/call/{name}", text, top)
    for folder in (slot, f"{slot}/call"):
        if owner is not None:
            os.chown(f"{folder}/cgroup.procs", owner, owner, dir_fd=top)
    _put(f"{slot}/slot/cgroup.procs", "0", top)
    return SlotGroup(top, f"{slot}/call")


def leave(top: int, number: int) -> None:
    """Remove the cgroups of a slot whose processes are gone."""
    for folder in (f"slot-{number}/call", f"slot-{number}/slot", f"slot-{number}"):
        with suppress(OSError):
            os.rmdir(folder, dir_fd=top)


class SlotGroup:
    """Cgroup of a slot's calls, and its open files."""

    def __init__(self, top: int, folder: str) -> None:
        self.folder = _kept(folder, os.O_RDONLY, top)
        """Descriptor of the cgroup, which children are cloned into. The other fields are
        descriptors of its files.
        """
        self.cpu = _kept(f"{folder}/cpu.stat", os.O_RDONLY, top)
        self.state = _kept(f"{folder}/cgroup.events", os.O_RDONLY, top)
        self.freezer = _kept(f"{folder}/cgroup.freeze", os.O_WRONLY, top)
        self._current = _kept(f"{folder}/memory.current", os.O_RDONLY, top)
        self._maximum = _kept(f"{folder}/memory.max", os.O_WRONLY, top)
        self.events = _kept(f"{folder}/memory.events", os.O_RDONLY, top)
        self.peak = -1
        """Descriptor of memory.peak if it can be reset for each call (Linux 6.12), else -1."""
        self.limit = -1
        """Current value of memory.max, in bytes."""
        with suppress(OSError):
            peak = _kept(f"{folder}/memory.peak", os.O_RDWR, top)
            try:
                os.write(peak, b"0")
                self.peak = peak
            except OSError:  # an older kernel cannot reset it
                os.close(peak)

    @property
    def given(self) -> tuple[int, int, int, int, int]:
        """Argument of the compiled body, see `_serve.c`."""
        return self.folder, self.cpu, self.peak, self.events, self.limit

    def begin(self, memory_bytes: int) -> None:
        """Set the memory limit and reset the peak before a child is cloned into the cgroup. Raises
        OSError.
        """
        if memory_bytes != self.limit:
            os.pwrite(self._maximum, str(memory_bytes).encode(), 0)
            self.limit = memory_bytes
        if self.peak >= 0:
            os.pwrite(self.peak, b"0", 0)

    def held(self) -> int:
        """Current memory use, in bytes."""
        return figure(os.pread(self._current, 32, 0))

    def most(self) -> int:
        """Peak memory of the current call in bytes, or current memory if the kernel has no peak."""
        return figure(os.pread(self.peak, 32, 0)) if self.peak >= 0 else self.held()

    def ran_out(self) -> bool:
        """True if the kernel has killed a process of the cgroup for lack of memory. It was in the
        current call: after a call with such a kill, the slot is replaced.
        """
        return figure(os.pread(self.events, 4096, 0), b"oom_kill ") > 0

    def seconds(self) -> float:
        """CPU time of all processes that ever ran in the cgroup, in seconds."""
        return figure(os.pread(self.cpu, 4096, 0), b"usage_usec ") / 1e6

    def is_frozen(self) -> bool:
        return figure(os.pread(self.state, 4096, 0), b"frozen ") == 1


class CallTree(Tree):
    """Process tree of a call or session, measured by its cgroup: exact and without sampling."""

    __slots__ = ("_before", "_group")

    def __init__(self, group: SlotGroup, proc: int | None, pid: int, before: float) -> None:
        """Make a tree. `before`: `seconds` of the group when the first process was made."""
        super().__init__(proc, pid)
        self._group = group
        self._before = before
        self.several = True  # a tree of several processes has its CPU time checked

    def look(self, until: float) -> tuple[int, float]:
        self.peak = max(self.peak, self._group.most())
        return self._group.held(), self._group.seconds() - self._before

    def stop(self) -> None:
        poll = select.poll()
        poll.register(self._group.state, select.POLLPRI)
        os.pwrite(self._group.freezer, b"1", 0)
        self.stopped = True
        end = time.monotonic() + _FREEZE_SECONDS
        while not self._group.is_frozen() and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)

    def is_still(self) -> bool:
        return self._group.is_frozen()

    def go_on(self) -> None:
        os.pwrite(self._group.freezer, b"0", 0)
        self.stopped = False

    def close(self) -> None:
        super().close()
        if self.stopped:
            self.go_on()


def _hand_on(folder: str, top: int | None = None) -> None:
    _put(f"{folder}/cgroup.subtree_control", " ".join(f"+{name}" for name in CONTROLLERS), top)


def _kept(path: str, flags: int, top: int) -> int:
    descriptor = os.open(path, flags, dir_fd=top)
    kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD, _FIRST_OWN)
    os.close(descriptor)
    return kept


def _put(path: str, text: str, top: int | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY, dir_fd=top)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _text(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = list[bytes]()
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts).decode(errors="replace")
    finally:
        os.close(descriptor)
