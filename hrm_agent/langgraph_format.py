"""LangGraph's private names: keys of a config, channels of a checkpoint, reserved writes, ids of
tasks.

None of these names is part of LangGraph's public interface. But stored checkpoints contain them, so
this module keeps them as they were written, even if a later LangGraph renames them.
`tests/test_langgraph_format.py` reports which names the installed LangGraph has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

import xxhash

if TYPE_CHECKING:
    from types import FrameType

    from langchain_core.runnables import RunnableConfig
    from langgraph.cache.base import BaseCache
    from langgraph.checkpoint.base import (
        BaseCheckpointSaver,
        Checkpoint,
        CheckpointMetadata,
        CheckpointTuple,
    )
    from langgraph.pregel import Pregel

__all__ = [
    "AGENT_NAME",
    "CALL",
    "CHECKPOINTER",
    "END",
    "ERROR",
    "ERROR_SOURCE",
    "INPUT",
    "INTERRUPT",
    "NULL_TASK",
    "PULL",
    "PUSH",
    "READ",
    "RESUME",
    "RETURN",
    "ROOT",
    "RUNTIME",
    "SCRATCHPAD",
    "SEND",
    "SENDS",
    "SNAPSHOT_BUMPS",
    "START",
    "TASK",
    "TOOL_NODE",
    "UPDATE_METADATA",
    "NamespacePart",
    "agent_name",
    "agent_of",
    "await_missing_checkpoints",
    "built_values",
    "checkpoint_of_root",
    "checkpointer_of",
    "collect_declared_types",
    "config_in_force",
    "continue_ids_after",
    "deltas_of",
    "is_delta",
    "is_internal",
    "is_reserved",
    "is_safe_method",
    "is_safe_type",
    "named_nodes",
    "namespace_around",
    "namespace_parts",
    "question_asked",
    "snapshot_of",
    "snapshot_value",
    "stop_of",
    "stopping_at",
    "subgraphs_of",
    "substitute_caches",
    "task_id_of",
    "task_of_namespace",
    "ticks_of",
    "triggered_nodes",
    "types_of_channels",
    "types_of_schemas",
    "unstored_channels",
    "with_deltas",
]

# writes of a task that are not values of channels
INTERRUPT = "__interrupt__"
"""Questions of a task. Also the "node" of an update that reports them."""
UPDATE_METADATA = "__metadata__"
""""Node" of an update that marks the other results in the update as stored ones, for which no task
has run now.
"""
RESUME = "__resume__"
"""Answers to the questions of a task."""
ERROR = "__error__"
ERROR_SOURCE = "__error_source_node__"
"""Node that failed, written beside an error that another node of the graph handles."""
RETURN = "__return__"
"""Return value of a task of the functional API."""
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Task id of writes that belong to no task: the input of a run, an answer to any waiting question.
"""

# names of nodes that do not exist
START = "__start__"
"""Entry node. Also the channel that holds the input until the graph has read it."""
END = "__end__"
INPUT = "__input__"
"""Entry in `versions_seen` for the input."""
SNAPSHOT_BUMPS = "__snapshot_bumps__"
"""Entry in `versions_seen` for versions that snapshots have raised."""

# channels
SENDS = "__pregel_tasks"
"""Tasks that `Send` requests for the next step."""
ROOT = "__root__"
"""Channel of the whole state if that is not a mapping."""
_BRANCH = "branch:to:"
"""Prefix of a channel that triggers the node named after it."""
_JOIN = "join:"
"""Prefix of a join channel: `join:a+b:c` holds the names of those of a and b that have ended, and
triggers c once it holds both.
"""
_INTERNAL = ("__", "branch:", "join:", "start:")

# origin of a task
PUSH = "__pregel_push"
"""Task started by a `Send`."""
PULL = "__pregel_pull"
"""Task triggered by its channels."""

# keys of config["configurable"]
RUNTIME = "__pregel_runtime"
"""`Runtime` of the running task."""
READ = "__pregel_read"
"""Function that reads a channel's value for a node."""
TASK = "__pregel_task_id"
"""Id of the task that runs a graph (missing for an outermost graph)."""
CHECKPOINTER = "__pregel_checkpointer"
"""Checkpointer that takes precedence over the graph's own."""
SCRATCHPAD = "__pregel_scratchpad"
"""Counters of a task (questions, subgraphs, functional tasks), and the answers to its questions."""
SEND = "__pregel_send"
"""Function that takes writes of the running task."""
CALL = "__pregel_call"
"""Function by which the running task runs a functional task."""
_CHECKPOINT_MAP = "checkpoint_map"

# namespaces of checkpoints
_BETWEEN_PARTS, _BEFORE_TASK = "|", ":"
_FRAMES = 16
"""Maximum number of frames between an `interrupt()` and its counter: one for each tool around it.
"""


