"""Difference between two rewards on recorded steps: verdicts, updates, predicted changes, tokens and
warnings.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hrm_agent.errors import RunError
from hrm_agent.training.analysis.reward_diff.judged import Scores, judged, scores_by
from hrm_agent.training.analysis.reward_diff.measures import (
    Measured,
    PredictedChange,
    changes_of,
    measured,
)
from hrm_agent.training.analysis.reward_diff.updates import StepUpdates, updates_of
from hrm_agent.training.analysis.reward_diff.warnings import Warned, unusable, warnings_of
from hrm_agent.training.analysis.token_sample import token_texts
from hrm_agent.training.evaluation.rubrics import RECORDED
from hrm_agent.training.records.retrace import RecordedStep, RecordedTraining
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.select.roc import is_positive, outcome_of
from hrm_agent.training.tasks.own_verifier import VERIFIER
from hrm_agent.trajectory import Trajectory, Verdict

__all__ = [
    "Flips",
    "PushedToken",
    "RewardDifference",
    "RolloutDifference",
    "Side",
    "TokenDifference",
    "newest_steps",
    "reward_difference",
]

_WITH_TOKENS = 20
"""Number of rollouts whose tokens are listed."""
_CONTEXT = 4
"""Number of tokens shown before a pushed token."""


@dataclass(frozen=True, slots=True)
class Side:
    """Judgement of a rollout by one reward."""

    reward: float | None
    """Reward that the training would maximise (None if there is none)."""
    right: bool
    """True if the reward's outcome counts as right."""
    kept: bool
    """True if the rollout would be trained on."""
    advantage: float | None
    """Advantage in its group (None unless kept)."""
    reason: str
    """Parts of the reward, with their reasons."""
    verdict: str
    """Reason of the selection."""
    push: float
    """Change of the rollout's log-prob by one step, in nats."""


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """Token of a rollout under both rewards."""

    text: str
    """Text of the token."""
    old: float
    """Change of its log-prob by one step under the old reward, in nats."""
    new: float
    """Change of its log-prob by one step under the new reward, in nats."""


@dataclass(frozen=True, slots=True)
class RolloutDifference:
    """Rollout under both rewards."""

    trajectory_id: str
    """Id of the rollout."""
    thread_id: str
    """Thread of the rollout."""
    step: int
    """Number of its step, from 1."""
    prompt: str
    """Task of the rollout."""
    answer: str
    """Final text of the rollout."""
    old: Side
    """Judgement by the old reward."""
    new: Side
    """Judgement by the new reward."""
    tokens: tuple[TokenDifference, ...] = ()
    """Sampled tokens, call by call (empty except for the first rollouts of a `RewardDifference`)."""

    @property
    def difference(self) -> float:
        """Advantage under the new reward less that under the old one. A rollout that is not kept
        counts as 0.
        """
        return (self.new.advantage or 0.0) - (self.old.advantage or 0.0)


@dataclass(frozen=True, slots=True)
class Flips:
    """Numbers of rollouts that the two rewards judge differently."""

    rollouts: int
    """All rollouts that can be judged."""
    missing_by_old: int
    """Scored rollouts that have no value by the old reward."""
    missing_by_new: int
    """Scored rollouts that have no value by the new reward."""
    rewards: int
    """Rollouts with another reward."""
    right_by_old: int
    """Rollouts that are right by the old reward only."""
    right_by_new: int
    """Rollouts that are right by the new reward only."""
    kept_by_old: int
    """Rollouts that are trained on under the old reward only."""
    kept_by_new: int
    """Rollouts that are trained on under the new reward only."""
    down: int
    """Rollouts with a positive advantage under the old reward and a negative one under the new."""
    up: int
    """Rollouts with a negative advantage under the old reward and a positive one under the new."""


