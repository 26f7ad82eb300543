"""Code that a warm, isolated fork server runs before it begins to serve: two uses with which calls
are compared.

`floor` makes it fork and wait in a loop instead of serving. `unfenced` leaves out a slot's own
isolation: its user, network, ipc and host name namespaces, its /tmp, its limits, seccomp and
Landlock. Steps of each call (a process-id namespace, limits, capabilities) stay; the floor has a
row for the namespace.
"""

# A fork server knows its package as `sandbox`.
# pyright: reportMissingImports=false, reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable

from sandbox import kernel, zygote


def _by_fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _by_clone() -> None:
    pid, pidfd = kernel.clone(isolated=True)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(pidfd)


class Floor(zygote.Zygote):
    """Fork server that answers `clients calls way` with the seconds taken, wall clock and CPU, as
    JSON.
    """

    def serve(self) -> None:
        while data := self._control.recv(64):
            clients, calls, way = data.decode().split()
            once = {"fork": _by_fork, "clone": _by_clone}[way]
            used, started = _cpu(), time.perf_counter()
            for pid in [_loop(once, int(calls) // int(clients)) for _ in range(int(clients))]:
                os.waitpid(pid, 0)
            spent = {"wall": time.perf_counter() - started, "cpu": _cpu() - used}
            self._control.send(json.dumps(spent).encode())


def _loop(once: Callable[[], None], calls: int) -> int:
    """Fork a process that makes the calls, like a slot: it forks once per call."""
    pid = os.fork()
    if pid:
        return pid
    for _ in range(calls):
        once()
    os._exit(0)


def _cpu() -> float:
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def floor() -> None:
    zygote.Zygote = Floor


def unfenced() -> None:
    def enter(layers: zygote.Layers, number: int) -> str:
        kernel.die_with_parent()
        # one /tmp for all slots; a slot with layers has its own
        if not os.access("/tmp", os.W_OK):
            kernel._mount(
                "tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, kernel.TMP_OPTIONS
            )
        os.chdir("/tmp")
        return "/tmp"

    zygote.Layers._enter = enter