class NamespacePart(NamedTuple):
    """Task of a graph in the namespace `node:task_id|node:task_id` of a subgraph or of a call."""

    node: str
    """Node of the task, or a number that distinguishes several subgraphs of the task before it."""
    task_id: str
    """Task id. Empty for a number, and for a subgraph that keeps its state between runs
    (`compile(checkpointer=True)`).
    """
    around: str
    """Namespace of the graph that the task belongs to."""

    @property
    def is_number(self) -> bool:
        """True if the part distinguishes subgraphs and names no node."""
        return not self.task_id and bool(self.around) and self.node.isdecimal()


@lru_cache(maxsize=4096)
def namespace_parts(namespace: str) -> tuple[NamespacePart, ...]:
    """Tasks in a namespace, outermost first (empty for the outermost graph)."""
    parts = list[NamespacePart]()
    around = list[str]()
    for text in namespace.split(_BETWEEN_PARTS) if namespace else ():
        node, _, task_id = text.partition(_BEFORE_TASK)
        parts.append(NamespacePart(node, task_id, _BETWEEN_PARTS.join(around)))
        around.append(text)
    return tuple(parts)


def named_nodes(namespace: str) -> str:
    """Names of the nodes in a namespace: `solve:ID|1|reason:ID` -> `solve|reason`."""
    return _BETWEEN_PARTS.join(
        part.node for part in namespace_parts(namespace) if not part.is_number
    )


def namespace_around(namespace: str) -> str:
    """Namespace of the graph that contains a task, from the task's namespace."""
    return namespace.rpartition(_BETWEEN_PARTS)[0]


def task_of_namespace(namespace: str) -> str:
    """Id of the innermost task."""
    return namespace.rpartition(_BEFORE_TASK)[2]


def is_internal(channel: str) -> bool:
    """True if a channel is LangGraph's own, not part of the state that the author defined."""
    return channel.startswith(_INTERNAL) and channel != ROOT


def is_reserved(write: str) -> bool:
    """True if a write is LangGraph's own note (a question, an error), not a value for a channel."""
    return write.startswith("__")


def triggered_nodes(channels: Mapping[str, Any]) -> tuple[str, ...]:
    """Nodes that the channels of a checkpoint trigger, as a `StateGraph` names them."""
    names = [START] if START in channels else []
    names += [str(sent.node) for sent in channels.get(SENDS) or ()]
    names += sorted(name.removeprefix(_BRANCH) for name in channels if name.startswith(_BRANCH))
    for name, ended in channels.items():
        if name.startswith(_JOIN) and isinstance(ended, set):
            sources, _, target = name.removeprefix(_JOIN).rpartition(":")
            if set(sources.split("+")) == ended:
                names.append(target)
    return tuple(names)


# A `DeltaChannel` has its value in only some checkpoints, as a snapshot. In between, the value is
# folded from the writes since the last snapshot.
_COUNTERS = "counters_since_delta_snapshot"
"""Metadata key of a checkpoint. Its value: the `DeltaChannel`s that have no snapshot in the
checkpoint, each with counts since its last snapshot.
"""


