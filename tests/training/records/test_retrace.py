"""Steps taken again from the record have the result that they had, to the last bit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.errors import ConfigError, RunError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import TrainingStage
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training
from hrm_agent.training.versions import Versions

SMALL: dict[str, Any] = {
    "steps": 3,
    "prompts_per_step": 2,
    "group_size": 4,
    "keep_versions": 1,
    "checkpoints": 1,
    "seed": 3,
}
STAGES = (
    TrainingStage(name="short", steps=2, rollout_tokens=64),
    TrainingStage(name="long", steps=2, rollout_tokens=96, reset_optimizer=True),
)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two at a time": {"keep_versions": 2, "steps": 4},
    "several optimiser steps": {"mini_batches": 2, "epochs": 2, "forward": "tree"},
    "an adapter": {"lora_rank": 4, "lora_dropout": 0.0},
    "stages": {"stages": STAGES, "steps": None},
    "bfloat16": {"dtype": "bfloat16"},
    "8 bits": {"optimizer": "adamw8bit"},
}


def weights(training: RecordedTraining) -> dict[str, torch.Tensor]:
    named = training.learner.model.named_parameters()
    return {name: each.detach().clone() for name, each in named if each.requires_grad}


def is_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(each, second[name]) for name, each in first.items()
    )


def trained(folder: Path, **settings: Any) -> tuple[Path, GrpoConfig]:
    keys = {name: value for name, value in (SMALL | settings).items() if value is not None}
    config = GrpoConfig.of(**keys)
    asyncio.run(train(config, folder))
    return folder, config


QUICK = ("an adapter", "stages")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in KINDS],
)
def test_steps_taken_again_are_those_that_were_taken(kind: str, tmp_path: Path) -> None:
    with opened_training(*trained(tmp_path / "run", **KINDS[kind])) as training:
        kept = {version: weights(training) for version in training.versions(training.kept)}
        assert [*kept] == training.kept and {0, len(training.rows)} <= kept.keys()
        training.load(0)
        for number, row in enumerate(training.rows):
            step = training.step(number)
            again = training.take(step)
            assert {name: row[name] for name in ("loss", "grad_norm", "trained_tokens")} == {
                name: again[name] for name in ("loss", "grad_norm", "trained_tokens")
            }
            if number + 1 in kept:
                assert is_equal(weights(training), kept[number + 1]), number
        for version, expected in kept.items():
            training.load(version)
            assert is_equal(weights(training), expected)


@pytest.mark.slow
def test_a_resumed_training_keeps_the_same_versions(tmp_path: Path) -> None:
    whole, config = trained(tmp_path / "whole" / "run", steps=4)
    resumed, _ = trained(tmp_path / "resumed" / "run", steps=2)
    # as a kill between the checkpoint and the version leaves it
    (resumed / "versions" / "step-000002.zip").unlink()
    trained(resumed, steps=4)
    assert Versions(resumed).numbers == Versions(whole).numbers == [1, 2, 3, 4]
    with opened_training(whole, config) as first, opened_training(resumed, config) as second:
        for _ in zip(first.versions(range(5)), second.versions(range(5)), strict=True):
            assert is_equal(weights(first), weights(second))


def test_a_step_without_a_rollout_keeps_the_advantages_of_the_others(tmp_path: Path) -> None:
    with opened_training(*trained(tmp_path / "run", steps=1)) as training:
        training.load(1)
        whole = weights(training)
        step = training.step(0)
        removed = step.trained[0].id
        rest = step.without({removed})
        for before, after in zip(step.overlays, rest.overlays, strict=True):
            assert (before == after) == (before.trajectory_id != removed)
        (batches,), (less,) = training.batches(step), training.batches(rest)
        assert [each.trained_tokens for each in less] == [each.trained_tokens for each in batches]
        training.load(0)
        training.take(rest)
        assert not is_equal(weights(training), whole)


def test_what_cannot_be_taken_again_is_said(tmp_path: Path) -> None:
    def refused(kind: type[Exception], said: str, config: GrpoConfig | None) -> None:
        with pytest.raises(kind, match=said), opened_training(tmp_path / "run", config):
            pass

    refused(ConfigError, "is not the folder of a `train rl`", None)
    run, config = trained(tmp_path / "run", steps=1)
    refused(ConfigError, "by several processes", config.but(sharding="ddp"))
    refused(ConfigError, "on the records of other runs", config.but(source=("runs/other",)))
    (run / "metrics.jsonl").write_text("")
    refused(RunError, "has taken no step", config)


def test_a_step_that_comes_out_otherwise_is_an_error(tmp_path: Path) -> None:
    run, config = trained(tmp_path / "run", steps=2, keep_versions=0)
    rows = (run / "metrics.jsonl").read_text().splitlines()
    first = json.loads(rows[0])
    first["grad_norm"] *= 1.01
    (run / "metrics.jsonl").write_text("\n".join([json.dumps(first), *rows[1:]]) + "\n")
    with opened_training(run, config) as training:
        training.load(2)
        with pytest.raises(RunError, match=r"Step 1 was repeated .* grad_norm is .* on record"):
            training.load(1)


def test_verdicts_that_were_deleted_are_missed(tmp_path: Path) -> None:
    run, config = trained(tmp_path / "run", steps=1)
    with opened_training(run, config) as training:
        training.run_id = "another"
        with pytest.raises(RunError, match="Rollouts of step 1, or their verdicts, are missing"):
            training.step(0)
