"""Tool calls of answers, with the results and the spans that belong to them.

Some models number the calls of each answer anew (`call_0`), and some give no ids. So an id is
compared within one answer and the messages that follow it, and not over a whole trace.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from hrm_agent.langgraph_format import namespace_around
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan

__all__ = ["AskedTool", "asked_tools", "matched_spans"]

_Key = tuple[str, str, str]
"""Id, name and arguments of a tool call."""


@dataclass(slots=True, eq=False)
class AskedTool:
    """Tool call of an answer."""

    span: ForeignSpan
    """Model span of the answer."""
    index: int
    """Index of the call in the answer."""
    id: str
    """Id in the answer; empty if it has none."""
    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments."""
    result: ToolMessage | None = None
    """Result that a later request shows (None if there is none)."""


def asked_tools(calls: Sequence[ForeignSpan]) -> list[AskedTool]:
    """Tool calls of all answers, with the results in the requests after them. A result that fits
    several calls equally well belongs to none.
    """
    digests = _Digests()
    asked: list[AskedTool] = []
    known: defaultdict[Hashable, list[AskedTool]] = defaultdict(list)
    for span in sorted(calls, key=_start):
        sent = span.sent or ()
        scope = _scope(span)
        after = Counter[_Key]()
        for context, key, message in reversed(list(_results(sent, digests))):
            found = None
            if key is not None:
                found = _fitting(known, context, scope, key, after[key])
                after[key] += 1
            same = known.get(message.tool_call_id, ())
            if found is None and len(same) == 1:
                found = same[0]
            if found is not None and found.result is None:
                found.result = message
        context = digests.whole(sent)
        for index, one in enumerate(span.answer.tool_calls if span.answer else ()):
            call = AskedTool(span, index, one["id"] or "", one["name"], one["args"])
            key = call.id, call.name, _text(call.arguments)
            asked.append(call)
            for place in ((context, scope, key), (context, key), (scope, key), key):
                known[place].append(call)
            if call.id:
                known[call.id].append(call)
    return asked


def _fitting(
    known: Mapping[Hashable, list[AskedTool]],
    context: int,
    scope: Hashable,
    key: _Key,
    after: int,
) -> AskedTool | None:
    """Call that a request repeats (None if it is unknown). `after`: number of equal calls after it
    in the request.
    """
    if same := known.get((context, scope, key)) or known.get((context, key)):
        return same[-1]
    in_scope = known.get((scope, key), ())
    if after < len(in_scope):
        # a conversation that was cut has another context, and the same end
        return in_scope[-1 - after]
    anywhere = known.get(key, ())
    return anywhere[0] if len(anywhere) == 1 else None


def _results(
    sent: Sequence[BaseMessage], digests: _Digests
) -> Iterator[tuple[int, _Key | None, ToolMessage]]:
    """Results of a request, each with the call in the answer before it (None if it is not there)
    and the digest of the messages before that answer.
    """
    context = 0
    before = 0
    waiting: defaultdict[str, deque[_Key]] = defaultdict(deque)
    for message in sent:
        if isinstance(message, AIMessage):
            before = context
            waiting.clear()
            for key in digests.calls(message):
                waiting[key[0]].append(key)
        elif isinstance(message, ToolMessage):
            same = waiting[message.tool_call_id]
            yield before, same.popleft() if same else None, message
        context = digests.then(context, message)


