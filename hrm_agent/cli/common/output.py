"""What a command prints: results on stdout, as tables or as JSON; progress on stderr.

Progress is a bar on a terminal and a plain line now and then elsewhere, so that a log of a night's run stays readable.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from hrm_agent.files import json_line
from hrm_agent.unicode import for_terminal

__all__ = ["Advance", "Output", "progress", "remark"]

_SECONDS_BETWEEN_LINES = 10.0


class Advance(Protocol):
    """Called as pieces are finished."""

    def __call__(self, state: str, done: int | None = None) -> None:
        """`state`: a few words on how things stand. `done`: pieces finished so far; None: one more."""
        ...


class _Console(Console):
    """Rich's own ends the process when its reader has gone."""

    def on_broken_pipe(self) -> None:
        _to_nowhere()


def _to_nowhere() -> None:
    """The reader of our output has gone, as in `hrm-agent run ... | head`: what is under way goes on to its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    """Results of a command, in one of two forms.

    What people are shown was often written by a model or a page: a terminal obeys none of it.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = _Console(soft_wrap=True, highlight=False, emoji=False)

    def result(self, record: Any) -> None:
        """The JSON form of the whole result, one line; nothing in the form for people."""
        if self.as_json:
            try:
                print(json_line(record), flush=True)
            except BrokenPipeError:
                _to_nowhere()

    def say(self, text: str = "", style: str = "") -> None:
        """A line for people; `text` is taken literally."""
        if not self.as_json:
            self.console.print(for_terminal(text), style=style or None, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """A table for people, columns as wide as their contents."""
        if self.as_json:
            return
        shown = for_terminal(title) or None
        table = Table(title=shown, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(for_terminal(column), overflow="fold")
        for row in rows:
            table.add_row(*(_text(value) for value in row))
        width = None if sys.stdout.isatty() else 200
        _Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return "" if value is None else for_terminal(str(value))


def remark(text: str) -> None:
    """A line on stderr, beside what a command does; from any thread."""
    print(for_terminal(f"hrm-agent: {text}"), file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int) -> Generator[Advance]:
    """Shows on stderr how many of `total` pieces are done."""
    if sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        yield _Lines(label, total)


@contextmanager
def _bar(label: str, total: int) -> Generator[Advance]:
    from rich.console import RenderableType
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class WithState(Progress):
        """How things stand has lines of its own: beside the bar it would push step and time off a narrow terminal."""

        state = ""

        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for line in self.state.split("\n"):
                yield Text(line, style="dim", overflow="ellipsis", no_wrap=True)

    columns = (
        TextColumn(label),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with WithState(*columns, console=Console(stderr=True, emoji=False)) as bar:
        task = bar.add_task(label, total=total)

        def advance(state: str, done: int | None = None) -> None:
            bar.state = "\n".join(map(for_terminal, state.split("\n")))
            if done is None:
                bar.update(task, advance=1)
            else:
                bar.update(task, completed=done)

        yield advance


class _Lines:
    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._began = self._next = time.monotonic()
        self._first = 0
        """Pieces that were finished before this began, as the first call tells."""

    def __call__(self, state: str, done: int | None = None) -> None:
        if self._done == 0 and done is not None:
            self._first = done - 1
        self._done = self._done + 1 if done is None else done
        now = time.monotonic()
        if self._done == self._total or now >= self._next:
            self._next = now + _SECONDS_BETWEEN_LINES
            line = f"{self._label} {self._done}/{self._total} {self._left(now - self._began)} {state}"
            print(for_terminal(line.rstrip()), file=sys.stderr, flush=True)

    def _left(self, seconds: float) -> str:
        """The time that it took, and that the rest takes at this pace."""
        finished, left = self._done - self._first, self._total - self._done
        if finished <= 0 or left <= 0:
            return f"[{_clock(seconds)}]"
        return f"[{_clock(seconds)}, about {_clock(seconds * left / finished)} left]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
