"""Dialects: conversation formats of chat templates, detected by rendering probes, never by a
model's name.

A template is a program, and its output shows how it handles tools, calls, results, system turns and
thoughts. If a template does not support tools, or writes calls that no form can read, the
*prompted* form is used. A text in the system turn then offers the tools and requests calls in
Hermes' form, and results use a role that the template has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.calls.form import CallForm, json_text, schemas_of
from hrm_agent.models.codec.calls.hermes import HERMES
from hrm_agent.models.codec.calls.pythonic import PYTHONIC
from hrm_agent.models.codec.calls.registry import FORMS, PROMPTED, form_named
from hrm_agent.models.codec.thoughts import Thoughts

__all__ = ["PROBE_CALL", "PROBE_TOOL", "Dialect", "Ending", "Render", "Shape", "alike", "discover"]

Render = Callable[..., str]
"""Function `render(messages, tools, header=True)` that returns the template's text. Raises
`TemplateRefusalError`.
"""
Turn = dict[str, Any]

PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "DESCRIPTION of the probe",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "a text"},
                "count": {"type": "integer", "description": "a number"},
            },
            "required": ["text", "count"],
        },
    },
}
PROBE_CALL: dict[str, Any] = {"name": "probe_tool", "args": {"text": "ARGUMENT", "count": 3}}
_QUESTION = "QUESTION"
_MORE = "FURTHER"
_ANSWER = "ANSWER"
_THOUGHT = "THOUGHT"
_RESULT = "RESULT"
_SYSTEM = "SYSTEM"
_FIELDS = ("reasoning_content", "thinking", "reasoning")
_PAIRS = (("<think>", "</think>"), ("<|channel>thought", "<channel|>"))
"""Spellings before and after thoughts, for templates whose output does not show them."""
_LONG_ID = "0123456789abcdef-0"
_SHORT_ID = "abcdefgh1"


@dataclass(frozen=True, slots=True)
class Shape:
    """Form of messages for a template."""

    prompted: bool = False
    """True if a text of this package offers tools in the system turn, and the template gets no
    tools.
    """
    system: bool = True
    """True if the template has a system role."""
    results: bool = True
    """True if the template has a role for results."""
    orphans: bool = True
    """True if the template accepts a result after an answer without calls. This happens if the call
    was unreadable.
    """
    alternates: bool = False
    """True if roles have to alternate, so that neighbours of one role are merged."""
    calls: bool = True
    """True if the template writes calls that a message has in addition to its content."""
    parallel: bool = True
    """True if the template writes several calls of one answer."""
    text_arguments: bool = False
    """True if the template takes arguments as JSON text."""
    short_ids: bool = False
    """True if the template only accepts call ids of nine letters and digits."""
    exclusive: bool = False
    """True if the template accepts only one of content and thoughts beside a call."""
    words: bool = True
    """True if the template writes words beside a call."""
    goes_on: bool = True
    """True if the text after a call's result is the same with and without words beside the call."""

    @property
    def plain(self) -> bool:
        """True if messages go to the template unchanged, one by one."""
        return (
            not self.prompted
            and self.system
            and self.results
            and self.orphans
            and not self.alternates
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """End of an answer, as a template writes it."""

    text: str
    """Spelling of the first control token after the answer."""
    next_role: bool = False
    """True if that token already begins the next turn, since the template does not close turns."""
    later: str = ""
    """Spelling of the first control token after an answer that is not the last turn."""

    def place(self, rendered: str, start: int = 0) -> int:
        """Position from `start` on where the last turn of a conversation ends (-1 if not found)."""
        return len(rendered.rstrip()) if self.next_role else rendered.find(self.text, start)

    def following(self, rendered: str, end: int) -> str:
        """Text from the end of a turn on."""
        return rendered[end:].lstrip() if self.next_role else rendered[end:]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Detected facts about a template."""

    shape: Shape
    """Form of messages for the template."""
    form: CallForm
    """Form in which calls are written and read."""
    thoughts: Thoughts | None
    """Format of thoughts (None if the template has none)."""
    answer: Ending
    """End of an answer in words."""
    call: Ending
    """End of an answer with calls."""

    def ending(self, *, calls: bool) -> Ending:
        """End of an answer with or without calls."""
        return self.call if calls else self.answer


def discover(
    render: Render, controls: Sequence[str], source: str, tools: str | CallForm | None = None
) -> Dialect:
    """Detect the conversation format of a template.

    `controls`: spellings of the control tokens. `source`: the template's text. `tools`: the form of
    calls, or its name (None: detected). Raises `ModelError` if answers have no end, or if the
    template does not write calls in the named form.
    """
    found = _Probing(render, sorted(controls, key=len, reverse=True), source)
    answer = found.end_of_answer()
    thoughts = found.thoughts()
    asked = form_named(tools) if isinstance(tools, str) and tools != PROMPTED else tools
    spoken = None if isinstance(asked, str) else found.own_tools(asked)
    if spoken is None and isinstance(asked, CallForm):
        raise ModelError(
            f"The chat template does not write calls in the form {asked.name!r}.",
            "Leave ?tools= out (the form is then detected), or write ?tools=prompted.",
        )
    shape, form, call = spoken or (found.prompted(), HERMES, answer)
    return Dialect(shape, form, thoughts, answer, call)


class _Probing:
    def __init__(self, render: Render, controls: Sequence[str], source: str) -> None:
        self._render = render
        self._controls = controls
        self._source = source
        self._system = self._holds(
            [_turn("system", _SYSTEM), _turn("user", _QUESTION)], _SYSTEM, _QUESTION
        )
        self._alternates = not self._holds(
            [_turn("user", _QUESTION), _turn("user", _MORE)], _QUESTION, _MORE
        )
        self.base = render([_turn("user", _QUESTION)], None)

    def end_of_answer(self) -> Ending:
        turns = [_turn("user", _QUESTION), _turn("assistant", _ANSWER)]
        followed = self._try([*turns, _turn("user", _MORE)]).rpartition(_ANSWER)[2]
        later = self._first(followed.partition(_MORE)[0])
        if end := self._first(self._render(turns, None, header=False).rpartition(_ANSWER)[2]):
            return Ending(end, later=later)
        if later:
            return Ending(later, next_role=True, later=later)
        raise ModelError(
            "The chat template writes no control token after an answer, so its turns have no end.",
            "Use a chat template that closes turns with a special token, as ChatML does with"
            " <|im_end|>. Name its file with ?template=FILE.",
        )

    def thoughts(self) -> Thoughts | None:
        for field in _FIELDS:
            own = self._try(
                [_turn("user", _QUESTION), _turn("assistant", _ANSWER, **{field: _THOUGHT})],
                header=False,
            )
            before, thought, after = own.partition(_THOUGHT)
            close = after.partition(_ANSWER)[0].strip()
            if thought and _ANSWER in after and close:
                begin = before[alike(before, self.base) :].strip()
                if begin:
                    return Thoughts(
                        _tag(begin, close), close, field, closed=self.base.rstrip().endswith(close)
                    )
                open_, closed, _ = self._last_line().partition(close)
                return Thoughts(
                    _tag(open_.strip(), close), close, field, opened=not closed, closed=bool(closed)
                )
        begun = self.base.rstrip()
        known = (pair for pair in _PAIRS if pair[1] in self._source or begun.endswith(pair[0]))
        return next((self._known_thoughts(*pair) for pair in known), None)

    def _known_thoughts(self, begin: str, close: str) -> Thoughts:
        """Format of thoughts for a template that reads thoughts from the content, or only writes
        them before calls.
        """
        kept = Thoughts(begin, close, None, opened=self.base.rstrip().endswith(begin))
        content = kept.written(_THOUGHT, _ANSWER)
        own = self._try([_turn("user", _QUESTION), _turn("assistant", content)], header=False)
        if _THOUGHT in own:
            return replace(kept, in_content=True)
        for field in _FIELDS:
            called = {**_called(Shape()), field: _THOUGHT}
            if _THOUGHT in self._try(
                [_turn("user", _QUESTION), called], [PROBE_TOOL], header=False
            ):
                return replace(kept, field=field)
        return kept

    def own_tools(self, asked: CallForm | None) -> tuple[Shape, CallForm, Ending] | None:
        """Tool format of the template itself (None if it has no such format, or if conversations in
        it cannot be extended).
        """
        told = self._try([_turn("user", _QUESTION)], [PROBE_TOOL])
        if "probe_tool" not in told or "count" not in told or _QUESTION not in told:
            return None
        for shape in self._shapes():
            turns = [_turn("user", _QUESTION), _called(shape)]
            own = self._try(turns, [PROBE_TOOL], header=False)
            written = own[alike(own, told) :].rstrip()
            unended = written.removesuffix(
                next((each for each in self._controls if written.endswith(each)), "")
            )
            forms = (asked,) if asked else FORMS
            form = next(
                (form for form in forms if _reads(form, written) or _reads(form, unended)), None
            )
            if form is not None:
                result = _result(shape)
                full = self._try([*turns, result], [PROBE_TOOL])
                if _RESULT not in full:
                    return None
                return self._finished(shape), form, self._end_of_call(own, full, form)
        return self._unwritten(asked)

    def prompted(self) -> Shape:
        """Shape for a template without a usable tool format."""
        turns = [_turn("user", _QUESTION), _turn("assistant", _ANSWER), _turn("tool", _RESULT)]
        answered = self._try([_turn("user", _QUESTION)], header=False)
        header = self.base[alike(self.base, answered) :]
        full = self._try(turns)
        results = (
            _RESULT in full
            and full.rpartition(_RESULT)[2].endswith(header)
            and bool(header.strip())
        )
        return Shape(
            prompted=True,
            system=self._system,
            results=results,
            orphans=results,
            alternates=self._alternates,
            calls=False,
        )

    def _shapes(self) -> Iterable[Shape]:
        for short in (False, True):
            for text in (False, True):
                yield Shape(
                    system=self._system,
                    alternates=self._alternates,
                    text_arguments=text,
                    short_ids=short,
                )

    def _finished(self, shape: Shape) -> Shape:
        """Complete a shape with the remaining probes."""
        two = _called(shape, {**PROBE_CALL, "args": {"text": _MORE, "count": 4}})
        parallel = self._holds(
            [_turn("user", _QUESTION), two], "ARGUMENT", _MORE, tools=[PROBE_TOOL]
        )
        orphan = [_turn("user", _QUESTION), _turn("assistant", _ANSWER), _result(shape)]
        orphans = self._holds(orphan, _RESULT, tools=[PROBE_TOOL])
        both = {**_called(shape), "content": _ANSWER, **dict.fromkeys(_FIELDS, _THOUGHT)}
        exclusive = not self._try([_turn("user", _QUESTION), both], [PROBE_TOOL], header=False)
        talking = [_turn("user", _QUESTION), {**_called(shape), "content": _ANSWER}, _result(shape)]
        silent = [_turn("user", _QUESTION), _called(shape), _result(shape)]
        talked, _, goes_on = self._try(talking, [PROBE_TOOL]).rpartition(_RESULT)
        silent_goes_on = self._try(silent, [PROBE_TOOL]).rpartition(_RESULT)[2]
        return Shape(
            system=self._system,
            orphans=orphans,
            alternates=self._alternates,
            parallel=parallel,
            text_arguments=shape.text_arguments,
            short_ids=shape.short_ids,
            exclusive=exclusive,
            words=_ANSWER in talked,
            goes_on=goes_on == silent_goes_on,
        )

    def _unwritten(self, asked: CallForm | None) -> tuple[Shape, CallForm, Ending] | None:
        """Format of a template that lists tools but has calls written in the content. The
        template's control tokens identify the form.
        """
        form = asked or (PYTHONIC if PYTHONIC.marks[0] in self._controls else None)
        turns = [_turn("user", _QUESTION), _turn("assistant", _ANSWER), _turn("tool", _RESULT)]
        writes = self._holds(
            [_turn("user", _QUESTION), _called(Shape())], "ARGUMENT", tools=[PROBE_TOOL]
        )
        if form is None or writes or not self._holds(turns, _RESULT, tools=[PROBE_TOOL]):
            return None
        shape = Shape(system=self._system, alternates=self._alternates, calls=False)
        return shape, form, self.end_of_answer()

    def _end_of_call(self, own: str, full: str, form: CallForm) -> Ending:
        after = own[max(own.rfind("ARGUMENT"), own.rfind("count")) :]
        if end := self._first(after, form.inside):
            return Ending(end, later=end)
        if end := self._first(full[len(own.rstrip()) :].partition(_RESULT)[0], form.inside):
            return Ending(end, next_role=True, later=end)
        return self.end_of_answer()

    def _first(self, text: str, leaving: Sequence[str] = ()) -> str:
        """Spelling of the first control token in a text (empty if there is none)."""
        found = {
            text.find(each): each
            for each in reversed(self._controls)
            if each in text and each not in leaving
        }
        return found[min(found)] if found else ""

    def _last_line(self) -> str:
        """Text of the prompt after the role in the header of the answer, without white space."""
        return "".join(self.base.rpartition(_QUESTION)[2].split()).rpartition("assistant")[2]

    def _holds(self, turns: list[Turn], *texts: str, tools: list[Any] | None = None) -> bool:
        rendered = self._try(turns, tools)
        return all(text in rendered for text in texts)

    def _try(
        self, turns: list[Turn], tools: list[Any] | None = None, *, header: bool = True
    ) -> str:
        """Text that the template writes (empty if it refuses)."""
        try:
            return self._render(turns, tools, header=header)
        except ModelError:
            return ""


def alike(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common prefix in characters or tokens."""
    return next(
        (i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other),
        min(len(a), len(b)),
    )


def _tag(found: str, close: str) -> str:
    """Tag that `close` closes, if the found text is a part of this tag, or ends with it after the
    end of a header. Otherwise, the found text.
    """
    tag = close.replace("</", "<", 1)
    return tag if found.endswith(tag) or tag.endswith(found) else found


def _turn(role: str, content: str, **more: Any) -> Turn:
    return {"role": role, "content": content, **more}


def _called(shape: Shape, *others: Mapping[str, Any]) -> Turn:
    calls = [_call(shape, each, number) for number, each in enumerate((PROBE_CALL, *others))]
    return _turn("assistant", "", tool_calls=calls)


def _call(shape: Shape, call: Mapping[str, Any], number: int) -> dict[str, Any]:
    arguments = json_text(call["args"]) if shape.text_arguments else call["args"]
    return {
        "type": "function",
        "id": _id(shape)[:-1] + str(number),
        "function": {"name": call["name"], "arguments": arguments},
    }


def _result(shape: Shape) -> Turn:
    return _turn("tool", _RESULT, tool_call_id=_id(shape)[:-1] + "0", name="probe_tool")


def _id(shape: Shape) -> str:
    return _SHORT_ID if shape.short_ids else _LONG_ID


def _reads(form: CallForm, written: str) -> bool:
    return form.read(written, schemas_of([PROBE_TOOL])).tool_calls == [cast("Any", PROBE_CALL)]
