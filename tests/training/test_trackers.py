from __future__ import annotations

import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydantic import ValidationError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hrm_agent.errors import ConfigError
from hrm_agent.training import trackers
from hrm_agent.training.config.commands import FREE_ON_RESUME, CollectConfig
from hrm_agent.training.config.parts import TRACK_KEYS, TrackSettings
from hrm_agent.training.metrics import MetricsLog, row_numbers
from hrm_agent.training.trackers import AppendedRows, track_result, tracking
from tests.support.training import wandb_files

ROW = {
    "step": 0,
    "loss": 0.5,
    "eval/correct": None,
    "skipped": None,
    "roles": {"solve": {"tokens": 3.0}},
}


def row(step: int) -> dict[str, Any]:
    return {**ROW, "step": step, "loss": 1 / (step + 1)}


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder)).Reload()
    return [(event.step, round(event.value, 6)) for event in read.Scalars(tag)]


def refused(text: str) -> None:
    raise AssertionError(text)


def test_numbers_of_a_row_are_flat() -> None:
    given = {
        **ROW,
        "stepped": True,
        "nan": math.nan,
        "engines": {"lost": 1},
        "skipped": "no signal",
    }
    assert row_numbers(given) == {
        "loss": 0.5,
        "roles/solve/tokens": 3.0,
        "stepped": 1.0,
        "engines/lost": 1.0,
    }


@pytest.mark.parametrize(
    "given", ["tensorboard,wandb", ["tensorboard,wandb"], ["tensorboard", "wandb", "wandb"]]
)
def test_trackers_are_named_by_commas_or_one_by_one(given: Any) -> None:
    assert TrackSettings(track=given).track == ("tensorboard", "wandb")


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(ValidationError, match="'tensorboard', 'trackio' or 'wandb'"):
        TrackSettings(track=("tensorbord",))  # pyright: ignore[reportArgumentType]


def test_trackers_may_change_when_a_run_is_resumed() -> None:
    assert TRACK_KEYS <= FREE_ON_RESUME


def test_a_tracker_that_is_not_installed_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    settings = TrackSettings(track=("wandb",))
    with (
        pytest.raises(ConfigError, match=r"pip install .*\[wandb\]'"),
        tracking(settings, settings, "train rl", tmp_path, refused),
    ):
        pass


def test_rows_are_read_once_and_anew_from_a_file_that_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = AppendedRows(path)
    assert rows() == []
    log = MetricsLog(path)
    log.append(row(0))
    assert [each["step"] for each in rows()] == [0]
    with path.open("a") as file:
        file.write('{"step": 1, "lo')
    assert rows() == []
    log = MetricsLog(path, before_step=1)
    log.append(row(1))
    assert [each["step"] for each in rows()] == [0, 1]
    with path.open("a") as file:
        file.write("\0\0[]\n")  # as a power cut leaves it
    log.append(row(2))
    assert [each["step"] for each in rows()] == [2]


def test_tensorboard_is_sent_each_step_once(tmp_path: Path) -> None:
    settings, path = TrackSettings(track=("tensorboard",)), tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    with tracking(settings, settings, "train rl", tmp_path, refused, first_step=1):
        log.append(row(0))
        log.append(row(1))
    log = MetricsLog(path, before_step=1)  # a run that goes on from its checkpoint
    log.append(row(1))
    log.append(row(2))  # while no tracker was there
    with tracking(settings, settings, "train rl", tmp_path, refused, first_step=1):
        log.append(row(3))
    assert scalars(tmp_path / "tensorboard", "loss") == [
        (1, 1.0),
        (2, 0.5),
        (3, 0.333333),
        (4, 0.25),
    ]
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set(read.Tags()["scalars"]) == {"loss", "roles/solve/tokens"}
    (config,) = read.Tensors("config")  # once, though it was opened twice
    assert (
        json.loads(config.tensor_proto.string_val[0].decode().strip("`json\n"))["command"]
        == "train rl"
    )


