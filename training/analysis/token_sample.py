"""Sample of a run's tokens, and computation of their entropies.

The sample is drawn by a seed from the rollouts of each part of the run. By default only parts whose
weights are on record are used, since other weights give the entropies of another policy.

`token_texts` returns the text of each token; joined, these texts are the whole text.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.models.codec.stream_decoder import PieceDecoder
from hrm_agent.models.engine import Codec
from hrm_agent.training.analysis.entropy import CallEntropy, call_entropies, sampler_of
from hrm_agent.training.analysis.facts import Part, readable
from hrm_agent.training.analysis.weights import (
    Sampler,
    WeightsOnRecord,
    load_weights,
    roles_of_weights,
    weights_for,
)
from hrm_agent.training.records.runs import OTHER_TOKENIZER, RecordedRuns, TokenReader
from hrm_agent.trajectory import Call, Trajectory, derive_seed

__all__ = [
    "AnalysedTokens",
    "PartEntropy",
    "TokenOptions",
    "WeightsUse",
    "analysed_tokens",
    "chosen_parts",
    "token_texts",
]

_WAITING = 8
"""Maximum number of tokens that are held back until a character is complete."""


def token_texts(codec: Codec, token_ids: Sequence[int]) -> list[str]:
    """Text of each token. If several tokens form one character, the last of them has its text, and
    the others are empty.
    """
    pieces = PieceDecoder(partial(_text, codec), _WAITING)
    texts = [pieces.push(token_id) for token_id in token_ids]
    return [*texts[:-1], texts[-1] + pieces.finish()] if texts else []


def _text(codec: Codec, token_ids: Sequence[int]) -> str:
    """Decode all tokens, including a final control token, which the codec alone would leave out."""
    controls: Any = getattr(codec, "control_token_ids", ())
    ends = bool(token_ids) and token_ids[-1] in controls
    return codec.decode([*token_ids, token_ids[-1]] if ends else token_ids)


ALL = "all"
NO_WEIGHTS = "its weights are not here"


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """Choice of tokens to analyse, and settings of the analysis."""

    policy: str | None = None
    """Weights that are used for all tokens (None: the weights on record)."""
    steps: tuple[str, ...] = ()
    """Steps from 1 (`3`, `10-12`), names of other parts, or `all` (empty: parts with weights on
    record, if there are any).
    """
    limit: int = 64
    """Maximum number of rollouts of each part."""
    seed: int = 0
    """Seed of the draw of rollouts."""
    share: float = 0.2
    """Share of completion tokens, with the highest entropies, that are called forking tokens."""
    window: int = 16
    """Number of completion tokens after a tool response that are searched for reflection tokens."""

    def __post_init__(self) -> None:
        if self.limit < 1 or self.window < 1 or not 0 < self.share < 1:
            raise ConfigError(
                f"limit {self.limit}, window {self.window}, share {self.share:g}: nothing can be"
                " analysed.",
                "Take 1 or more for limit and window, and a share between 0 and 1.",
            )


@dataclass(frozen=True, slots=True)
class WeightsUse:
    """Use of weights: which weights computed entropies, and which sampled the tokens."""

    model: str
    """Model that the calls name."""
    version: int
    """Policy version that sampled the tokens."""
    weights: str
    """Weights that computed the entropies."""
    weights_version: int | None
    """Number of optimiser steps of the run behind these weights (None for weights from
    elsewhere).
    """
    exact: bool
    """True if they are the weights that sampled the tokens, by name and version."""
    calls: int
    """Number of calls."""
    tokens: int
    """Number of completion tokens."""
    temperatures: tuple[float, ...]
    """Sampling temperatures of the calls, which are also those of the entropies."""
    mean_entropy: float
    """Mean entropy in nats."""
    mean_difference: float
    """Mean |computed log-prob - recorded log-prob|, in nats. It is near 0 if the weights sampled
    the tokens (nan if no comparable log-prob was recorded).
    """


@dataclass(frozen=True, slots=True)
class PartEntropy:
    """Entropy of the analysed tokens of one part of the run."""

    part: str
    """Name of the part."""
    step: int | None
    """Training step, counted from 1 (None outside of training)."""
    rollouts: int
    """Number of rollouts drawn."""
    tokens: int
    """Number of analysed completion tokens."""
    mean_entropy: float
    """Mean entropy in nats."""
    exact: bool
    """True if all of these tokens were analysed with the weights that sampled them."""


@dataclass(slots=True)
class AnalysedTokens:
    """All analysed calls."""

    calls: list[CallEntropy] = field(default_factory=list[CallEntropy])
    """Calls in the order of the record."""
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Call id -> text of each of its tokens."""
    uses: list[WeightsUse] = field(default_factory=list[WeightsUse])
    """Uses of weights, in the order of computation."""
    parts: list[PartEntropy] = field(default_factory=list[PartEntropy])
    """Parts in the order of the record."""
    rollouts: int = 0
    """Number of rollouts drawn."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> number of calls of these rollouts that were not analysed."""


