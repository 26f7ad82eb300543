"""LangGraph's serializer, strict: a stored value of a type that nobody allowed is refused, not run and not passed on.

LangGraph's own strict mode hands out the raw arguments of a refused type and logs a line. A state that silently becomes
another is no better than an error here, so whatever it blocks is raised as `RefusedValue`. Allowed are LangGraph's own
list of plain and LangChain types, the types that a graph's state declares (`StoreSaver.allowing`), and those that
`open_store(allow=...)` names. What could not be read back is refused when it is written: a thread that nobody can open
would be found when it is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

import ormsgpack
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

from hrm_agent.langgraph_format import types_of_channels, types_of_schemas
from hrm_agent.store.refusals import RefusedValue, UnknownType, Unstorable

__all__ = ["PLAIN", "StrictSerializer", "allowed_types", "declared_types"]

_KINDS = frozenset({"null", "bytes", "bytearray", "msgpack"})
_blocked = threading.local()
PLAIN = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_UUID
    | ormsgpack.OPT_REPLACE_SURROGATES
)
"""Refuses whatever is not of a plain type itself."""


class StrictSerializer(JsonPlusSerializer):
    """Reads msgpack of allowed types and plain bytes, nothing else: no pickle, no JSON constructors."""

    def __init__(self, allow: Iterable[tuple[str, ...]] = ()) -> None:
        super().__init__(allowed_msgpack_modules=tuple(allow) or None)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj is not None and not isinstance(obj, (bytes, bytearray)):
            try:  # what LangGraph makes of a plain value is the same, byte for byte
                return "msgpack", ormsgpack.packb(obj, option=PLAIN)
            except ormsgpack.MsgpackEncodeError:
                pass
        kind, data = self.dumps_allowed(obj)
        if kind == "msgpack":
            self.loads_typed((kind, data))
        return kind, data

    def dumps_allowed(self, obj: Any) -> tuple[str, bytes]:
        """The same for what is known to be of allowed types."""
        try:
            return super().dumps_typed(obj)
        except (TypeError, ValueError, RecursionError) as error:
            if _is_deep(obj):
                raise Unstorable(f"a value ({type(obj).__name__}) nested too deeply to be stored") from error
            raise Unstorable(f"a value ({type(obj).__name__}) that cannot be stored: {error}") from error

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _ = data
        if kind not in _KINDS:
            raise RefusedValue(f"a value of the kind {kind!r}, which is never read")
        _blocked.names = []
        try:
            value = super().loads_typed(data)
        except Exception as error:
            raise RefusedValue(f"a value that is not valid {kind}: {error}") from error
        if _blocked.names:
            raise UnknownType(f"a value of the type {', '.join(sorted(set(_blocked.names)))}, which is not allowed")
        return value


_DEEP = 200
"""Levels at which msgpack is about to give up."""


def _is_deep(value: Any) -> bool:
    """Whether containers are nested as deeply; looked at only where a value could not be stored."""
    level, seen = [value], 0
    while level and seen < _DEEP:
        seen += 1
        level = [item for held in level for item in _held_by(held)][:1000]
    return bool(level)


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return cast("Iterable[Any]", value)
    return getattr(value, "__dict__", {}).values()


def allowed_types(names: Sequence[str]) -> list[tuple[str, ...]]:
    """`package.module:Class` as LangGraph's allow-list has it."""
    return [(module, name) for module, _, name in (text.partition(":") for text in names)]


@lru_cache(maxsize=32)
def declared_types(graph: Pregel[Any, Any, Any, Any]) -> frozenset[tuple[str, ...]]:
    """(module, name) of the types in the state of a graph and of its subgraphs, and of what nodes send each other."""
    subgraphs = [subgraph for _, subgraph in graph.get_subgraphs(recurse=True) if isinstance(subgraph, Pregel)]
    found = (types_of_channels(each.channels) | _types_sent(each) for each in (graph, *subgraphs))
    return frozenset().union(*found)


def _types_sent(graph: Pregel[Any, Any, Any, Any]) -> frozenset[tuple[str, ...]]:
    """Of the inputs that nodes declare for themselves: `Send` gives them such a one."""
    nodes: dict[str, Any] = getattr(getattr(graph, "builder", None), "nodes", {})
    return frozenset(types_of_schemas(getattr(node, "input_schema", None) for node in nodes.values()))


def _note(event: SerdeEvent) -> None:
    """LangGraph tells of what it blocks in the thread that reads."""
    if event["kind"] in ("msgpack_blocked", "msgpack_method_blocked") and hasattr(_blocked, "names"):
        _blocked.names.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_note)
