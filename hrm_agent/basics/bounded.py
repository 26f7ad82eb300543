"""Dict that drops its oldest entries."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping, ValuesView
from contextlib import suppress
from typing import TypeVar

__all__ = ["BoundedMap", "remember"]

_REMEMBERED = 1024

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class BoundedMap(MutableMapping[_Key, _Value]):
    """Mapping of at most `most` entries, whose weights add up to at most `most_weight`. Not
    thread-safe.

    An entry is as old as its key: a new value for a key does not make the entry newer. A key that
    is removed and set again is new.
    """

    def __init__(
        self, most: int, weigh: Callable[[_Value], int] = lambda _: 0, most_weight: float = math.inf
    ) -> None:
        """Make an empty map. `weigh`: computes the weight of a value, which must not change while
        the value is in the map.
        """
        self._entries: OrderedDict[_Key, _Value] = OrderedDict()
        self._most = most
        self._weigh = weigh
        self._most_weight = most_weight
        self._weight = 0

    def put(self, key: _Key, value: _Value) -> list[_Value]:
        """Set an entry and return the values that are dropped for it."""
        self._weight += self._weigh(value) - (
            self._weigh(self._entries[key]) if key in self._entries else 0
        )
        self._entries[key] = value
        forgotten: list[_Value] = []
        while len(self._entries) > self._most or self._weight > self._most_weight:
            forgotten.append(self.pop(next(iter(self._entries))))
        return forgotten

    def __setitem__(self, key: _Key, value: _Value) -> None:
        self.put(key, value)

    def __getitem__(self, key: _Key) -> _Value:
        return self._entries[key]

    def __delitem__(self, key: _Key) -> None:
        self._weight -= self._weigh(self._entries.pop(key))

    def __iter__(self) -> Iterator[_Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def values(self) -> ValuesView[_Value]:
        """Values of the map. This view is faster than the inherited one, which looks up each
        key.
        """
        return self._entries.values()


def remember(kept: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Set an entry of a dict that several threads change, and drop the oldest beyond 1,024."""
    kept[key] = value
    while len(kept) > _REMEMBERED:
        with suppress(RuntimeError):  # another thread has changed it in between
            kept.pop(next(iter(kept)), None)
