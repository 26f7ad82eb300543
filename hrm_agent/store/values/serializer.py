"""Strict version of LangGraph's serializer: values come back unchanged, and only of allowed types.

LangGraph's own strict mode returns the raw arguments of a refused type, or of an object that cannot
be rebuilt, and logs a line. Here both raise `RefusedValue`, as a silently changed state is worse
than an error. Allowed are LangGraph's own list of plain and LangChain types, the types that a
graph's state declares (`StoreSaver.allowing`), and those in `open_store(allow=...)`.

A value is written in plain msgpack if it has only msgpack's types, or in LangGraph's form if that
keeps it unchanged. Otherwise it is written in this package's form
(`hrm_agent.store.values.typed_values`). A value that would come back changed, in type or value, is
refused when it is written.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints, is_typeddict

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
from langgraph.pregel import Pregel
from langgraph.types import Send
from pydantic import BaseModel, SecretBytes, SecretStr
from pydantic.v1 import BaseModel as BaseModelV1

from hrm_agent.import_by_name import LOCAL_NAMES, local_modules, natural_name, stem_of
from hrm_agent.langgraph_format import (
    is_safe_method,
    is_safe_type,
    subgraphs_of,
    types_of_channels,
    types_of_schemas,
)
from hrm_agent.store.values.plain_reader import TYPED
from hrm_agent.store.values.refusals import RefusedValue, UnknownType, Unstorable
from hrm_agent.store.values.typed_values import (
    EXACT,
    OWN_TYPES,
    TypedEncoder,
    difference,
    has_bytes,
    is_plain,
    made_again,
    made_array,
)

__all__ = ["StrictSerializer", "allowed_types", "declared_types"]

_raised = threading.local()
_KINDS = frozenset({"null", "bytes", "bytearray", "msgpack"})
_WITHOUT_PARTS = frozenset({str, int, float, bool})
_ANY_KEYS = EXACT | ormsgpack.OPT_NON_STR_KEYS
_ONE, _SEVERAL, _KEYWORDS, _METHOD, _MODEL_V1, _MODEL, _ARRAY, _SNAPSHOT = range(8)
"""LangGraph's codes, by the form of an object's parts."""


class StrictSerializer(JsonPlusSerializer):
    """Serializer that only reads plain bytes and msgpack of allowed types: no pickle, no JSON
    constructors.
    """

    def __init__(self, allow: Iterable[tuple[str, ...]] = ()) -> None:
        super().__init__(allowed_msgpack_modules=tuple(allow) or None)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Serialise a value. Raises `Unstorable` if it would come back changed, `UnknownType` for a
        forbidden type.
        """
        type_ = type(obj)
        if type_ is NoneType or type_ is bytes or type_ is bytearray:
            return super().dumps_typed(obj)
        try:
            data = ormsgpack.packb(obj, option=EXACT)
            if type_ in _WITHOUT_PARTS or not has_bytes(data) or is_plain(obj):
                return "msgpack", data
        except ormsgpack.MsgpackEncodeError:
            pass
        try:
            return "msgpack", self._exactly(obj)
        except RecursionError as error:
            raise Unstorable(
                f"a value ({type_.__name__}) nested too deeply to be stored"
            ) from error

    def dumps_numbers(self, obj: list[Any]) -> tuple[str, bytes]:
        """Serialise a list of numbers, booleans and None."""
        try:
            return "msgpack", ormsgpack.packb(obj, option=EXACT)
        except ormsgpack.MsgpackEncodeError:  # a number that is too large
            return self.dumps_typed(obj)

    def _exactly(self, obj: Any) -> bytes:
        if is_plain(obj):  # with keys that are not texts
            try:
                return ormsgpack.packb(obj, option=_ANY_KEYS)
            except ormsgpack.MsgpackEncodeError:
                pass
        data = self._as_stock(obj)
        if data is not None:
            return data
        data = TypedEncoder(self._stock_form, self._may_read, self._refuse).encode(obj)
        try:
            place = difference(obj, self._made(data))
        except RefusedValue as error:
            raise Unstorable(
                f"a value ({type(obj).__name__}) that could not be read back: {error}"
            ) from error
        if place is not None:
            raise Unstorable(
                f"a value ({type(obj).__name__}) that would come back as another", place
            )
        return data

    def _as_stock(self, obj: Any) -> bytes | None:
        """LangGraph's form of a value (None if it would change the value)."""
        try:
            kind, data = super().dumps_typed(obj)
            data = _with_natural_names(data) if kind == "msgpack" else b""
            return data if data and difference(obj, self._made(data)) is None else None
        except (TypeError, ValueError, RefusedValue):
            return None

    def _stock_form(self, obj: Any) -> ormsgpack.Ext | None:
        data = self._as_stock(obj)
        found = None if data is None else ormsgpack.unpackb(data, ext_hook=ormsgpack.Ext)
        return found if isinstance(found, ormsgpack.Ext) else None

    def dumps_allowed(self, obj: Any) -> tuple[str, bytes]:
        """Serialise a value that is known to be of allowed types and kept by LangGraph's form.

        Raises `Unstorable` if it cannot be stored.
        """
        try:
            return super().dumps_typed(obj)
        except (TypeError, ValueError, RecursionError) as error:
            if _is_deep(obj):
                raise Unstorable(
                    f"a value ({type(obj).__name__}) nested too deeply to be stored"
                ) from error
            raise Unstorable(
                f"a value ({type(obj).__name__}) that cannot be stored: {error}"
            ) from error

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Load a value. Raises `UnknownType` for a type that is not allowed, `RefusedValue` for a
        value that cannot be rebuilt.
        """
        kind, content = data
        if kind not in _KINDS:
            raise RefusedValue(f"a value of the kind {kind!r}, which is never read")
        return self._made(content) if kind == "msgpack" else super().loads_typed(data)

    def as_stock_reads(self, obj: Any) -> Any:
        """Value as earlier versions of the store returned it, from LangGraph's form.

        It is unchanged if there is no such form, or the form keeps it.
        """
        try:
            found = JsonPlusSerializer.loads_typed(self, JsonPlusSerializer.dumps_typed(self, obj))
        except (TypeError, ValueError):
            return obj
        return obj if difference(obj, found) is None else found

    def _made(self, data: bytes) -> Any:
        try:
            return ormsgpack.unpackb(data, ext_hook=self._noted, option=ormsgpack.OPT_NON_STR_KEYS)
        except Exception as error:
            if (raised := _raised.__dict__.pop("error", None)) is not None:
                raise raised from raised.__cause__
            raise RefusedValue(f"a value that is not valid msgpack: {error}") from error

    def _noted(self, code: int, data: bytes) -> Any:
        """Object of an extension. Errors are kept here, as `ormsgpack` does not pass them on."""
        try:
            return self._object(code, data)
        except RefusedValue as error:
            _raised.error = error
            raise

    def _object(self, code: int, data: bytes) -> Any:
        made = self._made(data)
        if code == _SNAPSHOT:
            return _DeltaSnapshot(made)
        module = name = "?"
        try:
            if code == _ARRAY:
                dtype, shape, order, held = made
                return made_array(dtype, shape, held, order)
            module, name, given, *how = made
            if code == _METHOD and not is_safe_method(module, name, *how):
                raise UnknownType(f"a value of the type {module}.{name}, which is not allowed")
            cls = self._named(module, name)
            return (
                made_again(cls, given, *how)
                if code == TYPED
                else _STOCK_MAKERS[code](cls, given, *how)
            )
        except RefusedValue:
            raise
        except Exception as error:  # any error of a foreign class
            reason = f"{type(error).__name__}: {error}"
            raise RefusedValue(
                f"a value of the type {module}.{name}, which cannot be made again: {reason}"
            ) from error

    def _refuse(self, obj: Any) -> None:
        """Raise the reason why LangGraph's form does not keep a value, if its type has no other
        form.
        """
        _, data = self.dumps_allowed(obj)
        self._made(data)
        raise Unstorable(f"a value ({type(obj).__name__}) that would come back as another")

    def _may_read(self, module: str, name: str) -> None:
        """Raise `RefusedValue` if a type may not be read."""
        try:
            self._named(module, name)
        except (ImportError, AttributeError) as error:
            raise Unstorable(
                f"a value of the type {module}.{name}, which is not found under this name"
            ) from error

    def _named(self, module: str, name: str) -> Any:
        """Type by its stored name. Its module may have another name in this process."""
        if is_safe_type(module, name) or (module, name) in OWN_TYPES:
            return _safe_type(module, name)
        if (
            module == "builtins"
            and isinstance(found := _attribute(module, name), type)
            and issubclass(found, Exception)
        ):
            return found
        if module == "numpy" and name.isidentifier():
            import numpy as np

            type_ = getattr(np, name, None)
            if isinstance(type_, type) and issubclass(type_, (np.generic, np.ndarray)):
                return type_
            raise UnknownType(f"a value of the type numpy.{name}, which is not allowed")
        places = self._places(module, name)
        if not places:
            raise UnknownType(f"a value of the type {module}.{name}, which is not allowed")
        if len(places) > 1:
            raise RefusedValue(
                f"a value of the type {module}.{name}, which {' and '.join(sorted(places))} both"
                " have: two files of one name are loaded in this process"
            )
        return _attribute(places[0], name)

    def _places(self, module: str, name: str) -> Sequence[str]:
        """Modules of this process that a stored name may refer to, and whose type of this name is
        allowed.
        """
        allowed = cast("Iterable[tuple[str, ...]]", self._allowed_msgpack_modules or ())
        own_name = name.rpartition(".")[2]
        found = list(
            dict.fromkeys(place for place, *names in allowed if names[0] in (name, own_name))
        )
        here = local_modules(module)
        if local := [place for place in found if place in here]:
            return local
        if module in found:
            return here[:1] if here and not _is_loaded(module) else [module]
        # `module` may have another prefix here: the project lies in another folder of a larger
        # project now, or an earlier version has stored the name without a prefix
        stem = stem_of(module)
        return [
            place
            for place in found
            if _is_loaded(place) and (module == "__main__" or stem_of(place) == stem)
        ]


@lru_cache(maxsize=256)
def _safe_type(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _is_loaded(module: str) -> bool:
    return module in sys.modules


def _with_natural_names(data: bytes) -> bytes:
    """Replace the modules in LangGraph's form of a value by their natural names."""
    if not any(name in data for name in LOCAL_NAMES):
        return data
    found = ormsgpack.unpackb(data, ext_hook=_renamed, option=ormsgpack.OPT_NON_STR_KEYS)
    return ormsgpack.packb(found, option=ormsgpack.OPT_NON_STR_KEYS)