def test_a_command_without_steps_sends_its_result_once(tmp_path: Path) -> None:
    settings = CollectConfig(track=("tensorboard",), track_folder=str(tmp_path / "elsewhere"))
    for _ in range(2):
        track_result(
            settings,
            settings,
            "eval",
            tmp_path,
            refused,
            {"pass_at_1": 0.75, "statuses": {"failed": 2}},
        )
    (folder,) = (tmp_path / "elsewhere").iterdir()
    assert scalars(folder, "eval/pass_at_1") == [(0, 0.75)]
    assert scalars(folder, "eval/statuses/failed") == [(0, 2.0)]


def test_a_tracker_that_fails_is_told_of_once_and_left(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    settings, told = TrackSettings(track=("tensorboard",)), list[str]()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with tracking(settings, settings, "train rl", tmp_path, told.append):
        log.append(row(0))
        log.append(row(1))
    (said,) = told
    assert "tensorboard failed and is left (FileExistsError" in said


class Stuck:
    """A server that does not answer."""

    def __init__(self) -> None:
        self.asked, self.free = Event(), Event()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.asked.set()
        self.free.wait()

    def close(self) -> None:
        pass


def test_a_tracker_that_hangs_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stuck = Stuck()
    monkeypatch.setitem(trackers._OPENERS, "wandb", lambda run: stuck)
    monkeypatch.setattr(trackers, "_SECONDS_AT_THE_END", 0.05)
    settings, told = TrackSettings(track=("tensorboard", "wandb")), list[str]()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with tracking(settings, settings, "train rl", tmp_path, told.append):
        log.append(row(0))
        assert stuck.asked.wait(30)
        log.append(row(1))
    stuck.free.set()
    assert any("wandb has not taken all rows" in said for said in told)


PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from hrm_agent.training.metrics import MetricsLog
from hrm_agent.training.trackers import TRACKED_FILE, tracking
from hrm_agent.training.config.parts import TrackSettings

folder, first, last, kill = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kill"
settings = TrackSettings(track=("trackio", "wandb"), track_folder=str(folder / "tracked"))
(folder / "run_id").write_text("my run")
log = MetricsLog(folder / "metrics.jsonl", before_step=first)

def tell(text):
    print(text, flush=True)

with tracking(settings, settings, "train rl", folder, tell, first_step=1):
    for step in range(first, last):
        log.append({"step": step, "loss": 1 / (step + 1)})
    while kill:
        tracked = folder / TRACKED_FILE
        sent = json.loads(tracked.read_text())["sent"] if tracked.exists() else {}
        if list(sent.values()) == [last, last]:
            time.sleep(3)  # wandb writes its file once a second
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
"""


@pytest.mark.whole
def test_trackio_and_wandb_hold_each_step_of_a_killed_run_once(tmp_path: Path) -> None:
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB", "TRACKIO"))
    }

    def start(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), *words]
        alone = {**variables, "HOME": str(tmp_path)}
        return subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=alone,
            stdin=subprocess.DEVNULL,
        )

    killed = start("0", "2", "kill")
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    resumed = start("1", "4", "end")  # step 1 is taken again
    assert (resumed.returncode, resumed.stdout) == (0, ""), resumed.stderr

    with sqlite3.connect(tmp_path / "tracked" / "hrm-agent.db") as database:
        rows = database.execute(
            "SELECT run_name, step, metrics FROM metrics ORDER BY rowid"
        ).fetchall()
        configs = database.execute("SELECT config FROM configs").fetchall()
    expected = {1: 1.0, 2: 0.5, 3: 1 / 3, 4: 0.25}
    assert [(name, step, json.loads(metrics)["loss"]) for name, step, metrics in rows] == [
        ("my run", step, pytest.approx(loss)) for step, loss in expected.items()
    ]
    assert [(json.loads(each)["command"], json.loads(each)["run_id"]) for (each,) in configs] == [
        ("train rl", "my run")
    ]

    files = sorted((tmp_path / "tracked" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    found = [wandb_files.history(file) for file in files]
    assert [list(each) for each in found] == [[1, 2], [3, 4]]
    assert {step: each["loss"] for part in found for step, each in part.items()} == pytest.approx(
        expected
    )
    assert len({file.name for file in files}) == 1  # one run, in two parts
    assert wandb_files.config(files[0])["command"] == "train rl"
