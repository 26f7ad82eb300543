"""Prompts by name, and their replacement by a prompts file.

A graph names a text that it sends by `Prompt("critic", "You are the critic. ...")`. A `Prompt` is a
`str`, so it fits wherever a text does: in `SystemMessage`, `create_agent(system_prompt=...)`, and
LangChain's prompt templates. A constant of a module that does not use `Prompt` is named by its
place, as `package.module:SYSTEM` or `./file.py:SYSTEM`. No source is changed.

Texts are replaced in the requests. When a request is sent, each named text in its system messages,
and at the start and end of its human messages, becomes the text of the prompts file. So it does not
matter whether the graph was compiled at import, is made by a factory, or reads the text in a node.
If the text is a template, a message that is the filled template becomes the new template, filled
with the same values. The request is hashed and recorded after that.

Where several named texts fit, the longest one is found, whether it is replaced or not. Texts of the
task are never replaced, also where a system message quotes them.

A text that the graph changes before it is sent, other than by filling its fields or by adding text
around it, is not found, nor is a filled template with text around it. `PromptTexts.reached` has the
names that were found.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple, Self, TypeVar, cast

from hrm_agent.errors import ConfigError, nearest

__all__ = [
    "PROMPTS",
    "Prompt",
    "PromptTexts",
    "fields_of",
    "known_names",
    "recorded_texts",
    "refuse_other_fields",
    "refuse_unknown_name",
    "replacing_nothing",
    "texts_on_record",
    "using_prompts",
    "with_prompts",
]

PROMPTS = "prompt_texts"
"""Key in a task's metadata: the texts that replace prompts of the graph, by name."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_FIELD = re.compile(r"[A-Za-z_]\w*")
_MOST_TEXTS = 16
"""Maximum number of texts that are kept of one name. A factory may make a text for each run."""
_LONGEST = 1 << 16
"""Maximum number of characters of a text."""
_LEAST_AT_ENDS = 4
"""Minimum number of characters, without spaces, that a template has before its first field and after
its last one. Other messages would be taken for it otherwise.
"""
_LEAST_BETWEEN = 12
"""Minimum number of characters, without spaces, of a template that has fewer at its ends."""
_texts: dict[str, dict[str, str]] = {}
"""Name -> text -> module that defined it, newest last."""

Message = TypeVar("Message")


class Prompt(str):
    """Text with a name. Names are unique within a graph."""

    __slots__ = ("name",)

    name: str
    """Name in prompts files."""

    def __new__(cls, name: str, text: str) -> Self:
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a name of a prompt.",
                "A name has letters, digits, `_`, `-` and `.`, and begins with a letter or `_`.",
            )
        if not text.strip():
            raise ConfigError(f"The prompt {name!r} is empty.", "Give it a text.")
        made = super().__new__(cls, text)
        made.name = name
        known = _texts.setdefault(name, {})
        module = known.pop(text, None) or _defining_module()
        known[str(text)] = module
        if len(known) > _MOST_TEXTS:
            del known[next(iter(known))]
        return made

    def __reduce__(self) -> tuple[type[Prompt], tuple[str, str]]:
        return Prompt, (self.name, str(self))


