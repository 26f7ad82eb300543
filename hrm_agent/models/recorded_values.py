"""Stored form of a model's answers and errors.

A plain answer is stored as its JSON dump. Parts that the dump would change (bytes, tuples, objects,
user classes) are stored separately as a JSON tree with type names. Reading imports nothing. If the
class of a value is not loaded, the value's fields are returned as a mapping. If the class of an
error is not loaded, the error gets the nearest loaded base class.
"""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeGuard, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel, ValidationError

from hrm_agent.basics.unicode import find_surrogate, text_of, without_surrogates
from hrm_agent.errors import HrmError, ModelError
from hrm_agent.trajectory import Call
from hrm_agent.trajectory.call_facts import RaisedError
from hrm_agent.trajectory.message_dump import message_dump

__all__ = [
    "OWN_FACTS",
    "PLAIN",
    "PackedAnswer",
    "is_of_a_model",
    "is_on_record",
    "odd_fields",
    "pack_answer",
    "pack_error",
    "raised",
    "serialised",
    "unpack_answer",
]

OWN_FACTS = ("call_id", "started_at", "ended_at", "thread_id")
"""Keys of `response_metadata` that this project writes."""
_TYPE = "__type__"
"""Key in a tree for the type of a value that JSON cannot represent."""
_MOST_OF_A_FACT = 4096
"""Maximum number of characters of an error's attribute, if it is to be stored."""
_TELLING = re.compile(
    "retry-after|(x-|anthropic-)?(ratelimit|request-id)|x-should-retry", re.IGNORECASE
)
"""Headers of an error response that are stored. None of them names a user or holds a key."""
PLAIN = JsonPlusSerializer(allowed_msgpack_modules=None)
"""Serializer for the types that LangGraph allows by default."""


class PackedAnswer(NamedTuple):
    """Fields of a `Call` that hold an answer."""

    response: dict[str, Any]
    """Value of `Call.response`."""
    exact: dict[str, Any] | None
    """Value of `Call.exact`."""
    lost: tuple[str, ...] | None
    """Value of `Call.lost`."""


class _Gone(Exception):
    """A value is not on record."""


def pack_answer(message: AIMessage) -> PackedAnswer:
    """Convert an answer to its stored form. Never raises: unstorable values are named in `lost`."""
    own = type(message) is not AIMessage
    odd = odd_fields(message)
    if not odd and not own:
        return PackedAnswer(message.model_dump(mode="json"), None, None)
    lost: list[str] = []
    exact: dict[str, Any] = {"class": _name(type(message))} if own else {}
    exact["fields"] = {name: _packed(value, name, lost) for name, value in odd.items()}
    return PackedAnswer(_shown(message), exact, tuple(lost) or None)


def odd_fields(message: BaseMessage) -> dict[str, Any]:
    """Fields of a message that JSON does not return unchanged."""
    fields = {**vars(message), **(message.__pydantic_extra__ or {})}
    return {name: value for name, value in fields.items() if not _is_json(value)}


def unpack_answer(call: Call) -> AIMessage:
    """Answer of a recorded call."""
    message = AIMessage.model_validate(call.response)
    if call.exact is None:
        return message
    fields = _without_gone(call.exact.get("fields", {}))
    facts = fields.get("response_metadata")
    if isinstance(facts, dict):
        said = call.response.get("response_metadata", {})
        fields["response_metadata"] = {
            **facts,
            **{name: said[name] for name in OWN_FACTS if name in said},
        }
    kind: Any = _loaded(str(call.exact.get("class", ""))) or AIMessage
    for each in (kind, AIMessage):
        with suppress(Exception):  # the class may have changed since
            return each.model_validate({**call.response, **fields})
    return message


def _shown(message: AIMessage) -> dict[str, Any]:
    """Dump of an answer, for display, if JSON cannot represent all of it."""
    try:
        shown = _clean(message_dump(message, lambda value: type(value).__qualname__))
        AIMessage.model_validate(shown)
    except Exception:  # a user's object may raise anything when it is dumped
        return AIMessage(without_surrogates(str(message.text)), id=message.id).model_dump(
            mode="json"
        )
    return shown


