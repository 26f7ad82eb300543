"""Display of a running turn, and prompts for input.

On a terminal, the answer grows in place above a status line. At the end of the turn, both are
removed and the final answer is printed, since the graph may have changed or withdrawn the streamed
text. Without a terminal, only the final answer is printed, or with --json every event as a line.

The line editor's history has the turns of the thread, then the input of this session. It is never
written to a file, since the input is part of the store, which may be encrypted.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hrm_agent.answers.final_answer import own_text
from hrm_agent.basics.unicode import for_terminal
from hrm_agent.cli.common.arguments import refuse_broken
from hrm_agent.cli.common.output import Output
from hrm_agent.langgraph_format import is_reserved

__all__ = ["Screen"]

_DOING = {
    "search": "searching",
    "page": "reading",
    "read": "reading",
    "fetch": "reading",
    "python": "running",
}
"""Verbs of the status line, by a word in the tool's name."""
_TAG = re.compile(r"</?answer>|<[^<>]{0,16}$")
_LINES_LEFT = 3
"""Number of screen lines that the growing answer leaves free."""


class Screen:
    """Standard input and output of a conversation."""

    def __init__(self, output: Output, commands: Sequence[str]) -> None:
        self.output = output
        self.typed = sys.stdin.isatty() and sys.stdout.isatty() and not output.as_json
        """True if input is typed at a terminal."""
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._status = ""
        self._readline = _readline(commands) if self.typed else None
        if not self.typed:
            with suppress(AttributeError, ValueError):
                cast("Any", sys.stdin).reconfigure(errors="surrogateescape")

    def ask(self, prompt: str) -> str:
        """Next line of input. Raises `EOFError` at the end, and `ConfigError` for a line that is
        not valid text.
        """
        if self.typed:
            line = input(prompt)
        else:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
        refuse_broken(line, "The line")
        return line.strip()

    def remember(self, lines: Iterable[str]) -> None:
        """Put earlier messages of the thread into the history of the line editor."""
        if self._readline is not None:
            self._readline.clear_history()
            for line in lines:
                self._readline.add_history(" ".join(line.split()))

    # display while a turn runs

    @contextmanager
    def turn(self) -> Generator[None]:
        """Show events inside the block."""
        self._texts = {}
        self._status = "thinking"
        if not self.typed:
            yield
            return
        console = Console(highlight=False)
        with Live(
            get_renderable=lambda: self._shown(console),
            console=console,
            transient=True,
            refresh_per_second=8,
        ):
            yield

    def on_chunk(self, around: tuple[str, ...], node: str, piece: AIMessageChunk) -> None:
        if piece.text:
            self.output.result(
                {"event": "chunk", "node": "/".join([*around, node]), "text": piece.text}
            )
        if not around and piece.id and piece.text:
            with self._lock:
                # moves the newest text to the end
                text = self._texts.pop(piece.id, "") + piece.text
                self._texts[piece.id] = text
                self._status = f"{node} is writing"

    def on_event(self, around: tuple[str, ...], event: dict[str, Any]) -> None:
        """Show a custom event of a node: a tool that is about to run, or a `status`."""
        self.output.result({"event": "custom", "node": "/".join(around), "data": event})
        status = _of_tool(event) if event.get("event") == "tool" else str(event.get("status") or "")
        if status:
            self._status = status

    def on_update(self, around: tuple[str, ...], data: dict[str, Any]) -> None:
        for node, values in data.items():
            name = "/".join([*around, node])
            self.output.result({"event": "node", "node": name})
            if not is_reserved(node):
                # tools that the messages of the update call
                messages: Any = (
                    cast("dict[str, Any]", values).get("messages")
                    if isinstance(values, dict)
                    else None
                )
                listed = cast("list[Any]", messages) if isinstance(messages, list) else [messages]
                asked = [
                    _of_tool(dict(call))
                    for message in listed
                    if isinstance(message, AIMessage)
                    for call in message.tool_calls
                ]
                self._status = "; ".join(asked) if asked else f"{name} is done"

    def _shown(self, console: Console) -> Group:
        with self._lock:
            # only text for people is shown: JSON is for the graph
            own = _TAG.sub("", own_text(next(reversed(self._texts.values()), ""))).strip()
            text = for_terminal("" if own.startswith(("{", "[{", "```json")) else own)
            status = for_terminal(self._status)
        lines = Text(text).wrap(console, max(console.width - 1, 10))[
            -max(console.height - _LINES_LEFT, 1) :
        ]
        return Group(*lines, Text(status, style="dim", no_wrap=True, overflow="ellipsis"))


def _of_tool(call: dict[str, Any]) -> str:
    """Status of a tool call: `wiki_search(query="blue whale")` -> `searching blue whale`."""
    name = str(call.get("name"))
    given = call.get("args")
    values = cast("dict[str, Any]", given).values() if isinstance(given, dict) else ()
    what = next((" ".join(value.split()) for value in values if isinstance(value, str)), "")
    doing = next((verb for word, verb in _DOING.items() if word in name), name)
    return f"{doing} {what}".strip()


def _readline(commands: Sequence[str]) -> Any:
    """Line editor (None if Python was built without it). Importing it makes `input` use it."""
    try:
        import readline
    except ImportError:
        return None

    readline.set_completer_delims(" ")

    def complete(text: str, state: int) -> str | None:
        found = [name for name in commands if text.startswith("/") and name.startswith(text)]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind(
        "bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete"
    )
    return readline
