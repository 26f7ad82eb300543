"""Entropy of recorded completion tokens, by one forward pass over exactly the tokens that were
sampled.

An entropy is in nats, over the whole vocabulary, of the distribution at the temperature of the
call. Top-p and schemas, which would restrict that distribution, are not applied. For a call at
temperature 0 the entropy is computed at temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from hrm_agent.answers.fenced_code import asked_ids
from hrm_agent.errors import ModelError
from hrm_agent.training.analysis.weights import Sampler
from hrm_agent.training.update.batch import ForwardName, Row, micro_batches
from hrm_agent.training.update.logprobs.entropies import token_entropies
from hrm_agent.trajectory import Call, LogprobKind, ToolStatus, Trajectory
from hrm_agent.trajectory.forest import paths

__all__ = [
    "After",
    "CallEntropy",
    "call_entropies",
    "responses_before",
    "sampler_of",
]

TOKENS = 8192
"""Maximum number of tokens in a forward pass, unless a single row is longer."""
After = Literal["none", "ok", "error"]
"""Tool responses before a call. none: there are none. ok: none failed through the policy's fault.
error: at least one did.
"""


@dataclass(frozen=True, slots=True)
class CallEntropy:
    """Entropies of the tokens of one call. Each array has an entry for each token that the call
    adds.
    """

    trajectory_id: str
    """Id of its trajectory."""
    call_id: str
    """Id of the call."""
    token_ids: tuple[int, ...]
    """Prompt tokens first, then completion tokens."""
    entropies: np.ndarray[Any, np.dtype[np.float32]]
    """Entropies in nats (nan for prompt tokens)."""
    differences: np.ndarray[Any, np.dtype[np.float32]]
    """|log-prob - recorded log-prob| (nan for prompt tokens, and if the recorded log-prob is not
    comparable).
    """
    temperature: float
    """Temperature of `entropies`."""
    after: After
    """Outcome of the tool responses before the call."""
    statuses: tuple[str, ...]
    """Statuses of the tool responses before the call."""

    @property
    def sampled(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Indices of tokens with an entropy."""
        return np.flatnonzero(~np.isnan(self.entropies))


def sampler_of(call: Call) -> Sampler:
    """Sampler of a call, from the record."""
    return Sampler(call.model, call.policy_version)


