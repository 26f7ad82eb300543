"""Output of commands: results on stdout, as tables or as JSON, and progress on stderr.

Progress is a bar on a terminal. Elsewhere it is an occasional plain line, so that a log stays
short.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from hrm_agent.basics.files import json_line
from hrm_agent.basics.unicode import for_terminal
from hrm_agent.cli.main import fitted_for

__all__ = ["Advance", "Output", "progress", "remark"]

_SECONDS_BETWEEN_LINES = 10.0


class Advance(Protocol):
    """Function called as pieces are finished."""

    def __call__(self, state: str, done: int | None = None) -> None:
        """`state`: short status text. `done`: number of finished pieces so far (None: one more)."""
        ...


class _Console(Console):
    """Console that continues when the reader of the output is gone. Rich's own console would end
    the process.
    """

    def on_broken_pipe(self) -> None:
        _to_nowhere()


def _to_nowhere() -> None:
    """Discard further output after the reader of stdout has closed it, as in `hrm-agent run ... |
    head`. The work continues to its end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Output:
    """Results of a command, as JSON or as text for people.

    The text often comes from a model or a web page. So control sequences in it are made harmless.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.console = _Console(soft_wrap=True, highlight=False, emoji=False)

    def result(self, record: Any) -> None:
        """Print the whole result as one line of JSON. Without `--json`, nothing is printed."""
        if self.as_json:
            try:
                print(json_line(record), flush=True)
            except BrokenPipeError:
                _to_nowhere()

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line for people. `text` is taken literally."""
        if not self.as_json:
            self.console.print(
                fitted_for(sys.stdout, for_terminal(text)), style=style or None, markup=False
            )

    def next(self, *commands: str) -> None:
        """Print follow-up commands, each on a separate line from which it can be copied."""
        self.say("\n".join(["Next:", *(f"  {command}" for command in commands)]))

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        title: str = "",
        spare: Sequence[str] = (),
    ) -> None:
        """Print a table for people, with columns as wide as their contents.

        `spare`: columns that are omitted on a narrow terminal, in this order. If the other columns
        do not fit, texts are wrapped. If not even single words fit, each row becomes a list.
        """
        if self.as_json:
            return
        # fill up rows that are shorter than the head
        filled = ([*map(_text, row)] + [""] * (len(columns) - len(row)) for row in rows)
        cells = [[*map(for_terminal, columns)], *filled]
        # On a terminal, the output is as wide as the terminal (None). To a pipe, it is wide, unless
        # COLUMNS is set.
        console = _Console(
            highlight=False,
            markup=False,
            emoji=False,
            width=(None if sys.stdout.isatty() or os.environ.get("COLUMNS") else 200),
        )
        kept = [*range(len(columns))]
        for name in spare:
            if (
                sum(max(cell_len(row[n]) for row in cells) + _GAP for n in kept) - _GAP
                <= console.width
            ):
                break
            kept.remove(columns.index(name))
        shown = [[row[n] for n in kept] for row in cells]
        # Columns are as wide as their contents. If they do not fit, the widest columns shrink down
        # to their longest word.
        widths = [
            max(max(map(cell_len, cell.split("\n"))) for cell in column)
            for column in zip(*shown, strict=True)
        ]
        words = [
            max(max(map(cell_len, cell.split()), default=0) for cell in column)
            for column in zip(*shown, strict=True)
        ]
        while sum(widths) + _GAP * (len(widths) - 1) > console.width:
            wide = [n for n, width in enumerate(widths) if width > words[n]]
            if not wide:
                break
            widths[max(wide, key=lambda n: widths[n])] -= 1
        table = Table(
            title=for_terminal(title) or None, title_justify="left", box=None, pad_edge=False
        )
        table.header_style = "bold"
        if sum(widths) + _GAP * (len(widths) - 1) > console.width:
            shown = _stacked(shown)
            widths = []
            table.show_header = False
        for n, column in enumerate(shown[0]):
            table.add_column(column, overflow="fold", width=widths[n] if widths else None)
        for row in shown[1:]:
            table.add_row(*row)
        self._print(console, table)
        if len(kept) < len(columns):
            left = ", ".join(column for n, column in enumerate(columns) if n not in kept)
            self.say(f"Not shown at this width: {left} (--json has all).", style="dim")

    def _print(self, console: Console, table: Table) -> None:
        """Print a table. Lines of a file or a pipe do not end with blanks."""
        if console.is_terminal:
            console.print(table)
            return
        with console.capture() as captured:
            console.print(table)
        lines = captured.get().removesuffix("\n").split("\n")
        self.say("\n".join(line.rstrip() for line in lines))


_GAP = 2
"""Number of spaces between two columns."""


def _stacked(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows as lines of a name and a value, with an empty line between two rows."""
    head, *rows = cells
    lines = [
        [[name, value] for name, value in zip(head, row, strict=True) if value] for row in rows
    ]
    return [["", ""], *(line for row in lines for line in [*row, ["", ""]])][: -1 if rows else None]


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if math.isfinite(value) else "none"
    return "" if value is None else for_terminal(str(value))


def remark(text: str) -> None:
    """Print a line on stderr, from any thread."""
    print(fitted_for(sys.stderr, for_terminal(f"hrm-agent: {text}")), file=sys.stderr, flush=True)


@contextmanager
def progress(label: str, total: int) -> Generator[Advance]:
    """Show on stderr how many of `total` pieces are done."""
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
        """Progress bar with the status on separate lines. Beside the bar, the status would push
        step and time off a narrow terminal.
        """

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
        self._label = label
        self._total = total
        self._done = 0
        self._began = self._next = time.monotonic()
        self._first = 0
        """Number of pieces that were finished before this process began, derived from the first
        call.
        """

    def __call__(self, state: str, done: int | None = None) -> None:
        if self._done == 0 and done is not None:
            self._first = done - 1
        self._done = self._done + 1 if done is None else done
        now = time.monotonic()
        if self._done == self._total or now >= self._next:
            self._next = now + _SECONDS_BETWEEN_LINES
            seconds = now - self._began
            finished = self._done - self._first
            left = self._total - self._done
            if finished <= 0 or left <= 0:
                pace = f"[{_clock(seconds)}]"
            else:
                pace = f"[{_clock(seconds)}, about {_clock(seconds * left / finished)} left]"
            line = f"{self._label} {self._done}/{self._total} {pace} {state}"
            print(for_terminal(line.rstrip()), file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
