"""A Ray cluster on this machine, bound to loopback: a head that runs nothing, and nodes that tests
add and remove.

It starts with the first test that asks for it, once per test process, and ends with the process. A
test says how many nodes it wants, and the next test finds the nodes that it leaves. Test programs
that kill the head start a cluster of their own.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from hrm_agent.testing import block_until

__all__ = ["add_node", "running_cluster", "with_nodes"]


def _options(cpus: int = 1, **more: Any) -> dict[str, Any]:
    """Options of a node. Its memory is fixed: by default it would depend on the free memory."""
    return {
        "num_cpus": cpus,
        "node_ip_address": "127.0.0.1",
        "include_log_monitor": False,
        "memory": 1 << 30,
        "object_store_memory": 100 << 20,
        **more,
    }


def add_node(cluster: Any, cpus: int = 1, **more: Any) -> Any:
    """Add a node, and wait until it has joined. Ray itself waits for 30 seconds only."""
    node = cluster.add_node(wait=False, **_options(cpus, **more))
    block_until(lambda: node.node_id in cluster.global_state._live_node_ids())
    return node


@contextmanager
def running_cluster() -> Generator[Any]:
    """Run a cluster with a head alone. At the end none of its processes is left."""
    # without this variable Ray binds to the machine's outer address
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # Ray's spelling; its default (15) starves a worker here
    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112  # else Ray kills workers when the machine's memory is low
    # if it is not set, a cluster that starts later in this process changes it for this one
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"include_dashboard": False, "no_monitor": True, **_options(cpus=0)},
    )
    try:
        yield cluster
    finally:
        started = _processes(cluster)
        cluster.shutdown()
        block_until(lambda: not [pid for pid in started if Path(f"/proc/{pid}/exe").exists()])


def with_nodes(cluster: Any, count: int) -> Any:
    """Give the cluster exactly `count` nodes besides the head, and return it."""
    for node in sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[count:]:
        cluster.remove_node(node)
    for _ in range(count - len(cluster.worker_nodes)):
        add_node(cluster)
    return cluster


def _processes(cluster: Any) -> set[int]:
    """Process ids of the servers on the cluster's nodes and of their descendants."""
    servers = [
        info.process.pid
        for node in cluster.list_all_nodes()
        for each in node.all_processes.values()
        for info in each
    ]
    found = set(servers)
    for pid in servers:
        with suppress(psutil.NoSuchProcess):
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
    return found
