"""Warnings about a reward: what rewards of its kind usually break, each with its figure.

A reward that agrees with the verifier in substance gives advantages that vary within a group as
correctness does. So most warnings look at the *rest* of the advantages: what is left after the part
that grows with correctness is removed. If the rest is a material share of the advantages, and
follows a property of the answers, training will change this property. Advantages are those of the
rollouts that would be trained on, after the selection.

All thresholds are round numbers, chosen before any measurement.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hrm_agent.answers.final_answer import final_answer
from hrm_agent.training.analysis.reward_diff.measures import Measured, PredictedChange
from hrm_agent.trajectory import Trajectory

__all__ = ["Kind", "Warned", "unusable", "warnings_of"]

_MATERIAL = 0.1
"""Least share of the rest in the variance of the advantages within groups."""
_FOLLOWS = 0.5
"""Least correlation of the rest with a property within groups."""
_CONSTANT = 0.01
"""Largest range of the rewards of a group without a signal, relative to the larger of 1 and the
rewards' size.
"""
_HALF = 0.5
"""Share of the old reward's rise of accuracy below which there is a warning, and share of the push
that is called most of it.
"""
_ERRORS = 2.0
"""Number of standard errors beyond which a predicted change is taken as real."""
_WORDS = (3, 4, 5)
"""Lengths of phrases in words."""
_CHARACTERS = 20_000
"""Number of characters of an answer that are searched for phrases."""
_WORD = re.compile(r"\w+")
_PARTS = re.compile(r"<(reason|think|answer)>.*?</\1>", re.DOTALL)

Kind = str
"""Kind of a warning: no_value, trains_nothing, no_signal, accuracy, tool_errors, no_tool, tool_calls, length, format,
phrase.
"""


@dataclass(frozen=True, slots=True)
class Warned:
    """Warning about the new reward."""

    kind: Kind
    """Kind of the warning."""
    text: str
    """Warning in words, with its figure."""


def unusable(faults: Sequence[str], rollouts: int, trained: int) -> list[Warned]:
    """Warnings about a new reward that lacks values, or by which nothing would be trained on.

    `faults`: reason of each rollout without a value. `rollouts`, `trained`: numbers of
    rollouts, and of those that would be trained on.
    """
    found: list[Warned] = []
    if faults:
        (fault, _), *_ = Counter(faults).most_common(1)
        found.append(
            Warned("no_value", f"has no value for {len(faults)} of {rollouts} rollouts: {fault}")
        )
    if not trained:
        found.append(Warned("trains_nothing", f"would train on none of {rollouts} rollouts"))
    return found


def warnings_of(
    rollouts: Sequence[Measured],
    old: Mapping[str, float],
    new: Mapping[str, float],
    changes: Mapping[str, PredictedChange],
    advantages: Mapping[str, float],
    said: Callable[[Trajectory], str],
) -> list[Warned]:
    """Warnings about the new reward.

    `old`, `new`: rewards by trajectory id. `advantages`: those of the rollouts that are trained on
    under the new reward, by trajectory id. `said`: function that returns the sampled text of a
    rollout.
    """
    of_new, of_old = (
        [
            [rewards[each.rollout.id] for each in group if each.rollout.id in rewards]
            for group in _grouped(rollouts)
        ]
        for rewards in (new, old)
    )
    found = [*_no_signal(of_new, of_old), *(_predicted(changes) if advantages else [])]
    kept = [each for each in rollouts if each.rollout.id in advantages]
    places = {each.rollout.id: place for place, each in enumerate(kept)}
    groups = [[places[each.rollout.id] for each in group] for group in _grouped(kept)]
    pushed = _centred(groups, [advantages[each.rollout.id] for each in kept])
    reference = _centred(
        groups,
        [
            old.get(each.rollout.id, 0.0) if each.accuracy is None else each.accuracy
            for each in kept
        ],
    )
    rest = _rest(pushed, reference)
    if not rest or _inner(rest, rest) < _MATERIAL * _inner(pushed, pushed):
        return found
    return [*found, *_of_rest(kept, groups, rest, advantages, said)]


def _grouped(rollouts: Sequence[Measured]) -> list[list[Measured]]:
    groups: dict[tuple[int, str], list[Measured]] = {}
    for each in rollouts:
        groups.setdefault(each.group, []).append(each)
    return list(groups.values())


def _of_rest(
    kept: Sequence[Measured],
    groups: Sequence[Sequence[int]],
    rest: Sequence[float],
    advantages: Mapping[str, float],
    said: Callable[[Trajectory], str],
) -> list[Warned]:
    def follows(values: Sequence[float]) -> float:
        return _correlation(rest, _centred(groups, values))

    found: list[Warned] = []
    tool = follows([each.tool_use for each in kept])
    share = _share_without_tool(kept, advantages)
    if tool <= -_FOLLOWS and share >= _HALF:
        found.append(
            Warned(
                "no_tool",
                f"puts {share:.0%} of its push upwards on answers without a tool call"
                f" (correlation {-tool:.2f})",
            )
        )
    calls = follows([float(len(each.rollout.own_tool_calls)) for each in kept])
    if calls >= _FOLLOWS:
        found.append(Warned("tool_calls", f"pays for more tool calls (correlation {calls:.2f})"))
    length = follows([each.length for each in kept])
    if abs(length) >= _FOLLOWS:
        which = "longer" if length > 0 else "shorter"
        found.append(Warned("length", f"pays for {which} answers (correlation {length:.2f})"))
    others = [tool, calls, length]
    for label, holds in _FORMATS.items():
        form = follows([float(holds(each.rollout.answer or "")) for each in kept])
        others.append(form)
        if abs(form) >= _FOLLOWS:
            which = "with" if form > 0 else "without"
            found.append(
                Warned("format", f"pays for answers {which} {label} (correlation {form:.2f})")
            )
    phrase, enriched = _phrase([said(each.rollout) for each in kept], follows)
    if enriched >= _FOLLOWS and enriched > max(map(abs, others)):
        found.append(
            Warned("phrase", f"pays for the words {phrase!r} (correlation {enriched:.2f})")
        )
    return found


def _has_answer(text: str) -> bool:
    return final_answer(text) is not None


def _has_text_outside(text: str) -> bool:
    return bool(_PARTS.sub("", text).strip())


_FORMATS: dict[str, Callable[[str], bool]] = {
    "a marked answer, right or wrong": _has_answer,
    "text outside of the marked parts": _has_text_outside,
}
"""Property of a final text, in words -> function that tests it."""


def _no_signal(
    groups: Sequence[Sequence[float]], others: Sequence[Sequence[float]]
) -> list[Warned]:
    """Warning if at least half of the groups have no signal by the new reward, and fewer have none
    by the old one. `groups`, `others`: rewards of each group by the new and by the old reward.
    """
    silent = sum(map(_is_constant, groups))
    if silent * 2 < len(groups) or silent <= sum(map(_is_constant, others)):
        return []
    return [
        Warned(
            "no_signal",
            f"is almost constant within {silent} of {len(groups)} groups, which teach nothing",
        )
    ]


def _is_constant(rewards: Sequence[float]) -> bool:
    if not rewards:
        return True
    size = max(1.0, *(abs(each) for each in rewards))
    return max(rewards) - min(rewards) <= _CONSTANT * size


def _predicted(changes: Mapping[str, PredictedChange]) -> list[Warned]:
    """Warnings about predicted changes that the old reward would not make."""
    found: list[Warned] = []
    accuracy = changes.get("accuracy")
    if accuracy and _is_real(accuracy, -1):
        found.append(
            Warned("accuracy", f"is predicted to lower accuracy by {-accuracy.new:.2g} a step")
        )
    elif accuracy and _is_less(accuracy):
        found.append(
            Warned(
                "accuracy",
                f"is predicted to change accuracy by {accuracy.new:+.2g} a step, less than half of"
                f" {accuracy.old:+.2g} by the old reward",
            )
        )
    errors = changes.get("tool_errors")
    if errors and _is_real(errors, 1):
        found.append(
            Warned(
                "tool_errors",
                f"is predicted to add {errors.new:.2g} failed tool calls an answer in a step",
            )
        )
    return found


def _is_real(change: PredictedChange, sign: int) -> bool:
    """True if the change has this sign, beyond chance, and is larger than the old reward's."""
    return (
        sign * change.new > _ERRORS * change.new_error
        and sign * change.difference > _ERRORS * change.difference_error
    )