@dataclass(frozen=True, slots=True)
class PushedToken:
    """Token after a context, which the two rewards push in opposite directions."""

    before: str
    """Text of the tokens before it."""
    text: str
    """Text of the token."""
    count: int
    """Number of times that it was sampled after this context."""
    old: float
    """Mean change of its log-prob by one step under the old reward, in nats."""
    new: float
    """Mean change of its log-prob by one step under the new reward, in nats."""
    thread_id: str
    """Thread of a rollout that has it."""


@dataclass(frozen=True, slots=True)
class RewardDifference:
    """Result of `reward_difference`."""

    old: str
    """Old reward, as given by the user."""
    new: str
    """New reward, as given by the user."""
    steps: tuple[int, ...]
    """Numbers of the analysed steps, from 1."""
    flips: Flips
    """Numbers of rollouts that are judged differently."""
    rollouts: tuple[RolloutDifference, ...]
    """Rollouts, the largest difference of advantages first."""
    roles: Mapping[str, tuple[float, float]]
    """Role -> its share of the update under the old and under the new reward (nan without an
    update). A share is a norm over the sum of all roles' norms.
    """
    norms: tuple[float, float]
    """Norms of the updates under the old and under the new reward, over all steps."""
    cosine: float
    """Cosine of the angle between the two updates, over all steps (nan if one is zero)."""
    changes: Mapping[str, PredictedChange]
    """Measure -> its predicted change by one step, mean over the steps."""
    up: tuple[PushedToken, ...]
    """Tokens that the new reward pushes up and the old one down. The sum of the difference over all
    times that a token was sampled is largest for the first.
    """
    down: tuple[PushedToken, ...]
    """Tokens that the old reward pushes up and the new one down, in the same order."""
    warnings: tuple[Warned, ...]
    """Warnings about the new reward."""


def newest_steps(training: RecordedTraining, count: int) -> list[int]:
    """Numbers, from 0, of the newest `count` steps whose weights before the step are kept."""
    return [each for each in training.kept if each < len(training.rows)][-count:]


def reward_difference(
    training: RecordedTraining,
    old: str,
    new: str,
    numbers: Sequence[int],
    *,
    on_step: Callable[[int], object] = lambda number: None,
) -> RewardDifference:
    """Compare two rewards on the recorded steps `numbers`, from 0. `on_step`: called after each step.

    Raises `ConfigError` for an unknown reward, and `RunError` if a reward scores no
    rollout.
    """
    steps = [_begun_in(training.step(number)) for number in sorted(numbers)]
    by_old, by_new, verifier = asyncio.run(_scores(training, steps, old, new))
    compared: list[_Compared] = []
    for step in steps:
        sides = (judged(step, by_old, training.run_id), judged(step, by_new, training.run_id))
        updates = updates_of(training, *sides)
        found = measured(
            step.number, step.rollouts, verifier, updates.old.changes, updates.new.changes
        )
        compared.append(_Compared(*sides, updates, found))
        on_step(step.number)
    rollouts = [each for one in compared for each in one.measured]
    changes = changes_of(rollouts)
    differences = [each for one in compared for each in one.rollouts(by_old, by_new)]
    texts = _Texts(training.learner.codec)
    tokens = _pushed(compared, texts)
    all_updates = [each.updates for each in compared]
    norms = (
        math.hypot(*(each.old.norm for each in all_updates)),
        math.hypot(*(each.new.norm for each in all_updates)),
    )
    inner = math.fsum(each.inner for each in all_updates)
    rewards_old, rewards_new = (
        {each.trajectory_id: side(each).reward for each in differences} for side in (_old, _new)
    )
    differences.sort(key=lambda each: -abs(each.difference))
    first = differences[:_WITH_TOKENS]
    others = differences[_WITH_TOKENS:]
    return RewardDifference(
        old=old,
        new=new,
        steps=tuple(each.number + 1 for each in steps),
        flips=_flips(differences, by_old, by_new),
        rollouts=(
            *(replace(each, tokens=_listed(each, compared, texts)) for each in first),
            *others,
        ),
        roles=_shares(all_updates),
        norms=norms,
        cosine=inner / (norms[0] * norms[1]) if all(norms) else math.nan,
        changes=changes,
        up=tuple(each for each in tokens if each.new > 0),
        down=tuple(each for each in tokens if each.new < 0),
        warnings=tuple(
            unusable(
                [fault for each in differences if (fault := by_new.fault(each.trajectory_id))],
                len(differences),
                sum(each.new.kept for each in differences),
            )
            + warnings_of(
                rollouts,
                {id_: value for id_, value in rewards_old.items() if value is not None},
                {id_: value for id_, value in rewards_new.items() if value is not None},
                changes,
                {
                    each.trajectory_id: each.new.advantage
                    for each in differences
                    if each.new.kept and each.new.advantage is not None
                },
                texts.sampled,
            )
        ),
    )


