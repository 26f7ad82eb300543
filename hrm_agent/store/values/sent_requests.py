"""Reading of the requests that `hrm_agent.store.values.requests` writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, cast

import ormsgpack

from hrm_agent.errors import StoreError
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.refusals import RefusedValue
from hrm_agent.store.values.value_reader import Reference, ValueReader

__all__ = ["Dump", "Sent", "copies_of", "read_request", "read_requests"]

Dump = dict[str, Any]
Sent = dict[str, dict[str, tuple[Dump, ...]]]
"""Known `request` and `tools` by call id, as JSON dumps."""
_WITH_TOOLS = (1, 3)
"""Numbers of references in a row whose last one is that of the tools."""


def read_request(data: bytes) -> list[Reference]:
    """References in a row of a request."""
    return cast("list[Reference]", ormsgpack.unpackb(data))


def read_requests(
    reader: ValueReader, cipher: Cipher, rows: Mapping[str, bytes], dump: Callable[[Any], Any]
) -> Sent:
    """Requests of calls by their rows, by call id. `dump` converts a value of `reader`.

    Messages that several calls sent are read once, and are one object.
    """
    dumps: dict[int | bytes, Dump] = {}
    found: Sent = {}
    here = ""

    def dumped(message: Any) -> Dump:
        """Dump of a message. The reader keeps the message alive meanwhile, so its id is unique."""
        key = message if isinstance(message, bytes) else id(message)
        if key not in dumps:
            dumped_message = dump(message)
            if not isinstance(dumped_message, dict):
                raise RefusedValue(f"a value ({type(message).__name__}) that is no message")
            dumps[key] = cast("Dump", dumped_message)
        return dumps[key]

    try:
        parts: dict[str, list[Reference]] = {}
        for here, data in rows.items():
            parts[here] = read_request(cipher.open(data, "request", here))
        reader.load(part for each in parts.values() for part in each)
        for here, each in parts.items():
            lists = [tuple(dumped(value) for value in reader.value(part)) for part in each]
            tools = {"tools": lists.pop()} if len(lists) in _WITH_TOOLS else {}
            found[here] = {
                **({"request": tuple(chain.from_iterable(lists))} if lists else {}),
                **tools,
            }
    except (RefusedValue, *DAMAGED) as error:
        raise StoreError(
            f"The request of model call {here} was not read: {error}.",
            "The store was damaged or changed: `hrm-agent store verify`.",
        ) from error
    return found


def copies_of(
    dumps: Iterable[dict[str, Any]], copied: dict[int, Any]
) -> tuple[dict[str, Any], ...]:
    """Copies of JSON objects, one for each. `copied` has earlier copies by the ids of their
    originals.
    """
    found: list[dict[str, Any]] = []
    for dump in dumps:
        if id(dump) not in copied:
            copied[id(dump)] = _copy(dump)
        found.append(copied[id(dump)])
    return tuple(found)


def _copy(value: Any) -> Any:
    """Deep copy of a JSON value, five times as fast as `copy.deepcopy`."""
    if type(value) is dict:
        return {name: _copy(item) for name, item in cast("dict[str, Any]", value).items()}
    if type(value) is list:
        return [_copy(item) for item in cast("list[Any]", value)]
    return value
