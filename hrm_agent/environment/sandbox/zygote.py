"""Fork server: a small warm interpreter that forks slots, each of which runs one call after
another.

It is started with an empty environment and one descriptor, the control socket, over which the host
sends the number and the descriptors of a requested slot. It is process 1 of its pid namespace, so
all processes below end with it. It exits when the control socket closes, because the host ended it
or died.
"""

from __future__ import annotations

# pathlib would cost the zygote memory, and the package is loaded under another name (see __init__).
# ruff: noqa: PTH103, PTH123, TID252
import fcntl
import gc
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any, NoReturn

from . import cgroup, kernel, landlock, seccomp, snippet
from .memory import Tree
from .protocol import NEW_SLOT, READY_BYTES
from .slot import GROUP, HOST, LISTENER, PROC, Slot

__all__ = ["main"]

WARM_SNIPPETS = (
    (
        "import fractions, itertools, collections\ndef f(n: int) -> int:\n    return"
        " sum(range(n))\nprint(f(3))\n[1, f(2)]"
    ),
    "1/0",
)
WARM_PACKAGES = {
    "numpy": (
        "import numpy as np, numpy.random, numpy.linalg\nnp.linalg.inv(np.eye(3)) @ np.arange(3.0)"
    ),
    "sympy": (
        "from sympy import *\nx, y = symbols('x y')\nprint(solve(x**2 - 2, x), factor(x**2 - 1),"
        " simplify(sin(x)**2 + cos(x)**2), diff(x**3, x), integrate(x**2, x), expand((x + y)**3),"
        " Rational(1, 3))"
    ),
}
FIRST_OWN = 32
"""First number of the zygote's own descriptors."""
READABLE = ("/usr", "/lib", "/lib64", "/bin", "/site")