def _renamed(code: int, data: bytes) -> ormsgpack.Ext:
    found = ormsgpack.unpackb(data, ext_hook=_renamed, option=ormsgpack.OPT_NON_STR_KEYS)
    if code < _ARRAY:
        found[0] = natural_name(found[0])
    return ormsgpack.Ext(code, ormsgpack.packb(found, option=ormsgpack.OPT_NON_STR_KEYS))


def _attribute(module: str, name: str) -> Any:
    home = importlib.import_module(module)
    try:
        return attrgetter(name)(home)
    except AttributeError:
        # a generic model's class for its arguments: no module has it, and its name may be ambiguous
        if "[" in name:
            made = attrgetter(name.partition("[")[0])(home).__subclasses__()
            found = [each for each in made if each.__qualname__ == name]
            if len(found) != 1:
                raise
            return found[0]
        # LangGraph names a nested class by its own name only
        held = [vars(each).get(name) for each in vars(home).values() if isinstance(each, type)]
        found = [each for each in held if isinstance(each, type) and each.__module__ == module]
        if len(found) != 1:
            raise
        return found[0]


def _of_one(cls: Any, given: Any) -> Any:
    return cls(map(_hashable, given) if cls in (set, frozenset) else given)


def _hashable(item: Any) -> Any:
    """Restore tuples in a set, which were stored as lists."""
    return tuple(map(_hashable, cast("list[Any]", item))) if type(item) is list else item


