"""Why a stored value is not made into an object, or a value is not stored.

A module of its own, so that reading a store does not import LangGraph, which the serializer that raises them needs.
"""

from __future__ import annotations

__all__ = ["RefusedValue", "UnknownType", "Unstorable"]


class RefusedValue(Exception):
    """A stored value that must not be made into an object; says which."""


class Unstorable(RefusedValue):
    """One that has no stored form, or none that could be read back."""


class UnknownType(RefusedValue):
    """One of a type that nobody allowed: whether it is damaged, only who knows the type can tell."""
