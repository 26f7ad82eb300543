"""Prompts by name, and their replacement by a prompts file.

A graph names a text that it sends by `Prompt("critic", "You are the critic. ...")`. A `Prompt` is a
`str`, so it fits wherever a text does: in `SystemMessage`, `create_agent(system_prompt=...)`, and
LangChain's prompt templates. A constant of a module that does not use `Prompt` is named by its
place, as `package.module:SYSTEM` or `./file.py:SYSTEM`. No source is changed.

Texts are replaced in the requests. When a request is sent, each named text in its system messages,
and at the start or end of its human messages, becomes the text of the prompts file. So it does not
matter whether the graph was compiled at import, is made by a factory, or reads the text in a node.
If the text is a template, a message that is the filled template becomes the new template, filled
with the same values. The request is hashed and recorded after that.

A text that the graph changes before it is sent, other than by filling its fields or by adding text
around it, is not found. `PromptTexts.reached` has the names that were found.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple, Self, TypeVar

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
                "A name has letters, digits, `_`, `-` and `.`, and begins with a letter.",
            )
        if not text.strip():
            raise ConfigError(f"The prompt {name!r} is empty.", "Give it a text.")
        made = super().__new__(cls, text)
        made.name = name
        known = _texts.setdefault(name, {})
        module = known.pop(text, None) or _defining_module()
        known[text] = module
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
    """Raise `ConfigError` if there is no prompt of this name."""
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
    return str(found)


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
    if wanted != given:
        lost = ", ".join(f"{{{field}}}" for field in sorted(wanted - given))
        more = ", ".join(f"{{{field}}}" for field in sorted(given - wanted))
        said = [f"lacks the field {lost}"] if lost else []
        said += [f"has the unknown field {more}"] if more else []
        raise ConfigError(
            f"The new text of the prompt {name!r} {' and '.join(said)}.",
            "A text has the fields of the one that it replaces. Write a brace that is none as {{"
            " and }}.",
        )


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


class PromptTexts:
    """Texts that replace prompts in requests."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Raises `ConfigError` for an unknown name, an empty text, other fields than those of the
        replaced text, or different texts for prompts that are equal in the source.
        """
        self.reached = dict[str, str]()
        """Names that were found in requests, with the modules that define their texts."""
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
            self._unfit |= defaults.keys() - set(fitting)
            for default, module in defaults.items():
                other = self._replacements.get(default)
                if other is not None and other.text != text:
                    raise ConfigError(
                        f"The prompts {other.name!r} and {name!r} are equal in the source, and"
                        " cannot be replaced by different texts.",
                        "Give both the same text, or make them differ in the source.",
                    )
                self._replacements[default] = _Replacement(name, module, default, text)

    @classmethod
    def unchanged(cls, texts: Mapping[str, str], names: Iterable[str]) -> PromptTexts:
        """Texts that find the prompts of the source and the constants among `names`, with `texts` in
        their place.
        """
        made = cls(texts)
        for name in dict.fromkeys((*known_names(), *names)):
            for default, module in _defaults(name).items() if name not in texts else ():
                made._replacements.setdefault(default, _Replacement(name, module, default, default))
        return made

    def replace(self, messages: Sequence[Message]) -> list[Message]:
        """LangChain messages with the new texts. Raises `ConfigError` if the values of a filled
        template cannot be recognised, or two modules use one name.
        """
        return [self._replaced(message) for message in messages]

    def names_in(self, request: Iterable[Mapping[str, Any]]) -> set[str]:
        """Names of the prompts in a recorded request, which may have the new or the old text."""
        return {each.name for each in self.found_in(request)}

    def found_in(self, request: Iterable[Mapping[str, Any]]) -> list[_Replacement]:
        """Prompts in a recorded request, with their texts in the source."""
        found = list[_Replacement]()
        for message in request:
            self._of_content(str(message.get("type")), message.get("content"), found)
        return found

    def _replaced(self, message: Any) -> Any:
        found = list[_Replacement]()
        content = self._of_content(message.type, message.content, found)
        for each in found:
            self._note(each)
        return message.model_copy(update={"content": content}) if found else message

    def _of_content(self, kind: str, content: Any, found: list[_Replacement]) -> Any:
        """Content of a message with the new texts, which are added to `found`."""
        if kind not in ("system", "human"):
            return content
        if isinstance(content, str):
            return self._of_text(kind, content, found)
        if not isinstance(content, list):
            return content
        blocks = list[Any]()
        for block in content:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(block, str):
                blocks.append(self._of_text(kind, block, found))
            elif isinstance(block, dict) and isinstance(block.get("text"), str):  # pyright: ignore[reportUnknownMemberType]
                text: str = block["text"]
                blocks.append({**block, "text": self._of_text(kind, text, found)})
            else:
                blocks.append(block)
        return blocks

    def _of_text(self, kind: str, text: str, found: list[_Replacement]) -> str:
        number = len(found)

        def new(match: re.Match[str]) -> str:
            made, each = self._literals[match[0]]
            found.append(each)
            return made

        if not self._replacements:
            return text
        if kind == "system":
            text = self._anywhere.sub(new, text)
        else:
            text = self._at_start.sub(new, text, count=1)
            if len(found) == number:
                text = self._at_end.sub(new, text, count=1)
        if len(found) > number:
            return text
        for default, each in self._replacements.items():
            if default not in self._unfit and (filled := _refilled(each, text)) is not None:
                found.append(each)
                return filled
        return text

    def _note(self, each: _Replacement) -> None:
        """Note a text that was found in a request of the graph."""
        known = self.reached.setdefault(each.name, each.module)
        if each.module and known and known != each.module:
            raise ConfigError(
                f"The graph has two prompts called {each.name!r}, in {known} and in {each.module}.",
                "Rename one of them.",
            )
        if each.default in self._unfit:
            refuse_other_fields(each.name, each.default, each.text)

    @cached_property
    def _literals(self) -> dict[str, tuple[str, _Replacement]]:
        """Text to look for -> new text, replacement. New texts are looked for, too, so that a
        request whose texts were replaced stays as it is.
        """
        literals = dict[str, tuple[str, _Replacement]]()
        for default, each in self._replacements.items():
            literals[_unescaped(default)] = (_unescaped(each.text), each)
            literals[default] = (each.text, each)
        for text, each in [*literals.values()]:
            literals.setdefault(text, (text, each._replace(module="")))
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
    if not fields_of(each.default):
        return None
    if (values := _values(each.name, each.default, message)) is None:
        return None
    return "".join(
        part.literal + (values[part.field] if part.field else "")
        for part in _parts(each.text) or ()
    )


def _values(name: str, template: str, message: str) -> dict[str, str] | None:
    """Values of the fields in a filled template (None if the message is another text).

    Raises `ConfigError` if there are several ways to read them. Takes linear time, since messages
    may have any text.
    """
    parts = _parts(template) or []
    literals = [part.literal for part in parts if part.field]
    fields = [part.field for part in parts if part.field]
    tail = parts[-1].literal if parts and not parts[-1].field else ""
    first = literals[0]
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
    if leftmost != rightmost:
        raise ConfigError(
            f"The values of {', '.join(sorted(set(fields)))} in the filled prompt {name!r} cannot be"
            " told apart: the text between them occurs in a value, too.",
            "Separate the fields by a text that no value has, such as a tag.",
        )
    values = dict[str, str]()
    for field, value in zip(fields, leftmost, strict=True):
        if values.setdefault(field, value) != value:
            return None
    return values


def _split(text: str, separators: Sequence[str]) -> list[str] | None:
    """Text cut at the first place of each separator in turn (None if one is missing)."""
    pieces = list[str]()
    for separator in separators:
        piece, found, text = text.partition(separator) if separator else ("", " ", text)
        if not found:
            return None
        pieces.append(piece)
    return [*pieces, text]


_current: ContextVar[PromptTexts | None] = ContextVar("hrm_agent_prompts", default=None)


@contextmanager
def using_prompts(texts: PromptTexts | None) -> Generator[None]:
    """Replace prompts in the requests of graphs that run in this block (None: replace nothing)."""
    token = _current.set(texts)
    try:
        yield
    finally:
        _current.reset(token)


def with_prompts(messages: Sequence[Message]) -> list[Message]:
    """Messages of a request, with the texts in force."""
    current = _current.get()
    return list(messages) if current is None else current.replace(messages)
