"""Selection, advantages, credit and objective are four choices, and each goes with all of the
others.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from hrm_agent.errors import ModelError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.evaluation.step_metrics import families_of_step
from hrm_agent.training.grpo import mini_batches
from hrm_agent.training.select.roc import ALGORITHMS, select
from hrm_agent.training.select.verdicts import credited_overlays
from hrm_agent.training.update.advantages import (
    ADVANTAGES,
    CREDITS,
    by_group,
    credit_by_name,
    credited,
)
from hrm_agent.training.update.batch import MicroBatch, build_batches
from hrm_agent.training.update.objectives import OBJECTIVES, LossOptions
from hrm_agent.training.update.optimizer_step import policy_update
from hrm_agent.trajectory import Trajectory, Verdict
from tests.support.training.builders import place, sampled_call, tiny_model, tool_call, trajectory


def rollouts(prompt: int) -> list[Trajectory]:
    """Eight of a prompt, half of them right, by a planner with two plans and a solver of one to
    three calls.
    """
    found: list[Trajectory] = []
    for index in range(8):
        number, plan = 10 * prompt + index, 10 + index // 2 % 2
        calls = [sampled_call(f"plan-{number}", [3, plan], 1)]
        calls.append(sampled_call(f"solve-{number}-0", [4, plan, 20 + index], 2))
        for turn in range(index % 3):
            calls.append(
                sampled_call(f"solve-{number}-{turn + 1}", [5, 30 + index, 31], 1, calls[-1].id)
            )
        roles = ["plan", *["solve"] * (len(calls) - 1)]
        placed = [
            c.model_copy(update={"identity": place("t", c.id, r)})
            for c, r in zip(calls, roles, strict=True)
        ]
        found.append(
            trajectory(
                number,
                float(index % 2),
                group_id=f"group-{prompt}",
                sample_index=index,
                calls=tuple(placed),
                tool_calls=(tool_call(f"tool-{number}"),),
            )
        )
    return found


GROUPS = [rollouts(1), rollouts(2)]
WHOLE = [each for group in GROUPS for each in group]


@pytest.mark.parametrize(("algorithm", "objective"), product(ALGORITHMS, OBJECTIVES))
def test_every_selection_goes_with_every_advantage_credit_and_objective(
    algorithm: str, objective: str
) -> None:
    judged = [overlay for group in GROUPS for overlay in select(group, 4, algorithm, seed=3)]
    kept = {o.trajectory_id for o in judged if o.verdict is Verdict.KEPT}
    tokens = sum(each.sampled_tokens for each in WHOLE if each.id in kept)
    assert len(kept) == (16 if algorithm == "grpo" else 8)
    norms = set[float]()
    for advantages, credit in product(ADVANTAGES, CREDITS):
        overlays = credited(
            WHOLE, by_group(judged, advantages), credit_by_name(credit, advantages=advantages)
        )
        assert [(o.verdict, o.reason, o.reward) for o in overlays] == [
            (o.verdict, o.reason, o.reward) for o in judged
        ]
        assert {o.trajectory_id for o in overlays if o.advantage is not None} == kept
        assert all(
            (o.credit is None) == (credit == "whole_trajectory")
            for o in overlays
            if o.trajectory_id in kept
        )
        model = tiny_model()
        metrics = policy_update(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            build_batches(WHOLE, overlays, token_budget=64),
            loss=LossOptions(objective=objective, aggregation="sequence"),  # type: ignore[arg-type]
        )
        assert (metrics["stepped"], metrics["trained_tokens"]) == (1, tokens), (advantages, credit)
        norms.add(round(metrics["grad_norm"], 6))
    assert len(norms) > 6, "the choices must make a difference"


def test_a_part_of_a_batch_without_a_token_to_train_is_passed_over_and_a_whole_one_is_refused() -> (
    None
):
    """A rollout whose only call is the frozen planner's has no token to train."""
    alone = [
        each.model_copy(update={"calls": each.calls[:1]}) if not n else each
        for n, each in enumerate(GROUPS[0])
    ]

    def parts(frozen: tuple[str, ...]) -> list[list[MicroBatch]]:
        config = GrpoConfig.of(
            algorithm="grpo",
            mini_batches=8,
            group_size=8,
            frozen_roles=frozen,
            micro_batch_tokens=4096,
        )
        judged = select(alone, 8, "grpo", seed=3)
        return mini_batches(
            alone, credited_overlays(alone, judged, config), config, forward=config.loss.forward
        )

    assert sorted(len(part) for part in parts(("plan",))) == [0, *[1] * 7]
    assert [len(part) for part in parts(())] == [1] * 8
    with pytest.raises(
        ModelError, match=r"None of the 8 kept .* the roles of its calls are frozen"
    ):
        parts(("plan", "solve"))


def test_a_step_of_several_families_has_a_row_for_each() -> None:
    other = [
        each.model_copy(update={"task": each.task.model_copy(update={"family": "other"})})
        for each in GROUPS[1]
    ]
    both = [*GROUPS[0], *other]
    overlays = [o for group in (GROUPS[0], other) for o in select(group, 4, "grpo-roc", seed=3)]
    found = families_of_step(both, overlays)
    facts = {"rollouts": 8.0, "correct": 0.5, "reward": 0.5, "kept": 0.5}
    assert {family: {name: row[name] for name in facts} for family, row in found.items()} == {
        GROUPS[0][0].task.family: facts,
        "other": facts,
    }
    assert families_of_step(GROUPS[0], overlays) == {}
