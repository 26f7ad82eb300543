"""Edits of a state at a fork, written as LangGraph writes them (a checkpoint `update`).

An edit replaces: a channel with a reducer gets the new value as it is, not merged into the old one.
Then the nodes that ran into the moment decide the next tasks again, as if they had returned the
edited state: sent tasks carry edited arguments, an edited verdict takes its own branch. That
requires nodes whose edges define where they lead. A node that returns `Command(goto=...)`, or a
graph without edges, cannot be asked again. So it is tried in memory first whether the nodes lead
to the moment's tasks if nothing is changed. If they do not, the edit is written beside these tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, copy_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.runtime import Runtime
from langgraph.types import Overwrite, StateSnapshot, StateUpdate
from pydantic import BaseModel, TypeAdapter, ValidationError

from hrm_agent.basics.async_bridge import run_sync
from hrm_agent.errors import ConfigError, RunError, nearest
from hrm_agent.langgraph_format import (
    RUNTIME,
    START,
    deltas_of,
    is_delta,
    is_internal,
    snapshot_of,
    with_deltas,
)
from hrm_agent.runtime.execution.loading import Graph
from hrm_agent.runtime.state import StateReader
from hrm_agent.runtime.time_travel.history import History, Moment
from hrm_agent.runtime.time_travel.scratch_saver import ScratchSaver
from hrm_agent.store import StoreSaver

__all__ = ["Edit", "edited_channels", "write_edit"]

Messages = list[BaseMessage]


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes of a fork to the state that it starts from."""

    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Channel -> its new value."""
    messages: Mapping[str | int, str] = field(default_factory=dict[str | int, str])
    """Message id, or index within the channel `messages` (from the end if negative) -> its new
    text.
    """
    tools: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tool call id -> the text that the model sees as its result."""
    as_node: str | None = None
    """Node that counts as the author of the edit (None: those that ran into the moment)."""

    def __bool__(self) -> bool:
        return bool(self.values or self.messages or self.tools)


def edited_channels(edit: Edit, moment: Moment, graph: Graph) -> dict[str, Any]:
    """Channel -> its value after `edit`. Raises `ConfigError` for a missing target or an unfit
    value.
    """
    if START in moment.next:
        raise ConfigError(
            f"At moment {moment.index} the graph has not read its input: there is no state to edit"
            " yet.",
            "Fork at the next moment, or run another task.",
        )
    if edit.as_node is not None and edit.as_node not in graph.nodes:
        raise ConfigError(
            f"The graph has no node {edit.as_node!r}. {nearest(edit.as_node, graph.nodes)}".strip(),
            f"It has {', '.join(graph.nodes)}.",
        )
    changed: dict[str, Any] = {}
    known = [name for name in graph.channels if not is_internal(name)]
    for name, value in edit.values.items():
        if name not in known:
            raise ConfigError(
                f"The state has no channel {name!r}. {nearest(name, known)}".strip(),
                f"It has {', '.join(known)}.",
            )
        changed[name] = _as_before(name, value, moment.values.get(name))
    for key, text in edit.messages.items():
        channel, place = _find_message(moment, key)
        _replace(changed, moment, channel, place, {"content": text})
    for key, text in edit.tools.items():
        channel, place = _find_result(moment, key)
        _replace(
            changed,
            moment,
            channel,
            place,
            {"content": text, "artifact": None, "status": "success"},
        )
    return changed


def _as_before(name: str, value: Any, old: Any) -> Any:
    """Convert JSON to the type that the channel held: a message is `{"role": ..., "content": ...}`,
    an object its fields.
    """
    if isinstance(value, Mapping) and (isinstance(old, BaseModel) or is_dataclass(old)):
        try:
            return TypeAdapter(type(old)).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join([name, *map(str, first["loc"])])
            raise ConfigError(
                f"{where}: {first['msg']}.", f"The channel holds a {type(old).__name__}."
            ) from error
    if _is_messages(old) and isinstance(value, list):
        messages = convert_to_messages(cast("list[Any]", value))
        return [m if m.id else m.model_copy(update={"id": str(uuid4())}) for m in messages]
    return value


def _replace(
    changed: dict[str, Any], moment: Moment, channel: str, place: int, update: dict[str, Any]
) -> None:
    messages = list(cast("Messages", changed.get(channel, moment.values[channel])))
    messages[place] = messages[place].model_copy(update=update)
    changed[channel] = messages


def _find_message(moment: Moment, key: str | int) -> tuple[str, int]:
    """Channel and place of a message, by its id or its index."""
    channels = _message_channels(moment)
    for channel, messages in channels.items():
        for place, message in enumerate(messages):
            if message.id is not None and message.id == key:
                return channel, place
    index = _integer(key)
    channel = "messages" if "messages" in channels else next(iter(channels), "")
    if index is not None and channel and -len(channels[channel]) <= index < len(channels[channel]):
        return channel, index % len(channels[channel])
    what = ", ".join(
        f"{i} {m.type} {m.id}" for messages in channels.values() for i, m in enumerate(messages)
    )
    raise ConfigError(
        f"There is no message {key!r} at moment {moment.index}.", f"There are: {what or 'none'}."
    )


