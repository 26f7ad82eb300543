"""Errors for stored values that are not made into objects, and for values that are not stored.

This is a separate module, so that reading a store does not import LangGraph, which the serializer
needs.
"""

from __future__ import annotations

__all__ = ["RefusedValue", "UnknownType", "Unstorable"]


_MOST_SHOWN = 200


class RefusedValue(Exception):
    """Error for a stored value that must not be built, or a value that must not be stored. The
    message names the value.
    """

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place
        """Path of the refused part in the value to be stored, such as `visited[3].pairs`."""

    def within(self, part: str) -> None:
        """Prepend the part of an outer value to the place."""
        self.place = part + self.place

    def __str__(self) -> str:
        place = self.place if len(self.place) <= _MOST_SHOWN else f"{self.place[:_MOST_SHOWN]}..."
        return f"{self.args[0]}, at {place}" if place else str(self.args[0])


class Unstorable(RefusedValue):
    """Error for a value without a stored form, or one that would come back changed."""


class UnknownType(RefusedValue):
    """Error for a value of a type that is not allowed. Without its type, damage cannot be
    detected.
    """