def _begun_in(step: RecordedStep) -> RecordedStep:
    """Step without the rollouts carried over from the previous step, which belong to its groups."""
    own = [
        (rollout, overlay)
        for rollout, overlay in zip(step.rollouts, step.overlays, strict=True)
        if overlay.carried_from is None
    ]
    return replace(
        step, rollouts=[each for each, _ in own], overlays=[overlay for _, overlay in own]
    )


async def _scores(
    training: RecordedTraining, steps: Sequence[RecordedStep], old: str, new: str
) -> tuple[Scores, Scores, Scores]:
    """Scores by the old reward, the new one and the task's verifier."""
    found: dict[str, Scores] = {}
    # a training without a rubric recorded the verifier's values
    own = training.config.rewards is None and not any(
        each.rewards for each in training.config.families
    )
    for reward in (old, new, VERIFIER):
        if reward not in found:
            recorded = reward == VERIFIER and own
            try:
                found[reward] = await scores_by(training, steps, RECORDED if recorded else reward)
            except RunError:
                if reward in (old, new):
                    raise
                found[reward] = Scores(reward, {})  # the tasks have no verifier
    return found[old], found[new], found[VERIFIER]


class _Texts:
    """Texts of tokens, each call decoded once."""

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._known: dict[str, list[str]] = {}

    def of(self, call: Any) -> list[str]:
        if call.id not in self._known:
            self._known[call.id] = token_texts(self._codec, call.token_ids)
        return self._known[call.id]

    def sampled(self, rollout: Trajectory) -> str:
        """Text that the policy wrote in a rollout, call by call."""
        return "\n".join(
            "".join(text for text, own in zip(self.of(call), call.mask, strict=True) if own)
            for call in rollout.own_calls
            if call.token_ids
        )


def _old(each: RolloutDifference) -> Side:
    return each.old


def _new(each: RolloutDifference) -> Side:
    return each.new


@dataclass(frozen=True, slots=True)
class _Compared:
    """Step under both rewards."""

    old: RecordedStep
    new: RecordedStep
    updates: StepUpdates
    measured: list[Measured]

    def rollouts(self, by_old: Scores, by_new: Scores) -> list[RolloutDifference]:
        pushes = {each.rollout.id: (each.push("old"), each.push("new")) for each in self.measured}
        found: list[RolloutDifference] = []
        for place, rollout in enumerate(self.old.rollouts):
            if rollout.id not in pushes:
                continue
            old, new = pushes[rollout.id]
            found.append(
                RolloutDifference(
                    trajectory_id=rollout.id,
                    thread_id=rollout.thread_id,
                    step=self.old.number + 1,
                    prompt=rollout.task.prompt,
                    answer=rollout.answer or "",
                    old=_side(self.old, place, by_old, old),
                    new=_side(self.new, place, by_new, new),
                )
            )
        return found