def _find_result(moment: Moment, key: str) -> tuple[str, int]:
    """Channel and place of a tool's result, by the id of the call."""
    there: list[str] = []
    for channel, messages in _message_channels(moment).items():
        for place, message in enumerate(messages):
            if isinstance(message, ToolMessage):
                if message.tool_call_id == key:
                    return channel, place
                there.append(message.tool_call_id)
    raise ConfigError(
        f"There is no result of tool call {key!r} at moment {moment.index}. {nearest(key, there)}".strip(),
        f"There are results of {', '.join(there) or 'no call'}; fork after the tool ran to edit"
        " what it gave.",
    )


def _message_channels(moment: Moment) -> dict[str, Messages]:
    return {
        name: cast("Messages", value)
        for name, value in moment.values.items()
        if _is_messages(value)
    }


def _is_messages(value: Any) -> bool:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(item, BaseMessage) for item in items)


def _integer(key: str | int) -> int | None:
    try:
        return int(key)
    except ValueError:
        return None


def write_edit(
    graph: Graph,
    thread_id: str,
    found: History,
    moment: Moment,
    values: Mapping[str, Any],
    as_node: str | None = None,
    context: Any = None,
) -> None:
    """Write `values` as a checkpoint on `thread_id`, a fork at `moment` of `found`.

    `graph`: compiled with the store's checkpointer. `context`: its run context, which its edges may
    read.
    """
    written = {
        name: Overwrite(value) if is_delta(graph.channels[name]) else value
        for name, value in values.items()
    }
    runtime = {RUNTIME: Runtime(context=context)}
    config: RunnableConfig = {"configurable": {"thread_id": thread_id, **runtime}}
    if as_node is not None:
        run_sync(graph.aupdate_state(config, written, as_node=as_node))
        return
    saver = cast("BaseCheckpointSaver[Any]", graph.checkpointer)
    start = saver.get_tuple({"configurable": {"thread_id": thread_id}})
    if start is None:
        raise RunError(f"Thread {thread_id!r} has no checkpoint.", "Fork it again.")
    start = StateReader(saver, graph).alone(start)
    steps = _as_returned(written, _arrived_from(found, moment))
    if steps and run_sync(_leads_on(graph, start, steps, moment.next, values, runtime)):
        run_sync(graph.abulk_update_state(config, [steps]))
    else:
        _put_beside(
            saver,
            start,
            {
                name: (
                    snapshot_of(value) if isinstance(graph.channels[name], DeltaChannel) else value
                )
                for name, value in values.items()
            },
        )


def _arrived_from(found: History, moment: Moment) -> tuple[str, ...]:
    """Nodes that ran into a moment. An edit or a copy has those of the moment before it."""
    for earlier in reversed(found.lineage(moment)):
        if earlier.source not in ("update", "fork"):
            return tuple(dict.fromkeys(earlier.ran.nodes))
    return ()


def _as_returned(values: Mapping[str, Any], nodes: Sequence[str]) -> list[StateUpdate]:
    """Updates by which one node returns the edit. The nodes that ran beside it return nothing, but
    their edges are followed, too.
    """
    return [StateUpdate(dict(values) if i == 0 else {}, node) for i, node in enumerate(nodes)]


async def _leads_on(
    graph: Graph,
    start: CheckpointTuple,
    steps: list[StateUpdate],
    then: tuple[str, ...],
    values: Mapping[str, Any],
    runtime: dict[str, Any],
) -> bool:
    """True if the nodes of `steps`, asked again, lead to `then`, and take the values. Tried in
    memory.
    """
    try:
        unchanged = await _tried(
            graph, start, [StateUpdate({}, step.as_node) for step in steps], runtime
        )
        edited = await _tried(graph, start, steps, runtime)
    except Exception:  # a user's edge is asked outside of a run
        return False
    names = sorted(task.name for task in unchanged.tasks)
    return names == sorted(then) and all(
        edited.values.get(name) == value for name, value in values.items()
    )


async def _tried(
    graph: Graph, start: CheckpointTuple, steps: list[StateUpdate], runtime: dict[str, Any]
) -> StateSnapshot:
    memory = ScratchSaver(cast("StoreSaver", graph.checkpointer), start, None)
    tried = graph.copy(update={"checkpointer": memory})
    thread: Any = start.config.get("configurable", {})["thread_id"]
    written = await tried.abulk_update_state(
        {"configurable": {"thread_id": thread, **runtime}}, [steps]
    )
    return await tried.aget_state(written)


def _put_beside(
    saver: BaseCheckpointSaver[Any], start: CheckpointTuple, values: Mapping[str, Any]
) -> None:
    """Write a copy of the checkpoint with other values. Its triggered tasks stay triggered, with
    their arguments.
    """
    step = int(start.metadata.get("step", -1)) + 1
    checkpoint = copy_checkpoint(start.checkpoint)
    newest = max(checkpoint["channel_versions"].values(), default=None)
    versions: dict[str, Any] = dict.fromkeys(values, saver.get_next_version(newest, None))
    checkpoint["id"], checkpoint["ts"] = str(uuid6(clock_seq=step)), datetime.now(UTC).isoformat()
    checkpoint["channel_values"] = {**checkpoint["channel_values"], **values}
    checkpoint["channel_versions"] = {**checkpoint["channel_versions"], **versions}
    checkpoint["updated_channels"] = None
    metadata = {"source": "update", "step": step, "parents": start.metadata.get("parents", {})}
    deltas = deltas_of(start.metadata)
    metadata = with_deltas(
        metadata,
        {name: deltas[name] for name in deltas if name not in checkpoint["channel_values"]},
    )
    saver.put(start.config, checkpoint, cast("Any", metadata), versions)
