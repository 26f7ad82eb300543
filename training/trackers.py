"""Experiment trackers: send the rows of a run's metrics.jsonl to TensorBoard, trackio or wandb.

A thread reads the rows that were appended to the file since it last looked, so the file is the
queue. So a slow tracker needs no memory, and delays only the trackers that are named after it. A
tracker that fails is reported once and dropped. `tracked.json` in the run's folder has the newest
step that was sent to each tracker, so that a resumed run sends the missing rows, and no row twice.
"""

from __future__ import annotations

import json
import netrc
import os
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

from pydantic import BaseModel

from hrm_agent.basics.files import read_whole, replacing
from hrm_agent.errors import ConfigError, to_install
from hrm_agent.training.config.parts import TrackerName, TrackSettings
from hrm_agent.training.metrics import METRICS_FILE, parse_row, row_numbers

__all__ = ["TRACKED_FILE", "AppendedRows", "require_trackers", "track_result", "tracking"]

TRACKED_FILE = "tracked.json"
"""File in a run's folder with the run's id in trackers and the newest steps that were sent."""
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_AT_THE_END = 30.0
_SECONDS_FOR_WANDB = 10.0
"""Maximum seconds that the start and the end of a run wait for wandb's server."""
Rows = Callable[[], list[Mapping[str, Any]]]
"""Function that returns the rows that were appended since its last call."""
Tell = Callable[[str], None]
"""Function that shows a message to the user. It is called from another thread."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Description of a run for its trackers."""

    name: str
    """Id of the run: the name that its folder had when it began."""
    id: str
    """Name of the run with a random suffix, since several folders may have a run with the same
    name.
    """
    folder: Path
    """Folder of the run."""
    where: Path | None
    """Folder for the trackers' files (None: each tracker uses its default)."""
    project: str
    """Project of the run in the tracker."""
    config: Mapping[str, Any]
    """Resolved configuration as JSON, with the command."""
    is_new: bool
    """True if no row of the run has been sent to the tracker."""


class Tracker(Protocol):
    """Tracker of one run. It is used in one thread only."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send or store a row."""
        ...

    def close(self) -> None:
        """Close the run. This is called once."""
        ...


class _TensorBoard:
    """Writer of an event file in the run's folder. Each start of the run writes a further file, and
    TensorBoard reads all of them as one run.
    """

    def __init__(self, run: TrackedRun) -> None:
        self._proto = {
            name: getattr(import_module(f"tensorboard.compat.proto.{file}_pb2"), name)
            for file, name in (("event", "Event"), ("summary", "Summary"))
        }
        folder = run.folder / "tensorboard" if run.where is None else run.where / run.id
        file_writer = import_module("tensorboard.summary.writer.event_file_writer")
        self._writer = file_writer.EventFileWriter(str(folder))
        if run.is_new:
            text = import_module("tensorboard.plugins.text.summary_v2").text_pb
            shown = f"```json\n{json.dumps(dict(run.config), indent=2)}\n```"
            self._add(0, text("config", shown))
            self._add(0, text("run_id", run.name))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        Summary = self._proto["Summary"]
        self._add(
            step,
            Summary(
                value=[
                    Summary.Value(tag=name, simple_value=value) for name, value in values.items()
                ]
            ),
        )

    def _add(self, step: int, summary: Any) -> None:
        event = self._proto["Event"](wall_time=time.time(), step=step, summary=summary)
        self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    """Writer of rows to trackio's local database, which `trackio show` displays. Nothing leaves the
    machine.

    Rows are written directly to the database. `trackio.init` is not used, since it would print on
    stdout, which a command's JSON needs, start threads that measure the machine, and contact the
    hub if the hub's variables are set.
    """

    def __init__(self, run: TrackedRun) -> None:
        if run.where is not None:
            # trackio reads the variable once, when it is imported
            os.environ["TRACKIO_DIR"] = str(run.where.resolve())
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import TRACKIO_DIR

        if run.where is not None and run.where.resolve() != TRACKIO_DIR.resolve():
            raise RuntimeError(
                f"this process has imported trackio already, which writes to {TRACKIO_DIR}"
            )
        SQLiteStorage.validate_project_name(run.project)
        self._storage: Any = SQLiteStorage
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._storage.bulk_log(
            self._run.project,
            run=self._run.name,
            run_id=self._run.id,
            metrics_list=[dict(values)],
            steps=[step],
            config={**self._run.config, "run_id": self._run.name},
        )

    def close(self) -> None:
        """Do nothing, since each row is already committed."""


