"""Isolation layers of this machine and their costs. Each layer is tried repeatedly in a child of
this process.

Prints one JSON object, layer -> `LayerProbe`. Runs like the other sandbox processes, in a bare
interpreter without threads, so that the fork of a small process is measured. Leaves nothing behind.
`sys.argv`: a delegated cgroup. Without it, the cgroup of this process is tried.
"""

from __future__ import annotations

# The package is loaded under another name (see __init__), and pathlib would make the measured process larger.
# ruff: noqa: PTH120, PTH123, TID252
import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypedDict

from . import cgroup, kernel, landlock, seccomp

__all__ = ["main"]

REPEATS = 25
_CLONE_NEWPID = 0x20000000
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | _CLONE_NEWPID | 0x40000000
"""Flags for mount, uts, ipc, user, pid and network namespaces."""
_SIGCHLD = 17
_MS_REC_PRIVATE, _MS_NOSUID_NODEV = 0x44000, 0x6

_libc = ctypes.CDLL(None, use_errno=True)
_python_libc = ctypes.PyDLL(None, use_errno=True)
"""C library whose calls keep the interpreter's lock. A child made without the lock would lack it.
"""


class LayerProbe(TypedDict):
    """Result for one layer."""

    missing: str
    """Reason why the layer is missing (empty if it is available)."""
    slot_us: float | None
    """Microseconds per slot (None if the layer costs nothing per slot)."""
    call_us: float | None
    """Microseconds per call or per sample (None if the layer costs nothing per call)."""
    detail: str
    """Details of the layer, such as a version (may be empty)."""


def main() -> None:
    """Print the result."""
    print(json.dumps(found(*sys.argv[1:])))  # noqa: T201 -- this is the whole of its protocol


def found(group: str = "") -> dict[str, LayerProbe]:
    """Probe all layers: name (of `hrm_agent.environment.isolation.Layer`) -> result."""
    with suppress(OSError):
        seccomp.filter_program(os.uname().machine, listener=True)  # made once for all slots
    layers = {
        "namespaces": _namespaces(),
        "seccomp": _of_slot(seccomp.install),
        "landlock": _of_slot(_restrict),
    }
    layers["landlock"]["detail"] = f"ABI {landlock.abi()}"
    return {
        **layers,
        "rlimits": _rlimits(),
        "memory sampling": _sampling(),
        "cgroup": _cgroup(group),
    }


def _of_slot(step: Callable[[], object]) -> LayerProbe:
    missing, microseconds = _measure(step)
    return LayerProbe(missing=missing, slot_us=microseconds, call_us=None, detail="")


def _namespaces() -> LayerProbe:
    """Probe the namespaces of a slot and, within them, the new process ids of a call."""
    of_slot = _of_slot(_enter)
    if not of_slot["missing"]:
        of_slot["call_us"] = _within(_enter, lambda: _measure(lambda: None, fork=_fork_as_first)[1])
    return of_slot


def _rlimits() -> LayerProbe:
    missing, microseconds = _measure(_limit)
    return LayerProbe(missing=missing, slot_us=None, call_us=microseconds, detail="")


def _sampling() -> LayerProbe:
    try:
        started = time.perf_counter()
        for _ in range(REPEATS):
            _resident_bytes(os.getppid())
        return LayerProbe(
            missing="",
            slot_us=None,
            call_us=_microseconds(started) / REPEATS,
            detail="a look, every 50 ms",
        )
    except OSError as error:
        return LayerProbe(
            missing=f"the memory of a process cannot be read: {error}",
            slot_us=None,
            call_us=None,
            detail="",
        )


def _cgroup(folder: str) -> LayerProbe:
    """Make a cgroup, and use it like a call's."""
    try:
        made = cgroup.claim(folder or None)
    except OSError as error:
        return LayerProbe(missing=str(error), slot_us=None, call_us=None, detail="")
    try:
        top = os.open(made, os.O_RDONLY)
        entered = list[cgroup.SlotGroup]()

        def enter() -> None:
            entered.append(cgroup.enter(top, os.getpid(), None, kernel.MAX_PROCESSES))

        missing = _child(lambda: (enter(), _try_group(entered[0])))[0]
        slot_us = None if missing else _measure(enter)[1]
        fork = lambda: kernel.clone(isolated=False, into=entered[0].folder)[0]  # noqa: E731
        call_us = None if missing else _within(enter, lambda: _measure(lambda: None, fork=fork)[1])
    finally:
        cgroup.discard(made)
    if os.access(made, os.F_OK):
        missing = "its processes could not be killed"
    return LayerProbe(
        missing=missing, slot_us=slot_us, call_us=call_us, detail=os.path.dirname(made)
    )


