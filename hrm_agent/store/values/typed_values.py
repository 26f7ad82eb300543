"""Exact serialised form of values, in type and value, and the difference between two values.

msgpack supports texts, numbers, bytes, lists and dicts. A value that LangGraph's serializer would
change (a tuple, a `Counter`, a model with a private attribute) is written as an extension of
msgpack: module, name, parts, and the way in which the value is built from its parts.
`hrm_agent.store.values.serializer` decides which types may be read.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import re
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from types import NoneType
from typing import Any, cast

import ormsgpack
from langchain_core.messages.base import TextAccessor
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
from langgraph.store.base import Item
from langgraph.types import Send
from pydantic import BaseModel
from pydantic.v1 import BaseModel as BaseModelV1

from hrm_agent.import_by_name import natural_name
from hrm_agent.store.values.plain_reader import TYPED
from hrm_agent.store.values.refusals import RefusedValue, Unstorable

__all__ = [
    "EXACT",
    "OWN_TYPES",
    "TypedEncoder",
    "difference",
    "has_bytes",
    "is_plain",
    "made_again",
    "made_array",
]

EXACT = (
    ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""Options that refuse all types but plain ones, and all keys but texts. They do not distinguish
bytes from similar types.
"""
_SCALARS = frozenset({str, int, float, bool, NoneType, bytes})
OWN_TYPES: dict[tuple[str, str], type] = {
    (each.__module__, each.__name__): each
    for each in (
        *(
            tuple,
            set,
            frozenset,
            dict,
            str,
            int,
            complex,
            range,
            bytearray,
            Counter,
            OrderedDict,
            defaultdict,
            deque,
        ),
        *(Fraction, PurePath, PurePosixPath, PureWindowsPath, dt.datetime, dt.time, _DeltaSnapshot),
    )
}
"""Types that are always allowed, besides those that LangGraph considers safe."""
_BASES: tuple[Any, ...] = (str, bool, int, float, bytes, tuple, list, dict, set, frozenset)
_FACTORIES = (
    list,
    dict,
    set,
    tuple,
    str,
    int,
    float,
    bool,
    Counter,
    OrderedDict,
    deque,
    frozenset,
    bytes,
)
_MOST_BITS = 64
_DEEPEST = 128
"""Maximum number of levels of nesting in this form, since reading a level takes several nested
Python calls.
"""


def has_bytes(data: bytes) -> bool:
    """True if packed data may contain bytes. msgpack packs no other type in place of another one:
    it packs a `bytearray` as bytes.
    """
    return b"\xc4" in data or b"\xc5" in data or b"\xc6" in data


def is_plain(value: Any) -> bool:
    """True if a value has msgpack's own types only, so that it comes back unchanged."""
    type_ = type(value)
    if type_ is list:
        items = cast("list[Any]", value)
        return _SCALARS.issuperset(map(type, items)) or all(map(is_plain, items))
    if type_ is dict:
        held = cast("dict[Any, Any]", value)
        return all(map(_is_key, held)) and (
            _SCALARS.issuperset(map(type, held.values())) or all(map(is_plain, held.values()))
        )
    return type_ in _SCALARS


def _is_key(key: Any) -> bool:
    return (
        all(map(_is_key, cast("tuple[Any]", key))) if type(key) is tuple else type(key) in _SCALARS
    )


