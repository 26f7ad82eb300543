"""LangGraph's serializer, strict: a stored value of a type that nobody allowed is refused, not run and not passed on.

LangGraph's own strict mode hands out the raw arguments of a refused type and logs a line. A state that silently becomes
another is no better than an error here, so whatever it blocks is raised as `RefusedValue`. Allowed are LangGraph's own
list of plain and LangChain types, the types that a graph's state declares (`StoreSaver.allowing`), and those that
`open_store(allow=...)` names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from langgraph._internal._serde import build_serde_allowlist  # pyright: ignore[reportPrivateImportUsage]
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.pregel import Pregel

__all__ = ["RefusedValue", "StrictSerializer", "allowed_types", "declared_types"]

_KINDS = frozenset({"null", "bytes", "bytearray", "msgpack"})
_blocked = threading.local()


class RefusedValue(Exception):
    """A stored value that must not be made into an object; says which."""


class StrictSerializer(JsonPlusSerializer):
    """Reads msgpack of allowed types and plain bytes, nothing else: no pickle, no JSON constructors."""

    def __init__(self, allow: Iterable[tuple[str, ...]] = ()) -> None:
        super().__init__(allowed_msgpack_modules=tuple(allow) or None)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, _ = data
        if kind not in _KINDS:
            raise RefusedValue(f"a value of the kind {kind!r}, which is never read")
        _blocked.names = []
        try:
            value = super().loads_typed(data)
        except Exception as error:
            raise RefusedValue(f"a value that is no {kind}: {error}") from error
        if _blocked.names:
            raise RefusedValue(f"a value of the type {', '.join(sorted(set(_blocked.names)))}, which is not allowed")
        return value


def allowed_types(names: Sequence[str]) -> list[tuple[str, ...]]:
    """`package.module:Class` as LangGraph's allow-list has it."""
    return [(module, name) for module, _, name in (text.partition(":") for text in names)]


@lru_cache(maxsize=32)
def declared_types(graph: Pregel[Any, Any, Any, Any]) -> frozenset[tuple[str, ...]]:
    """(module, name) of the types in the state of a graph and of its subgraphs."""
    subgraphs = [subgraph for _, subgraph in graph.get_subgraphs(recurse=True) if isinstance(subgraph, Pregel)]
    return frozenset().union(*(build_serde_allowlist(channels=dict(g.channels)) for g in (graph, *subgraphs)))


def _note(event: SerdeEvent) -> None:
    """LangGraph tells of what it blocks in the thread that reads."""
    if event["kind"] in ("msgpack_blocked", "msgpack_method_blocked") and hasattr(_blocked, "names"):
        _blocked.names.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_note)
