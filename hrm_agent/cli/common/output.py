"""What a command prints: results on stdout, as tables or as JSON; progress on stderr.

Progress is a bar on a terminal and a plain line now and then elsewhere, so that a log of a night's run stays readable.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from hrm_agent.files import json_line

__all__ = ["Advance", "Output", "progress"]

_SECONDS_BETWEEN_LINES = 10.0


class Advance(Protocol):
    """Called as pieces are finished."""

    def __call__(self, state: str, done: int | None = None) -> None:
        """`state`: a few words on how things stand. `done`: pieces finished so far; None: one more."""
        ...


class Output:
    """Results of a command, in one of two forms."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = Console(soft_wrap=True, highlight=False, emoji=False)

    def result(self, record: Any) -> None:
        """The JSON form of the whole result, one line; nothing in the form for people."""
        if self.as_json:
            print(json_line(record), flush=True)

    def say(self, text: str = "", style: str = "") -> None:
        """A line for people; `text` is taken literally."""
        if not self.as_json:
            self.console.print(text, style=style or None, markup=False)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """A table for people, columns as wide as their contents."""
        if self.as_json:
            return
        table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(_text(value) for value in row))
        width = None if sys.stdout.isatty() else 200
        Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return "" if value is None else str(value)


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True, emoji=False)) as bar:
        task = bar.add_task(label, total=total, state="")

        def advance(state: str, done: int | None = None) -> None:
            if done is None:
                bar.update(task, advance=1, state=state)
            else:
                bar.update(task, completed=done, state=state)

        yield advance


class _Lines:
    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._next = time.monotonic()

    def __call__(self, state: str, done: int | None = None) -> None:
        self._done = self._done + 1 if done is None else done
        if self._done == self._total or time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
            print(f"{self._label} {self._done}/{self._total} {state}".rstrip(), file=sys.stderr, flush=True)