def _defining_module() -> str:
    """Module that makes a prompt."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__", ""))


def known_names() -> list[str]:
    """Names of the prompts that this process has defined."""
    return sorted(_texts)


def refuse_unknown_name(name: str) -> None:
    """Raise `ConfigError` for a name that no prompt has."""
    _defaults(name)


def _defaults(name: str) -> dict[str, str]:
    """Texts of a prompt, with the modules that define them."""
    if ":" in name:
        return {_constant(name): name}
    if name not in _texts:
        near = nearest(name, _texts)
        raise ConfigError(
            f"The graph has no prompt {name!r}. {near}".strip(),
            f"Prompts: {', '.join(known_names()) or 'none'}. A constant of a module is named by its"
            " place: package.module:SYSTEM.",
        )
    return dict(_texts[name])


def _constant(name: str) -> str:
    from hrm_agent.import_by_name import attribute_by_name

    found, module = attribute_by_name(name, "prompt", str(Path.cwd()))
    if not isinstance(found, str) or not found.strip():
        texts = [key for key, value in vars(module).items() if isinstance(value, str)]
        public = ", ".join(key for key in texts if not key.startswith("_")) or "none"
        raise ConfigError(
            f"{name} is not a text but {type(found).__name__}.", f"Texts of the module: {public}."
        )
    return found


def fields_of(text: str) -> frozenset[str]:
    """Fields of a template, as `{question}`. Empty for a text that is not a template, such as one
    with JSON in it.
    """
    parts = _parts(text)
    return frozenset(part.field for part in parts if part.field) if parts else frozenset()


class _Part(NamedTuple):
    """Literal text of a template, and the field that follows it (empty at the end)."""

    literal: str
    field: str


def _parts(text: str) -> list[_Part] | None:
    """Parts of a template, with unescaped braces (None if the text is not a template)."""
    parts = list[_Part]()
    before = ""
    try:
        for literal, field, _, _ in Formatter().parse(text):
            before += literal
            if field is None:  # the end, or an escaped brace
                continue
            if not _FIELD.fullmatch(field):
                return None
            parts.append(_Part(before, field))
            before = ""
    except ValueError:
        return None
    return [*parts, _Part(before, "")]


def refuse_other_fields(name: str, default: str, text: str) -> None:
    """Raise `ConfigError` if a text has other fields than the text that it replaces."""
    wanted = fields_of(default)
    given = fields_of(text)
    if wanted and _parts(text) is None:
        raise ConfigError(
            f"The new text of the prompt {name!r} is not a template: it has a brace that belongs to"
            " no field.",
            f"Fields: {_listed(wanted)}. Write any other brace as {{{{ and }}}}.",
        )
    if wanted != given:
        lost = _listed(wanted - given)
        more = _listed(given - wanted)
        said = [f"lacks the field {lost}"] if lost else []
        said += [f"has the unknown field {more}"] if more else []
        raise ConfigError(
            f"The new text of the prompt {name!r} {' and '.join(said)}.",
            "A text has the fields of the one that it replaces. Write a brace of no field as {{ and"
            " }}: the model gets it once.",
        )


def _listed(fields: Iterable[str]) -> str:
    return ", ".join(f"{{{field}}}" for field in sorted(fields))


def _refuse_format(name: str, text: str) -> None:
    """Raise `ConfigError` for a field with a conversion or a format, since its value is a text."""
    for _, field, form, conversion in Formatter().parse(text):
        if field and (form or conversion):
            raise ConfigError(
                f"The field {{{field}}} in the new text of the prompt {name!r} has a conversion or a"
                " format, which would be ignored.",
                f"Write {{{field}}}.",
            )


def _refuse_weak(name: str, text: str, which: str) -> None:
    """Raise `ConfigError` for a template that many other messages would fit."""
    if fields_of(text) and not _is_distinct(text):
        raise ConfigError(
            f"The {which} text of the prompt {name!r} has too few characters beside its fields: other"
            " messages would be taken for it.",
            f"Write at least {_LEAST_AT_ENDS} before its first or after its last field.",
        )


def _is_distinct(template: str) -> bool:
    """True if a template has enough characters of its own."""
    own = ["".join(part.literal.split()) for part in _parts(template) or ()]
    if not own:
        return False
    return _has_own_ends(template) or sum(map(len, own)) >= _LEAST_BETWEEN


def _has_own_ends(template: str) -> bool:
    """True if a message that begins and ends as a template does is surely this template."""
    parts = _parts(template)
    if not parts:
        return False
    ends = parts[0].literal + parts[-1].literal
    return len("".join(ends.split())) >= _LEAST_AT_ENDS


def recorded_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Texts in the metadata of a task (empty if none were given). Raises `ConfigError` if they are
    not texts by name.
    """
    found: Any = metadata.get(PROMPTS, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"The task's {PROMPTS} are not texts by name.", "Remove them.")
    texts = dict[str, str]()
    for name, text in found.items():  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(name, str) or not isinstance(text, str):
            raise ConfigError(f"The task's {PROMPTS} are not texts by name.", "Remove them.")
        texts[name] = text
    return texts


