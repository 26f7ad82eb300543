"""LangGraph's private names, in one place: keys of a config, channels of a checkpoint, reserved writes, ids of tasks.

None of them is part of LangGraph's public interface. They stand in stored checkpoints, though, so they have to be read
here as they were written, also with a LangGraph that names them otherwise. `tests/test_langgraph_format.py` says which
of them the installed one has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

__all__ = [
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
    "ROOT",
    "RUNTIME",
    "SENDS",
    "START",
    "TASK",
    "NamespacePart",
    "await_missing_checkpoints",
    "checkpoint_of_root",
    "collect_declared_types",
    "config_in_force",
    "is_internal",
    "is_reserved",
    "is_safe_method",
    "is_safe_type",
    "namespace_around",
    "namespace_parts",
    "task_id_of",
    "task_of_namespace",
    "triggered_nodes",
    "types_of_channels",
    "types_of_schemas",
]

# writes of a task that are no values of channels
INTERRUPT = "__interrupt__"
"""Its questions; the "node" of an update that tells them, too."""
RESUME = "__resume__"
"""The answers that it has been given."""
ERROR = "__error__"
ERROR_SOURCE = "__error_source_node__"
"""Beside an error: the node that failed, where another node of the graph handles that."""
NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Stands for the task of writes that belong to none: the input of a run, an answer to whichever question waits."""

# nodes that are none
START = "__start__"
"""Also the channel that holds the input until the graph has read it."""
END = "__end__"
INPUT = "__input__"
"""In `versions_seen`: the input."""

# channels
SENDS = "__pregel_tasks"
"""The tasks that `Send` asks for in the next step."""
ROOT = "__root__"
"""The whole state, where it is not a mapping."""
_BRANCH = "branch:to:"
"""A channel whose presence triggers the node named after it."""
_JOIN = "join:"
"""`join:a+b:c` holds the names of those of a and b that have ended; with both it triggers c."""
_INTERNAL = ("__", "branch:", "join:", "start:")

# how a task came about
PUSH = "__pregel_push"
"""By a `Send`."""
PULL = "__pregel_pull"
"""By its channels."""

# keys of config["configurable"]
RUNTIME = "__pregel_runtime"
"""The `Runtime`, which knows the running task."""
READ = "__pregel_read"
"""A function that gives a node the value of a channel."""
TASK = "__pregel_task_id"
"""The task that a graph is run for; an outermost graph has none."""
CHECKPOINTER = "__pregel_checkpointer"
"""A checkpointer that goes before the graph's own."""
_CHECKPOINT_MAP = "checkpoint_map"

# namespaces of checkpoints
_BETWEEN_PARTS, _BEFORE_TASK = "|", ":"


class NamespacePart(NamedTuple):
    """A task of a graph, as the namespace `node:task_id|node:task_id` of a subgraph or of a call names it."""

    node: str
    """Its node. Or a number, which tells several subgraphs of the task before it apart."""
    task_id: str
    """Empty with a number."""
    around: str
    """The namespace of its graph."""


def namespace_parts(namespace: str) -> tuple[NamespacePart, ...]:
    """From the outermost task to the innermost; none of the outermost graph's own namespace."""
    parts = list[NamespacePart]()
    around = list[str]()
    for text in namespace.split(_BETWEEN_PARTS) if namespace else ():
        node, _, task_id = text.partition(_BEFORE_TASK)
        parts.append(NamespacePart(node, task_id, _BETWEEN_PARTS.join(around)))
        around.append(text)
    return tuple(parts)


def namespace_around(namespace: str) -> str:
    """Of a task's namespace, that of the graph that the task belongs to."""
    return namespace.rpartition(_BETWEEN_PARTS)[0]


def task_of_namespace(namespace: str) -> str:
    """The id of the innermost task."""
    return namespace.rpartition(_BEFORE_TASK)[2]


def is_internal(channel: str) -> bool:
    """Whether a channel is LangGraph's own, and no part of the state as its author knows it."""
    return channel.startswith(_INTERNAL) and channel != ROOT


def is_reserved(write: str) -> bool:
    """Whether a write is a note of LangGraph's own (a question, an error), and not a value for a channel."""
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


def checkpoint_of_root(configurable: Mapping[str, Any], own: str) -> str:
    """Id of the outermost graph's checkpoint, as a task of a subgraph sees it; `own` where there is none around it."""
    return str(configurable.get(_CHECKPOINT_MAP, {}).get("", own))


def task_id_of(checkpoint_id: str, namespace: str, step: int, node: str, *made_by: str) -> str:
    """The id of a task of `node`. `made_by`: `PUSH` and its index, or `PULL` and all its triggers, sorted."""
    own = f"{namespace}{_BETWEEN_PARTS}{node}" if namespace else node
    parts = "".join((own, str(step), node, *made_by))
    digest = xxhash.xxh3_128_hexdigest(bytes.fromhex(checkpoint_id.replace("-", "")) + parts.encode())
    return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"


def config_in_force(*configs: RunnableConfig | None) -> RunnableConfig:
    """What a graph makes of its own config, the one it is given, and the one of the task around it."""
    from langgraph._internal._config import ensure_config  # pyright: ignore[reportPrivateUsage]

    return ensure_config(*configs)


def collect_declared_types() -> None:
    """Have LangGraph tell a checkpointer, from now on, which types the graphs that it is compiled into declare.

    It does so under an environment variable that it reads at its import, which would make other checkpointers strict
    too. For those the list changes nothing.
    """
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    _serde.STRICT_MSGPACK_ENABLED = True


@cache
def await_missing_checkpoints() -> None:
    """Let a subgraph without checkpoints run inside a graph with durability `sync`, once per process.

    LangGraph waits after each step for the checkpoint that was written last, and raises an `AttributeError` where a
    graph that was compiled with `checkpointer=False` has written none.
    """
    from langgraph.pregel import _loop  # pyright: ignore[reportPrivateUsage]

    for loop in (_loop.AsyncPregelLoop, _loop.SyncPregelLoop):
        if not hasattr(loop, "_put_checkpoint_fut"):
            setattr(loop, "_put_checkpoint_fut", _Nothing())  # noqa: B010  # a name that the class does not declare


class _Nothing:
    """Is over, as a future of either kind."""

    def __await__(self) -> Iterator[None]:
        yield from ()

    def result(self) -> None:
        return None


def types_of_channels(channels: Mapping[str, Any]) -> set[tuple[str, ...]]:
    """(module, name) of the types that the channels of a graph hold."""
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    return _serde.build_serde_allowlist(channels=dict(channels))


def types_of_schemas(schemas: Iterable[Any]) -> set[tuple[str, ...]]:
    """(module, name) of the types in the fields of classes."""
    from langgraph._internal import _serde  # pyright: ignore[reportPrivateUsage]

    return _serde.collect_allowlist_from_schemas(schemas=[schema for schema in schemas if schema is not None])


def is_safe_type(module: str, name: str) -> bool:
    """Whether LangGraph makes values of a type of which nobody said that it is allowed."""
    from langgraph.checkpoint.serde import _msgpack  # pyright: ignore[reportPrivateUsage]

    return (module, name) in _msgpack.SAFE_MSGPACK_TYPES


def is_safe_method(module: str, name: str, method: str) -> bool:
    """The same for values that a method of a type makes."""
    from langgraph.checkpoint.serde import _msgpack  # pyright: ignore[reportPrivateUsage]

    return (module, name, method) in _msgpack.SAFE_MSGPACK_METHODS
