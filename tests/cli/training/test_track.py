"""`--track`: metrics of a command that are sent to a tracker while it runs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hrm_agent.training.metrics import read_metrics
from tests.cli.conftest import Command

QUICK = ("--policy", "builtin:cold-start", "--steps", "2", "--out", "run", "--track", "tensorboard")
KINDS = {
    "sft": ("train", "sft", "chats.jsonl", "--batch-size", "1", *QUICK),
    "rl": ("train", "rl", "--prompts-per-step", "1", "--group-size", "2", *QUICK),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_is_tracked_in_the_steps_of_the_console(
    kind: str, hrm: Command, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}))
    assert hrm(*KINDS[kind]).code == 0
    read = EventAccumulator("run/tensorboard").Reload()
    rows = read_metrics(Path("run/metrics.jsonl"))
    assert [(event.step, event.value) for event in read.Scalars("learning_rate")] == [
        (step, pytest.approx(row["learning_rate"])) for step, row in enumerate(rows, start=1)
    ]
    assert hrm("resume", "run").code == 0  # all was sent: nothing is sent again
    assert len(EventAccumulator("run/tensorboard").Reload().Scalars("learning_rate")) == 2


def test_an_evaluation_is_one_row(hrm: Command, scripted: str) -> None:
    words = ("--policy", scripted, "--count", "1", "--out", "run", "--track", "tensorboard")
    assert hrm("eval", *words).code == 0
    read = EventAccumulator("run/tensorboard").Reload()
    assert [(event.step, event.value) for event in read.Scalars("eval/mean_tool_calls")] == [
        (0, 1.0)
    ]


def test_the_demo_has_a_short_name_for_it(hrm: Command) -> None:
    shown = tomllib.loads(hrm("demo", "--track", "tensorboard,wandb", "--dry-run").out)
    assert shown["train"]["track"] == ["tensorboard", "wandb"]


def test_an_unknown_tracker_is_refused(hrm: Command) -> None:
    failed = hrm("train", "rl", "--track", "tensorbord")
    assert failed.code == 2 and "'tensorboard', 'trackio' or 'wandb'" in failed.err