class _Replacement(NamedTuple):
    """Text in the source that is to be replaced."""

    name: str
    module: str
    """Module that defines the text (empty for a text that was replaced before)."""
    default: str
    """Text in the source."""
    text: str
    """Text in its place."""


class _Change(NamedTuple):
    """Named text that was found in a message."""

    start: int
    end: int
    text: str
    """Text in its place."""
    replacement: _Replacement | None
    """Replacement (None: another prompt, which stays as it is)."""
    own: int
    """Number of its characters, without the values of fields."""


class PromptTexts:
    """Texts that replace prompts in requests."""

    def __init__(self, texts: Mapping[str, str], given: Iterable[str] = ()) -> None:
        """`given`: texts of the task, which are never replaced.

        Raises `ConfigError` for an unknown name, an empty text, other fields than those of the
        replaced text, a template that many messages fit, or different texts for prompts that are
        equal in the source.
        """
        self.texts = dict(texts)
        """Texts by name."""
        self.given = tuple(dict.fromkeys(filter(None, (text.strip() for text in given))))
        """Texts of the task."""
        self.reached = dict[str, str]()
        """Names that were found in requests, with the modules that define their texts."""
        self._sent = dict[str, str]()
        """Texts in the source that were found in requests, by name."""
        self._replacements = dict[str, _Replacement]()
        """Replacements by the text in the source."""
        self._unfit = set[str]()
        """Texts in the source with other fields. They are of another module, which may have nothing
        to do with the graph.
        """
        for name, text in texts.items():
            if not text.strip():
                raise ConfigError(f"The text of the prompt {name!r} is empty.", "Give it a text.")
            if len(text) > _LONGEST:
                raise ConfigError(
                    f"The text of the prompt {name!r} has {len(text):,} characters.",
                    f"At most {_LONGEST:,} are taken.",
                )
            defaults = _defaults(name)
            fitting = [each for each in defaults if fields_of(each) == fields_of(text)]
            if not fitting:
                refuse_other_fields(name, next(reversed(defaults)), text)
            if text not in defaults and fields_of(text):
                _refuse_format(name, text)
                _refuse_weak(name, text, "new")
                for each in fitting:
                    _refuse_weak(name, each, "source")
            self._unfit |= defaults.keys() - set(fitting)
            for default, module in defaults.items():
                other = self._replacements.get(default)
                if other is not None and other.text != text:
                    _refuse_equal(other.name, name)
                self._replacements[default] = _Replacement(name, module, default, text)
        self._others = [
            each
            for name, known in _texts.items()
            if name not in texts
            for each in known
            if not self._is_replaced(each, name)
        ]
        """Texts of other prompts."""

    def _is_replaced(self, text: str, name: str) -> bool:
        """True if another prompt is the constant of a replaced one. Raises `ConfigError` if it is
        another prompt of the same text.
        """
        equal = self._replacements.get(text)
        if equal is None:
            return False
        if equal.text != equal.default and getattr(equal.default, "name", "") != name:
            _refuse_equal(equal.name, name)
        return True

    @classmethod
    def unchanged(cls, texts: Mapping[str, str], names: Iterable[str]) -> PromptTexts:
        """Texts that find the prompts of the source and the constants among `names`, with `texts` in
        their place.
        """
        made = cls(texts)
        for name in dict.fromkeys((*known_names(), *names)):
            for default, module in _defaults(name).items() if name not in texts else ():
                made._replacements.setdefault(default, _Replacement(name, module, default, default))
        made._others = []
        return made

    def replace(self, messages: Sequence[Message]) -> list[Message]:
        """LangChain messages with the new texts. Raises `ConfigError` if the values of a filled
        template cannot be recognised, or two texts have one name.
        """
        return [self._replaced(message) for message in messages]

    def names_in(self, request: Iterable[Mapping[str, Any]]) -> set[str]:
        """Names of the prompts in a recorded request, which may have the new or the old text."""
        return {each.name for each in self.found_in(request)}

    def found_in(self, request: Iterable[Mapping[str, Any]]) -> list[_Replacement]:
        """Prompts in a recorded request, with their texts in the source."""
        return [
            change.replacement
            for message in request
            for _, text in _texts_of(str(message.get("type")), message.get("content"))
            for change in self._changes(str(message.get("type")), text, recorded=True)
            if change.replacement is not None
        ]

    def _replaced(self, message: Any) -> Any:
        content = message.content
        for place, text in _texts_of(message.type, content):
            changes = self._changes(message.type, text)
            if not changes:
                continue
            new = ""
            end = 0
            for change in changes:
                assert change.replacement is not None
                self._note(change.replacement)
                new += text[end : change.start] + change.text
                end = change.end
            content = _with_text(content, place, new + text[end:])
        return (
            message
            if content is message.content
            else message.model_copy(update={"content": content})
        )

    def _changes(self, kind: str, text: str, *, recorded: bool = False) -> list[_Change]:
        """Replacements in a text of a message. `recorded`: the text may have the new texts, also of
        templates.
        """
        if kind == "human" and text.strip() in self.given:
            return []
        found = self._literal_changes(kind, text)
        whole = self._template_in(text, recorded=recorded, others=bool(found))
        if whole is not None and whole.own >= max((each.own for each in found), default=0):
            found = [whole]
            if not recorded and (each := whole.replacement) is not None:
                filled = _refilled(each, text)
                found = [] if filled is None else [whole._replace(text=filled)]
        return [each for each in found if each.replacement is not None]

    def _literal_changes(self, kind: str, text: str) -> list[_Change]:
        if not any(literal in text for literal, (_, each) in self._literals.items() if each):
            return []
        if kind == "system":
            matches = [*self._anywhere.finditer(text)]
        else:
            ends = (self._at_start.match(text), self._at_end.search(text))
            matches = [match for match in ends if match is not None]
            if len(matches) > 1 and matches[1].start() < matches[0].end():
                del matches[1]
        found = list[_Change]()
        for match in matches:
            new, each = self._literals[match[0]]
            start, end = match.span()
            if not self._is_given(text, start, end):
                found.append(_Change(start, end, new, each, end - start))
        return found

    def _is_given(self, text: str, start: int, end: int) -> bool:
        """True if a part of a message is a text of the task, or overlaps one."""
        for given in self.given:
            at = text.find(given, max(0, start - len(given) + 1), end + len(given) - 1)
            while at != -1:
                behind = at + len(given)
                is_part = start <= at and behind <= end and (at, behind) != (start, end)
                # a system message begins with the prompt, also if the user sends the same
                if not is_part and not (start == at == 0 and behind == end):
                    return True
                at = text.find(given, at + 1, end + len(given) - 1)
        return False

    def _template_in(self, text: str, *, recorded: bool, others: bool) -> _Change | None:
        """Longest template that a text is, filled (None if there is none). `others`: look for
        prompts that are not replaced, too.
        """
        found = list[_Change]()
        for default, each in self._templates.items():
            forms = (default, each.text) if recorded else (default,)
            fitting = next((form for form in forms if _is_filled(form, text)), None)
            if fitting is not None:
                found.append(_Change(0, len(text), text, each, _own(fitting)))
        if found or others:
            found += [
                _Change(0, len(text), text, None, _own(other))
                for other in self._others
                if _is_distinct(other) and fields_of(other) and _is_filled(other, text)
            ]
        if not found or any(text.strip() in given for given in self.given):
            return None
        return max(found, key=lambda each: each.own)

    @cached_property
    def _templates(self) -> dict[str, _Replacement]:
        return {
            default: each
            for default, each in self._replacements.items()
            if default not in self._unfit and fields_of(default) and _is_distinct(default)
        }

    def _note(self, each: _Replacement) -> None:
        """Note a text that was found in a request of the graph."""
        known = self.reached.setdefault(each.name, each.module)
        if each.module and known and known != each.module:
            raise ConfigError(
                f"The graph has two prompts called {each.name!r}, in {known} and in {each.module}.",
                "Rename one of them.",
            )
        if each.module and self._sent.setdefault(each.name, each.default) != each.default:
            raise ConfigError(
                f"The graph has two prompts called {each.name!r} in {each.module}, with different"
                " texts.",
                "Rename one of them.",
            )
        if each.default in self._unfit:
            refuse_other_fields(each.name, each.default, each.text)

    @cached_property
    def _literals(self) -> dict[str, tuple[str, _Replacement | None]]:
        """Text to look for -> new text, replacement. New texts are looked for, too, so that a
        request whose texts were replaced stays as it is. So are longer texts of other prompts,
        which are not replaced.
        """
        literals = dict[str, tuple[str, _Replacement | None]]()
        for default, each in self._replacements.items():
            plain = _unescaped(default)
            literals[plain] = (_unescaped(each.text), each)
            if plain != default:
                literals[default] = (each.text, each)
        for text, each in [*literals.values()]:
            assert each is not None
            literals.setdefault(text, (text, each._replace(module="")))
        replaced = [*literals]
        for other in (form for text in self._others for form in (text, _unescaped(text))):
            if any(each in other for each in replaced):
                literals.setdefault(other, (other, None))
        return literals

    @cached_property
    def _pattern(self) -> str:
        return "|".join(map(re.escape, sorted(self._literals, key=len, reverse=True)))

    @cached_property
    def _anywhere(self) -> re.Pattern[str]:
        return re.compile(self._pattern)

    @cached_property
    def _at_start(self) -> re.Pattern[str]:
        return re.compile(rf"\A(?:{self._pattern})")

    @cached_property
    def _at_end(self) -> re.Pattern[str]:
        return re.compile(rf"(?:{self._pattern})\Z")


