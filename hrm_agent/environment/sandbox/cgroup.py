"""Control groups (cgroup v2): the kernel bounds and counts what a call's whole tree of processes
takes.

    DELEGATED/host                        processes that were in DELEGATED itself, where that had to be divided
    DELEGATED/hrm-PID-START-.../slot-N/   one for each slot, in one for each environment
                                  slot    the slot
                                  call    the processes of its call, one call after another

A cgroup that hands controllers on may hold no process itself: hence the leaves. A child is cloned
into `call`, since moving a process that lives waits for every processor; the slot may do that
because both are below `slot-N`, which is its own. It opens the files before it is fenced off, and
its children close them before anything of a snippet runs.

A call's tree is ended by the death of its first process, which is that of its process-id namespace.
`cgroup.kill` is for what is not used again: Linux 6.12 kills every process cloned into a cgroup on
which it was ever used.

The host calls `claim` and `discard`, a slot's process `enter`, the zygote `leave`.
"""

from __future__ import annotations

# pathlib would cost memory that every child pays for, and the package is loaded under another name (see __init__).
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
"""Lowest descriptor for the files of a slot's cgroup; lower numbers are fixed."""
_FREEZE_SECONDS = 1.0
"""Timeout for freezing a tree."""
_RETRIES = 100
_START_TIME = 19
"""Of a process: a field of its stat, counted from after its name."""


# the host's side


def claim(folder: str | None) -> str:
    """A new cgroup for one environment: below `folder`, or below the cgroup of this process, which
    is then divided.

    What hosts that are dead have left there is removed. Raises OSError, which says what to do.
    """
    top = delegated(folder)
    _move_to_leaf(top)
    _hand_on(top)
    _remove_stale(top)
    import tempfile  # only in the host: snippets would pay for what it imports

    made = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_start_time('self')}-", dir=top)
    _hand_on(made)
    return made


