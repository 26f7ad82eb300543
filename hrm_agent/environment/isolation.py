"""Levels of isolation, and the layers that they are made of.

A machine is probed when an environment starts: what it gives is what the level says, and the level
stands in every outcome. A caller names the least that it accepts; where the machine gives less,
nothing is run.
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
    """From the strongest to none."""

    L3 = "L3"
    """As L2, but a cgroup limits and accounts the whole process tree, instead of sampling."""
    L2 = "L2"
    """Namespaces, seccomp, Landlock and resource limits; the tree's memory is sampled."""
    L1 = "L1"
    """No namespaces: Landlock, seccomp and resource limits."""
    L0 = "L0"
    """A process of its own and resource limits: nothing that holds against hostile code."""

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
"""Where a machine gives less than is asked for."""


class Layer(StrEnum):
    """One thing that the kernel holds a snippet by."""

    NAMESPACES = "namespaces"
    """Own user, process ids, mounts, network, ipc and host name; a read-only root; a /tmp in
    memory.
    """
    SECCOMP = "seccomp"
    """System calls that no snippet needs are refused."""
    LANDLOCK = "landlock"
    """Files and sockets out of reach even where a path leads to them."""
    RLIMITS = "rlimits"
    """Address space, CPU time, file size, processes, descriptors."""
    MEMORY_SAMPLING = "memory sampling"
    """The memory of the tree is looked at every 50 ms."""
    CGROUP = "cgroup"
    """Memory, processes and CPU time of the tree are bounded, counted and ended by the kernel."""


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
    """The level that a machine gives, whose layers are in force except those of `missing` (layer ->
    why).
    """
    return next(
        (level for level, layers in _NEEDED.items() if not layers & set(missing)), Isolation.L0
    )


def parse_isolation(text: str) -> Isolation:
    """`L2` -> Isolation.L2. Raises ConfigError."""
    try:
        return Isolation(text.upper())
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a level of isolation.", "L3, L2 (the default), L1 or L0."
        ) from None
