"""A rollout that lost a tool call to the infrastructure runs once more, and is never trained as a
failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.environment import Environment, LocalEnvironment, Submission
from hrm_agent.environment import open as opening
from hrm_agent.errors import RunError
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.rollout.rollout import run_id_of
from hrm_agent.training.select.verdicts import why_nothing_was_learnt
from hrm_agent.trajectory import DropReason, Overlay, StopReason, ToolStatus, Trajectory, Verdict
from tests.support.lent import Lent
from tests.support.trajectory.samples import make_trajectory

pytestmark = pytest.mark.whole

CONFIG = GrpoConfig.of(
    steps=1, prompts_per_step=2, group_size=2, seed=5, context={"max_turns": 4, "max_tokens": 96}
)
ROLLOUTS = CONFIG.rollout.prompts_per_step * CONFIG.samples
AGAIN = "/attempt-2"

Losing = Callable[[Callable[[int], bool]], None]
"""Makes the environment lose the calls whose number, from 0, the given function is true of."""


@pytest.fixture
def losing(environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch) -> Losing:
    def lose(which: Callable[[int], bool]) -> None:
        monkeypatch.setattr(opening, "_open", lambda *_: Losses(environment, which))

    return lose


class Losses(Lent):
    """The environment of all tests, which runs every call and loses the results of some."""

    def __init__(self, environment: LocalEnvironment, which: Callable[[int], bool]) -> None:
        super().__init__(environment)
        self._inner: Environment = environment
        self._which, self._asked = which, 0

    async def run(self, submission: Submission) -> Any:
        number, self._asked = self._asked, self._asked + 1
        result = await self._inner.run(submission)
        lost = {
            "status": ToolStatus.INFRASTRUCTURE,
            "stdout": "",
            "value": None,
            "stderr": "the worker was lost",
        }
        return replace(result, **lost) if self._which(number) else result


def on_record(folder: Path) -> tuple[dict[str, Trajectory], dict[str, Overlay]]:
    """Trajectories by thread, overlays by trajectory."""
    with open_store(folder / "store.db") as store:
        found = {t.thread_id: t for t in store.journal.trajectories()}
        return found, {o.trajectory_id: o for o in store.journal.overlays("run")}


def lost(trajectory: Trajectory) -> bool:
    return any(each.status is ToolStatus.INFRASTRUCTURE for each in trajectory.tool_calls)


def unanswered(trajectory: Trajectory) -> bool:
    """True if the rollout counts as ended with an answer although its last message asks for a tool."""
    return trajectory.stop_reason is StopReason.ANSWER and bool(
        trajectory.calls[-1].response["tool_calls"]
    )


def test_a_lost_rollout_runs_once_more_and_the_second_attempt_counts(
    losing: Losing, tmp_path: Path
) -> None:
    losing(lambda number: number == 0)
    asyncio.run(train(CONFIG, tmp_path / "run"))
    found, overlays = on_record(tmp_path / "run")
    (first,) = [t for t in found.values() if lost(t)]
    second = found[first.thread_id + AGAIN]
    assert len(found) == len(overlays) == ROLLOUTS + 1, (
        "what failed stays on record, with a verdict"
    )
    assert (second.group_id, second.sample_index) == (first.group_id, first.sample_index)
    assert second.id != first.id
    assert second.calls[0].token_ids == first.calls[0].token_ids, "the seed is the same"
    left = overlays[first.id]
    assert (left.verdict, left.drop_reason, left.advantage) == (
        Verdict.DROPPED,
        DropReason.INFRASTRUCTURE,
        None,
    )
    assert "the worker was lost" in left.reason and second.thread_id in left.reason
    assert overlays[second.id].drop_reason not in (
        DropReason.INFRASTRUCTURE,
        DropReason.SMALL_GROUP,
    )
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (row["rollout/count"], row["rollout/second_attempts"], row["rollout/lost"]) == (
        ROLLOUTS,
        1,
        0,
    )


class Killed(Exception):
    """Exception with which a test ends a run."""


def test_a_run_of_the_name_of_another_in_the_same_store_is_refused(
    losing: Losing, tmp_path: Path
) -> None:
    """Threads of both runs would have the same names, so one run would take the other's rollouts."""
    losing(lambda _: False)
    config = CONFIG.model_copy(update={"store": str(tmp_path / "shared.db")})
    asyncio.run(train(config, tmp_path / "a" / "run"))
    with pytest.raises(RunError, match="holds another run called 'run'"):
        asyncio.run(train(config, tmp_path / "b" / "run"))
    asyncio.run(train(config, tmp_path / "a" / "run"))


