"""Printing of a run while it happens, node by node, for a terminal or as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages
from langgraph.types import Interrupt

from hrm_agent.basics.files import json_line
from hrm_agent.cli.common.formatting import thought_lines
from hrm_agent.cli.common.output import Output
from hrm_agent.langgraph_format import INTERRUPT
from hrm_agent.models import invalid_tool_calls
from hrm_agent.models.codec.thoughts import reasoning_of
from hrm_agent.runtime.time_travel.history import PendingInterrupt
from hrm_agent.trajectory.words import code_of

__all__ = ["Printer", "indented"]


_BOOKS = ("spent", "best", "sources", "found", "drafts", "citations")
"""Internal parts of an agent's state, such as whole pages. They are recorded, and included in JSON,
but not printed for people.
"""


class Printer:
    """Printer of the updates of nodes. A message that appears in several updates is shown once."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._seen: set[str] = set()
        self.updates = 0
        """Number of updates so far."""

    def update(self, namespace: tuple[str, ...], data: dict[str, Any]) -> None:
        """Show one update of one or more nodes, `{node: values}`."""
        self.updates += 1
        for node, values in data.items():
            name = "/".join([*namespace, node])
            if node == INTERRUPT:
                self.questions(values)
            changes = cast("dict[str, Any]", values) if isinstance(values, dict) else {}
            # A node may return one or several messages, as messages, pairs or texts. Other values,
            # which a reducer of the graph may accept, are not shown.
            messages = changes.get("messages", ())
            listed: list[BaseMessage] = []
            for given in (
                cast("list[Any]", messages)
                if isinstance(messages, list)
                else [messages]
                if messages
                else []
            ):
                with suppress(ValueError, TypeError, NotImplementedError):
                    listed += convert_to_messages([given])
            new = [
                message for message in listed if message.id is None or message.id not in self._seen
            ]
            self._seen |= {message.id for message in new if message.id}
            for message in new:
                self._message(name, message)
            for key, value in changes.items():
                if key not in ("messages", "started_at") and value not in (None, "", {}, []):
                    self._output.result(
                        {"event": "state", "node": name, "key": key, "value": value}
                    )
                    if key in _BOOKS:
                        continue
                    self._output.say(f"{name}  {key}: {_shown(value)}", style="dim")

    def questions(self, asked: Iterable[Interrupt | PendingInterrupt]) -> None:
        """Show the questions that a thread waits for."""
        for question in asked:  # every outer graph reports a subgraph's question, too
            if question.id not in self._seen:
                self._seen.add(question.id)
                self._output.result(
                    {"event": "question", "id": question.id, "value": question.value}
                )
                self._output.say(
                    f"asks: {_shown(question.value)}  (id {question.id})", style="yellow"
                )

    def _message(self, name: str, message: BaseMessage) -> None:
        self._output.result({"event": "message", "node": name, **message.model_dump(mode="json")})
        if isinstance(message, ToolMessage):
            artifact: Any = message.artifact
            if not isinstance(artifact, dict):
                status = message.status
            else:
                status = str(cast("dict[str, Any]", artifact).get("status", message.status))
            self._output.say(f"{name}  {status}", style="cyan")
        else:
            self._output.say(name, style="bold")
        for line in thought_lines(reasoning_of(message)) if isinstance(message, AIMessage) else ():
            self._output.say(f"    {line}", style="dim")
        if message.text.strip():
            self._output.say(indented(message.text))
        if isinstance(message, AIMessage):
            for asked in message.tool_calls:
                self._output.say(
                    indented(f"> {asked['name']}: {code_of(asked['args'])}"), style="green"
                )
            for asked in invalid_tool_calls(message):
                self._output.say(indented(f"> undecodable call: {asked.get('error')}"), style="red")


def _shown(value: Any) -> str:
    """Value of the graph's state as text: text is unchanged, a list is shown item by item, and
    other values as JSON. If a list begins with None, which tells a reducer to reset it, the None is
    not shown.
    """
    if isinstance(value, list):
        items = cast("list[Any]", value)
        items = items[1:] if items[:1] == [None] else items
        return "\n" + "\n".join(f"    {_shown(item)}" for item in items)
    return value if isinstance(value, str) else json_line(value)


def indented(text: str) -> str:
    """Indent each line by four spaces."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines())
