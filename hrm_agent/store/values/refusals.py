"""Why a stored value is not made into an object, or a value is not stored.

A module of its own, so that reading a store does not import LangGraph, which the serializer that
raises them needs.
"""

from __future__ import annotations

__all__ = ["RefusedValue", "UnknownType", "Unstorable"]


_MOST_SHOWN = 200


class RefusedValue(Exception):
    """A stored value that must not be built, or a value that must not be stored. The message names
    it.
    """

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place
        """Path to it within the value that was to be stored: `visited[3].pairs`."""

    def within(self, part: str) -> None:
        """Put the part of an outer value before the place."""
        self.place = part + self.place

    def __str__(self) -> str:
        place = self.place if len(self.place) <= _MOST_SHOWN else f"{self.place[:_MOST_SHOWN]}..."
        return f"{self.args[0]}, at {place}" if place else str(self.args[0])


class Unstorable(RefusedValue):
    """A value without a stored form, or one that would come back changed."""


class UnknownType(RefusedValue):
    """One of a type that nobody allowed: whether it is damaged,
    only who knows the type can tell.
    """
