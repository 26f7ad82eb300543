"""What a person sees of a turn while it runs, and how they are asked.

On a terminal the answer grows in place above a line that says what runs; both go when the turn has
ended, since what stands then is printed once, whole: a graph may have checked it, or taken it back.
Elsewhere there is only the end, or with --json every event as a line.

What was typed is kept by readline as long as the program runs, and the turns of the thread are put
before it. Nothing of it is written to a file: a store may be encrypted, and what was said stands in
it.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hrm_agent.answers.final_answer import own_text
from hrm_agent.basics.unicode import for_terminal
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.runs.run import refuse_broken
from hrm_agent.langgraph_format import is_reserved

__all__ = ["Screen"]

_DOING = {
    "search": "searching",
    "page": "reading",
    "read": "reading",
    "fetch": "reading",
    "python": "running",
}
"""Word in a tool's name -> what it does."""
_TAG = re.compile(r"</?answer>|<[^<>]{0,16}$")
_LINES_LEFT = 3
"""Of the screen, beside the growing answer."""


class Screen:
    """Standard input and output of a conversation."""

    def __init__(self, output: Output, commands: Sequence[str]) -> None:
        self.output = output
        self.typed = sys.stdin.isatty() and sys.stdout.isatty() and not output.as_json
        """A person types at a terminal."""
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}
        self._status = ""
        self._readline = _readline(commands) if self.typed else None
        if not self.typed:
            with suppress(AttributeError, ValueError):
                cast("Any", sys.stdin).reconfigure(errors="surrogateescape")

    def ask(self, prompt: str) -> str:
        """The next line. Raises `EOFError` at the end,
        and `ConfigError` for one that is no text.
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
        """Put what was said before the session into the history of the line editor."""
        if self._readline is not None:
            self._readline.clear_history()
            for line in lines:
                self._readline.add_history(" ".join(line.split()))

    # while a turn runs

    @contextmanager
    def turn(self) -> Generator[None]:
        """Shows what is heard inside the block."""
        self._texts, self._status = {}, "thinking"
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
                text = self._texts.pop(piece.id, "") + piece.text  # the newest last
                self._texts[piece.id] = text
                self._status = f"{node} is writing"

    def on_event(self, around: tuple[str, ...], event: dict[str, Any]) -> None:
        """What a node says of itself: a tool that is about to run, or a `status`."""
        self.output.result({"event": "custom", "node": "/".join(around), "data": event})
        status = _of_tool(event) if event.get("event") == "tool" else str(event.get("status") or "")
        if status:
            self._status = status

    def on_update(self, around: tuple[str, ...], data: dict[str, Any]) -> None:
        for node, values in data.items():
            name = "/".join([*around, node])
            self.output.result({"event": "node", "node": name})
            if not is_reserved(node):
                asked = _asked(values)
                self._status = "; ".join(asked) if asked else f"{name} is done"

    def _shown(self, console: Console) -> Group:
        with self._lock:
            text = for_terminal(_own(next(reversed(self._texts.values()), "")))
            status = for_terminal(self._status)
        lines = Text(text).wrap(console, max(console.width - 1, 10))[
            -max(console.height - _LINES_LEFT, 1) :
        ]
        return Group(*lines, Text(status, style="dim", no_wrap=True, overflow="ellipsis"))


def _own(text: str) -> str:
    """What is meant for people of an answer that grows: JSON is meant for the graph."""
    own = _TAG.sub("", own_text(text)).strip()
    return "" if own.startswith(("{", "[{", "```json")) else own


def _asked(values: Any) -> list[str]:
    """The tools that an update's messages call for."""
    messages: Any = (
        cast("dict[str, Any]", values).get("messages") if isinstance(values, dict) else None
    )
    listed = cast("list[Any]", messages) if isinstance(messages, list) else [messages]
    return [
        _of_tool(dict(call))
        for message in listed
        if isinstance(message, AIMessage)
        for call in message.tool_calls
    ]


def _of_tool(call: dict[str, Any]) -> str:
    """`wiki_search(query="blue whale")` -> `searching blue whale`."""
    name, given = str(call.get("name")), call.get("args")
    values = cast("dict[str, Any]", given).values() if isinstance(given, dict) else ()
    what = next((" ".join(value.split()) for value in values if isinstance(value, str)), "")
    doing = next((verb for word, verb in _DOING.items() if word in name), name)
    return f"{doing} {what}".strip()


def _readline(commands: Sequence[str]) -> Any:
    """The line editor, which `input` uses once it is imported;
    None where Python was built without.
    """
    try:
        import readline
    except ImportError:
        return None

    readline.set_completer_delims(" ")
    readline.set_completer(_completer(commands))
    readline.parse_and_bind(
        "bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete"
    )
    return readline


def _completer(commands: Sequence[str]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        found = [name for name in commands if text.startswith("/") and name.startswith(text)]
        return found[state] if state < len(found) else None

    return complete