def delegated(folder: str | None) -> str:
    """The cgroup below which `claim` would make one. Nothing is changed. Raises OSError."""
    own = _own_folder()
    top = (
        os.path.abspath(folder)
        if folder
        else os.path.dirname(own)
        if os.path.basename(own) == _HOST
        else own
    )
    if not os.path.exists(f"{top}/cgroup.controllers"):
        raise OSError(f"{top} is no cgroup of version 2")
    if lacking := [
        name for name in CONTROLLERS if name not in _text(f"{top}/cgroup.controllers").split()
    ]:
        wanted = " ".join(f"+{name}" for name in CONTROLLERS)
        raise OSError(
            f"{top} has no controller {' and '.join(lacking)}: write {wanted!r} to {_above(top)}"
        )
    for path in (top, f"{top}/cgroup.procs", f"{top}/cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise OSError(f"{path} may not be written by this user: nobody has delegated it")
    if set(_members(top)) - {str(os.getpid())} and not _is_marked(top):
        command = "`systemd-run --user --scope -p Delegate=yes COMMAND`"
        raise OSError(
            f"other processes are in {top}, and it was delegated to nobody: start this one with"
            f" {command}"
        )
    return top


def discard(folder: str) -> None:
    """Remove what `claim` made, and whatever is left in it."""
    with suppress(OSError):
        _put(f"{folder}/cgroup.kill", "1")
    for _ in range(_RETRIES):
        _remove(folder)
        if not os.path.exists(folder):
            return
        time.sleep(0.01)


def _own_folder() -> str:
    """The cgroup of this process; empty if there are none of version 2."""
    mounts = [line.split() for line in _text("/proc/self/mounts").splitlines()]
    mount = next((fields[1] for fields in mounts if fields[2] == "cgroup2"), "")
    path = next(
        (line[3:] for line in _text("/proc/self/cgroup").splitlines() if line.startswith("0::")), ""
    )
    if not mount or not path:
        raise OSError("no cgroups of version 2 are mounted")
    return (mount + path).rstrip("/")


def _above(folder: str) -> str:
    return f"{os.path.dirname(folder)}/cgroup.subtree_control, as root"


def _move_to_leaf(top: str) -> None:
    """Move the processes of `top` into a leaf:
    a cgroup with children may hold no processes itself.
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
    """Whether systemd has marked the cgroup as delegated."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _remove_stale(top: str) -> None:
    """The cgroups of hosts that are dead. Where processes are still in one, it stays."""
    for name in os.listdir(top):
        pid, _, rest = name.removeprefix(_PREFIX).partition("-")
        if name.startswith(_PREFIX) and rest and _start_time(pid) != rest.partition("-")[0]:
            _remove(f"{top}/{name}")


def _remove(folder: str) -> None:
    with suppress(OSError):
        for path, _, _ in os.walk(folder, topdown=False):
            os.rmdir(path)


def _start_time(pid: str) -> str:
    """Start time of a process, which tells it from an earlier one with the same pid; empty if it
    does not exist.
    """
    with suppress(OSError):
        return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[_START_TIME]
    return ""


# the slot's side


def enter(top: int, number: int, owner: int | None, processes: int) -> SlotGroup:
    """Make the cgroups of slot `number` and put this process into its own. `top`: a descriptor of
    what `claim` made.

    `owner`: the user that the slot is going to be; None if it stays who it is. `processes`: most of
    a call, threads included. Raises OSError.
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
        with suppress(FileNotFoundError):  # a kernel that counts no swap has no limit of it
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
    """The cgroup of a slot's calls, and its files, open."""

    def __init__(self, top: int, folder: str) -> None:
        self.folder = _kept(folder, os.O_RDONLY, top)
        """Descriptor of the cgroup, which children are cloned into; the other fields are
        descriptors of its files.
        """
        self.cpu = _kept(f"{folder}/cpu.stat", os.O_RDONLY, top)
        self.state = _kept(f"{folder}/cgroup.events", os.O_RDONLY, top)
        self.freezer = _kept(f"{folder}/cgroup.freeze", os.O_WRONLY, top)
        self._current = _kept(f"{folder}/memory.current", os.O_RDONLY, top)
        self._maximum = _kept(f"{folder}/memory.max", os.O_WRONLY, top)
        self.events = _kept(f"{folder}/memory.events", os.O_RDONLY, top)
        self.peak = -1
        """Descriptor of memory.peak, where it can be reset for each call (Linux 6.12); else -1."""
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
        """Before a child is cloned into it. Raises OSError."""
        if memory_bytes != self.limit:
            os.pwrite(self._maximum, str(memory_bytes).encode(), 0)
            self.limit = memory_bytes
        if self.peak >= 0:
            os.pwrite(self.peak, b"0", 0)

    def held(self) -> int:
        """Current memory use, in bytes."""
        return figure(os.pread(self._current, 32, 0))

    def most(self) -> int:
        """Peak memory of the present call in bytes; its current memory where the kernel has no
        peak.
        """
        return figure(os.pread(self.peak, 32, 0)) if self.peak >= 0 else self.held()

    def ran_out(self) -> bool:
        """True if the kernel has killed in it for want of memory. A slot's last call, since it is
        then replaced.
        """
        return figure(os.pread(self.events, 4096, 0), b"oom_kill ") > 0

    def seconds(self) -> float:
        """CPU time of all that ever ran in it."""
        return figure(os.pread(self.cpu, 4096, 0), b"usage_usec ") / 1e6

    def is_frozen(self) -> bool:
        return figure(os.pread(self.state, 4096, 0), b"frozen ") == 1


class CallTree(Tree):
    """The tree of processes of a call, or of a session, by its cgroup: nobody in it is missed, and
    nothing sampled.
    """

    __slots__ = ("_before", "_group")

    def __init__(self, group: SlotGroup, proc: int | None, pid: int, before: float) -> None:
        """`before`: `seconds` of the group when the first process was made."""
        super().__init__(proc, pid)
        self._group, self._before = group, before
        self.several = True  # so that its CPU time is asked for

    def look(self, until: float) -> tuple[int, float]:
        self.peak = max(self.peak, self._group.most())
        return self._group.held(), self._group.seconds() - self._before

    def stop(self) -> None:
        poll = select.poll()
        poll.register(self._group.state, select.POLLPRI)
        os.pwrite(self._group.freezer, b"1", 0)
        self.stopped, end = True, time.monotonic() + _FREEZE_SECONDS
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
