"""Forking tokens: the completion tokens of highest entropy, at which a reasoning may go one way or
another.

rStar2-Agent (arXiv 2508.20722, section 5.4) takes the fifth of all completion tokens with the
highest entropy. The threshold is the corresponding quantile over the analysed tokens, in nats, and
is part of the report. A policy that is certain of almost everything has a low threshold.

Reflection tokens are the forking tokens among the first tokens that a policy samples after a tool
response. The paper observes that the policy then checks the result of its code, or begins to repair
the code. So there are separate tables for tokens after responses of which one failed through the
policy's fault, and for tokens after other responses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hrm_agent.training.analysis.entropy import After, CallEntropy

__all__ = [
    "ReflectionReport",
    "Texts",
    "TokenExample",
    "TokenRow",
    "fork_threshold",
    "forking_indices",
    "reflection_indices",
    "reflections",
    "token_rows",
]

Texts = Mapping[str, Sequence[str]]
"""Call id -> text of each of its tokens."""
ROWS = 30
EXAMPLES = 2
AROUND = 80
"""Number of context characters on either side of an example."""
PART_OF_CHARACTER = "(part of a character)"


@dataclass(frozen=True, slots=True)
class TokenExample:
    """One occurrence of a token."""

    trajectory_id: str
    """Id of the trajectory with this occurrence."""
    call_id: str
    """Id of the model call with this occurrence."""
    index: int
    """Index among the call's tokens."""
    entropy: float
    """Entropy in nats."""
    before: str
    """Text before the token in its call, truncated."""
    text: str
    """Text of the token."""
    after: str
    """Text after the token in its call, truncated."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Occurrences of one token's text among the marked tokens."""

    text: str
    """Text of the token."""
    count: int
    """Number of marked tokens with this text."""
    share: float
    """Share of all marked tokens."""
    mean_entropy: float
    """Mean entropy of these tokens, in nats."""
    occurrences: int
    """Number of tokens with this text among all tokens that could have been marked."""
    examples: tuple[TokenExample, ...]
    """Examples with the highest entropy."""


@dataclass(frozen=True, slots=True)
class ReflectionReport:
    """First tokens sampled after tool responses of one kind."""

    after: After
    """Kind of response: `ok` or `error`. For comparison, `none` stands for calls that follow no
    tool response.
    """
    calls: int
    """Number of calls that begin after such responses."""
    tokens: int
    """Number of first completion tokens of these calls (at most the window for each)."""
    mean_entropy: float
    """Mean entropy of these tokens, in nats (nan without tokens)."""
    marked_share: float
    """Share of these tokens that are above the threshold of forking tokens (nan without tokens)."""
    rows: tuple[TokenRow, ...]
    """Tokens above the threshold, by text."""


def fork_threshold(calls: Sequence[CallEntropy], share: float) -> float:
    """Entropy above which `share` of all completion tokens lie (nan without tokens)."""
    values = [each.entropies[each.sampled] for each in calls]
    return (
        float(np.quantile(np.concatenate(values), 1 - share))
        if any(map(len, values))
        else float("nan")
    )


def forking_indices(call: CallEntropy, threshold: float) -> list[int]:
    """Indices of a call's tokens above the threshold."""
    return [int(place) for place in call.sampled if call.entropies[place] > threshold]


def token_rows(
    calls: Sequence[CallEntropy],
    texts: Texts,
    marked: Callable[[CallEntropy], Sequence[int]],
    could_be: Callable[[CallEntropy], Sequence[int]] = lambda call: call.sampled.tolist(),
) -> list[TokenRow]:
    """Rows of marked tokens by text, most common first. `could_be`: indices of a call's tokens that
    count as occurrences.
    """
    places: dict[str, list[tuple[CallEntropy, int]]] = defaultdict(list)
    seen: defaultdict[str, int] = defaultdict(int)
    for call in calls:
        for index in marked(call):
            places[texts[call.call_id][index] or PART_OF_CHARACTER].append((call, index))
        for index in could_be(call):
            seen[texts[call.call_id][index] or PART_OF_CHARACTER] += 1
    total = sum(map(len, places.values()))
    ordered = sorted(places.items(), key=lambda item: (-len(item[1]), item[0]))[:ROWS]
    rows: list[TokenRow] = []
    for text, found in ordered:
        examples: dict[tuple[str, str], TokenExample] = {}
        for call, index in sorted(found, key=lambda place: -float(place[0].entropies[place[1]])):
            of_call = texts[call.call_id]
            before = "".join(of_call[:index])
            after = "".join(of_call[index + 1 :])
            example = TokenExample(
                trajectory_id=call.trajectory_id,
                call_id=call.call_id,
                index=index,
                entropy=float(call.entropies[index]),
                before=f"…{before[-AROUND:]}" if len(before) > AROUND else before,
                text=of_call[index],
                after=f"{after[:AROUND]}…" if len(after) > AROUND else after,
            )
            # rollouts of a group often share a context, which is shown once
            examples.setdefault((example.before, example.after), example)
            if len(examples) == EXAMPLES:
                break
        mean = float(np.mean([call.entropies[index] for call, index in found]))
        shown = tuple(examples.values())
        rows.append(TokenRow(text, len(found), len(found) / total, mean, seen[text], shown))
    return rows


def reflection_indices(call: CallEntropy, threshold: float, window: int) -> list[int]:
    """Indices of reflection tokens (empty for a call that follows no tool response)."""
    if call.after == "none":
        return []
    return sorted(set(call.sampled[:window].tolist()) & set(forking_indices(call, threshold)))


def reflections(
    calls: Sequence[CallEntropy], texts: Texts, threshold: float, window: int
) -> list[ReflectionReport]:
    """Reports of calls after failed tool responses, after other tool responses, and after none."""

    def places(call: CallEntropy) -> list[int]:
        return call.sampled[:window].tolist()

    def marked(call: CallEntropy) -> list[int]:
        return [place for place in places(call) if call.entropies[place] > threshold]

    kinds: tuple[After, ...] = ("error", "ok", "none")
    found: list[ReflectionReport] = []
    for kind in kinds:
        own = [call for call in calls if call.after == kind]
        first = [call.entropies[places(call)] for call in own]
        values = np.concatenate(first) if first else np.zeros(0)
        found.append(
            ReflectionReport(
                after=kind,
                calls=len(own),
                tokens=len(values),
                mean_entropy=float(values.mean()) if len(values) else float("nan"),
                marked_share=float((values > threshold).mean()) if len(values) else float("nan"),
                rows=tuple(token_rows(own, texts, marked, places)),
            )
        )
    return found
