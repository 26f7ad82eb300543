"""Matching of requests that differ from the recorded ones only in ids or ignored parts.

A request is compared in the form in which a model sees it: type, text, name and tool calls of each
message. Ids of tool calls are not compared, but which result answers which call is. For a policy's
call the record may hold tokens, not messages. Then both sides are compared in the text of its chat
template, if its tokenizer can be loaded, and only ids may differ.

An answer quotes the ids of its request. It is returned with the current ids, so that later steps
fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import convert_to_messages

from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import plain
from hrm_agent.runtime.replay.ignored_paths import Ignored
from hrm_agent.runtime.replay.renaming import Renaming, holds_ids
from hrm_agent.tools.output_codec import edit_packed
from hrm_agent.trajectory import Call, ToolCall
from hrm_agent.trajectory.conversation_digest import context_of

__all__ = ["RequestMatch", "TemplateTexts"]

TemplateTexts = Callable[[Call, Any, Any], tuple[str, str]]
"""Function from a call, messages and tools to its recorded request and the current one, as text of
the policy's chat template.

Raises `ModelError` if its tokenizer is not available.
"""
_FIELDS = ("type", "content", "name", "tool_calls", "answers")
_KEPT = ("id", "identity", "tool_call_id")
"""Fields of a tool call's record that identify it."""


class RequestMatch:
    """Comparison of requests, up to a renaming of ids and without ignored parts."""

    def __init__(
        self, renaming: Renaming, ignored: Ignored, texts: TemplateTexts, learn: Callable[[], None]
    ) -> None:
        """`learn`: called before an answer is looked up, to note the ids of states."""
        self._renaming = renaming
        self._ignored = ignored
        self._texts = texts
        self.learn = learn

    def same(self, call: Call, messages: Any, tools: Any, *, same_tools: bool) -> bool:
        """True if `call` can answer this request. `same_tools`: it was offered the current
        tools.
        """
        if not (same_tools or self._ignored.tools):
            return False
        forms = self._forms(call, messages, tools, note=False)
        return forms is not None and self._renaming.would_equal(*forms)

    def note(self, call: Call, messages: Any, tools: Any, *, same_tools: bool) -> None:
        """Note that `call` answers this request: its ids correspond to the recorded ones."""
        forms = self._forms(call, messages, tools, note=True)
        if forms is not None:
            self._renaming.equal(*forms)
        if not same_tools:
            self._ignored.note_tools()

    def answer(self, call: Call) -> Call:
        """Recorded call with the current ids."""
        if not self._renaming.changes_any:
            return call
        # keys keep their order, since states are compared as bytes
        told = json.dumps([call.response, call.exact]).encode()
        response, exact = json.loads(self._renaming.as_now(told))
        return call.model_copy(update={"response": response, "exact": exact})

    def same_tool_call(self, call: ToolCall, started: ToolCall) -> bool:
        """True if the record can answer this tool call."""
        return call.name == started.name and self._renaming.would_equal(
            *self._tool_forms(call, started, note=False)
        )

    def note_tool_call(self, call: ToolCall, started: ToolCall) -> None:
        """Note that the record answers this call: the ids of its arguments correspond to the
        recorded ones.
        """
        self._renaming.equal(*self._tool_forms(call, started, note=True))

    def tool_answer(self, call: ToolCall) -> ToolCall:
        """Recorded tool call with the current ids."""
        if not self._renaming.changes_any:
            return call
        renamed = ToolCall.model_validate_json(
            self._renaming.as_now(call.model_dump_json().encode())
        )
        changes = {name: getattr(call, name) for name in _KEPT}
        if renamed.output is not None:
            changes["output"] = edit_packed(renamed.output, self._renaming.as_now)
        if call.graph_effects:
            changes["graph_effects"] = tuple(map(self._effect, call.graph_effects))
        return renamed.model_copy(update=changes)

    def _effect(self, effect: dict[str, Any]) -> dict[str, Any]:
        """Replace ids in an effect by the current ones, except in answers, which stay as
        recorded.
        """
        packed = (name for name in effect if name != "answer" and isinstance(effect[name], dict))
        return effect | {name: edit_packed(effect[name], self._renaming.as_now) for name in packed}

    def _forms(
        self, call: Call, messages: Any, tools: Any, *, note: bool
    ) -> tuple[bytes, bytes] | None:
        if call.request is not None:
            sent = convert_to_messages([dict(message) for message in call.request])
            return self._blanked(
                {"messages": _form(sent)}, {"messages": _form(messages)}, note=note
            )
        if not holds_ids(_bytes(_form(messages))):
            return None
        try:
            texts = self._texts(call, messages, tools)
        except HrmError:
            return None
        return _bytes(texts[0]), _bytes(texts[1])

    def _tool_forms(self, call: ToolCall, started: ToolCall, *, note: bool) -> tuple[bytes, bytes]:
        return self._blanked(
            {"arguments": call.arguments}, {"arguments": started.arguments}, note=note
        )

    def _blanked(self, recorded: Any, now: Any, *, note: bool) -> tuple[bytes, bytes]:
        old, new = self._ignored.blanked(recorded, now, request=True, note=note)
        return _bytes(old), _bytes(new)


def _form(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Conversation as a model sees it, with named fields."""
    form: list[dict[str, Any]] = []
    for seen in context_of(messages):
        named: dict[str, Any] = dict(zip(_FIELDS, seen, strict=True))
        named["tool_calls"] = [{"name": name, "args": args} for name, args in named["tool_calls"]]
        form.append(named)
    return form


def _bytes(value: Any) -> bytes:
    return json.dumps(plain(value), sort_keys=True, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
