"""Judgements of a run, made after it: decisions of a training run, and scores of rubrics.

They are overlays: keyed by the judge, stored beside the record and never in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sized
from typing import Any

from pydantic import Field

from hrm_agent.trajectory.enums import DropReason, RewardFault, Verdict
from hrm_agent.trajectory.record import Record

__all__ = [
    "FEEDBACK",
    "NO_REWARDS",
    "Feedback",
    "JudgeCall",
    "Overlay",
    "RewardScore",
    "RolePenalty",
    "Scoring",
]

FEEDBACK = "feedback"
"""Name of the rubric that holds the users' feedback on a run."""
NO_REWARDS: dict[str, Any] = {"rewards": {}, "rewards_by_call": {}}
"""Fields of a `Trajectory` without rewards."""


class RolePenalty(Record):
    """GRPO-RoC penalties of one role of a trajectory, if roles are counted separately."""

    failed: int
    """Tool calls of the role that failed, without repeats."""
    effective: int
    """Tool calls of the role that succeeded and were useful."""
    error: float | None = None
    """p_err of the role, in [0, 1] (None for a role without tools)."""
    format: float | None = None
    """p_format of the role, in [0, 1] (None for a role that is not asked for an answer tag)."""


class Overlay(Record):
    """Judgement of one trajectory by one training run."""

    run_id: str
    """Training run that judged. If one of several runs of a task was chosen, the run that asked for
    the choice.
    """
    step: int
    """Number of the optimiser step that the trajectory is judged for, from 0; 0 for a choice among
    runs.
    """
    carried_from: int | None = None
    """Step in which the trajectory was begun and cut off, if it was continued in the next step,
    which is `step` (None otherwise).
    """
    trajectory_id: str
    """Id of the judged trajectory."""
    group_id: str
    """Id that rollouts of one task in one step share."""
    reward: float
    """Reward used for the judgement: the outcome, which is 0 for a truncated run, or a rubric's
    weighted sum.
    """
    verdict: Verdict
    """Decision about the trajectory: trained on, chosen, or left out."""
    reason: str
    """Reason in words: which quota, which penalty, or why the whole group was rejected."""
    drop_reason: DropReason | None = None
    """Reason why the trajectory was not trained on, as a type (None if it was kept, if another run
    was chosen instead, or in older records).
    """
    penalty_error: float
    """p_err of GRPO-RoC, in [0, 1]: share of distinct tool calls that failed; 0.5 without any."""
    penalty_format: float
    """p_format of GRPO-RoC, in [0, 1]: 1 without an answer tag, else surplus tags per turn."""
    penalty_by_role: dict[str, RolePenalty] | None = None
    """Penalties by role, of which `penalty_error` and `penalty_format` are then the means (None:
    these two are means over all calls and turns).
    """
    advantage: float | None = None
    """Group-relative advantage of every token that the policy sampled (None unless kept)."""
    credit: dict[str, float] | None = None
    """Weight in the loss of each call, by the call's id, if the weights within the trajectory
    differ. A call that is missing here had no part in the loss (None: the weight of each call is
    `advantage`).
    """


class JudgeCall(Record):
    """Request to a judge model, with its answer."""

    model: str
    """String that names the model."""
    request: tuple[dict[str, Any], ...]
    """Messages sent."""
    response: str
    """Text of the answer."""
    input_tokens: int | None = None
    """Prompt tokens as the model reported them (None if not reported)."""
    output_tokens: int | None = None
    """Completion tokens as the model reported them (None if not reported)."""
    cost: float | None = None
    """Price in the provider's currency, as reported (None if not reported)."""
    seconds: float = 0.0
    """Wall-clock time of the request, in seconds."""


def _is_empty(value: Sized) -> bool:
    return not value


class RewardScore(Record):
    """Score of one trajectory by one reward function."""

    name: str
    """Name of the reward within its rubric."""
    value: float | None = None
    """Finite value (None if the function failed, abstained, or scored single calls only)."""
    by_call: dict[str, float] = Field(default_factory=dict, exclude_if=_is_empty)
    """Value of single model calls and tool calls, by the call's id."""
    weight: float = 1.0
    """Weight in the sum; 0 for a reward that is only reported."""
    fault: RewardFault | None = None
    """Failure of the function (None if it did not fail)."""
    reason: str = ""
    """Explanation by the judge, or description of the failure."""
    seconds: float = 0.0
    """Wall-clock time of the function, in seconds."""
    judge_calls: tuple[JudgeCall, ...] = ()
    """Judge requests that this value rests on. A ranking of siblings is stored with the first
    sibling.
    """


class Feedback(Record):
    """Feedback of one user on one run."""

    id: str
    """Id of the feedback. Feedback given again under the same id is not counted again."""
    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    """Rating from 0 to 1; 1 for a thumb up, 0 for a thumb down."""
    words: str = ""
    """Comment of the user."""
    given_at: float
    """Time of the feedback: Unix time in seconds."""


class Scoring(Record):
    """Scores of one trajectory by one rubric. They are an overlay, so that a run can be scored any
    number of times.
    """

    trajectory_id: str
    """Id of the scored trajectory."""
    rubric: str
    """String that names the rubric, or the name chosen for its scores."""
    code: str = ""
    """Digest of the module that the rubric was loaded from; empty for a rubric without a source
    file.
    """
    scores: tuple[RewardScore, ...] = ()
    """Scores of the rewards, in the order of the rubric."""
    outcome: float | None = None
    """Value from 0 to 1 of the reward that decides whether the answer is right (None if it gave no
    value).
    """
    total: float | None = None
    """Sum of weight times value (None if a reward failed, or all rewards abstained)."""
    feedback: tuple[Feedback, ...] = ()
    """Feedback of users on the run, oldest first; only for the rubric `feedback`. The newest is the
    score.
    """
    scored_at: float
    """Time of the scoring: Unix time in seconds."""

    @property
    def rewards(self) -> dict[str, float]:
        """Rewards by name, in the form of `Trajectory.rewards`; empty if the trajectory has no
        reward.
        """
        if self.outcome is None or self.total is None:
            return {}
        named = {score.name: score.value for score in self.scores if score.value is not None}
        return {**named, "correct": self.outcome, "reward": self.total}

    @property
    def rewards_by_call(self) -> dict[str, dict[str, float]]:
        """Rewards of single calls, in the form of `Trajectory.rewards_by_call`; empty if the
        trajectory has no reward.
        """
        named = {score.name: score.by_call for score in self.scores if score.by_call}
        if not named or not self.rewards:
            return {}
        summed: defaultdict[str, float] = defaultdict(float)
        for score in self.scores:
            for id_, value in score.by_call.items():
                summed[id_] += score.weight * value
        return {**named, "reward": dict(summed)}

    @property
    def as_rewards(self) -> dict[str, Any]:
        """Fields of a `Trajectory` that has these rewards."""
        return {"rewards": self.rewards, "rewards_by_call": self.rewards_by_call}

    @property
    def fault(self) -> str:
        """Reason why the trajectory has no reward, in words; empty if it has one."""
        failed = [score for score in self.scores if score.fault is not None]
        if self.rewards:
            return ""
        said = [f"{score.name}: {score.fault} ({score.reason})" for score in failed]
        return "; ".join(said) or "no reward gave a value"