def _clean(value: Any) -> Any:
    """Copy of JSON data without lone surrogates, NaN and infinity."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, dict):
        return {_clean(name): _clean(item) for name, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_clean(item) for item in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_json(value: Any) -> bool:
    """True if JSON returns the value unchanged."""
    kind = type(value)
    if kind is str or kind is TextAccessor:  # `message.text`, which is a text
        return find_surrogate(value) is None
    if kind is list:
        return all(map(_is_json, value))
    if kind is dict:
        return (
            _TYPE not in value and all(map(_is_key, value)) and all(map(_is_json, value.values()))
        )
    return value is None or kind is bool or kind is int or (kind is float and math.isfinite(value))


def _is_key(value: Any) -> bool:
    return type(value) is str and _is_json(value)


# trees


def _packed(value: Any, place: str, lost: list[str]) -> Any:
    """Convert a value to a JSON tree. Places of unstorable values are added to `lost`."""
    try:
        if _is_json(value):
            return value
        if type(value) is list:
            return [_packed(item, f"{place}[{number}]", lost) for number, item in enumerate(value)]
        if type(value) is dict and _TYPE not in value and all(map(_is_key, value)):
            return {name: _packed(item, f"{place}.{name}", lost) for name, item in value.items()}
        for name, is_one, form in _FORMS:
            if is_one(value):
                return {_TYPE: name, **form(value, place, lost)}
        return {_TYPE: "packed", "value": serialised(value)}
    except Exception:  # for example, a user's object, a cycle, or too deep nesting
        lost.append(f"{place}: {type(value).__qualname__}")
        return {_TYPE: "lost"}


def serialised(value: Any, serializer: JsonPlusSerializer = PLAIN) -> list[str]:
    """Text of a value, serialised as in a checkpoint. Raises an error if reading it would give
    another value.
    """
    kind, data = serializer.dumps_typed(value)
    if type(serializer) is JsonPlusSerializer:  # other serializers refuse such a value themselves
        loaded = serializer.loads_typed((kind, data))
        if type(loaded) is not type(value) or not bool(loaded == value):
            raise ValueError("it comes back as another value")
    return [kind, base64.b64encode(data).decode("ascii")]


def _items(value: Any, place: str, lost: list[str]) -> dict[str, Any]:
    return {
        "value": [_packed(item, f"{place}[{number}]", lost) for number, item in enumerate(value)]
    }


def _model(value: Any, place: str, lost: list[str]) -> dict[str, Any]:
    fields = {**vars(value), **(value.__pydantic_extra__ or {})}
    packed = {name: _packed(item, f"{place}.{name}", lost) for name, item in fields.items()}
    return {"class": _name(type(value)), "set": sorted(value.model_fields_set), "value": packed}


_FORMS: tuple[
    tuple[str, Callable[[Any], bool], Callable[[Any, str, list[str]], dict[str, Any]]], ...
] = (
    (
        "bytes",
        lambda v: type(v) is bytes,
        lambda v, *_: {"value": base64.b64encode(v).decode("ascii")},
    ),
    (
        "bytearray",
        lambda v: type(v) is bytearray,
        lambda v, *_: {"value": base64.b64encode(v).decode("ascii")},
    ),
    (
        "text",
        lambda v: type(v) is str,
        lambda v, *_: {"value": list(v.encode("utf-8", "surrogatepass"))},
    ),
    ("float", lambda v: type(v) is float, lambda v, *_: {"value": repr(v)}),
    ("tuple", lambda v: type(v) is tuple, _items),
    ("set", lambda v: type(v) is set, _items),
    ("frozenset", lambda v: type(v) is frozenset, _items),
    (
        "dict",
        lambda v: type(v) is dict,
        lambda v, place, lost: {
            "value": [
                [_packed(key, place, lost), _packed(item, f"{place}.{key}", lost)]
                for key, item in v.items()
            ]
        },
    ),
    ("model", lambda v: isinstance(v, BaseModel), _model),
    (
        "enum",
        lambda v: isinstance(v, Enum),
        lambda v, place, lost: {
            "class": _name(type(v)),
            "name": v.name,
            "value": _packed(v.value, place, lost),
        },
    ),
)
"""Forms of values in a tree: the name of the type, a test if a value has this form, and a function
that returns the other keys.
"""


def _unpacked(tree: Any) -> Any:
    """Value of a tree. Raises `_Gone` for a value that is not on record."""
    if isinstance(tree, list):
        return [_or_none(item) for item in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    named = cast("dict[str, Any]", tree)
    if _TYPE not in named:
        return _without_gone(named)
    read = _READERS.get(named[_TYPE])
    if read is None:
        raise _Gone
    return read(named)


def _read_model(named: Mapping[str, Any]) -> Any:
    fields = _without_gone(named["value"])
    kind = _loaded(named["class"])
    if kind is None or not issubclass(kind, BaseModel):
        return fields
    return kind.model_construct(_fields_set=set(named["set"]), **fields)


def _read_enum(named: Mapping[str, Any]) -> Any:
    kind = _loaded(named["class"])
    return (
        kind[named["name"]]
        if kind is not None and issubclass(kind, Enum)
        else _unpacked(named["value"])
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "bytes": lambda named: base64.b64decode(named["value"]),
    "bytearray": lambda named: bytearray(base64.b64decode(named["value"])),
    "text": lambda named: bytes(named["value"]).decode("utf-8", "surrogatepass"),
    "float": lambda named: float(named["value"]),
    "tuple": lambda named: tuple(map(_or_none, named["value"])),
    "set": lambda named: set(map(_or_none, named["value"])),
    "frozenset": lambda named: frozenset(map(_or_none, named["value"])),
    "dict": lambda named: {_unpacked(key): _or_none(item) for key, item in named["value"]},
    "model": _read_model,
    "enum": _read_enum,
    "packed": lambda named: PLAIN.loads_typed(
        (named["value"][0], base64.b64decode(named["value"][1]))
    ),
}
"""Readers by the name of a type in a tree."""


def _or_none(tree: Any) -> Any:
    try:
        return _unpacked(tree)
    except _Gone:
        return None


def _without_gone(trees: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tree in trees.items():
        with suppress(_Gone):
            found[name] = _unpacked(tree)
    return found


# classes


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _loaded(name: str) -> type[Any] | None:
    """Class by its `_name` (None if it is not loaded)."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return (
        cast("type[Any]", found) if isinstance(found, type) and found.__qualname__ == path else None
    )


