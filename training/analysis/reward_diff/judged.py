"""Recorded steps judged by another reward, by the rules of their training.

Nothing is sampled or stored. Scores are computed as `hrm-agent rescore` does, and verdicts,
advantages and credit as the training did, with its seed. So with the training's own reward the
verdicts are the recorded ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hrm_agent.errors import RunError
from hrm_agent.rewards import opened_scorer
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.evaluation.rubrics import RECORDED
from hrm_agent.training.records.rescoring import can_be_scored
from hrm_agent.training.records.retrace import RecordedStep, RecordedTraining
from hrm_agent.training.rollout.scoring import REWARD_FAULT, reward_environment, rollouts_of
from hrm_agent.training.select.verdicts import credited_overlays, judge
from hrm_agent.training.tasks.own_verifier import RUN_VARIABLE, VERIFIER, verifier_spec
from hrm_agent.trajectory import NO_REWARDS, Scoring, Trajectory

__all__ = ["Scores", "judged", "scores_by"]


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of rollouts by one reward."""

    reward: str
    """Name of the reward, as given by the user."""
    by_id: Mapping[str, Scoring] | None
    """Trajectory id -> its scores (None: the recorded rewards)."""

    def given_to(self, rollout: Trajectory) -> Trajectory:
        """Rollout with these rewards in place of the recorded ones."""
        if self.by_id is None:
            return rollout
        scoring = self.by_id.get(rollout.id)
        if scoring is None:
            return rollout.model_copy(update=NO_REWARDS)
        failed = {"error": f"{REWARD_FAULT}{scoring.fault}"} if scoring.fault else {}
        return rollout.model_copy(update={**scoring.as_rewards, **failed})

    def fault(self, trajectory_id: str) -> str:
        """Reason why a scored rollout has no reward (empty if it has one)."""
        scoring = None if self.by_id is None else self.by_id.get(trajectory_id)
        return "" if scoring is None else scoring.fault

    def reason(self, rollout: Trajectory) -> str:
        """Parts of a rollout's reward, with the reasons that the reward functions gave."""
        scoring = None if self.by_id is None else self.by_id.get(rollout.id)
        if scoring is None:
            parts = [(name, value, "") for name, value in rollout.rewards.items()]
        else:
            parts = [(each.name, each.value, each.reason) for each in scoring.scores]
        return "; ".join(
            f"{name} {'none' if value is None else f'{value:g}'}" + (f" ({why})" if why else "")
            for name, value, why in parts
        )


async def scores_by(
    training: RecordedTraining, steps: Sequence[RecordedStep], reward: str
) -> Scores:
    """Score the rollouts of steps by a reward: a rubric, `verifier` or `recorded`.

    Raises `ConfigError` for a reward that does not exist, and `RunError` if it scores no rollout.
    """
    if reward == RECORDED:
        return Scores(reward, None)
    rollouts = [each for step in steps for each in step.rollouts if not can_be_scored(each)]
    groups: dict[str, list[Trajectory]] = {}
    for each in rollouts:
        groups.setdefault(each.group_id, []).append(each)
    verifying = reward == VERIFIER
    async with opened_scorer(
        verifier_spec(each.task for each in rollouts) if verifying else reward,
        environment={
            **reward_environment(training.config),
            RUN_VARIABLE: str(training.folder.resolve()),
        },
        keeps_truncated=training.config.select.truncated == "keep_reward",
    ) as scorer:
        found = [
            scoring
            for group in groups.values()
            for scoring in await scorer.score(rollouts_of(scorer.rubric, training.store, group))
        ]
    if not any(each.rewards for each in found):
        why = next((each.fault for each in found if each.fault), "no rollout has ended")
        raise RunError(
            f"The reward {reward!r} scores none of the {len(found)} rollouts: {why}.",
            "Name a reward that can read what is on record.",
        )
    return Scores(reward, {each.trajectory_id: each for each in found})


def judged(step: RecordedStep, scores: Scores, run_id: str) -> RecordedStep:
    """Step whose rollouts have these rewards, with the verdicts and advantages that follow."""
    config: GrpoConfig = step.config
    rollouts = [scores.given_to(each) for each in step.rollouts]
    verdicts = judge([(each,) for each in rollouts], step.number, run_id, config)
    by_id = {each.trajectory_id: each for each in verdicts}
    ordered = [by_id[each.id] for each in rollouts]
    return replace(step, rollouts=rollouts, overlays=credited_overlays(rollouts, ordered, config))