def texts_on_record(texts: Mapping[str, str], given: Iterable[str]) -> PromptTexts:
    """Texts that a run is replayed with. A `ConfigError` says that they are those of the record."""
    try:
        return PromptTexts(texts, given)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message} The texts are recorded with the run, by the names that prompts had then.",
            f"{error.hint} If a prompt was renamed, give it its old name again.",
        ) from error


def _refuse_equal(name: str, other: str) -> None:
    raise ConfigError(
        f"The prompts {name!r} and {other!r} are equal in the source, and cannot be replaced by"
        " different texts.",
        "Give both the same text, or make them differ in the source.",
    )


def _texts_of(kind: str, content: Any) -> list[tuple[int, str]]:
    """Texts in the content of a message that may have prompts, with the numbers of their blocks (-1
    for content that is one text).
    """
    if kind not in ("system", "human"):
        return []
    if isinstance(content, str):
        return [(-1, content)]
    found = list[tuple[int, str]]()
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    for place, block in enumerate(blocks):
        text = cast("dict[str, Any]", block).get("text") if isinstance(block, dict) else block
        if isinstance(text, str):
            found.append((place, text))
    return found


def _with_text(content: Any, place: int, text: str) -> Any:
    """Content of a message with another text in one block."""
    if place < 0:
        return text
    block = content[place]
    return [
        *content[:place],
        text if isinstance(block, str) else {**block, "text": text},
        *content[place + 1 :],
    ]