def call_entropies(
    model: Any,
    wanted: Sequence[tuple[Trajectory, Collection[str]]],
    roles: Collection[str] = (),
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Iterator[CallEntropy]:
    """Yield entropies of the named calls of each trajectory, in order. `roles`: roles that have an
    adapter in the model.

    `on_tokens`: called with the number of completion tokens of each finished batch. Raises
    `ModelError` if the record has a token outside of the model's vocabulary.
    """
    rows = [each for trajectory, calls in wanted for each in _rows(trajectory, calls, roles)]
    size = int(model.get_input_embeddings().weight.shape[0])
    largest = max((int(row.token_ids.max()) for row, _ in rows), default=0)
    if largest >= size:
        raise ModelError(
            f"The record has token {largest}, but the model's vocabulary has {size}: another model"
            " sampled the record's tokens.",
            "Name the weights that sampled them by --policy.",
        )
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    numbered = [replace(row, sequence=number) for number, (row, _) in enumerate(rows)]
    for number, *values in _forwarded(model, numbered, on_tokens):
        row, spans = rows[number]
        whole = [np.full(len(row), np.nan, np.float32) for _ in values]
        for place, value in zip(whole, values, strict=True):
            place[row.loss_mask] = value
        found |= {call_id: [each[start:stop] for each in whole] for call_id, start, stop in spans}
    for trajectory, names in wanted:
        by_id = {call.id: call for call in trajectory.calls}
        for call in trajectory.calls:
            if call.id not in names or call.id not in found:
                continue
            entropies, logprobs, recorded = found[call.id]
            comparable = call.logprob_kind in (LogprobKind.RAW, LogprobKind.TEMPERED)
            statuses = responses_before(trajectory, call, by_id)
            failed = any(status.is_policy_failure for status in statuses)
            yield CallEntropy(
                trajectory_id=trajectory.id,
                call_id=call.id,
                token_ids=call.token_ids,
                entropies=entropies,
                differences=(
                    np.abs(logprobs - recorded) if comparable else np.full_like(entropies, np.nan)
                ),
                temperature=temperature_of(call),
                after="none" if not statuses else "error" if failed else "ok",
                statuses=tuple(status.value for status in statuses),
            )


def responses_before(
    trajectory: Trajectory, call: Call, by_id: Mapping[str, Call]
) -> tuple[ToolStatus, ...]:
    """Statuses of the tool responses before a call, that is, of the tool calls in the answer that
    the call continues.
    """
    before = by_id.get(call.parent or call.branch_of or "")
    asked = set(asked_ids(before.id, before.response)) if before is not None else set[str]()
    return tuple(
        tool.status for tool in trajectory.tool_calls if tool.tool_call_id in asked and tool.status
    )


_Spans = tuple[tuple[str, int, int], ...]
"""Wanted calls of a row as (id, start of its tokens, end of its tokens)."""


def _rows(
    trajectory: Trajectory, wanted: Collection[str], roles: Collection[str]
) -> Iterator[tuple[Row, _Spans]]:
    """Yield a row for each path with wanted calls, and in a path for each adapter of these calls. A
    call is computed in its first path only.
    """
    seen: set[str] = set()
    for path in paths(trajectory.calls):
        fresh = [
            call for call in path if call.id in wanted and call.id not in seen and call.token_ids
        ]
        adapters = {
            call.id: call.identity.role if call.identity.role in roles else "" for call in fresh
        }
        for role in dict.fromkeys(adapters.values()):
            mine = {call_id for call_id, adapter in adapters.items() if adapter == role}
            last = max(place for place, call in enumerate(path) if call.id in mine)
            yield _row(path[: last + 1], mine, role)
        seen.update(adapters)


def _row(path: Sequence[Call], wanted: Collection[str], role: str) -> tuple[Row, _Spans]:
    size = sum(len(call.token_ids) for call in path)
    token_ids = np.zeros(size, np.int64)
    mask = np.zeros(size, np.bool_)
    logprobs, temperatures, recorded_at = (np.ones(size, np.float32) for _ in range(3))
    spans: list[tuple[str, int, int]] = []
    start = 0
    for call in path:
        stop = start + len(call.token_ids)
        token_ids[start:stop] = call.token_ids
        if call.id in wanted:
            spans.append((call.id, start, stop))
            mask[start:stop] = call.mask
            logprobs[start:stop] = call.logprobs or np.nan
            temperatures[start:stop] = temperature_of(call)
            if call.logprob_kind is LogprobKind.TEMPERED:
                recorded_at[start:stop] = temperature_of(call)
        start = stop
    mask[:1] = False  # no token predicts the first token of a sequence
    nothing = np.zeros(size, np.float32)
    row = Row(
        token_ids,
        mask,
        logprobs,
        nothing,
        temperatures,
        recorded_at,
        np.zeros(size, np.int64),
        role=role,
    )
    return row, tuple(spans)


def temperature_of(call: Call) -> float:
    """Temperature of the entropies of a call's tokens."""
    return call.sampled_with.temperature or 1.0


def _forwarded(
    model: Any, rows: Iterable[Row], on_tokens: Callable[[int], None]
) -> Iterator[tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield the number of each row, with entropies, log-probs and recorded log-probs of the row's
    wanted tokens.
    """
    device = next(model.parameters()).device
    listed = [row for row in rows if row.loss_mask.any()]
    forward: ForwardName = "tree"
    try:
        batches = micro_batches(listed, token_budget=TOKENS, forward=forward)
        first = token_entropies(model, batches[0].to(device)) if batches else None
    except ModelError:  # the model's attention cannot be replaced
        batches = micro_batches(listed, token_budget=TOKENS, forward="padded")
        first = None
    for place, batch in enumerate(batches):
        found = (
            first if place == 0 and first is not None else token_entropies(model, batch.to(device))
        )
        entropies, logprobs = (each.float().cpu().numpy() for each in found)
        sequences = batch.sequences_K.numpy()
        recorded = batch.old_logprobs_K.numpy()
        for number in np.unique(sequences):
            own = sequences == number
            yield int(number), entropies[own], logprobs[own], recorded[own]
        on_tokens(batch.trained_tokens)
