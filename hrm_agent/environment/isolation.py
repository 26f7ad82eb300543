"""Levels of isolation, and the layers that they are made of.

A machine is probed when an environment starts. The level follows from the layers that the machine
has, and every outcome carries the level. A caller names the least level that it accepts. On a
machine with a lower level nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from hrm_agent.errors import ConfigError

__all__ = [
    "DEFAULT_ISOLATION",
    "LESS_ISOLATION_HINT",
    "Isolation",
    "Layer",
    "level_of",
    "parse_isolation",
]


class Isolation(StrEnum):
    """Isolation levels, strongest first."""

    L3 = "L3"
    """Layers of L2, except that a cgroup limits and counts the resources of the whole process tree
    instead of memory sampling.
    """
    L2 = "L2"
    """Namespaces, seccomp, Landlock and resource limits. The memory of the process tree is
    sampled.
    """
    L1 = "L1"
    """Landlock, seccomp and resource limits, without namespaces."""
    L0 = "L0"
    """Separate process and resource limits: no protection against hostile code."""

    def holds(self, least: Isolation) -> bool:
        """True if this is at least as strong as `least`."""
        return self.value >= least.value


DEFAULT_ISOLATION = Isolation.L2
LESS_ISOLATION_HINT = (
    "Allow unprivileged user namespaces (sysctl user.max_user_namespaces,"
    " kernel.apparmor_restrict_unprivileged_userns; in a container: --security-opt"
    " seccomp=unconfined): `hrm-agent doctor environment` shows what is missing. Or run the code"
    " elsewhere (`hrm-agent environment serve` there, --environment URL here). Or accept less with"
    " --isolation L1 or L0 (in Python isolation=): then model-written code may reach your files and"
    " the network."
)
"""Hint for a machine that isolates less than required."""


class Layer(StrEnum):
    """One kernel mechanism that confines a snippet."""

    NAMESPACES = "namespaces"
    """Private user, pid, mount, network, IPC and UTS namespaces; a read-only root; a /tmp in
    memory.
    """
    SECCOMP = "seccomp"
    """Filter that refuses system calls no snippet needs."""
    LANDLOCK = "landlock"
    """Access control for files and sockets that does not depend on what namespaces hide."""
    RLIMITS = "rlimits"
    """Limits of address space, CPU time, file size, processes and descriptors."""
    MEMORY_SAMPLING = "memory sampling"
    """Memory of the process tree, sampled every 50 ms."""
    CGROUP = "cgroup"
    """Kernel limits and accounting of memory, processes and CPU time of the process tree. The
    kernel also kills the tree as a whole.
    """


_NEEDED = {
    Isolation.L3: {Layer.NAMESPACES, Layer.SECCOMP, Layer.LANDLOCK, Layer.RLIMITS, Layer.CGROUP},
    Isolation.L2: {
        Layer.NAMESPACES,
        Layer.SECCOMP,
        Layer.LANDLOCK,
        Layer.RLIMITS,
        Layer.MEMORY_SAMPLING,
    },
    Isolation.L1: {Layer.SECCOMP, Layer.LANDLOCK, Layer.RLIMITS},
}


def level_of(missing: Mapping[str, str]) -> Isolation:
    """Level of a machine whose layers are in force except those of `missing` (layer -> reason)."""
    return next(
        (level for level, layers in _NEEDED.items() if not layers & set(missing)), Isolation.L0
    )


def parse_isolation(text: str) -> Isolation:
    """Isolation level of a text, such as `L2`. Raises ConfigError."""
    try:
        return Isolation(text.upper())
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a level of isolation.", "Name L3, L2 (the default), L1 or L0."
        ) from None