def _unescaped(text: str) -> str:
    """Text that a template without fields gives (unchanged for other texts)."""
    parts = _parts(text)
    if not parts or any(part.field for part in parts):
        return text
    return "".join(part.literal for part in parts)


def _refilled(each: _Replacement, message: str) -> str | None:
    """New template, filled with the values in a message that is the filled old one (None if it is
    another message).
    """
    if (values := _values(each.name, each.default, message)) is None:
        return None
    return "".join(
        part.literal + (values[part.field] if part.field else "")
        for part in _parts(each.text) or ()
    )


def _own(template: str) -> int:
    """Number of characters of a template, without its fields."""
    return sum(len(part.literal) for part in _parts(template) or ())


def _is_filled(template: str, message: str) -> bool:
    """True if a message is a filled template, also if its values cannot be told apart."""
    return _readings(template, message) is not None


def _readings(template: str, message: str) -> tuple[list[str], list[str]] | None:
    """Values of the fields in a filled template, read from the left and from the right (None if the
    message is another text). Takes linear time, since messages may have any text.
    """
    parts = _parts(template) or []
    literals = [part.literal for part in parts if part.field]
    fields = [part.field for part in parts if part.field]
    if not fields:
        return None
    first = literals[0]
    tail = parts[-1].literal
    if len(message) < len(first) + len(tail):
        return None
    if not message.startswith(first) or not message.endswith(tail):
        return None
    inner = message[len(first) : len(message) - len(tail)]
    leftmost = _split(inner, literals[1:])
    if leftmost is None:
        return None
    reversed_ = _split(inner[::-1], [each[::-1] for each in reversed(literals[1:])])
    assert reversed_ is not None
    rightmost = [each[::-1] for each in reversed(reversed_)]
    if leftmost == rightmost:
        values = dict[str, str]()
        for field, value in zip(fields, leftmost, strict=True):
            if values.setdefault(field, value) != value:
                return None
    return leftmost, rightmost