class _Digests:
    """Digests of the messages before each one. System messages do not count, since agents that
    share a conversation have their own.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[BaseMessage, int, list[_Key]]] = {}

    def then(self, context: int, message: BaseMessage) -> int:
        return context if message.type == "system" else hash((context, self._of(message)[1]))

    def whole(self, messages: Sequence[BaseMessage]) -> int:
        context = 0
        for message in messages:
            context = self.then(context, message)
        return context

    def calls(self, message: BaseMessage) -> list[_Key]:
        """Tool calls of an answer."""
        return self._of(message)[2]

    def _of(self, message: BaseMessage) -> tuple[BaseMessage, int, list[_Key]]:
        held = self._known.get(id(message))
        if held is None:
            calls = message.tool_calls if isinstance(message, AIMessage) else ()
            keys = [(one["id"] or "", one["name"], _text(one["args"])) for one in calls]
            digest = hash((message.type, message.text, tuple(keys)))
            held = self._known[id(message)] = message, digest, keys
        return held


def matched_spans(asked: Sequence[AskedTool], spans: Sequence[ForeignSpan]) -> dict[str, AskedTool]:
    """Tool calls of answers by the ids of their spans. A span with an id belongs to the newest call
    with it. A span without one belongs to the first call with the same name and arguments, or to
    the only one with the same name. A call has one span.
    """
    matched: dict[str, AskedTool] = {}
    unmatched = _Unmatched()
    # of two calls in one answer the first is the newest
    waiting = sorted(asked, key=lambda call: (*_start(call.span), -call.index), reverse=True)
    late: list[ForeignSpan] = []
    for span in sorted((one for one in spans if one.tool_call_id), key=_start):
        while waiting and waiting[-1].span.started_at <= span.started_at:
            unmatched.add(waiting.pop())
        if (call := unmatched.newest(span)) is not None:
            matched[span.id] = call
        else:
            late.append(span)
    while waiting:
        unmatched.add(waiting.pop())
    for span in late:
        if (call := unmatched.newest(span)) is not None:
            matched[span.id] = call
    for span in (one for one in spans if not one.tool_call_id):
        if (call := unmatched.fitting(span)) is not None:
            matched[span.id] = call
    return matched


class _Unmatched:
    """Tool calls of answers whose span is not yet known."""

    def __init__(self) -> None:
        self._calls: defaultdict[Hashable, dict[AskedTool, None]] = defaultdict(dict)

    def add(self, call: AskedTool) -> None:
        for key in self._keys(call):
            self._calls[key][call] = None

    def newest(self, span: ForeignSpan) -> AskedTool | None:
        """Newest call with the id of a span, if possible of its agent and with its arguments."""
        id_ = span.tool_call_id
        name = span.name
        scope = _scope(span)
        given = _given(span)
        for key in (
            ("id", id_, name, scope, given),
            ("id", id_, name, given),
            ("id", id_, name, scope),
            ("id", id_, name),
            ("id", id_),
        ):
            if calls := self._calls.get(key):
                return self._taken(next(reversed(calls)))
        return None

    def fitting(self, span: ForeignSpan) -> AskedTool | None:
        """Call of a span without an id (None if there is none)."""
        if equal := self._calls.get(("name", span.name, _given(span))):
            return self._taken(min(equal, key=lambda call: (*_start(call.span), call.index)))
        named = self._calls.get(("name", span.name), {})
        return self._taken(next(iter(named))) if len(named) == 1 else None

    def _taken(self, call: AskedTool) -> AskedTool:
        for key in self._keys(call):
            self._calls[key].pop(call, None)
        return call

    def _keys(self, call: AskedTool) -> Iterator[Hashable]:
        scope = _scope(call.span)
        yield "name", call.name
        # LangChain's callbacks are given the arguments as the text of a Python dict
        texts = _text(call.arguments), str(call.arguments)
        for text in texts:
            yield "name", call.name, text
        if call.id:
            yield "id", call.id
            yield "id", call.id, call.name
            yield "id", call.id, call.name, scope
            for text in texts:
                yield "id", call.id, call.name, text
                yield "id", call.id, call.name, scope, text


def _scope(span: ForeignSpan) -> Hashable:
    return span.agent_span, namespace_around(span.checkpoint_ns)


def _given(span: ForeignSpan) -> str:
    return span.arguments if isinstance(span.arguments, str) else _text(span.arguments)


def _start(span: ForeignSpan) -> tuple[float, str]:
    return span.started_at, span.id


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