class TypedEncoder:
    """Encoder of one value into a form that `ormsgpack` can pack."""

    def __init__(
        self,
        stock: Callable[[Any], Any],
        may_read: Callable[[str, str], None],
        refuse: Callable[[Any], None],
    ) -> None:
        """`stock`: LangGraph's form of a value (None if it does not keep the value).

        `may_read` raises `RefusedValue` for a type that is not allowed, `refuse` for a value that
        has no other form.
        """
        self._stock = stock
        self._may_read = may_read
        self._refuse = refuse
        self._open: set[int] = set()
        """Ids of the containers and objects around the value that is being written."""

    def encode(self, value: Any) -> bytes:
        """Encode a value. Raises `RefusedValue`, which names the place, for a value without such a
        form.
        """
        return _pack(self._form(value))

    def _form(self, value: Any) -> Any:
        type_ = type(value)
        if type_ is TextAccessor:
            value = str(value)
            type_ = str
        if type_ is str:
            return (
                value
                if _is_text(value)
                else _ext(str, [value.encode("utf-8", "surrogatepass")], "text")
            )
        if type_ is int:
            return value if _fits(value) else _ext(int, [hex(value), 16], "arguments")
        if type_ in _SCALARS:
            return value
        if id(value) in self._open:
            raise Unstorable(f"a value ({type_.__name__}) that holds itself")
        if len(self._open) > _DEEPEST:
            raise Unstorable(f"a value nested more than {_DEEPEST} levels deep")
        self._open.add(id(value))
        try:
            return self._with_parts(value, type_)
        finally:
            self._open.discard(id(value))

    def _with_parts(self, value: Any, type_: type) -> Any:
        if type_ is list:
            return self._items(value)
        if type_ is dict:
            plain = all(_is_key(key) and _is_short(key) for key in value)
            return self._values(value) if plain else _ext(dict, self._pairs(value), "pairs")
        if type_ in (tuple, set, frozenset):
            return _ext(type_, self._items(value), "items")
        if type_ in (OrderedDict, Counter):
            return _ext(type_, self._pairs(value), "pairs")
        if type_ is defaultdict:
            factory = value.default_factory
            if factory is not None and factory not in _FACTORIES:
                raise Unstorable(
                    "a defaultdict whose default_factory is no plain type, so that it cannot be"
                    " found when it is read"
                )
            named = None if factory is None else [factory.__module__, factory.__name__]
            return _ext(type_, self._pairs(value), "factory", named)
        if type_ is deque:
            return _ext(type_, self._items(value), "items", value.maxlen)
        return self._object(value, type_)

    def _object(self, value: Any, type_: type) -> Any:
        stock = self._stock(value)
        if stock is not None:
            return stock
        if type_ in (complex, range, Fraction, PurePosixPath, PureWindowsPath, PurePath, bytearray):
            return _ext(type_, [self._form(part) for part in _arguments(value)], "arguments")
        if type_ in (dt.datetime, dt.time):
            *numbers, zone = _clock(value)
            return _ext(type_, [*numbers, self._form(zone)], "clock", value.fold)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and (type_ is numpy.ndarray or isinstance(value, numpy.generic)):
            if value.dtype.hasobject or value.dtype.names:
                raise Unstorable(f"an array of {value.dtype}, which is no type of numbers or texts")
            made = [value.dtype.str, list(value.shape), value.tobytes()]
            return ormsgpack.Ext(TYPED, _pack(["numpy", type_.__name__, made, "array"]))
        if issubclass(type_, BaseException) and type_.__module__ == "builtins":
            self._may_read(type_.__module__, type_.__qualname__)
            return self._instance(value, type_)
        if "<locals>" in type_.__qualname__:
            raise Unstorable(
                f"a value of the type {type_.__qualname__}, which a function defines and which cannot"
                " be found again"
            )
        if _way(value, type_) is None:
            self._refuse(value)
        self._may_read(natural_name(type_.__module__), type_.__qualname__)
        return self._instance(value, type_)

    def _instance(self, value: Any, type_: type) -> Any:
        how = _way(value, type_)
        if how == "member":
            return _ext(type_, value.name, how)
        if how == "call":
            return _ext(type_, [*self._named(_made_of(value)).values()], how)
        if how == "model":
            inside = (value.__pydantic_extra__, value.__pydantic_private__)
            extra, private = (None if each is None else self._named(each) for each in inside)
            fields_set = sorted(value.model_fields_set)
            return _ext(type_, self._named(_own_attributes(value)), how, fields_set, extra, private)
        if how == "model of version 1":
            private = {
                name: getattr(value, name)
                for name in type_.__private_attributes__
                if hasattr(value, name)
            }  # pyright: ignore[reportAttributeAccessIssue]
            fields_set = sorted(value.__fields_set__)
            return _ext(
                type_, self._named(_own_attributes(value)), how, fields_set, self._named(private)
            )
        if how == "object":
            return _ext(type_, self._named(_made_of(value)), how)
        if how == "error":
            arguments, attributes = _raised_with(value)
            return _ext(type_, self._items(arguments), how, self._named(attributes))
        more = self._named(_made_of(value))
        base = next(each for each in type_.__mro__ if each in _BASES)
        held = base(value) if base is not tuple else tuple(cast("tuple[Any]", value))
        return _ext(type_, self._plain_base(base, held), "based on", base.__name__, more)

    def _plain_base(self, base: type, held: Any) -> Any:
        if issubclass(base, dict):
            return self._pairs(held)
        return (
            self._items(held)
            if issubclass(base, (list, tuple, set, frozenset))
            else self._form(held)
        )

    def _within(self, part: str, value: Any) -> Any:
        try:
            return self._form(value)
        except RefusedValue as error:
            error.within(part)
            raise

    def _items(self, items: Iterable[Any]) -> list[Any]:
        return [self._within(f"[{number}]", item) for number, item in enumerate(items)]

    def _pairs(self, held: dict[Any, Any]) -> list[Any]:
        return [[self._form(key), self._within(_part(key), item)] for key, item in held.items()]

    def _values(self, held: dict[Any, Any]) -> dict[Any, Any]:
        return {key: self._within(_part(key), item) for key, item in held.items()}

    def _named(self, held: dict[str, Any]) -> dict[str, Any]:
        return {name: self._within(f".{name}", item) for name, item in held.items()}