def deltas_of(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """`DeltaChannel`s that have no snapshot in a checkpoint, from its metadata."""
    found: Any = metadata.get(_COUNTERS)
    return found or {}


def with_deltas(metadata: Mapping[str, Any], deltas: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with `deltas` as the channels without a snapshot."""
    return {**metadata, _COUNTERS: dict(deltas)} if deltas else dict(metadata)


class _Checkpointed(Protocol):
    """LangGraph's `CheckpointTuple`, or a substitute."""

    @property
    def checkpoint(self) -> Checkpoint: ...

    @property
    def metadata(self) -> CheckpointMetadata: ...


def unstored_channels(found: _Checkpointed) -> list[str]:
    """Names of written channels whose value is not in the checkpoint but folded from the writes of
    its ancestors.
    """
    held = found.checkpoint["channel_values"]
    versions = found.checkpoint["channel_versions"]
    return [name for name in deltas_of(found.metadata) if name in versions and name not in held]


def is_delta(channel: Any) -> bool:
    """True if the value of a graph's channel can be folded from writes."""
    from langgraph.channels import BinaryOperatorAggregate
    from langgraph.channels.delta import DeltaChannel

    return isinstance(channel, (DeltaChannel, BinaryOperatorAggregate))


def built_values(
    channels: Mapping[str, Any], found: CheckpointTuple, saver: BaseCheckpointSaver[Any]
) -> dict[str, Any]:
    """Values of channels at a checkpoint, rebuilt by LangGraph itself."""
    from langgraph.pregel._checkpoint import (
        channels_from_checkpoint,
    )  # pyright: ignore[reportPrivateUsage]
    from langgraph.pregel._io import read_channels  # pyright: ignore[reportPrivateUsage]

    built, _ = channels_from_checkpoint(
        channels, found.checkpoint, saver=saver, config=found.config
    )
    return read_channels(built, list(channels))


def snapshot_of(value: Any) -> Any:
    """Wrap a value as a `DeltaChannel`'s snapshot in a checkpoint."""
    from langgraph.checkpoint.serde.types import (
        _DeltaSnapshot,  # pyright: ignore[reportPrivateUsage]
    )

    return _DeltaSnapshot(value)


def snapshot_value(held: Any) -> Any:
    """Unwrap a value of a checkpoint if it is a snapshot."""
    from langgraph.checkpoint.serde.types import (
        _DeltaSnapshot,  # pyright: ignore[reportPrivateUsage]
    )

    return held.value if isinstance(held, _DeltaSnapshot) else held


def checkpoint_of_root(configurable: Mapping[str, Any], own: str) -> str:
    """Checkpoint id of the outermost graph, as a task of a subgraph sees it (`own` if there is no
    outer graph).
    """
    return str(configurable.get(_CHECKPOINT_MAP, {}).get("", own))


def task_id_of(checkpoint_id: str, namespace: str, step: int, node: str, *made_by: str) -> str:
    """Id of a task of `node`. `made_by`: `PUSH` and its index, or `PULL` and all its triggers,
    sorted.
    """
    own = f"{namespace}{_BETWEEN_PARTS}{node}" if namespace else node
    parts = "".join((own, str(step), node, *made_by))
    digest = xxhash.xxh3_128_hexdigest(
        bytes.fromhex(checkpoint_id.replace("-", "")) + parts.encode()
    )
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def ticks_of(checkpoint_id: str) -> int:
    """Time of an id that LangGraph made, in tenths of microseconds since 1582 (0 for an id in
    another form).
    """
    try:
        uuid = UUID(checkpoint_id)
    except ValueError:
        return 0
    return (uuid.int >> 80) << 12 | (uuid.int >> 64) & 0xFFF if uuid.version == 6 else 0


def continue_ids_after(checkpoint_id: str) -> None:
    """Make LangGraph's new ids in this process sort after `checkpoint_id`, even if that id's clock
    was ahead.

    LangGraph takes the highest id for the newest checkpoint. An id begins with the present time. If
    that is not after the time of the last id, it begins with the next moment after that one.
    """
    from langgraph.checkpoint.base import id as ids

    ticks = ticks_of(checkpoint_id)
    last: Any = ids._last_v6_timestamp  # pyright: ignore[reportPrivateUsage]
    if ticks and (last is None or last < ticks):
        ids._last_v6_timestamp = ticks  # pyright: ignore[reportPrivateUsage]


AGENT_NAME = "lc_agent_name"
"""Key of a run's metadata with the name of the agent, as LangChain's agents set it."""
TOOL_NODE = "tools"
"""Name of the node in which LangGraph's and LangChain's agents run tools."""


def agent_name(metadata: Mapping[str, Any]) -> str:
    """Name of the agent in a run's metadata (empty without one)."""
    name = metadata.get(AGENT_NAME)
    return name if isinstance(name, str) else ""


def agent_of(graph: Any) -> str:
    """Name of the agent that a graph is (empty for other graphs)."""
    config: RunnableConfig = getattr(graph, "config", None) or {}
    return agent_name(config.get("metadata") or {})


def config_in_force(*configs: RunnableConfig | None) -> RunnableConfig:
    """Config that a graph uses: `configs` merged over the config of the surrounding task."""
    from langgraph._internal._config import ensure_config  # pyright: ignore[reportPrivateUsage]

    return ensure_config(*configs)


def question_asked(frame: FrameType | None) -> tuple[Any, dict[str, Any] | None] | None:
    """Question of an `interrupt()` call that is under way, and the JSON schema of its answer (None
    if there is no such call).

    The call is looked for in `frame` and in the frames that called it, a few steps up.
    """
    from langgraph.types import interrupt

    for _ in range(_FRAMES):
        if frame is None or frame.f_code is interrupt.__code__:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not interrupt.__code__ or "value" not in frame.f_locals:
        return None
    adapter, schema = (frame.f_locals.get(name) for name in ("adapter", "response_schema"))
    return frame.f_locals["value"], schema if adapter is None else adapter.json_schema()


def checkpointer_of(graph: Any, config: RunnableConfig) -> BaseCheckpointSaver[Any] | None:
    """Checkpointer that a run of a graph uses, allowed to read the types of the graph's state (None
    if the run has no checkpointer).

    `config`: result of `config_in_force`.
    """
    return graph._resolve_checkpointer(config)  # pyright: ignore[reportPrivateUsage]


def collect_declared_types() -> None:
    """Have LangGraph pass to each checkpointer, from now on, the types that its graphs declare.

    LangGraph does so itself if an environment variable is set when it is imported. But the variable
    would also make other checkpointers refuse unknown types. The passed types alone change nothing
    for other checkpointers.
    """
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    _serde.STRICT_MSGPACK_ENABLED = True


@cache
def await_missing_checkpoints() -> None:
    """Let a subgraph without checkpoints run inside a graph with durability `sync`. Call once per
    process.

    LangGraph waits after each step for the last written checkpoint, and raises an `AttributeError`
    if a graph compiled with `checkpointer=False` has written none.
    """
    from langgraph.pregel import _loop  # pyright: ignore[reportPrivateUsage]

    for loop in (_loop.AsyncPregelLoop, _loop.SyncPregelLoop):
        if not hasattr(loop, "_put_checkpoint_fut"):
            setattr(loop, "_put_checkpoint_fut", _Nothing())  # noqa: B010  # a name that the class does not declare


class _Nothing:
    """Completed future, for both sync and async use."""

    def __await__(self) -> Iterator[None]:
        yield from ()

    def result(self) -> None:
        return None


@cache
def stop_of(first: int, recursion_limit: int) -> int:
    """Last step that LangGraph may reach in an invocation whose first step is `first`.

    Managed values (`RemainingSteps`, `IsLastStep`) count down to it.
    """
    return first + recursion_limit + 1


_stop: ContextVar[int | None] = ContextVar("stop", default=None)


@contextmanager
def stopping_at(stop: int | None) -> Generator[None]:
    """Have outermost graphs that run in this context count down to step `stop`, whatever their
    first step is (None: no change).
    """
    _count_down_to_another_stop()
    before = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(before)


@cache
def _count_down_to_another_stop() -> None:
    from langgraph.pregel._loop import AsyncPregelLoop  # pyright: ignore[reportPrivateUsage]

    entry = AsyncPregelLoop.__aenter__

    async def enter(self: AsyncPregelLoop) -> AsyncPregelLoop:
        entered = await entry(self)
        if (stop := _stop.get()) is not None and not self.is_nested:
            self.stop = stop
        return entered

    AsyncPregelLoop.__aenter__ = enter


def substitute_caches(substitute: Callable[[BaseCache[Any]], BaseCache[Any]]) -> None:
    """Replace the cache of every run by `substitute(cache)`, in subgraphs too. Call once per
    process.

    A config could not do this: it does not replace the cache that a subgraph was compiled with.
    """
    from langgraph.cache.base import BaseCache
    from langgraph.pregel import Pregel

    pregel: Any = Pregel
    entry = pregel._defaults

    def defaults(self: Any, *given: Any, **options: Any) -> tuple[Any, ...]:
        found = entry(self, *given, **options)
        return tuple(
            substitute(value) if isinstance(value, BaseCache) else value for value in found
        )

    pregel._defaults = defaults


def types_of_channels(channels: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """(module, name) of the types that the channels of a graph hold."""
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    return _serde.build_serde_allowlist(channels=dict(channels))


def types_of_schemas(schemas: Iterable[Any]) -> set[tuple[str, ...]]:
    """(module, name) of the types in the fields of classes."""
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    return _serde.collect_allowlist_from_schemas(
        schemas=[schema for schema in schemas if schema is not None]
    )


def subgraphs_of(
    graph: Pregel[Any, Any, Any, Any],
) -> Iterator[tuple[str, Pregel[Any, Any, Any, Any]]]:
    """Subgraphs at any depth, each with the nodes that lead to it in the format of `named_nodes`.

    A node can have several subgraphs. LangGraph's own `get_subgraphs` yields only the first.
    """
    from langgraph.pregel import Pregel

    for name, node in graph.nodes.items():
        for inner in node.subgraphs or ():
            if isinstance(inner, Pregel):
                yield name, inner
                yield from (
                    (f"{name}{_BETWEEN_PARTS}{deeper}", found)
                    for deeper, found in subgraphs_of(inner)
                )


def is_safe_type(module: str, name: str) -> bool:
    """True if LangGraph reads values of a type without explicit permission."""
    from langgraph.checkpoint.serde import _msgpack  # pyright: ignore[reportPrivateUsage]

    return (module, name) in _msgpack.SAFE_MSGPACK_TYPES


def is_safe_method(module: str, name: str, method: str) -> bool:
    """True if LangGraph reads values made by a method of a type without explicit permission."""
    from langgraph.checkpoint.serde import _msgpack  # pyright: ignore[reportPrivateUsage]

    return (module, name, method) in _msgpack.SAFE_MSGPACK_METHODS