class _Wandb:
    """Run of wandb. It is online if a key is known or WANDB_MODE selects it, else offline, to be
    sent later by `wandb sync`. It never prompts. Several starts of a run have the same id and are
    one run in wandb.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        folder = run.where or run.folder
        folder.mkdir(parents=True, exist_ok=True)
        # Only configuration and metrics are sent: these settings keep wandb from reading data of
        # the machine or the code.
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
            init_timeout=_SECONDS_FOR_WANDB,
            finish_timeout=_SECONDS_FOR_WANDB,
            x_transaction_log_flush_interval=1.0,
        )
        self._run: Any = wandb.init(
            project=run.project,
            id=re.sub(r"[/\\#?%:\s]", "-", run.id),
            name=run.name,
            dir=str(folder),
            config={**run.config, "run_id": run.name},
            resume="allow",
            mode=_wandb_mode(),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step, commit=True)

    def close(self) -> None:
        self._run.finish()


def _wandb_mode() -> Any:
    """Mode for wandb (None, which is wandb's default, if WANDB_MODE is set or a key is known). It
    is `offline` if no key is known, since wandb would prompt for a key.
    """
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY"):
        return None
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    with suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc().authenticators(re.sub(r"^\w+://", "", server)) is not None:
            return None
    return "offline"


_OPENERS: dict[TrackerName, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}


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
    rows: Rows | None = None,
) -> Generator[None]:
    """Send the rows of `metrics.jsonl` in `folder` to the trackers while the block runs, including
    rows that exist already.

    `first_step`: number that is added to the `step` of a row, so that trackers count like the
    console. `rows`: rows to send instead of the file's. At the end of the block, remaining rows are
    sent for at most `_SECONDS_AT_THE_END`.
    """
    if not settings.track:
        yield
        return
    require_trackers(settings)
    rows = rows or AppendedRows(folder / METRICS_FILE)
    feed = _Feed(settings, config, command, folder, tell, rows, first_step)
    feed.start()
    try:
        yield
    finally:
        feed.ending.set()
        feed.join(_SECONDS_AT_THE_END)
        if feed.is_alive():
            feed.is_left = True
            tell(
                f"{feed.sending} has not taken all rows in {_SECONDS_AT_THE_END:.0f} s and is left;"
                f" {_LATER}"
            )


def track_result(
    settings: TrackSettings,
    config: BaseModel,
    command: str,
    folder: Path,
    tell: Tell,
    found: Mapping[str, Any],
) -> None:
    """Send the single row of a command without steps. The row is not sent again."""
    left = [{"step": 0, command: found}]
    with tracking(
        settings, config, command, folder, tell, rows=lambda: [left.pop()] if left else []
    ):
        pass


_LATER = "a resumed run sends the missing rows."


class _Feed(Thread):
    """Thread that sends rows to the trackers of a run."""

    def __init__(
        self,
        settings: TrackSettings,
        config: BaseModel,
        command: str,
        folder: Path,
        tell: Tell,
        rows: Rows,
        first_step: int,
    ) -> None:
        """`ending`: event that is set when no more rows come. `is_left`: True if it was already
        reported that rows were not sent in time. `sending`: name of the tracker to which rows are
        being sent.
        """
        super().__init__(name="trackers", daemon=True)
        self._settings = settings
        self._config = config
        self._command = command
        self._folder = folder
        self._tell = tell
        self._rows = rows
        self._open: dict[TrackerName, Tracker] = {}
        self._failed: set[TrackerName] = set()
        self._first_step = first_step
        self.ending = Event()
        self.is_left = False
        self.sending = ""

    def run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self.ending.wait(0)
            rows = self._read_rows()
            for name in self._settings.track:
                with self._reported(name):
                    self._send(name, rows)
            if not is_last:
                self.ending.wait(_SECONDS_BETWEEN_LOOKS)
        for name, tracker in self._open.items():
            with self._reported(name):
                tracker.close()

    def _read_rows(self) -> list[Mapping[str, Any]]:
        """Read the new rows. If they cannot be read, each tracker is reported as failed, and no row
        is sent.
        """
        try:
            return self._rows()
        except OSError as error:
            for name in self._settings.track:
                with self._reported(name):
                    raise error
            return []

    @contextmanager
    def _reported(self, name: TrackerName) -> Generator[None]:
        """Report the first error of a tracker in the block, and drop the tracker."""
        self.sending = name
        try:
            yield
        except Exception as error:  # a tracker may raise anything, and must not fail the run
            said = " ".join(str(error).split())[:300]
            if name not in self._failed and not self.is_left:
                self._tell(f"{name} failed and is left ({type(error).__name__}: {said}); {_LATER}")
            self._failed.add(name)

    def _send(self, name: TrackerName, rows: list[Mapping[str, Any]]) -> None:
        """Send rows to a tracker. It is opened at the first row, so that a refused run leaves no
        trace in it.
        """
        if not rows or name in self._failed:
            return
        tracked = self._tracked()
        settings = self._settings
        project = "" if name == "tensorboard" else settings.track_project
        key = " ".join((name, self._command, project, settings.track_folder or "")).rstrip()
        newest: int = tracked["sent"].get(key, -1)
        tracker = self._open.get(name)
        if tracker is None:
            run = TrackedRun(
                name=tracked["name"],
                id=tracked["id"],
                folder=self._folder,
                where=Path(settings.track_folder) if settings.track_folder is not None else None,
                project=settings.track_project,
                config={"command": self._command, **self._config.model_dump(mode="json")},
                is_new=newest < 0,
            )
            tracker = _OPENERS[name](run)
            self._open[name] = tracker
        try:
            for row in rows:
                step = int(row["step"]) + self._first_step
                if step > newest:  # an older row was sent already, or its step is taken again
                    tracker.log(step, row_numbers(row))
                    newest = step
        finally:
            tracked["sent"][key] = newest
            with replacing(self._folder / TRACKED_FILE) as part:
                part.write_text(json.dumps(tracked), encoding="utf-8")

    def _tracked(self) -> dict[str, Any]:
        """Contents of `tracked.json`: `name` and `id` of the run, and the newest step sent to each
        tracker (`sent`).
        """
        text = read_whole(self._folder / TRACKED_FILE)
        if text is not None:
            return json.loads(text)
        name = read_whole(self._folder / "run_id") or self._folder.resolve().name
        return {"name": name, "id": f"{name}-{secrets.token_hex(4)}", "sent": {}}


class AppendedRows:
    """Reader of a metrics file. A call returns the rows that were appended since the last call, or
    all rows if the file was replaced.

    A run that resumes from a checkpoint replaces its file by a file without the steps that are
    repeated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._at = 0

    def __call__(self) -> list[Mapping[str, Any]]:
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._file:
                self._file = inode
                self._at = 0
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return [row for row in map(parse_row, whole.split(b"\n")) if row is not None]