def _ext(type_: type, made: Any, *how: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(
        TYPED, _pack([natural_name(type_.__module__), type_.__qualname__, made, *how])
    )


def _pack(form: Any) -> bytes:
    return ormsgpack.packb(form, option=EXACT | ormsgpack.OPT_NON_STR_KEYS)


def _part(key: Any) -> str:
    return f".{key}" if type(key) is str and key.isidentifier() else f"[{key!r}]"


def _is_text(text: str) -> bool:
    return text.isascii() or re.search("[\ud800-\udfff]", text) is None


def _fits(number: int) -> bool:
    return -(1 << (_MOST_BITS - 1)) <= number < 1 << _MOST_BITS


def _is_short(key: Any) -> bool:
    """True if msgpack can represent a key's texts and numbers."""
    if type(key) is tuple:
        return all(map(_is_short, cast("tuple[Any]", key)))
    return _is_text(key) if type(key) is str else type(key) is not int or _fits(key)


def _arguments(value: Any) -> list[Any]:
    match value:
        case complex():
            return [value.real, value.imag]
        case range():
            return [value.start, value.stop, value.step]
        case Fraction():
            return [value.numerator, value.denominator]
        case bytearray():
            return [bytes(value)]
        case _:
            return [str(value)]


def _clock(value: Any) -> list[Any]:
    time = [value.hour, value.minute, value.second, value.microsecond, value.tzinfo]
    return [value.year, value.month, value.day, *time] if isinstance(value, dt.datetime) else time


def _way(value: Any, type_: type) -> str | None:
    """Way in which a value of a class is rebuilt (None if there is none)."""
    if isinstance(value, Enum):
        return "member" if value.name in type_.__members__ else None  # pyright: ignore[reportAttributeAccessIssue]
    if issubclass(type_, BaseModel):
        return "model"
    if issubclass(type_, BaseModelV1):
        return "model of version 1"
    if type_ is Send:
        return "call"
    if issubclass(type_, BaseException):
        return "error"
    if issubclass(type_, (OrderedDict, Counter, defaultdict, dt.date, dt.time)):
        return None
    if any(base in _BASES for base in type_.__mro__):
        return "based on"
    return "object" if dataclasses.is_dataclass(type_) or type_ is Item else None


def _own_attributes(value: Any) -> dict[str, Any]:
    """`__dict__` without values of a `cached_property`, which are computed again, and without
    `typing`'s note.
    """
    held: dict[str, Any] = getattr(value, "__dict__", {})
    return {
        name: item
        for name, item in held.items()
        if name != "__orig_class__" and not isinstance(_attribute(value, name), cached_property)
    }


def _attribute(value: Any, name: str) -> Any:
    return next((vars(each)[name] for each in type(value).__mro__ if name in vars(each)), None)


def _made_of(value: Any) -> dict[str, Any]:
    """Attributes of an object, including those in slots."""
    held = [vars(each).get("__slots__", ()) for each in type(value).__mro__]
    slots = [name for names in held for name in ([names] if isinstance(names, str) else names)]
    names = [
        name for name in slots if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    ]
    return {**{name: getattr(value, name) for name in names}, **_own_attributes(value)}


def _is_all_attributes(cls: type) -> bool:
    """True for a class of Python code without its own equality, so that attributes are compared."""
    in_python = all(each.__flags__ & _HEAP_TYPE for each in cls.__mro__ if each is not object)
    return in_python and cls.__eq__ is object.__eq__


def _raised_with(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and attributes of an error, from its built-in class, as `args` and `__dict__` lack
    some.
    """
    _, arguments, *state = cast(
        "tuple[Any, tuple[Any, ...]]", _builtin(type(error)).__reduce__(error)
    )
    return arguments, {**_made_of(error), **(state[0] if state else {})}


def _builtin(cls: type) -> Any:
    return next(each for each in cls.__mro__ if each.__module__ == "builtins")


def difference(given: Any, found: Any) -> str | None:
    """Place at which two values differ in type or value ("" for the whole, None if they are equal).

    The order of a dict counts, that of a set does not. NaN equals NaN, and -0.0 differs from 0.0.
    """
    if type(given) is TextAccessor:
        given = str(given)  # `message.text`: a text that can also be called
    type_ = type(given)
    if type_ is not type(found):
        return ""
    if given is found or (type_ in _SCALARS and type_ is not float and given == found):
        return None
    if type_.__module__ == "numpy":
        same = (
            given.dtype == found.dtype
            and given.shape == found.shape
            and given.tobytes() == found.tobytes()
        )
        return None if same and not given.dtype.hasobject else ""
    if isinstance(given, (BaseModel, BaseModelV1)):
        return _compare_models(given, found)
    compare = next((compare for types, compare in _COMPARED if isinstance(given, types)), None)
    if compare is not None:
        place = compare(given, found)
    elif dataclasses.is_dataclass(type_) or _is_all_attributes(type_):
        place = None
    else:
        return "" if _differ(given, found) else None
    return place if place is not None else _compare_attributes(_made_of(given), _made_of(found))


def _compare_enums(given: Any, found: Any) -> str | None:
    return None if given == found else ""


def _compare_numbers_and_texts(given: Any, found: Any) -> str | None:
    """Compare by the built-in base, as a subclass may have its own equality."""
    base = next(each for each in type(given).__mro__ if each in _BASES)
    one = base(given)
    other = base(found)
    return None if repr(one) == repr(other) else ""


def _compare_complex(given: Any, found: Any) -> str | None:
    return difference((given.real, given.imag), (found.real, found.imag))


def _compare_decimals(given: Any, found: Any) -> str | None:
    return None if repr(given) == repr(found) else ""  # NaN is not equal to itself


def _compare_times(given: Any, found: Any) -> str | None:
    *one, zone = _clock(given)
    *other, other_zone = _clock(found)
    return (
        None if one == other and given.fold == found.fold and not _differ(zone, other_zone) else ""
    )


def _compare_errors(given: Any, found: Any) -> str | None:
    return difference([given.args, *_raised_with(given)], [found.args, *_raised_with(found)])


def _differ(given: Any, found: Any) -> bool:
    """True if objects of foreign types differ, by their own comparison."""
    try:
        return (
            type(given) is not type(found) or repr(given) != repr(found) or not bool(given == found)
        )
    except Exception:  # a foreign type's own code
        return True


def _compare_items(given: Any, found: Any) -> str | None:
    if len(given) != len(found) or getattr(given, "maxlen", None) != getattr(found, "maxlen", None):
        return ""
    for number, (one, other) in enumerate(zip(given, found, strict=True)):
        if (place := difference(one, other)) is not None:
            return f"[{number}]{place}"
    return None


def _compare_pairs(given: dict[Any, Any], found: dict[Any, Any]) -> str | None:
    if len(given) != len(found):
        return ""
    if getattr(given, "default_factory", None) is not getattr(found, "default_factory", None):
        return ""
    for (key, one), (name, other) in zip(given.items(), found.items(), strict=True):
        if difference(key, name) is not None:
            return ""
        if (place := difference(one, other)) is not None:
            return f"{_part(key)}{place}"
    return None


def _compare_members(given: Any, found: Any) -> str | None:
    if len(given) != len(found):
        return ""
    others = {each: each for each in found}
    odd = [
        each for each in given if each not in others or difference(each, others[each]) is not None
    ]
    left = [each for each in found if each not in given]
    not_numbers = all(isinstance(each, float) and math.isnan(each) for each in (*odd, *left))
    return None if not_numbers and len(odd) == len(left) else ""


def _compare_models(given: Any, found: Any) -> str | None:
    place = _compare_attributes(_own_attributes(given), _own_attributes(found))
    if place is not None:
        return place
    if isinstance(given, BaseModelV1):
        names = type(given).__private_attributes__
        held = [
            {name: getattr(each, name) for name in names if hasattr(each, name)}
            for each in (given, found)
        ]
        return _compare_attributes(*held) if given.__fields_set__ == found.__fields_set__ else ""
    for name in ("__pydantic_extra__", "__pydantic_private__"):
        held = [getattr(each, name) or {} for each in (given, found)]
        if (place := _compare_attributes(*held)) is not None:
            return place
    known = (
        type(given).__module__.startswith("langchain_core.")
        or given.model_fields_set == found.model_fields_set
    )
    return None if known else ""


def _compare_attributes(given: dict[str, Any], found: dict[str, Any]) -> str | None:
    if given.keys() != found.keys():
        return next(
            (f".{name}" for name in (*given, *found) if (name in given) != (name in found)), ""
        )
    for name, one in given.items():
        if (place := difference(one, found[name])) is not None:
            return f".{name}{place}"
    return None


_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for classes of `class` statements, and rarely for those of C
extensions.
"""
_COMPARED: tuple[tuple[Any, Callable[[Any, Any], str | None]], ...] = (
    (Enum, _compare_enums),
    ((str, int, float, bytes), _compare_numbers_and_texts),
    ((list, tuple, deque), _compare_items),
    (dict, _compare_pairs),
    ((set, frozenset), _compare_members),
    (complex, _compare_complex),
    (Decimal, _compare_decimals),
    ((dt.datetime, dt.time), _compare_times),
    (BaseException, _compare_errors),
    (Send, lambda given, found: None),
    (Item, lambda given, found: None),
)
"""Comparisons by type, before that of the attributes. The first match counts."""


def made_again(cls: Any, given: Any, how: str, *more: Any) -> Any:
    """Rebuild a value. Raises the errors of its class."""
    maker, is_own = _MAKERS[how]
    if is_own and cls not in _OWN:
        raise RefusedValue(
            f"a value of the type {cls.__module__}.{cls.__qualname__} that is made as no such"
            " value is"
        )
    return maker(cls, given, *more)


def made_array(dtype: str, shape: Sequence[int], held: bytes, order: Any = "C") -> Any:
    """Writable array."""
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        raise RefusedValue("an array of objects")
    return np.ndarray(tuple(shape), kind, held, order=order).copy(order="K")


def _with_items(cls: Any, given: list[Any], longest: int | None = None) -> Any:
    return deque(given, longest) if cls is deque else cls(given)


def _with_pairs(cls: Any, given: list[Any], factory: list[str] | None = None) -> Any:
    made = cls() if factory is None else cls(_factory(*factory))
    for key, value in given:
        made[key] = value
    return made


def _factory(module: str, name: str) -> type:
    return next(each for each in _FACTORIES if (each.__module__, each.__name__) == (module, name))


def _with_attributes(made: Any, attributes: dict[str, Any]) -> Any:
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def _model(
    cls: Any,
    given: dict[str, Any],
    fields_set: list[str],
    extra: dict[str, Any] | None,
    private: dict[str, Any] | None,
) -> Any:
    made = cls.__new__(cls)
    names = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
    held: dict[str, Any] = dict(zip(names, (given, set(fields_set), extra, private), strict=True))
    wanted = [name for name in names if held[name] is not None or getattr(cls, name) is not None]
    # a `RootModel` has no place for the last two
    return _with_attributes(made, {name: held[name] for name in wanted})


def _model_of_version_1(
    cls: Any, given: dict[str, Any], fields_set: list[str], private: dict[str, Any]
) -> Any:
    return _with_attributes(
        cls.__new__(cls), {"__dict__": given, "__fields_set__": set(fields_set), **private}
    )


def _error(cls: Any, given: list[Any], attributes: dict[str, Any]) -> Any:
    made = cls.__new__(cls, *given)
    _builtin(cls).__init__(made, *given)
    if not isinstance(made, OSError):  # its arguments include the file name, its `args` do not
        made.args = tuple(given)
    return _with_attributes(made, attributes)


def _based(cls: Any, given: Any, base_name: str, attributes: dict[str, Any]) -> Any:
    base = next(each for each in _BASES if each.__name__ == base_name)
    if not issubclass(cls, base):
        raise TypeError(f"it is no {base_name} any more")
    if base is dict:
        made = base.__new__(cls)
        for key, value in given:
            dict.__setitem__(made, key, value)
    elif base in (list, set):
        made = base.__new__(cls)
        base.__init__(made, given)
    else:
        made = base.__new__(cls, given)
    return _with_attributes(made, attributes)


def _array_or_number(cls: Any, given: list[Any]) -> Any:
    made = made_array(*given)
    return made if cls is type(made) else made[()]


_OWN = frozenset(OWN_TYPES.values()) | {Send}
_MAKERS: dict[str, tuple[Callable[..., Any], bool]] = {
    "items": (_with_items, True),
    "pairs": (_with_pairs, True),
    "factory": (_with_pairs, True),
    "arguments": (lambda cls, given: cls(*given), True),
    "text": (lambda cls, given: given[0].decode("utf-8", "surrogatepass"), True),
    "clock": (lambda cls, given, fold: cls(*given, fold=fold), True),
    "call": (
        lambda cls, given: Send(*given[:2], timeout=given[2] if len(given) > 2 else None),
        True,
    ),
    "array": (_array_or_number, False),
    "member": (lambda cls, given: cls.__members__[given], False),
    "model": (_model, False),
    "model of version 1": (_model_of_version_1, False),
    "object": (lambda cls, given: _with_attributes(object.__new__(cls), given), False),
    "error": (_error, False),
    "based on": (_based, False),
}
"""Functions that rebuild a value, by the way in which it is rebuilt. The flag is True if only types
known here are accepted.
"""