def _is_less(change: PredictedChange) -> bool:
    """True if the rise is less than half of the old reward's, and the difference is beyond chance."""
    return (
        change.new < _HALF * change.old and -change.difference > _ERRORS * change.difference_error
    )


def _share_without_tool(kept: Sequence[Measured], advantages: Mapping[str, float]) -> float:
    """Share of the positive advantages that lies on rollouts without a tool call."""
    pushed = [(max(0.0, advantages.get(each.rollout.id, 0.0)), each.tool_use) for each in kept]
    total = math.fsum(weight for weight, _ in pushed)
    return math.fsum(weight for weight, used in pushed if not used) / total if total else math.nan


def _phrase(texts: Sequence[str], follows: Callable[[Sequence[float]], float]) -> tuple[str, float]:
    """Words whose presence follows the rest most, and the correlation. Words with digits are left
    out, since they are the task's.
    """
    phrases = [_phrases(text) for text in texts]
    counts = Counter(each for found in phrases for each in found)
    # a phrase of all answers, or of a single one, has no contrast
    known = [each for each, count in counts.items() if 1 < count < len(texts)]
    best = ("", 0.0)
    tried: dict[tuple[bool, ...], float] = {}
    for phrase in sorted(known, key=lambda each: (-len(each), each)):
        present = tuple(phrase in found for found in phrases)
        if present not in tried:
            tried[present] = follows([float(each) for each in present])
            if tried[present] > best[1]:
                best = (" ".join(phrase), tried[present])
    return best


def _phrases(text: str) -> set[tuple[str, ...]]:
    words = _WORD.findall(text[:_CHARACTERS])
    found = {
        tuple(words[start : start + size])
        for size in _WORDS
        for start in range(len(words) - size + 1)
    }
    return {each for each in found if not any(c.isdigit() for word in each for c in word)}


def _rest(reward: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Reward without the part that grows with the reference."""
    size = _inner(reference, reference)
    slope = max(0.0, _inner(reward, reference) / size) if size else 0.0
    return [y - slope * x for y, x in zip(reward, reference, strict=True)]


def _centred(groups: Sequence[Sequence[int]], values: Sequence[float]) -> list[float]:
    """Values less the mean of their group."""
    found = [0.0] * len(values)
    for group in groups:
        mean = statistics.fmean(values[place] for place in group)
        for place in group:
            found[place] = values[place] - mean
    return found


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    size = math.sqrt(_inner(a, a) * _inner(b, b))
    return _inner(a, b) / size if size else 0.0


def _inner(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))