def chosen_parts(parts: Sequence[Part], run: Path, options: TokenOptions) -> list[Part]:
    """Choose the parts whose tokens are analysed. Raises `ConfigError` for a step that does not
    exist.
    """
    if options.steps:
        wanted = {name for word in options.steps for name in _named(word, parts)}
        return [part for part in parts if part.name in wanted]
    samplers = {
        part.name: {Sampler(each.policy, each.policy_version) for each in part.headers}
        for part in parts
    }
    weights = weights_for(
        {each for found in samplers.values() for each in found}, run, options.policy
    )
    if options.policy is not None:
        return list(parts)

    def has_its_own(part: Part) -> bool:
        return any(own is not None and own.exact for own in map(weights.get, samplers[part.name]))

    return [part for part in parts if has_its_own(part)] or list(parts)


def analysed_tokens(
    runs: RecordedRuns,
    parts: Sequence[Part],
    run: Path,
    options: TokenOptions,
    on_part: Callable[[str], None] = lambda name: None,
) -> AnalysedTokens:
    """Compute entropies of a sample of `parts`. `on_part`: called with the name of each set of
    weights. Raises `ConfigError` if the policy in `options` has another tokenizer than the policies
    that sampled the tokens.
    """
    found = AnalysedTokens()
    drawn = [(part, _drawn(part, runs, options)) for part in parts]
    found.rollouts = sum(len(rollouts) for _, rollouts in drawn)
    by_sampler = _by_sampler([each for _, rollouts in drawn for each in rollouts], found.left_out)
    weights = weights_for(by_sampler, run, options.policy)
    computed: dict[str, CallEntropy] = {}
    exact: dict[str, bool] = {}
    for name in dict.fromkeys(each.name for each in weights.values() if each is not None):
        computing = next(
            each for each in weights.values() if each is not None and each.name == name
        )
        samplers = {
            each: by_sampler[each]
            for each, own in weights.items()
            if own is not None and own.name == name
        }
        on_part(name)
        for use, calls in _computed(computing, weights, samplers, found):
            found.uses.append(use)
            computed |= {call.call_id: call for call in calls}
            exact |= {call.call_id: use.exact for call in calls}
    for sampler, own in weights.items():
        if own is None:
            found.left_out[NO_WEIGHTS] += sum(len(calls) for _, calls in by_sampler[sampler])
    for part, rollouts in drawn:
        own_calls = [
            computed[c.id] for each in rollouts for c in each.own_calls if c.id in computed
        ]
        found.calls += own_calls
        if own_calls:
            entropies = np.concatenate([call.entropies[call.sampled] for call in own_calls])
            found.parts.append(
                PartEntropy(
                    part=part.name,
                    step=part.step,
                    rollouts=len(rollouts),
                    tokens=len(entropies),
                    mean_entropy=float(entropies.mean()),
                    exact=all(exact[call.call_id] for call in own_calls),
                )
            )
    if options.policy is not None and not found.calls and found.left_out[OTHER_TOKENIZER]:
        raise ConfigError(
            f"The tokenizer of {options.policy!r} is not that of this run's tokens.",
            "Name the weights that sampled the tokens by --policy, or leave it out.",
        )
    return found


_BySampler = dict[Sampler, list[tuple[Trajectory, list[Call]]]]


