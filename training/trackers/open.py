"""Opens the trackers of a run, and sends them the rows of metrics.jsonl.

The file is the source and the queue: each tracker has a thread that reads the rows appended since
it last looked. A slow tracker takes no memory and delays nothing. A failed one is reported once and
dropped. The rows stay in the file, and a resumed run sends the tracker what it lacks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pydantic import BaseModel

from hrm_agent.basics.files import read_whole
from hrm_agent.errors import ConfigError, to_install
from hrm_agent.training.config.trackers import TrackerName, TrackSettings
from hrm_agent.training.metrics import METRICS_FILE, row_numbers
from hrm_agent.training.trackers.base import TrackedRun, Tracker
from hrm_agent.training.trackers.rows import AppendedRows
from hrm_agent.training.trackers.tensorboard import open_tensorboard
from hrm_agent.training.trackers.trackio import open_trackio
from hrm_agent.training.trackers.wandb import open_wandb

__all__ = ["require_trackers", "track_result", "tracking"]

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AT_THE_END = 10.0
_OPENERS: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": open_tensorboard,
    "trackio": open_trackio,
    "wandb": open_wandb,
}
Rows = Callable[[], list[Mapping[str, Any]]]
"""Function that returns the rows appended since its last call."""
Tell = Callable[[str], None]
"""Function that reports to the user who watches the run. Called from other threads."""


def require_trackers(settings: TrackSettings) -> None:
    """Raise `ConfigError` if a tracker is not installed."""
    for name in settings.track:
        if find_spec(name) is None:
            raise ConfigError(f"--track {name} needs {name}.", f"Run `{to_install(name)}`.")


@contextmanager
def tracking(
    settings: TrackSettings,
    config: BaseModel,
    command: str,
    folder: Path,
    tell: Tell,
    *,
    first_step: int = 0,
) -> Generator[None]:
    """Send trackers the rows of `metrics.jsonl` in `folder` while the block runs, existing ones
    included.

    `first_step`: number added to `step` of a row, so that trackers count like the console. At the
    end, remaining rows are awaited for some seconds at most.
    """
    metrics = folder / METRICS_FILE
    with _feeding(
        settings, config, command, folder, tell, lambda: AppendedRows(metrics), first_step
    ):
        yield


def track_result(
    settings: TrackSettings,
    config: BaseModel,
    command: str,
    folder: Path,
    tell: Tell,
    found: Mapping[str, Any],
) -> None:
    """Send the single row of a command without steps. It is not sent again."""

    def once() -> Rows:
        left = [{"step": 0, command: found}]
        return lambda: [left.pop()] if left else []

    with _feeding(settings, config, command, folder, tell, once, 0):
        pass


@contextmanager
def _feeding(
    settings: TrackSettings,
    config: BaseModel,
    command: str,
    folder: Path,
    tell: Tell,
    rows: Callable[[], Rows],
    first_step: int,
) -> Generator[None]:
    if not settings.track:
        yield
        return
    require_trackers(settings)
    name = read_whole(folder / "run_id") or folder.resolve().name
    where = Path(settings.track_folder) if settings.track_folder is not None else None
    values = {"command": command, **config.model_dump(mode="json")}
    run = TrackedRun(name, folder, where, settings.track_project, values)
    feeds = [_Feed(each, run, rows(), tell, first_step) for each in settings.track]
    for feed in feeds:
        feed.start()
    try:
        yield
    finally:
        _end(feeds, tell)


def _end(feeds: list[_Feed], tell: Tell) -> None:
    ends = time.monotonic() + _SECONDS_AT_THE_END
    for feed in feeds:
        feed.ending.set()
    for feed in feeds:
        feed.join(max(0.0, ends - time.monotonic()))
        if feed.is_alive():
            feed.is_left = True
            tell(
                f"{feed.name} has not taken all rows in {_SECONDS_AT_THE_END:.0f} s and is left;"
                f" {_LATER}"
            )


_LATER = "the run's resume sends what it lacks."


class _Feed(Thread):
    """Thread that sends one tracker its rows."""

    def __init__(
        self, name: TrackerName, run: TrackedRun, rows: Rows, tell: Tell, first_step: int
    ) -> None:
        """`ending`: set when no more rows come. `is_left`: True if the failure was already
        reported.
        """
        super().__init__(name=name, daemon=True)
        self._open, self._run, self._rows, self._tell = _OPENERS[name], run, rows, tell
        self._first_step = first_step
        self.ending, self.is_left = Event(), False

    def run(self) -> None:
        try:
            self._feed()
        except Exception as error:  # a tracker's own errors are of any kind, and none is the run's
            said = " ".join(str(error).split())[:300]
            if not self.is_left:
                self._tell(
                    f"{self.name} failed and is left ({type(error).__name__}: {said}); {_LATER}"
                )

    def _feed(self) -> None:
        """Send the rows. The tracker is opened at the first row, so that a refused run leaves
        nothing behind.
        """
        with ExitStack() as stack:
            tracker: Tracker | None = None
            newest, last = -1, False
            while not last:
                last = self.ending.wait(0)
                for row in self._rows():
                    if tracker is None:
                        tracker = self._open(self._run)
                        stack.callback(tracker.close)
                        newest = tracker.newest_step()
                    step = int(row["step"]) + self._first_step
                    if step > newest:  # else it is on record there, or a step that is taken again
                        tracker.log(step, row_numbers(row))
                        newest = step
                if not last:
                    self.ending.wait(_SECONDS_BETWEEN_LOOKS)
