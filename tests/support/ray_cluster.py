"""A Ray cluster on this machine, bound to loopback: a head that runs nothing, and nodes that come and go.

It starts with the first test that asks for it, once in a process of tests, and goes down with that. A test says how
many nodes it wants; those that it leaves behind are the next one's. Programs of tests that take down the head start
one of their own.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hrm_agent.testing import block_until

__all__ = ["node_options", "running_cluster", "with_nodes"]


def node_options(cpus: int = 1, **more: Any) -> dict[str, Any]:
    return {"num_cpus": cpus, "node_ip_address": "127.0.0.1", "include_log_monitor": False, **more}


@contextmanager
def running_cluster() -> Generator[Any]:
    """A head alone. At the end no process is left of it."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray binds to the machine's outer address
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    others = _descendants()
    cluster = Cluster(
        initialize_head=True, head_node_args={"include_dashboard": False, "no_monitor": True, **node_options(cpus=0)}
    )
    try:
        yield cluster
    finally:
        started = _descendants() - others
        cluster.shutdown()
        block_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}/exe").exists()])


def with_nodes(cluster: Any, count: int) -> Any:
    """The cluster, once it has so many nodes beside the head."""
    for node in sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[count:]:
        cluster.remove_node(node)
    for _ in range(count - len(cluster.worker_nodes)):
        cluster.add_node(**node_options())
    return cluster


def _descendants() -> set[int]:
    """Processes below this one."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}
