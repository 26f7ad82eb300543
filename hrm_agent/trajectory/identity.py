"""LangGraph's identity of the running task, read from where LangGraph puts it.

A chat model gets it as `run_manager.metadata`, a tool as `config["metadata"]`, in sync and async code, in subgraphs
and in Send tasks alike. Of `checkpoint_ns` (`node:task_id`, joined by `|`) the last task id is the innermost task's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langgraph.config import get_config

from hrm_agent.trajectory.schema import GraphIdentity

__all__ = ["graph_identity"]


def graph_identity(metadata: Mapping[str, Any] | None, run_id: str) -> GraphIdentity:
    """The identity in `metadata`; outside a graph, one made of the call's own `run_id`."""
    metadata = metadata or {}
    namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
    if not namespace:
        return GraphIdentity(thread_id=str(metadata.get("thread_id", "")) or run_id, task_id=run_id)
    checkpoint_id, attempt = _checkpoint()
    return GraphIdentity(
        thread_id=str(metadata.get("thread_id", "")) or run_id,
        checkpoint_id=checkpoint_id,
        checkpoint_ns=namespace,
        task_id=namespace.rpartition(":")[2],
        node=str(metadata.get("langgraph_node", "")),
        path=_stable_path(metadata, namespace),
        attempt=attempt,
    )


def _checkpoint() -> tuple[str, int]:
    """Checkpoint id and node attempt of the running task, or what they are outside one."""
    try:
        runtime = get_config().get("configurable", {}).get("__pregel_runtime")
    except RuntimeError:
        return "", 1
    info = getattr(runtime, "execution_info", None)
    return (str(info.checkpoint_id), int(info.node_attempt)) if info is not None else ("", 1)


def _stable_path(metadata: Mapping[str, Any], namespace: str) -> str:
    """The task's place in its run without the random task ids: two runs with one seed agree on it."""
    nodes = "|".join(part.partition(":")[0] for part in namespace.split("|"))
    place = "/".join(str(part) for part in metadata.get("langgraph_path", ()))
    return f"{metadata.get('langgraph_step', 0)}/{nodes}/{place}"
