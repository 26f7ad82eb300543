"""Match of function calls with BFCL's ground truth, by the published rules for Python.

An expected call has a function and, for each parameter, the values that are right. A call matches
if it names the function, has all needed parameters and no others, and each value has the type of
the parameter and is among the right ones. Texts are compared in lower case and without spaces and
some punctuation. A whole number is right for a float parameter, but not within a list.

If the right values of a parameter have another type than the parameter (they name a variable), a
value of that type is compared as it is. Dictionaries are compared one level deep. A right value
`""` says that the parameter may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

__all__ = ["TYPES", "ExpectedCall", "ExpectedParameter", "all_match"]

TYPES: Mapping[str, type] = {
    "any": str,
    "array": list,
    "boolean": bool,
    "dict": dict,
    "float": float,
    "integer": int,
    "string": str,
    "tuple": list,
}
"""Type of a parameter -> type of its values in JSON."""
OPTIONAL = ""
"""Right value of a parameter that may be left out."""


class ExpectedParameter(TypedDict):
    """Parameter of an expected call."""

    type: str
    """Key of `TYPES`."""
    items: str | None
    """Key of `TYPES`: type of the elements of a list (None for other types)."""
    right: list[Any]
    """Right values. Those of a dictionary's keys are lists, too."""


class ExpectedCall(TypedDict):
    """Call in the ground truth."""

    name: str
    """Name of the function, as offered to the model."""
    needed: list[str]
    """Names of the parameters that a call must have."""
    parameters: dict[str, ExpectedParameter]
    """Parameters that a call may have."""


def all_match(
    calls: Sequence[tuple[str, Mapping[str, Any]]], expected: Sequence[ExpectedCall]
) -> bool:
    """True if every expected call, in turn, takes one of the remaining calls that matches it, and
    no call remains. `calls`: (name, arguments) of each call.
    """
    left = list(calls)
    for one in expected:
        index = next((i for i, call in enumerate(left) if _matches(*call, one)), None)
        if index is None:
            return False
        del left[index]
    return not left


def _matches(name: str, arguments: Mapping[str, Any], expected: ExpectedCall) -> bool:
    known = expected["parameters"]
    return (
        name == expected["name"]
        and all(needed in arguments for needed in expected["needed"])
        and all(key in known and _is_right(value, known[key]) for key, value in arguments.items())
    )


def _is_right(value: Any, parameter: ExpectedParameter) -> bool:
    right = parameter["right"]
    kind = TYPES[parameter["type"]]
    items = None if parameter["items"] is None else TYPES[parameter["items"]]
    if parameter["type"] == "float" and type(value) is int:
        value = float(value)
    by_reference = _reference_type(right)
    if type(value) is not kind:
        return type(value) is by_reference and value in right
    if items is not None and not _has_items(value, items, right):
        return False
    if by_reference not in (None, kind):
        return value in right
    if kind is dict:
        return any(_same_dict(value, one) for one in right if one != OPTIONAL)
    if kind is list and items is dict:
        return any(_same_dicts(value, one) for one in right)
    if kind is list:
        return _plain_items(value) in [_plain_items(one) for one in right]
    return _plain(value) in map(_plain, right)


def _reference_type(right: Sequence[Any]) -> type | None:
    """Type of the first right value that is not `""` (None if there is none)."""
    return next((type(one) for one in right if one != OPTIONAL), None)


def _has_items(value: list[Any], items: type, right: Sequence[Any]) -> bool:
    """True if all elements have the type `items`, or that of the first element of a right list."""
    for one in right:
        reference = _reference_type(cast("list[Any]", one)) if isinstance(one, list) else None
        if not isinstance(one, list) or all(type(each) in (items, reference) for each in value):
            return True
    return False


def _same_dict(value: Any, right: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(right, dict):
        return False
    given = cast("dict[str, Any]", value)
    wanted = cast("dict[str, list[Any]]", right)
    return all(
        key in wanted and _plain(one) in map(_plain, wanted[key]) for key, one in given.items()
    ) and all(key in given or OPTIONAL in values for key, values in wanted.items())


def _same_dicts(value: list[Any], right: Sequence[Any]) -> bool:
    return len(value) == len(right) and all(map(_same_dict, value, right))


def _plain_items(values: Sequence[Any]) -> list[Any]:
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    """Text in the form in which texts are compared. Other values are unchanged."""
    if not isinstance(value, str):
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')