def _drawn(part: Part, runs: RecordedRuns, options: TokenOptions) -> list[Trajectory]:
    """Draw rollouts of a part. They stay in the order of the record, so that rollouts of a group
    are adjacent and share their prefixes.
    """
    rng = random.Random(derive_seed(options.seed, "analysis", part.name))
    count = min(options.limit, len(part.headers))
    places = sorted(rng.sample(range(len(part.headers)), count))
    damaged: dict[str, int] = {}  # not used: damage is reported when all rollouts are read
    return list(readable(runs, (part.headers[place] for place in places), damaged))


def _by_sampler(rollouts: Sequence[Trajectory], left_out: Counter[str]) -> _BySampler:
    found: defaultdict[Sampler, list[tuple[Trajectory, list[Call]]]] = defaultdict(list)
    for each in rollouts:
        own: defaultdict[Sampler, list[Call]] = defaultdict(list)
        for call in each.own_calls:
            if any(call.mask):
                own[sampler_of(call)].append(call)
            else:
                left_out[
                    "no token ids are on record" if not call.token_ids else "no token was sampled"
                ] += 1
        for sampler, calls in own.items():
            found[sampler].append((each, calls))
    return dict(found)


def _computed(
    computing: WeightsOnRecord,
    weights: Mapping[Sampler, WeightsOnRecord | None],
    samplers: _BySampler,
    found: AnalysedTokens,
) -> list[tuple[WeightsUse, list[CallEntropy]]]:
    """Compute entropies with one set of weights. Returns a record of their use, with the calls, for
    each sampler.
    """
    reader = TokenReader(computing.name)
    own_tokenizer = computing.version is not None  # weights of the run that sampled the tokens
    usable: _BySampler = {}
    for sampler, rollouts in samplers.items():
        kept = [
            (each, [call for call in calls if own_tokenizer or reader.reads(call)])
            for each, calls in rollouts
        ]
        found.left_out[OTHER_TOKENIZER] += sum(len(calls) for _, calls in rollouts) - sum(
            len(c) for _, c in kept
        )
        usable[sampler] = [(each, calls) for each, calls in kept if calls]
    if not any(usable.values()):
        return []
    model = load_weights(computing)
    roles = roles_of_weights(computing)
    done: list[tuple[WeightsUse, list[CallEntropy]]] = []
    for sampler, rollouts in usable.items():
        wanted = [(each, {call.id for call in calls}) for each, calls in rollouts]
        calls = list(call_entropies(model, wanted, roles))
        found.texts |= {call.call_id: token_texts(reader.codec, call.token_ids) for call in calls}
        own = weights[sampler]
        if not calls or own is None:
            continue
        entropies = np.concatenate([call.entropies[call.sampled] for call in calls])
        differences = np.concatenate([call.differences[call.sampled] for call in calls])
        known = differences[~np.isnan(differences)]
        use = WeightsUse(
            model=sampler.model,
            version=sampler.version,
            weights=own.name,
            weights_version=own.version,
            exact=own.exact,
            calls=len(calls),
            tokens=len(entropies),
            temperatures=tuple(sorted({call.temperature for call in calls})),
            mean_entropy=float(entropies.mean()) if len(entropies) else float("nan"),
            mean_difference=float(known.mean()) if len(known) else float("nan"),
        )
        done.append((use, calls))
    return done


def _named(word: str, parts: Sequence[Part]) -> list[str]:
    """Names of the parts that a value of `--steps` selects."""
    names = [part.name for part in parts]
    if word == ALL:
        return names
    if word in names:
        return [word]
    first, dash, last = word.partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        wanted = range(int(first), int(last or first) + 1)
        if found := [part.name for part in parts if part.step is not None and part.step in wanted]:
            return found
    steps = [part.step for part in parts if part.step is not None]
    others = [part.name for part in parts if part.step is None]
    there = [f"steps {steps[0]} to {steps[-1]}"] * bool(steps) + [repr(name) for name in others]
    raise ConfigError(
        f"--steps {word}: the run has no such step.",
        f"{nearest(word, names)} It has {', '.join(there)}.".strip(),
    )
