"""Judgements of a run, made after it: what a training run did with it, and what rubrics scored it.

They are overlays: keyed by who judged, written beside the record and never into it.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hrm_agent.trajectory.enums import DropReason, RewardFault, Verdict
from hrm_agent.trajectory.record import Record

__all__ = ["FEEDBACK", "Feedback", "JudgeCall", "Overlay", "RewardScore", "RolePenalty", "Scoring"]

FEEDBACK = "feedback"
"""The rubric under which stands what people said of a run."""


class RolePenalty(Record):
    """What GRPO-RoC holds against one role of a trajectory, where it counts each by itself."""

    failed: int
    """Tool calls of the role that failed, repeats left out."""
    effective: int
    """Tool calls of the role that went well and were of use."""
    error: float | None = None
    """p_err of the role, in [0, 1]; None for a role without tools."""
    format: float | None = None
    """p_format of the role, in [0, 1]; None for a role that no answer tag is asked of."""


class Overlay(Record):
    """What one training run made of one trajectory."""

    run_id: str
    """The training run that judged; of a choice among several runs of a task, the run that asked
    for it.
    """
    step: int
    """Number of the optimiser step that it is judged for, from 0; 0 for a choice among runs."""
    carried_from: int | None = None
    """The step that it was begun for and cut off in, where it went on in `step`, the one after;
    None: in no other.
    """
    trajectory_id: str
    """The trajectory that is judged."""
    group_id: str
    """Rollouts of one task in one step share it."""
    reward: float
    """The reward that it was judged by: the outcome, of which a truncated run has 0, or a rubric's
    weighted sum.
    """
    verdict: Verdict
    """Whether the trajectory was trained on, or chosen."""
    reason: str
    """Why, in words: which quota, which penalty, or why the whole group was rejected."""
    drop_reason: DropReason | None = None
    """Why it was not trained on, as a type; None where it was kept, was not chosen among runs, or
    in older records.
    """
    penalty_error: float
    """p_err of GRPO-RoC, in [0, 1]: share of distinct tool calls that failed; 0.5 without any."""
    penalty_format: float
    """p_format of GRPO-RoC, in [0, 1]: 1 without an answer tag, else surplus tags per turn."""
    penalty_by_role: dict[str, RolePenalty] | None = None
    """What the two penalties are means over, where they were counted by role. None: over all calls
    and turns.
    """
    advantage: float | None = None
    """Group-relative advantage of every token that the policy sampled; None unless kept."""
    credit: dict[str, float] | None = None
    """Weight in the loss of each call, by its id, where calls of one trajectory differ; a call that
    is missing had no part in the loss. None: each call has `advantage`.
    """


class JudgeCall(Record):
    """One request to a model that judges, with its answer."""

    model: str
    """The string that names the model."""
    request: tuple[dict[str, Any], ...]
    """The messages sent."""
    response: str
    """The text of the answer."""
    input_tokens: int | None = None
    """Prompt tokens as the model reported them; None if it did not."""
    output_tokens: int | None = None
    """Completion tokens as the model reported them; None if it did not."""
    cost: float | None = None
    """As the provider reported it, in its currency; None if it did not."""
    seconds: float = 0.0
    """Wall-clock time of the request."""


class RewardScore(Record):
    """What one reward function gave for one trajectory."""

    name: str
    """Name of the reward within its rubric."""
    value: float | None = None
    """The value, finite; None where it failed (`fault`) or abstained."""
    weight: float = 1.0
    """Its weight in the sum; 0 for what is only reported."""
    fault: RewardFault | None = None
    """Why there is no value; None where there is one, and where the function returned None to
    abstain.
    """
    reason: str = ""
    """The judge's words, or what went wrong."""
    seconds: float = 0.0
    """Wall-clock time that it took."""
    judge_calls: tuple[JudgeCall, ...] = ()
    """Requests to a judge that this value rests on. A ranking of siblings stands with the first of
    them.
    """


class Feedback(Record):
    """What one person said of one run."""

    id: str
    """Names it: said again under the same id, it is not counted again."""
    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    """How good the run was, from 0 to 1; a thumb up is 1, a thumb down 0."""
    words: str = ""
    """What the person wrote."""
    given_at: float
    """Unix time in seconds."""


class Scoring(Record):
    """What one rubric made of one trajectory: an overlay, so that a run can be scored as often as
    one likes.
    """

    trajectory_id: str
    """The trajectory that was scored."""
    rubric: str
    """The string that names the rubric, or the name that its scores are to have beside others'."""
    code: str = ""
    """Digest of the module that the rubric was loaded from; empty for a rubric without a source
    file.
    """
    scores: tuple[RewardScore, ...] = ()
    """One for each reward, in the order of the rubric."""
    outcome: float | None = None
    """Value of the part that decides whether the answer is right, from 0 to 1; None where it has
    none.
    """
    total: float | None = None
    """Sum of weight times value; None where a part of it failed, or all abstained."""
    feedback: tuple[Feedback, ...] = ()
    """Of the rubric `feedback`: all that people said of the run, oldest first. The newest counts;
    it is the score.
    """
    scored_at: float
    """Unix time in seconds."""

    @property
    def rewards(self) -> dict[str, float]:
        """As `Trajectory.rewards` holds them; empty for a trajectory that has no reward."""
        if self.outcome is None or self.total is None:
            return {}
        named = {score.name: score.value for score in self.scores if score.value is not None}
        return {**named, "correct": self.outcome, "reward": self.total}

    @property
    def fault(self) -> str:
        """What kept the trajectory from having a reward, in words; empty if it has one."""
        failed = [score for score in self.scores if score.fault is not None]
        if self.rewards:
            return ""
        said = [f"{score.name}: {score.fault} ({score.reason})" for score in failed]
        return "; ".join(said) or "no reward gave a value"
