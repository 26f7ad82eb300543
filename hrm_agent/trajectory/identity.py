"""LangGraph's identity of the running task, read from where LangGraph puts it.

A chat model gets the identity as `run_manager.metadata`, a tool as `config["metadata"]`, in sync
and async code, in subgraphs and in Send tasks alike. The last task id in `checkpoint_ns`
(`node:task_id`, joined by `|`) is that of the innermost task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables.config import ensure_config
from langgraph.config import get_config

from hrm_agent.langgraph_format import (
    RUNTIME,
    agent_name,
    checkpoint_of_root,
    namespace_parts,
    task_of_namespace,
)
from hrm_agent.trajectory.recording import open_recording
from hrm_agent.trajectory.schema import GraphIdentity

__all__ = ["graph_identity", "in_graph", "metadata_of"]


def graph_identity(metadata: Mapping[str, Any] | None, run_id: str) -> GraphIdentity:
    """Identity in `metadata`. Outside a graph, an identity made from the call's own `run_id`."""
    metadata = metadata or {}
    active = open_recording()
    namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
    thread_id = (active.thread_id if active else "") or str(metadata.get("thread_id", "")) or run_id
    if not namespace:
        return GraphIdentity(thread_id=thread_id, task_id=run_id)
    checkpoint_id, root_checkpoint_id, attempt = _checkpoint()
    # The place of the task in its run is written without random task ids, so that it is equal in
    # two runs with one seed.
    nodes = "|".join(part.node for part in namespace_parts(namespace))
    place = "/".join(str(part) for part in metadata.get("langgraph_path", ()))
    agent = agent_name(metadata) if len(namespace_parts(namespace)) > 1 else ""
    return GraphIdentity(
        thread_id=thread_id,
        checkpoint_id=checkpoint_id,
        root_checkpoint_id=root_checkpoint_id,
        checkpoint_ns=namespace,
        task_id=task_of_namespace(namespace),
        node=str(metadata.get("langgraph_node", "")),
        path=(f"{metadata.get('langgraph_step', 0)}/{nodes}/{place}"),
        attempt=attempt,
        # graphs inside an agent inherit its name
        agent="" if active is not None and agent == active.agent else agent,
    )


def metadata_of(run_manager: Any) -> dict[str, Any]:
    """Metadata that identifies the running task, for a chat model called inside it.

    LangChain passes no run manager when a model is streamed, and `generate` without callbacks gets
    one without the outer metadata. In both cases the config in context has it.
    """
    given: dict[str, Any] = (run_manager.metadata if run_manager is not None else None) or {}
    return given if in_graph(given) else {**(ensure_config().get("metadata") or {}), **given}


def in_graph(metadata: Mapping[str, Any] | None) -> bool:
    """True for metadata of a call made inside a LangGraph task."""
    return bool((metadata or {}).get("langgraph_checkpoint_ns"))


def _checkpoint() -> tuple[str, str, int]:
    """Checkpoint ids (own graph, outermost graph) and attempt of the running task. Outside a task,
    the ids are empty and the attempt is 1.
    """
    try:
        configurable: Mapping[str, Any] = get_config().get("configurable", {})
    except RuntimeError:
        return "", "", 1
    info = getattr(configurable.get(RUNTIME), "execution_info", None)
    if info is None:
        return "", "", 1
    own = str(info.checkpoint_id)
    return own, checkpoint_of_root(configurable, own), int(info.node_attempt)