def _of_several(cls: Any, given: Sequence[Any]) -> Any:
    return (
        Send(given[0], given[1], timeout=given[2])
        if cls is Send and len(given) > 2
        else cls(*given)
    )


def _of_keywords(cls: Any, given: dict[str, Any]) -> Any:
    try:
        return cls(**given)
    except TypeError:
        names = (
            [each.name for each in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
        )
        if names != [*given]:
            raise
    made: Any = object.__new__(cast("Any", cls))  # some fields are not arguments
    for name, value in given.items():
        object.__setattr__(made, name, value)
    return made


def _of_fields(cls: Any, given: dict[str, Any], *_: Any) -> Any:
    try:
        return cls(**given)
    except Exception:  # a validator failed: the values were valid, or were set without validation
        return (
            cls.model_construct(**given) if issubclass(cls, BaseModel) else cls.construct(**given)
        )


_STOCK_MAKERS: dict[int, Callable[..., Any]] = {
    _ONE: _of_one,
    _SEVERAL: _of_several,
    _KEYWORDS: _of_keywords,
    _METHOD: lambda cls, given, method: getattr(cls, method)(given),
    _MODEL_V1: _of_fields,
    _MODEL: _of_fields,
}


_DEEP = 200
"""Number of levels near msgpack's limit."""


def _is_deep(value: Any) -> bool:
    """True if containers are nested too deeply. It is called only for a value that could not be
    stored.
    """
    level = [value]
    seen = 0
    while level and seen < _DEEP:
        seen += 1
        level = [item for held in level for item in _held_by(held)][:1000]
    return bool(level)


def _held_by(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).values()
    if isinstance(value, (list, tuple, set, frozenset)):
        return cast("Iterable[Any]", value)
    if isinstance(value, type):
        return ()
    return getattr(value, "__dict__", {}).values()


def allowed_types(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Entries of LangGraph's allow-list for `package.module:Class` names."""
    return [(module, name) for module, _, name in (text.partition(":") for text in names)]


_WITHOUT_HINTS = (
    *(Enum, BaseException, str, int, float, bytes, list, dict, set, frozenset),
    *(SecretStr, SecretBytes),
)


@lru_cache(maxsize=32)
def declared_types(graph: Pregel[Any, Any, Any, Any]) -> frozenset[tuple[str, ...]]:
    """Types in the state of a graph and its subgraphs, and in what nodes send each other, as
    (module, name).
    """
    found = set[tuple[str, ...]]()
    seen = dict[int, Any]()
    for each in (graph, *(inner for _, inner in subgraphs_of(graph))):
        sent = _schemas_sent(each)
        found |= types_of_channels(each.channels) | types_of_schemas(sent)
        for channel in each.channels.values():
            _collect_classes(getattr(channel, "ValueType", None), found, seen)
            _collect_classes(getattr(channel, "UpdateType", None), found, seen)
        for schema in sent:
            _collect_classes(schema, found, seen)
    return frozenset(found)


def _schemas_sent(graph: Pregel[Any, Any, Any, Any]) -> list[Any]:
    """Input schemas that nodes declare, which are types of `Send` arguments."""
    nodes: dict[str, Any] = getattr(getattr(graph, "builder", None), "nodes", {})
    return [
        schema
        for node in nodes.values()
        if (schema := getattr(node, "input_schema", None)) is not None
    ]


def _collect_classes(hint: Any, found: set[tuple[str, ...]], seen: dict[int, Any]) -> None:
    """Collect classes that LangGraph misses: named tuples, nested classes, classes in generic
    types, errors.
    """
    if id(hint) in seen:
        return
    seen[id(hint)] = hint
    for part in (getattr(hint, "__supertype__", None), get_origin(hint), *get_args(hint)):
        _collect_classes(part, found, seen)
    if not isinstance(hint, type) or hint.__module__ in ("builtins", "typing"):
        return
    if is_typeddict(hint):
        held = True
    else:
        held = dataclasses.is_dataclass(hint) or issubclass(hint, (BaseModel, BaseModelV1, tuple))
        secret = issubclass(hint, (SecretStr, SecretBytes))
        if (
            held
            or secret
            or issubclass(
                hint, (Enum, BaseException, str, int, float, bytes, list, dict, set, frozenset)
            )
        ):
            found.add((hint.__module__, hint.__qualname__))
    if held:
        with suppress(Exception):  # names that are missing at run time
            for part in get_type_hints(hint, include_extras=True).values():
                _collect_classes(part, found, seen)
