"""Why a stored value is not made into an object, or a value is not stored.

A module of its own, so that reading a store does not import LangGraph, which the serializer that raises them needs.
"""

from __future__ import annotations

__all__ = ["RefusedValue", "UnknownType", "Unstorable"]


_MOST_SHOWN = 200


class RefusedValue(Exception):
    """A stored value that must not be made into an object, or a value that must not be stored; says which."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place
        """Way to it within what was to be stored: `visited[3].pairs`."""

    def within(self, part: str) -> None:
        """Lengthen the place by the part of what holds the value."""
        self.place = part + self.place

    def __str__(self) -> str:
        place = self.place if len(self.place) <= _MOST_SHOWN else f"{self.place[:_MOST_SHOWN]}..."
        return f"{self.args[0]}, at {place}" if place else str(self.args[0])


class Unstorable(RefusedValue):
    """One that has no stored form, or none from which it would come back as it is."""


class UnknownType(RefusedValue):
    """One of a type that nobody allowed: whether it is damaged, only who knows the type can tell."""