class Zygote:
    """Fork server over its control socket. One event loop, no threads."""

    def __init__(self, control: socket.socket, layers: Layers) -> None:
        self._control = control
        self._layers = layers
        self._slots: dict[int, tuple[int, int]] = {}
        """Slots by pidfd: (pid, number)."""
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Serve requests until the host closes the control socket."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._control.fileno():
                    self._reap(descriptor)
                elif not self._take_request():
                    return

    def _take_request(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, NEW_SLOT.size, 5)
        if len(data) < NEW_SLOT.size:
            return False
        # if the machine has no room for a slot, the host notices that the slot's socket is closed
        with suppress(OSError):
            self._fork_slot(NEW_SLOT.unpack(data)[0], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _fork_slot(self, number: int, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            self._layers.become_slot(number, descriptors)
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._slots[pidfd] = pid, number
        self._poll.register(pidfd, select.POLLIN)

    def _reap(self, pidfd: int) -> None:
        """Clean up after the end of a slot. The slot's child has become a child of this process,
        and is killed too.
        """
        self._poll.unregister(pidfd)
        os.close(pidfd)
        pid, number = self._slots.pop(pidfd)
        # an earlier call may have waited for this slot already, when it waited for orphans
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        # without a /proc of this namespace, orphans cannot be listed; they have died with their
        # slot
        if self._layers.isolated and not self._layers.sampled:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        elif self._layers.isolated:
            slots = {pid for pid, _ in self._slots.values()}
            for orphan in Tree(self._layers.proc, 1).children():
                if orphan not in slots:
                    os.kill(orphan, signal.SIGKILL)
                    os.waitpid(orphan, 0)
        if self._layers.groups >= 0:
            cgroup.leave(self._layers.groups, number)


class Layers:
    """Isolation layers of this zygote's snippets, and the reasons why some are missing."""

    def __init__(self, *, isolated: bool, folder: str, compiled: bool, groups: str) -> None:
        self.isolated = isolated
        self._supervised = self._confined = False
        self._compiled = compiled
        """True if slots may serve with the compiled body."""
        self.missing = {} if isolated else {"namespaces": "left out"}
        self.groups = _moved_up(os.open(groups, os.O_RDONLY)) if groups else -1
        """Descriptor of the parent cgroup of all slots' cgroups (-1 without cgroups)."""
        if not groups:
            self.missing["cgroup"] = "none was asked for" if isolated else "left out"
        self._group: cgroup.SlotGroup | None = None
        self.proc = -1
        """Descriptor of a /proc."""
        self.sampled = True
        """True if the /proc of `proc` shows the processes of this pid namespace."""
        self._folder = folder
        """Parent of working folders if there is no mount namespace to hold them."""

    def isolate(self, packages: dict[str, str]) -> None:
        """Enter the namespaces, and continue in a fork that is process 1 of a new pid namespace."""
        if not self.isolated:
            self.proc = _moved_up(os.open("/proc", os.O_PATH | os.O_DIRECTORY))
            kernel.die_with_parent()
            return
        kernel.enter_namespaces()
        pid = os.fork()
        if pid:
            kernel.die_with_parent()
            os.closerange(3, 256)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 0xFF)
        proc, self.sampled = kernel.build_root(packages)
        self.proc = _moved_up(proc)
        kernel.die_with_parent()
        if not self.sampled:
            self.missing["memory sampling"] = (
                "no /proc of a new pid namespace can be mounted on this machine"
            )

    def become_slot(self, number: int, descriptors: list[int]) -> NoReturn:
        """Set up every layer in the forked slot, report the missing ones, and serve. Never
        returns.
        """
        try:
            host = _install([*descriptors, self.proc, self.groups])
            folder = self._enter(number)
            host.send(json.dumps(self.missing).encode()[:READY_BYTES].ljust(READY_BYTES))
            snippet.open_streams()
            slot = Slot(
                host,
                folder,
                isolated=self.isolated,
                confined=self._confined,
                sampled=self.sampled,
                compiled=self._compiled,
                supervised=self._supervised,
                group=self._group,
            )
            slot.serve()
        finally:
            os._exit(0)

    def _enter(self, number: int) -> str:
        folder = "/tmp"  # noqa: S108
        own_user = self.isolated or os.getuid() == 0
        if self.groups >= 0:
            self._try("cgroup", lambda: self._enter_group(number))
        if self.isolated:
            self._try("namespaces", lambda: kernel.enter_slot(PROC, number))
        else:
            import tempfile  # with namespaces, its imports would only cost memory in each child

            folder = tempfile.tempdir = f"{self._folder}/{number}"
            os.makedirs(folder, mode=0o777, exist_ok=True)
            os.chdir(folder)
            if os.getuid() == 0:
                os.chown(folder, kernel.SLOT_ID + number, kernel.SLOT_ID + number)
            kernel.give_up_root(number)
            kernel.as_subreaper()
            if not os.access(os.__file__, os.R_OK):
                self.missing["rlimits"] = f"{sys.base_prefix} is readable by root only"
        kernel.die_with_parent()
        self._try("rlimits", lambda: kernel.limit_slot(count_processes=own_user))
        self._try("seccomp", kernel.seal)
        self._try("landlock", lambda: self._restrict(folder))
        self._try("seccomp", self._filter)
        return folder

    def _enter_group(self, number: int) -> None:
        owner = kernel.SLOT_ID + number if os.getuid() == 0 else None
        self._group = cgroup.enter(GROUP, number, owner, kernel.MAX_PROCESSES)

    def _filter(self) -> None:
        spawning = self._group is not None
        seen = self.sampled or not self.isolated
        listener = seccomp.install(listener=seen, isolated=self.isolated, spawning=spawning)
        if listener not in (LISTENER, -1):
            os.dup2(listener, LISTENER)
            os.close(listener)
        self._supervised = seen  # a supervisor has to inspect the calling processes

    def _restrict(self, folder: str) -> None:
        places = {
            *READABLE,
            sys.base_prefix,
            *kernel.DEVICES[1:],
            *([] if self.isolated else sys.path),
        }
        readable = [place for place in places if os.path.exists(place)]  # noqa: PTH110
        version = landlock.restrict([*readable, PROC], [folder, "/dev/null"])
        self._confined = not self.isolated and version >= landlock.SCOPED

    def _try(self, layer: str, enter: Any) -> None:
        try:
            enter()
        except (OSError, AttributeError, ValueError) as error:
            self.missing[layer] = str(error)


def _install(given: list[int]) -> socket.socket:
    """Move the slot's descriptors to their numbers (see `slot`), and close all others. Returns the
    host's socket.
    """
    host, code, stdout, stderr, value, proc, groups = given
    null = os.open("/dev/null", os.O_RDONLY)
    sources = (null, stdout, stderr, value, code, host, proc, groups if groups >= 0 else null)
    aside = [fcntl.fcntl(source, fcntl.F_DUPFD, 64) for source in sources]
    for target, descriptor in enumerate(aside):
        os.dup2(descriptor, target)
    os.closerange(GROUP + 1, 4096)
    return socket.socket(fileno=HOST)


def _moved_up(descriptor: int) -> int:
    """Move a descriptor above the numbers that a slot's descriptors have."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, FIRST_OWN)
    os.close(descriptor)
    return moved


def _warm_up(imports: list[str]) -> None:
    """Do once what a snippet does, so that children inherit it: imports, compiling, a traceback."""
    for name in (
        "json",
        "math",
        "decimal",
        "random",
        "statistics",
        "datetime",
        "re",
        "functools",
        "heapq",
        "string",
    ):
        __import__(name)
    snippet.may_draw_unseen(imports)
    snippets = [WARM_PACKAGES.get(name, f"import {name}") for name in imports]
    saved, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    saved_error = sys.stderr
    sys.stderr = sys.stdout
    errors = fcntl.fcntl(2, fcntl.F_DUPFD, FIRST_OWN)
    null = _moved_up(os.open(os.devnull, os.O_WRONLY))
    os.dup2(null, 2)
    os.dup2(null, snippet.VALUE_DESCRIPTOR)
    for code in (*snippets, *WARM_SNIPPETS):
        snippet.run(code, ModuleType("warm"), 1000)
    os.dup2(errors, 2)
    for descriptor in (errors, null, snippet.VALUE_DESCRIPTOR):
        os.close(descriptor)
    sys.stdout = saved
    sys.stderr = saved_error


def main() -> None:
    """Run the zygote. `sys.argv`: descriptor of the control socket, and JSON from
    `ZygoteProcess`.
    """
    control = socket.socket(fileno=_moved_up(int(sys.argv[1])))
    given = json.loads(sys.argv[2])
    sys.argv[:], sys.orig_argv[:] = [""], []  # hide the host's paths
    names = ("isolated", "folder", "compiled", "groups")
    layers = Layers(**{name: given[name] for name in names})
    os.environ.clear()
    with suppress(OSError):
        kernel.prefer_as_victim()
    problem = ""
    try:
        layers.isolate(given["packages"])
        sys.path.append("/site" if layers.isolated else given["site"])
        _warm_up(given["imports"])
    except OSError as error:
        problem = str(error)
    control.send(problem.encode()[:READY_BYTES].ljust(READY_BYTES))
    if problem:
        return
    gc.collect()
    gc.disable()
    gc.freeze()
    with suppress(OSError):
        kernel.gather_pages(layers.proc)
    Zygote(control, layers).serve()
