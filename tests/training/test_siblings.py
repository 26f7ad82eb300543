"""A group of forks is a group like any other: judged by what each did itself, and each sampled
token trained once.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.time_travel.fork import Edit, siblings
from hrm_agent.store import open_store
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.training.update.batch import build_batches, kept_rows
from hrm_agent.trajectory import Overlay, TaskRef, Trajectory, Verdict
from hrm_agent.trajectory.forest import path_to, path_tokens
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import boxed, call

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?", answer="42")


async def forked(folder: Path, edit: Edit | None = None) -> list[Trajectory]:
    """A run of three turns, and two siblings that go on after its first tool call, one right and
    one wrong.
    """
    environment = LocalEnvironment()
    answers = [call("6 +"), call("6 * 7"), boxed(42), boxed(42), boxed(41)]
    try:
        with open_store(folder / "store.db") as store, ScriptedEngine(answers) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)

            def verify(text: str) -> float:
                return float("42" in text)

            original = await runner.run(
                Episode(TASK, "thread", group_id="origin", seed=1, verify=verify)
            )
            group = await siblings(
                runner,
                "thread",
                "after:tools",
                edit=edit,
                count=2,
                seed=1,
                verify=verify,
                concurrency=1,
            )
            assert [t.reward for t in group] == [1.0, 0.0]
            return [original, *group]
    finally:
        await environment.close()


def kept(trajectories: list[Trajectory]) -> list[Overlay]:
    judged = [
        o
        for group in (trajectories[:1], trajectories[1:])
        for o in select(group, 2, "grpo", seed=0)
    ]
    return [
        (
            o
            if o.verdict is Verdict.KEPT
            else o.model_copy(update={"verdict": Verdict.KEPT, "advantage": 1.0})
        )
        for o in group_advantages(judged)
    ]


async def test_each_sampled_token_is_trained_once_over_the_original_and_its_siblings(
    tmp_path: Path,
) -> None:
    trajectories = await forked(tmp_path)
    made = {c.id: c for t in trajectories for c in t.calls}
    assert [len(t.calls) for t in trajectories] == [3, 2, 2] and len(made) == 5
    rows = kept_rows(trajectories, kept(trajectories))
    sampled = Counter(
        token for c in made.values() for token, s in zip(c.token_ids, c.mask, strict=True) if s
    )
    assert Counter(int(token) for row in rows for token in row.token_ids[row.loss_mask]) == sampled
    batches = build_batches(trajectories, kept(trajectories), token_budget=4096)
    assert sum(batch.trained_tokens for batch in batches) == sum(
        c.sampled_tokens for c in made.values()
    )


async def test_a_siblings_rows_hold_the_whole_prefix_as_context(tmp_path: Path) -> None:
    original, *group = await forked(tmp_path)
    overlays = [
        overlay for overlay in kept([original, *group]) if overlay.trajectory_id != original.id
    ]
    rows = kept_rows(group, overlays)
    assert len(rows) == 2
    for sibling, row in zip(group, rows, strict=True):
        (own,) = sibling.own_calls
        assert own.parent == original.calls[0].id
        prefix = original.calls[0].token_ids
        assert tuple(row.token_ids) == path_tokens(path_to(sibling.calls, own.id))
        assert (
            tuple(row.token_ids[: len(prefix)]) == prefix and not row.loss_mask[: len(prefix)].any()
        )
    assert rows[0].weights.max() > 0 > rows[1].weights.min()


async def test_a_sibling_is_judged_by_what_it_did_itself(tmp_path: Path) -> None:
    original, *group = await forked(tmp_path)
    assert [len(t.own_tool_calls) for t in (original, *group)] == [2, 0, 0]
    judged, *_ = select([original], 2, "grpo", seed=0)
    assert judged.penalty_error == 0.5, "one of two failed"
    assert [(o.penalty_error, o.group_id) for o in select(group, 2, "grpo", seed=0)] == [
        (0.5, "thread/fork-1")
    ] * 2
    assert [o.penalty_format for o in select(group, 2, "grpo", seed=0)] == [0.0, 0.0]


async def test_a_later_policy_may_go_on_from_what_an_earlier_one_did(tmp_path: Path) -> None:
    _, sibling, _ = await forked(tmp_path)
    (own,) = sibling.own_calls
    inherited = [call for call in sibling.calls if call.id != own.id]

    def by(version: int) -> Trajectory:
        calls = (*inherited, own.model_copy(update={"policy_version": version}))
        return sibling.model_copy(update={"policy": own.model, "policy_version": 3, "calls": calls})

    assert lint(by(3)) == []
    assert [finding.name for finding in lint(by(2))] == ["policy-version"]


@pytest.mark.parametrize("text", ["What is 40 + 2?"])
async def test_an_edited_prefix_is_written_anew_and_not_trained(text: str, tmp_path: Path) -> None:
    original, *group = await forked(tmp_path, Edit(messages={0: text}))
    (own,) = group[0].own_calls
    assert own.parent is None and own.branch_of == original.calls[0].id
    rows = kept_rows(
        group,
        [overlay for overlay in kept([original, *group]) if overlay.trajectory_id != original.id],
    )
    assert [int(row.loss_mask.sum()) for row in rows] == [
        t.own_calls[0].sampled_tokens for t in group
    ]
