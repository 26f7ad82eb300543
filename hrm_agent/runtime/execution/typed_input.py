"""Graph input from JSON, with objects of the classes that its state declares.

LangGraph makes objects of a state that is itself a pydantic model. In a state that is a typed dict
or a dataclass, a field that is declared as a pydantic model or a dataclass, or as a list, a mapping
or a union of these, would reach the nodes as plain dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from langchain_core.messages import BaseMessage
from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError

from hrm_agent.errors import ConfigError

__all__ = ["typed_input"]


def typed_input(schema: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an input with their objects. `schema`: class of the graph's input (None if it has
    none).

    Raises `ConfigError` for a value that does not have its field's type.
    """
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        _refuse_invalid(schema, fields)
        return dict(fields)
    readers = _readers(schema) if schema is not None else {}
    return {
        name: _read(readers[name], name, value) if name in readers else value
        for name, value in fields.items()
    }


@lru_cache
def _readers(schema: type[Any]) -> dict[str, TypeAdapter[Any]]:
    """Readers by field, for fields that hold objects."""
    readers = dict[str, TypeAdapter[Any]]()
    for name, declared in get_type_hints(schema).items():
        if _holds_objects(declared):
            try:
                readers[name] = TypeAdapter(declared)
            # a class that pydantic does not know: the value is unchanged
            except PydanticUserError:
                continue
    return readers


def _holds_objects(declared: Any) -> bool:
    """True if a field holds objects. Messages do not count, since their reducer reads them by type
    name.
    """
    if isinstance(declared, type) and issubclass(declared, BaseMessage):
        return False
    own = isinstance(declared, type) and (issubclass(declared, BaseModel) or is_dataclass(declared))
    return own or any(map(_holds_objects, get_args(declared)))


def _read(reader: TypeAdapter[Any], name: str, value: Any) -> Any:
    try:
        return reader.validate_python(value)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False)[0], name) from error


def _refuse_invalid(schema: type[BaseModel], fields: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for an invalid input, which LangGraph would report only during the run.
    Fields may be missing, since a node may set them.
    """
    try:
        schema.model_validate(dict(fields))
    except ValidationError as error:
        wrong = [each for each in error.errors(include_url=False) if each["type"] != "missing"]
        if wrong:
            raise _refused(wrong[0]) from error


def _refused(first: Any, *before: str) -> ConfigError:
    place = ".".join(str(part) for part in (*before, *first["loc"]))
    shown = repr(first["input"])
    given = (
        ""
        if first["type"] == "missing"
        else f", not {shown if len(shown) <= 80 else f'{shown[:80]}...'}"
    )
    return ConfigError(
        f"The field {place or 'input'!r} of the graph's input: {first['msg']}{given}.",
        "The graph's state declares its type.",
    )