def _try_group(group: cgroup.SlotGroup) -> None:
    """Limit a process, freeze it, and continue it. It is killed with the cgroup."""
    group.begin(1 << 26)
    pid, pidfd = kernel.clone(isolated=False, into=group.folder)
    if pid == 0:
        os.closerange(3, 256)  # readers of the parent's pipe wait until all its copies are closed
        time.sleep(60)
        os._exit(0)
    os.close(pidfd)
    tree = cgroup.CallTree(group, None, pid, group.seconds())
    tree.stop()
    frozen = tree.is_still()
    tree.go_on()
    if not frozen:
        raise OSError("its processes could not be frozen")


def _enter() -> None:
    """Enter the namespaces of a slot, and mount a file system in them: some systems allow
    namespaces, but give no rights in them.
    """
    uid = os.getuid()
    _check(_libc.unshare(_NAMESPACES), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    _check(_libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None), "mount")
    _check(
        _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", ctypes.c_ulong(_MS_NOSUID_NODEV), None),
        "mount of tmpfs",
    )


def _restrict() -> None:
    landlock.restrict([sys.base_prefix, "/usr", "/lib", "/lib64"], ["/dev/null"])


def _limit() -> None:
    for kind in (
        resource.RLIMIT_AS,
        resource.RLIMIT_CPU,
        resource.RLIMIT_FSIZE,
        resource.RLIMIT_NOFILE,
    ):
        resource.setrlimit(kind, resource.getrlimit(kind))
    resource.setrlimit(resource.RLIMIT_NPROC, resource.getrlimit(resource.RLIMIT_NPROC))


def _resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# measurement


def _measure(
    step: Callable[[], object], fork: Callable[[], int] = os.fork
) -> tuple[str, float | None]:
    """Pair (reason why `step` fails, its cost in microseconds). The cost is the difference between
    a child that does `step` and a child that does nothing. Both are run several times in turn, and
    the fastest run of each counts, since other load only adds time.
    """
    bare = list[float]()
    full = list[float]()
    for _ in range(REPEATS):
        bare.append(_child(lambda: None)[1])
        missing, microseconds = _child(step, fork)
        if missing:
            return missing, None
        full.append(microseconds)
    return "", max(0.0, min(full) - min(bare))


def _child(step: Callable[[], object], fork: Callable[[], int] = os.fork) -> tuple[str, float]:
    """Pair (error of a child that does `step`, microseconds from its fork to its end)."""
    ours, theirs = os.pipe()
    started = time.perf_counter()
    pid = fork()
    if pid == 0:
        os._exit(_take(step, theirs))
    os.waitpid(pid, 0)
    microseconds = _microseconds(started)
    os.close(theirs)
    with open(ours) as file:
        return file.read(), microseconds


def _take(step: Callable[[], object], theirs: int) -> int:
    try:
        step()
    # AttributeError means that the C library lacks the function
    except (OSError, ValueError, AttributeError) as error:
        text = error.strerror if isinstance(error, OSError) else str(error)
        os.write(theirs, f"{text or error}".encode())
    return 0


def _within(enter: Callable[[], None], measure: Callable[[], float | None]) -> float | None:
    """Result of `measure` inside the namespaces that `enter` makes. It runs in a child, since
    namespaces cannot be left.
    """
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        enter()
        # the first process of a pid namespace has to live as long as the namespace is used
        if os.fork() == 0:
            os.write(theirs, json.dumps(measure()).encode())
            os._exit(0)
        os.wait()
        os._exit(0)
    os.close(theirs)
    os.waitpid(pid, 0)
    with open(ours) as file:
        return json.loads(file.read() or "null")


def _fork_as_first() -> int:
    """Fork a child that is the first process of a new pid namespace. Python's handling of forks is
    bypassed, so the child must not depend on it.
    """
    number = ctypes.c_long(seccomp.number_of("clone"))
    pid = int(
        _python_libc.syscall(
            number, ctypes.c_long(_CLONE_NEWPID | _SIGCHLD), None, None, None, None
        )
    )
    _check(pid, "clone")
    return pid


def _microseconds(started: float) -> float:
    return (time.perf_counter() - started) * 1e6


def _check(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