# errors


def is_of_a_model(error: BaseException | None) -> TypeGuard[Exception]:
    """True if the model failed. False for a cancellation, LangGraph's control flow, and errors of
    other parts of this package.
    """
    elsewhere = isinstance(error, HrmError) and not isinstance(error, ModelError)
    return isinstance(error, Exception) and not elsewhere and not isinstance(error, GraphBubbleUp)


def pack_error(error: Exception) -> RaisedError:
    """Convert a model's error to its stored form. Never raises."""
    kinds = tuple(_name(kind) for kind in type(error).__mro__ if issubclass(kind, Exception))
    # this form has the file's name
    given: Any = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args
    arguments = given if all(map(_is_json, given)) else None
    return RaisedError(
        kinds=kinds, message=text_of(error), arguments=arguments, facts=dict(_facts(error))
    )


def _facts(error: Exception) -> Iterator[tuple[str, Any]]:
    if isinstance(error, ValidationError):  # it has neither a constructor nor attributes
        errors = [
            {name: found[name] for name in ("type", "loc", "input", "ctx") if name in found}
            for found in cast("list[dict[str, Any]]", error.errors(include_url=False))
        ]
        errors = [{**found, "loc": list(found["loc"])} for found in errors]
        if _is_json(errors):
            yield "title", error.title
            yield "errors", errors
        return
    for name, value in vars(error).items():
        if not name.startswith("_") and _is_json(value) and len(repr(value)) <= _MOST_OF_A_FACT:
            yield name, value
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if isinstance(status, int):
        yield "response", {"status_code": status, **_said_in(response)}


def _said_in(response: Any) -> dict[str, Any]:
    """Facts of an HTTP error response that programs use: the cause, and the time to wait before a
    retry.
    """
    said = dict[str, Any]()
    with suppress(Exception):  # the response has another class, or its body was not read
        said["headers"] = {
            name: value for name, value in response.headers.items() if _TELLING.match(name)
        }
        said["text"] = without_surrogates(response.text)[:_MOST_OF_A_FACT]
    return {name: value for name, value in said.items() if value}


def raised(said: RaisedError, near: type = Exception) -> Exception:
    """Recorded error to raise again, of its original class if this class is loaded. No constructor
    runs.

    `near`: the model's class. If the error's class was defined in the main file of a program, it is
    also searched in the module of `near`.
    """
    error = next(
        (made for name in said.kinds if (made := _made(name, said, near)) is not None), None
    )
    error = error or _stand_in(Exception, said)
    with suppress(Exception):
        error.__hrm_agent_on_record__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return error


def is_on_record(error: BaseException) -> bool:
    """True for an error that `raised` made."""
    return getattr(error, "__hrm_agent_on_record__", False)


def _error_class(name: str, near: type) -> type[Exception] | None:
    path = name.partition(":")[2]
    for each in (name, f"{near.__module__}:{path}"):
        kind = _loaded(each)
        if kind is not None and issubclass(kind, Exception):
            return kind
    return None


def _made(name: str, said: RaisedError, near: type) -> Exception | None:
    """Recorded error as an instance of the class with this name (None if it cannot be made)."""
    kind = _error_class(name, near)
    if kind is None:
        return None
    with suppress(Exception):
        if kind is ValidationError:
            return ValidationError.from_exception_data(
                str(said.facts["title"]), said.facts["errors"]
            )
        error = _with_facts(kind.__new__(kind, *_arguments(said)), said)
        return (
            error
            if name == said.kinds[0] and text_of(error) == said.message
            else _stand_in(kind, said)
        )
    return None


def _stand_in(above: type[Exception], said: RaisedError) -> Exception:
    """Error with the recorded name and message, of a new subclass of `above`."""
    body = {"__module__": said.kinds[0].partition(":")[0], "__str__": lambda _: said.message}
    kind = type(said.name, (above,), body)
    return _with_facts(kind.__new__(kind, *_arguments(said)), said)


def _arguments(said: RaisedError) -> tuple[Any, ...]:
    return said.arguments if said.arguments is not None else (said.message,)


def _with_facts(error: Exception, said: RaisedError) -> Exception:
    for name, value in said.facts.items():
        with suppress(Exception):
            setattr(error, name, _response(value) if name == "response" else value)
    return error


def _response(said: Any) -> Any:
    """HTTP response made of its status and the facts from `_said_in`."""
    httpx: Any = sys.modules.get("httpx")
    if httpx is None:
        return said
    return httpx.Response(
        said["status_code"], headers=said.get("headers"), content=said.get("text", "").encode()
    )