def _values(name: str, template: str, message: str) -> dict[str, str] | None:
    """Values of the fields in a filled template (None if the message is another text, or may be).

    Raises `ConfigError` if there are several ways to read them.
    """
    if (readings := _readings(template, message)) is None:
        return None
    fields = [part.field for part in _parts(template) or () if part.field]
    leftmost, rightmost = readings
    if leftmost != rightmost:
        if not _has_own_ends(template):
            return None
        raise ConfigError(
            f"The values of {', '.join(sorted(set(fields)))} in the filled prompt {name!r} cannot be"
            " told apart: the text between them occurs in a value, too.",
            "Separate the fields by a text that no value has, such as a tag.",
        )
    return dict(zip(fields, leftmost, strict=True))


def _split(text: str, separators: Sequence[str]) -> list[str] | None:
    """Text cut at the first place of each separator in turn (None if one is missing)."""
    pieces = list[str]()
    for separator in separators:
        piece, found, text = text.partition(separator) if separator else ("", " ", text)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]


_current: ContextVar[PromptTexts | None] = ContextVar("hrm_agent_prompts")
"""Texts in force (None: none). Not set in a thread that a node began without its context."""
_runs = dict[object, tuple[PromptTexts | None, int]]()
"""Runs in progress: their texts, and the threads that run them."""


@contextmanager
def using_prompts(texts: PromptTexts | None) -> Generator[None]:
    """Replace prompts in the requests of graphs that run in this block (None: replace nothing)."""
    run = object()
    _runs[run] = (texts, threading.get_ident())
    token = _current.set(texts)
    try:
        yield
    finally:
        _current.reset(token)
        del _runs[run]


@contextmanager
def replacing_nothing() -> Generator[None]:
    """Replace no prompts in this block."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def with_prompts(messages: Sequence[Message], *, in_graph: bool = True) -> list[Message]:
    """Messages of a request, with the texts in force. `in_graph`: the request comes from a node.

    A thread that a node began without its context gets the texts of the run in progress. Raises
    `ConfigError` if several runs with different texts are in progress.
    """
    current = _current.get(_UNKNOWN)
    if current is _UNKNOWN:
        current = _texts_in_progress(messages)
    elif not in_graph:
        current = None
    return list(messages) if current is None else current.replace(messages)


_UNKNOWN = PromptTexts({})


def _texts_in_progress(messages: Sequence[Any]) -> PromptTexts | None:
    """Texts of the runs in progress, in a thread that none of them is known to have begun."""
    runs = [*_runs.values()]
    replacing = [texts for texts, _ in runs if texts is not None]
    if not replacing or threading.get_ident() in {thread for _, thread in runs}:
        return None
    if len(replacing) == len(runs) and all(
        each.texts == replacing[0].texts for each in replacing[1:]
    ):
        return PromptTexts(replacing[0].texts, (text for each in replacing for text in each.given))
    if all(each.replace(messages) == [*messages] for each in replacing):
        return None
    raise ConfigError(
        "A node asked a model in a thread without the context of its run, while runs with different"
        " prompts are in progress: it is not known which texts to send.",
        "Begin the thread with `contextvars.copy_context().run`, or run one at a time.",
    )
