"""Checkpoints read without LangChain and LangGraph, for who looks at the course of a run and not at its state.

Plain values, sets, sent tasks and questions are read; of a message it is only seen that it is one. A value of any other
type raises `NeedsItsType`: whoever asked reads the checkpoints by `store.checkpointer` then, which knows types, and
refuses those that nobody allowed.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple, cast

from hrm_agent.store.checkpoint_reader import ROW, CheckpointOutline, CheckpointRow, StoreSnapshot
from hrm_agent.store.damage import DAMAGED
from hrm_agent.store.manifests import read_manifest
from hrm_agent.store.refusals import RefusedValue
from hrm_agent.store.run_store import RunStore
from hrm_agent.store.stored_messages import MESSAGE_FIELDS, TYPED, NeedsItsType, Packed, is_json, unpacked
from hrm_agent.store.value_reader import read_values

__all__ = ["HIDDEN", "SNAPSHOT", "SentTask", "StoredQuestion", "newest_plain_channels", "outlines"]

HIDDEN = object()
"""Stands for a message, and for a value that an edit has put in place of another."""
_SET, _SEND, _KEYWORDS, _MODEL = 0, 1, 2, 5
"""Codes of LangGraph's serializer: values made of one argument, of several, of named ones, and pydantic models.

A value that it would give back changed is under a code of ours, with the same parts and the way to build it.
"""
SNAPSHOT = 7
"""LangGraph's code of a snapshot of a `DeltaChannel`."""
_MODELS, _NAMED = (_MODEL, TYPED), (_KEYWORDS, TYPED)


class SentTask(NamedTuple):
    """What `Send` asks for."""

    node: str
    """Its node."""


class StoredQuestion(NamedTuple):
    """An interrupt."""

    id: str
    """LangGraph's."""
    value: Any
    """What was asked, as a plain value."""


class _Outlined:
    """A loader (`hrm_agent.store.value_reader`) of the values of checkpoints."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        if kind == "null":
            return None
        if kind not in ("bytes", "msgpack"):
            raise NeedsItsType
        return content if kind == "bytes" else _outlined(unpacked(content))


class _Plain:
    """A loader of values that JSON has a form for."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = unpacked(data[1]) if data[0] == "msgpack" else None
        if data[0] not in ("msgpack", "null") or not is_json(value):
            raise NeedsItsType
        return value


def outlines(store: RunStore, thread_id: str) -> list[CheckpointOutline]:
    """The checkpoints of a thread and of the subgraphs that ran on it, the newest first. Raises `NeedsItsType`."""
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? ORDER BY id DESC, seq DESC"
    with store.database.read() as cursor:
        rows = [CheckpointRow(*row) for row in cursor.execute(query, (thread_id,)).fetchall()]
        reader = read_values(cursor, store.cipher, _Outlined(), shared=True)
        return StoreSnapshot(cursor, reader, store.cipher, lambda *_: None).outlines(rows)


def newest_plain_channels(store: RunStore, thread_id: str, names: Collection[str]) -> dict[str, Any]:
    """The newest values of some channels of a thread; empty without a checkpoint. Raises `NeedsItsType`."""
    query = f"SELECT {ROW} FROM checkpoints WHERE thread_id = ? AND ns = ? ORDER BY id DESC LIMIT 1"
    with store.database.read() as cursor:
        found = cursor.execute(query, (thread_id, "")).fetchone()
        if found is None:
            return {}
        row = CheckpointRow(*found)
        try:
            _, channels = read_manifest(store.cipher.open(row.manifest, *row[1:4]))
            if any(name in names and ref is None for name, (_, ref) in channels.items()):
                raise NeedsItsType  # its value may be made of what earlier checkpoints hold
            wanted = {name: ref for name, (_, ref) in channels.items() if name in names}
            reader = read_values(cursor, store.cipher, _Plain(), shared=False)
            reader.load(wanted.values())
            return {name: reader.value(ref) for name, ref in wanted.items()}
        except (RefusedValue, *DAMAGED) as error:  # who reads it with its types says what is wrong
            raise NeedsItsType from error


def _outlined(value: Any) -> Any:
    """What is inside, too."""
    if isinstance(value, Packed):
        return _of_type(value.code, unpacked(value.data))
    if isinstance(value, list):
        return [_outlined(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {name: _outlined(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def _of_type(code: int, made: Any) -> Any:
    match code, made:
        case (_, _) if code == SNAPSHOT:
            return _outlined(made)
        case (_, ["builtins", "tuple", [*items], _]) if code == TYPED:
            return tuple(map(_outlined, items))
        case (_, [str(module), str(name), dict(), _, *_]) if code in _MODELS and (module, name) in MESSAGE_FIELDS:
            _outlined(made[2])  # what it holds is of known types, too
            return HIDDEN
        case (_, ["builtins", "set", [*items], *_]) if code in (_SET, TYPED) and is_json(items) and _are_keys(items):
            return set(items)
        case (_, ["langgraph.types", "Send", [str(node), argument], *_]) if code in (_SEND, TYPED):
            _outlined(argument)
            return SentTask(node)
        case (_, ["langgraph.types", "Interrupt", {"id": str(id_), "value": asked, **more}, *_]) if code in _NAMED:
            if is_json([asked, more]):
                return StoredQuestion(id_, asked)
        case (_, ["langgraph.types", "Overwrite", dict(), *_]) if code in _NAMED:
            _outlined(made[2])
            return HIDDEN
        case _:
            pass
    raise NeedsItsType


def _are_keys(items: list[Any]) -> bool:
    return not any(isinstance(item, (list, dict)) for item in items)
