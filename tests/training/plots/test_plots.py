"""Plots of runs: the data read, the lines drawn, and the positions of points."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.training.plots.plots import PlotStyle, draw_lines, metrics_of, plot_lines
from hrm_agent.training.plots.runs import read_run

CONFIG = """command = "train rl"
seed = {seed}
store = "/somewhere/{seed}"
[optim]
learning_rate = {rate}
[evaluation]
eval_problems = 50
"""


def row(step: int, **changes: Any) -> dict[str, Any]:
    facts = {
        "rollout/correct": 0.5,
        "rollout/sampled_tokens": 30.0,
        "rollout/count": 8.0,
        "loss": -0.1 * step,
    }
    seconds = {"rollout_seconds": 2.0, "rollout_cpu_seconds": 9.0, "update_seconds": 0.5}
    return {
        "step": step,
        "stage": 0,
        **facts,
        **seconds,
        "roles": {"reason": {"entropy": 0.2}},
        **changes,
    }


def run_in(
    folder: Path, *rows: Mapping[str, Any], seed: int = 0, rate: float = 0.1, config: str = CONFIG
) -> Path:
    folder.mkdir()
    (folder / "config.toml").write_text(config.format(seed=seed, rate=rate))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return folder


def test_steps_are_counted_from_1_and_held_out_points_by_the_updates_behind_them(
    tmp_path: Path,
) -> None:
    run = read_run(run_in(tmp_path / "a", row(0), row(1, **{"eval/correct": 0.8}), row(2)))
    (line,) = plot_lines([run])
    assert [(x, p.value) for x, p in line.points("loss", "step", "minmax")] == [
        (1, 0.0),
        (2, -0.1),
        (3, -0.2),
    ]
    ((at, held_out),) = line.held_out("step", "minmax")
    assert (at, held_out.value, (held_out.low, held_out.high)) == (2, 0.8, wilson_interval(40, 50))
    assert run.over("tokens") == [240, 480, 720]
    assert run.over("seconds") == [2.5, 5.0, 7.5], "CPU seconds are no part of the time"
    assert [x for x, _ in line.held_out("seconds", "minmax")] == [5.0]


def test_runs_that_differ_in_the_seed_alone_are_one_line(tmp_path: Path) -> None:
    runs = [
        read_run(run_in(tmp_path / f"s{seed}", row(0, loss=seed), row(1, loss=seed), seed=seed))
        for seed in (1, 3)
    ]
    runs.append(read_run(run_in(tmp_path / "other", row(0), rate=0.2)))
    together, other = plot_lines(runs)
    assert together.label == "learning_rate 0.1, seeds 1, 3"
    assert (other.label, other.runs) == ("other: learning_rate 0.2", (runs[2],))
    (_, first), _ = together.points("loss", "step", "minmax")
    assert (first.value, first.low, first.high) == (2, 1, 3)
    (_, first), _ = together.points("loss", "step", "interval")
    assert first.high - first.value == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2), rel=1e-3)
    assert len(plot_lines(runs, by_seed=False)) == 3
    named = plot_lines(runs, labels=["x", "y", "x"])
    assert [(line.label, len(line.runs)) for line in named] == [("x", 2), ("y", 1)]
    with pytest.raises(ConfigError, match="1 labels for 3 runs"):
        plot_lines(runs, labels=["x"])


def test_where_a_run_is_sent_makes_no_other_configuration(tmp_path: Path) -> None:
    tracked = CONFIG.replace("[optim]", 'track = ["tensorboard"]\notel = true\n[optim]')
    runs = [
        read_run(run_in(tmp_path / "a", row(0))),
        read_run(run_in(tmp_path / "b", row(0), seed=1, config=tracked)),
    ]
    assert [len(line.runs) for line in plot_lines(runs)] == [2]


def test_a_mean_ends_with_the_shortest_run_and_skips_what_is_null(tmp_path: Path) -> None:
    long = read_run(run_in(tmp_path / "a", *(row(step, loss=1.0) for step in range(3))))
    short = read_run(run_in(tmp_path / "b", row(0, loss=None), row(1, loss=3.0), seed=1))
    (line,) = plot_lines([long, short])
    assert [(x, p.value) for x, p in line.points("loss", "step", "none")] == [(1, 1.0), (2, 2.0)]
    (alone,) = plot_lines([read_run(tmp_path / "b")])
    assert math.isnan(alone.points("loss", "step", "none")[0][1].value), "a gap, and not 0"


def test_smoothing_is_the_mean_of_a_step_and_those_before(tmp_path: Path) -> None:
    (line,) = plot_lines(
        [read_run(run_in(tmp_path / "a", *(row(i, loss=float(i)) for i in range(4))))]
    )
    assert [p.value for _, p in line.points("loss", "step", "none", 3)] == [0, 0.5, 1, 2]


def test_a_run_that_is_being_written_and_broken_lines(tmp_path: Path) -> None:
    folder = run_in(tmp_path / "a", row(0), row(1))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    huge = json.dumps(row(2, loss=1)).replace('"loss": 1', '"loss": 1' + "0" * 400)
    text = "\n".join(
        [lines[0], "{broken", "[1]", '{"step": true}', lines[1], huge, '{"step": 3, "lo']
    )
    (folder / "metrics.jsonl").write_text(text)
    run = read_run(folder)
    assert (list(run.steps), list(run.broken)) == ([1, 2, 3], [2, 3, 4])
    assert math.isnan(run.metrics["loss"][2])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('command = "train rl"', "has no metrics yet"),
        ('command = "eval"', "was made by `hrm-agent eval`, which takes no steps"),
        ("", "is not a run's folder: it has no metrics.jsonl"),
        ("=", "cannot be read as TOML"),
    ],
)
def test_what_is_no_run(config: str, said: str, tmp_path: Path) -> None:
    run_in(tmp_path / "a", config=config)
    (tmp_path / "a" / "metrics.jsonl").unlink()
    with pytest.raises((RunError, ConfigError), match=said):
        read_run(tmp_path / "a")
    with pytest.raises(RunError, match=r"There is no folder .*Did you mean"):
        read_run(tmp_path / "aa")


def test_metrics_by_name(tmp_path: Path) -> None:
    runs = [read_run(run_in(tmp_path / "a", row(0)))]
    assert metrics_of(runs) == ["rollout/correct", "loss", "rollout/sampled_tokens"]
    assert metrics_of(runs, ["roles/reason/entropy"]) == ["roles/reason/entropy"]
    with pytest.raises(ConfigError, match="Did you mean 'rollout/correct'"):
        metrics_of(runs, ["correct"])
    sft = 'command = "train sft"\nseed = {seed}\n'
    tuned = read_run(
        run_in(tmp_path / "b", {"step": 1, "loss": 2.0, "tokens": 70, "seconds": 1.5}, config=sft)
    )
    assert (list(tuned.steps), tuned.over("tokens"), tuned.over("seconds")) == ([1], [70], [1.5])
    with pytest.raises(ConfigError, match="a was trained by reinforcement and b on conversations"):
        plot_lines([*runs, tuned])


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_has_the_same_bytes_each_time(kind: str, tmp_path: Path) -> None:
    rows = [row(step, **{"eval/correct": 0.5 if step == 1 else None}) for step in range(3)]
    runs = [read_run(run_in(tmp_path / f"$a${seed}", *rows, seed=seed)) for seed in (0, 1)]
    lines = plot_lines(runs)
    for name in ("one", "two"):
        draw_lines(lines, metrics_of(runs), tmp_path / name, kind, PlotStyle(smooth=2))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    if kind == "svg":
        assert b"<dc:date>" not in (tmp_path / "one").read_bytes()