def _pushed(compared: Sequence[_Compared], texts: _Texts) -> list[PushedToken]:
    """Tokens that the rewards push in opposite directions, by the sum of the difference over all
    times that they were sampled, the largest first. A token that was sampled once is left out, since
    a rollout's own gradient pushes its own tokens most.
    """
    found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for each in (one for step in compared for one in step.measured):
        for call in each.rollout.own_calls:
            written = texts.of(call)
            places = [place for place, own in enumerate(call.mask) if own]
            changes = zip(each.old.get(call.id, ()), each.new.get(call.id, ()), strict=True)
            for place, (old, new) in zip(places, changes, strict=False):
                before = "".join(written[max(0, place - _CONTEXT) : place])
                found.setdefault((before, written[place]), []).append(
                    (old, new, each.rollout.thread_id)
                )
    tokens = [
        PushedToken(
            before,
            text,
            len(times),
            math.fsum(old for old, _, _ in times) / len(times),
            math.fsum(new for _, new, _ in times) / len(times),
            times[0][2],
        )
        for (before, text), times in found.items()
    ]
    opposed = [each for each in tokens if each.count > 1 and each.old * each.new < 0]
    return sorted(opposed, key=lambda each: -each.count * abs(each.new - each.old))


def _listed(
    found: RolloutDifference, compared: Sequence[_Compared], texts: _Texts
) -> tuple[TokenDifference, ...]:
    """Tokens of a rollout."""
    (step,) = (each for each in compared if each.old.number + 1 == found.step)
    (rollout,) = (each for each in step.old.rollouts if each.id == found.trajectory_id)
    listed: list[TokenDifference] = []
    for call in rollout.own_calls:
        old = step.updates.old.changes.get(call.id, ())
        new = step.updates.new.changes.get(call.id, ())
        written = [text for text, own in zip(texts.of(call), call.mask, strict=True) if own]
        listed += map(TokenDifference, written, old, new)
    return tuple(listed)


def _side(step: RecordedStep, place: int, scores: Scores, push: float) -> Side:
    rollout = step.rollouts[place]
    overlay = step.overlays[place]
    able = fault_of(rollout) is None
    return Side(
        reward=overlay.reward if able else None,
        right=able and is_positive(outcome_of(rollout)),
        kept=overlay.verdict is Verdict.KEPT,
        advantage=overlay.advantage,
        reason=scores.reason(rollout),
        verdict=overlay.reason,
        push=push,
    )


def _flips(rollouts: Sequence[RolloutDifference], by_old: Scores, by_new: Scores) -> Flips:
    def count(test: Callable[[Side, Side], bool]) -> int:
        return sum(test(each.old, each.new) for each in rollouts)

    def missing(scores: Scores) -> int:
        return sum(bool(scores.fault(each.trajectory_id)) for each in rollouts)

    def differ(old: Side, new: Side) -> bool:
        return None not in (old.reward, new.reward) and old.reward != new.reward

    return Flips(
        rollouts=len(rollouts),
        missing_by_old=missing(by_old),
        missing_by_new=missing(by_new),
        rewards=count(differ),
        right_by_old=count(lambda old, new: old.right and not new.right),
        right_by_new=count(lambda old, new: new.right and not old.right),
        kept_by_old=count(lambda old, new: old.kept and not new.kept),
        kept_by_new=count(lambda old, new: new.kept and not old.kept),
        down=count(lambda old, new: (old.advantage or 0) > 0 > (new.advantage or 0)),
        up=count(lambda old, new: (old.advantage or 0) < 0 < (new.advantage or 0)),
    )


def _shares(updates: Sequence[StepUpdates]) -> dict[str, tuple[float, float]]:
    sums: dict[str, list[float]] = {}
    for each in updates:
        for place, side in enumerate((each.old, each.new)):
            for role, norm in side.by_role.items():
                sums.setdefault(role, [0.0, 0.0])[place] += norm
    totals = [math.fsum(each[place] for each in sums.values()) for place in (0, 1)]
    return {
        role: (
            norms[0] / totals[0] if totals[0] else math.nan,
            norms[1] / totals[1] if totals[1] else math.nan,
        )
        for role, norms in sorted(sums.items())
    }
