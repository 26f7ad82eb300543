"""Arrangement of messages for a chat template, which may lack roles, or places for calls and tools."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from hrm_agent.models.codec.calls.form import json_text
from hrm_agent.models.codec.dialect import Dialect
from hrm_agent.models.codec.messages import answer_text, message_role, message_text
from hrm_agent.models.codec.thoughts import reasoning_of

__all__ = ["Arranging", "Guards", "thoughts_and_content"]

Turn = dict[str, Any]
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_INSTRUCTIONS = """\
You can use tools. To use one, write the call as JSON between tags, and end your turn:
<tool_call>{{"name": "the tool's name", "arguments": {{"its argument": "value"}}}}</tool_call>
The result is then shown to you between <tool_response> and </tool_response>. You may write several calls in one turn.
These are the tools, one a line, each with the JSON schema of its arguments:
<tools>
{tools}
</tools>"""


@dataclass(frozen=True, slots=True)
class Guards:
    """Guards that keep text from becoming tokens."""

    text: Callable[[str], str]
    """Guard for text of all others. None of it becomes an added token."""
    own: Callable[[str], str]
    """Guard for the policy's own turns. Tags are left as they are. Spellings of control tokens and
    the marks around thoughts become plain text.
    """
    tree: Callable[[Any], Any]
    """Guard that applies `text` to every string of a value."""


@dataclass(frozen=True, slots=True)
class Arranging:
    """Arrangement of messages for one template."""

    dialect: Dialect
    """Conversation format of the template."""
    guards: Guards
    """Guards that keep text from becoming tokens."""

    def turn(self, message: BaseMessage) -> Turn:
        """Arrange one message, independently of its neighbours."""
        if isinstance(message, AIMessage):
            return self._answer(message)
        turn: Turn = {
            "role": self.guards.text(message_role(message)),
            "content": self.guards.text(message_text(message)),
        }
        if isinstance(message, ToolMessage):
            turn["tool_call_id"] = self._id(message.tool_call_id)
            turn["name"] = self.guards.text(message.name or "")
        return turn

    def arranged(
        self, turns: Sequence[Turn], tools: Sequence[Any] | None
    ) -> tuple[list[Turn], list[Any] | None]:
        """Arrange turns and tools for the template. `tools` are guarded already."""
        shape = self.dialect.shape
        offered = list(tools) if tools else None
        if shape.plain:
            return list(turns), offered
        found = self._with_results(turns)
        if shape.prompted and offered:
            lines = "\n".join(_framed(json_text(tool.get("function", tool))) for tool in offered)
            found = _opened(_INSTRUCTIONS.format(tools=lines), found)
            offered = None
        if not shape.system:
            found = _without_system(found)
        return (_merged(found) if shape.alternates else found), offered

    def _answer(self, message: AIMessage) -> Turn:
        dialect = self.dialect
        guards = self.guards
        reasoning, content = thoughts_and_content(message, dialect)
        turn: Turn = {"role": "assistant", "content": guards.own(content)}
        calls = [
            {"name": call["name"], "args": call["args"], "id": call["id"]}
            for call in message.tool_calls
        ]
        if calls and (not dialect.shape.calls or (len(calls) > 1 and not dialect.shape.parallel)):
            words = turn["content"] if dialect.form.words else ""
            turn["content"] = words + dialect.form.write([guards.tree(call) for call in calls])
            calls = []
        if calls:
            turn["tool_calls"] = [self._call(call) for call in calls]
        thought = guards.text(reasoning or "")
        shape = dialect.shape
        placeless = not shape.words or not shape.goes_on or (shape.exclusive and bool(reasoning))
        movable = dialect.thoughts is not None and dialect.thoughts.field is not None
        if calls and placeless and movable and turn["content"].strip():
            # The template has no place for words beside this call, so they join its thoughts.
            thought = "\n\n".join(filter(None, (thought, turn["content"])))
            turn["content"] = ""
        thoughts = dialect.thoughts
        if thought and thoughts is not None:
            if thoughts.field is not None:
                turn[thoughts.field] = thought
            elif thoughts.in_content:
                turn["content"] = thoughts.written(thought, turn["content"])
        return turn

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        guarded = self.guards.tree({"name": call["name"], "arguments": call["args"]})
        if self.dialect.shape.text_arguments:
            guarded["arguments"] = json_text(guarded["arguments"])
        return {"type": "function", "id": self._id(call["id"]), "function": guarded}

    def _id(self, call_id: str | None) -> str:
        if self.dialect.shape.short_ids and not _SHORT_ID.fullmatch(str(call_id)):
            return hashlib.sha256(str(call_id).encode(errors="replace")).hexdigest()[:9]
        return self.guards.text(str(call_id))

    def _with_results(self, turns: Sequence[Turn]) -> list[Turn]:
        """Results in the role that the template has for them. Consecutive results share a turn of
        the user.
        """
        shape = self.dialect.shape
        found = list[Turn]()
        called = False
        for turn in turns:
            if turn["role"] != "tool":
                called = bool(turn.get("tool_calls"))
            elif not (shape.results if called or shape.prompted else shape.orphans):
                text = json_text({"name": turn.get("name", ""), "content": turn["content"]})
                shown = f"<tool_response>\n{_framed(text)}\n</tool_response>"
                if found and found[-1].get("results"):
                    found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n{shown}"}
                    continue
                turn = {"role": "user", "content": shown, "results": True}
            found.append(turn)
        return found


def thoughts_and_content(message: AIMessage, dialect: Dialect) -> tuple[str | None, str]:
    """Thoughts and words of an answer, separated if the content holds both."""
    content = answer_text(message, dialect.form)
    reasoning = reasoning_of(message)
    thoughts = dialect.thoughts
    if reasoning is None and thoughts is not None and content.lstrip().startswith(thoughts.open):
        return thoughts.split(content)
    return reasoning, content


def _framed(text: str) -> str:
    """JSON text with escaped slashes in `</`, so that it holds no closing tag."""
    return text.replace("</", "<\\/")


def _opened(instructions: str, turns: list[Turn]) -> list[Turn]:
    """Turns with `instructions` appended to the system turn, which is added if missing."""
    if turns and turns[0]["role"] == "system":
        first = {**turns[0], "content": f"{turns[0]['content']}\n\n{instructions}".lstrip()}
        return [first, *turns[1:]]
    return [{"role": "system", "content": instructions}, *turns]


def _without_system(turns: list[Turn]) -> list[Turn]:
    """Turns whose system turns are merged into the next turn of the user."""
    found: list[Turn] = []
    waiting: list[str] = []
    for turn in turns:
        if turn["role"] == "system":
            waiting.append(turn["content"])
        elif waiting and turn["role"] == "user":
            found.append({**turn, "content": "\n\n".join([*waiting, turn["content"]])})
            waiting = []
        elif waiting:
            found += [{"role": "user", "content": "\n\n".join(waiting)}, turn]
            waiting = []
        else:
            found.append(turn)
    return [*found, {"role": "user", "content": "\n\n".join(waiting)}] if waiting else found


def _merged(turns: list[Turn]) -> list[Turn]:
    """Merge neighbouring turns of one role. Answers with calls stay separate, since templates do
    not require these to alternate with other turns.
    """
    found: list[Turn] = []
    for turn in turns:
        last = found[-1] if found else {}
        called = "tool_calls" in last or "tool_calls" in turn
        if (
            last.get("role") == turn["role"]
            and turn["role"] in ("user", "assistant")
            and not called
        ):
            texts = {key for key in last.keys() & turn.keys() if key not in ("role", "results")}
            found[-1] = {**last, **turn, **{key: f"{last[key]}\n\n{turn[key]}" for key in texts}}
        else:
            found.append(turn)
    return found