def test_files_that_a_power_cut_left_empty_are_made_again(losing: Losing, tmp_path: Path) -> None:
    losing(lambda _: False)
    folder = tmp_path / "run"
    config = CONFIG.but(cooldown=0.0)
    asyncio.run(train(config, folder))
    for name in ("run_id", "schedule.json"):
        assert (folder / name).stat().st_size
        # as some file systems leave what was not on the disk yet
        (folder / name).write_bytes(b"\0\0")
    asyncio.run(train(config.model_copy(update={"steps": 2}), folder))
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [0, 1]
    assert (folder / "run_id").read_text() == "run"


def test_the_name_of_a_run_is_not_guessed_where_it_was_moved(tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    folder.mkdir()
    (folder / "run_id").touch()
    with pytest.raises(RunError, match=r"run_id with the run.s name is empty"):
        run_id_of(folder)
    with open_store(folder / "store.db") as store:
        assert run_id_of(folder, store) == "moved", "nothing was recorded before"
        (folder / "run_id").write_text("")
        store.journal.write_trajectory(make_trajectory(run_id="before"))
        with pytest.raises(RunError, match=r"run_id with the run.s name is empty.*moved"):
            run_id_of(folder, store)


def test_a_run_that_is_ended_on_the_way_makes_no_third_attempt(
    losing: Losing, tmp_path: Path
) -> None:
    folder, config = tmp_path / "run", CONFIG.but(min_group=1.0)
    moments = [lambda t: lost(t) and AGAIN not in t.thread_id, lambda t: AGAIN in t.thread_id]
    for moment in moments:
        losing(lambda _: True)

        def end(trajectory: Trajectory, moment: Callable[[Trajectory], bool] = moment) -> None:
            if moment(trajectory):
                raise Killed

        with pytest.raises(Killed):
            asyncio.run(train(config, folder, on_rollout=end))
    asyncio.run(train(config, folder))
    found, overlays = on_record(folder)
    attempts = Counter(thread.removesuffix(AGAIN) for thread in found)
    assert len(attempts) == ROLLOUTS and set(attempts.values()) == {2}
    assert all(lost(t) for t in found.values()), (
        "every first answer asks for a tool, and no result comes"
    )
    assert not any(unanswered(t) for t in found.values()), (
        "what was cancelled went on where it stood"
    )
    for first in attempts:
        assert found[first].calls[0].token_ids == found[first + AGAIN].calls[0].token_ids, (
            "the seed is the same"
        )
    reasons = {overlays[t.id].drop_reason for t in found.values() if lost(t)}
    assert reasons == {DropReason.INFRASTRUCTURE}
    assert not any(o.advantage for o in overlays.values() if o.drop_reason)

    (row,) = read_metrics(folder / "metrics.jsonl")
    assert row["rollout/second_attempts"] == row["rollout/lost"] == ROLLOUTS
    assert row["select/groups_too_small"] == CONFIG.rollout.prompts_per_step and row["stepped"] == 0
    assert (
        row["skipped"] == "nothing to train: 2 of 2 groups have too few rollouts that can take part"
    )
    assert "`hrm-agent history` and `show` say what failed" in str(why_nothing_was_learnt([row]))
    start, after = (
        load_file(Path(f) / "model.safetensors")
        for f in (model_folder(CONFIG.policy), folder / "model")
    )
    assert all(torch.equal(start[name], after[name]) for name in start), (
        "nothing was learnt of a machine's faults"
    )
