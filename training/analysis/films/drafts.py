"""Answers of an earlier version of the weights, as drafts for the current one.

One forward pass computes the logits of all tokens of a draft, and the engine's sampler draws each of
them again, with the random number of its index. The current version samples the same tokens up to
the first one that differs. An answer is continued from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.role_adapters import route_of
from hrm_agent.models.local.sampling import sample_rows, seed_state, uniform
from hrm_agent.training.config.fitted import decided
from hrm_agent.training.records.retrace import RecordedTraining
from hrm_agent.training.update.batch import MicroBatch, Row, micro_batches
from hrm_agent.training.update.logprobs import trained_logits
from hrm_agent.training.update.logprobs.log_softmax import CHUNK_ELEMENTS, chosen_logprobs
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.trajectory import Call, Trajectory
from hrm_agent.trajectory.forest import paths

__all__ = ["Draft", "DraftedEngine", "RequestKey", "answer_of", "checked", "requests_of"]

RequestKey = tuple[tuple[int, ...], int | None, str]
"""Prompt tokens, seed and role of a request."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Recorded answer, checked with the current weights."""

    call: Call
    """Call that has the answer."""
    agreed: int
    """Number of the answer's first tokens that the current version samples, too."""
    logprobs: tuple[float, ...]
    """Log-probs of the answer's tokens under the current version, of the kind that the engine
    reports.
    """

    @property
    def answer(self) -> tuple[int, ...]:
        """Sampled tokens of the call."""
        return answer_of(self.call)

    @property
    def whole(self) -> bool:
        """True if the current version samples the same answer."""
        return self.agreed == self.call.sampled_tokens


def answer_of(call: Call) -> tuple[int, ...]:
    """Sampled tokens of a call."""
    return call.token_ids[len(call.token_ids) - call.sampled_tokens :]


def requests_of(run: Trajectory) -> dict[str, RequestKey]:
    """Request of each call with tokens, by the call's id."""
    found: dict[str, RequestKey] = {}
    for path in paths(run.calls):
        before: tuple[int, ...] = ()
        for call in path:
            prompt = (*before, *call.token_ids[: len(call.token_ids) - call.sampled_tokens])
            found[call.id] = (prompt, call.seed, call.identity.role)
            before = (*before, *call.token_ids)
    return found


def checked(training: RecordedTraining, runs: Iterable[Trajectory]) -> dict[RequestKey, Draft]:
    """Drafts from the answers of runs, checked with the loaded weights.

    Answers of other models, and answers whose tokens a schema has chosen, are left out.
    """
    calls: list[Call] = []
    keys: dict[str, RequestKey] = {}
    rows: list[Row] = []
    entries: list[list[tuple[int, int]]] = []
    for run in runs:
        keys |= requests_of(run)
        for path, role, mine in _rows(training, run):
            places = {call.id: len(calls) + number for number, call in enumerate(mine)}
            calls += mine
            of_row = [
                (places[call.id], index)
                for call in path
                if call.id in places
                for index in range(call.sampled_tokens)
            ]
            rows.append(_row(path, places, role, len(entries)))
            entries.append(of_row)
    drawn: list[list[tuple[int, float]]] = [[] for _ in calls]
    for batch in micro_batches(
        rows, token_budget=_budget(training), forward=training.learner.forward
    ):
        numbers = [number for number, _ in groupby(batch.sequences_K.tolist())]
        of_batch = [entry for number in numbers for entry in entries[number]]
        for (place, _), found in zip(
            of_batch, _draw(training, batch, calls, of_batch), strict=True
        ):
            drawn[place].append(found)
    drafts: dict[RequestKey, Draft] = {}
    for call, found in zip(calls, drawn, strict=True):
        pairs = zip(answer_of(call), (token for token, _ in found), strict=True)
        agreed = next((i for i, (old, new) in enumerate(pairs) if old != new), len(found))
        drafts[keys[call.id]] = Draft(call, agreed, tuple(logprob for _, logprob in found))
    return drafts


def _rows(
    training: RecordedTraining, run: Trajectory
) -> Iterable[tuple[Sequence[Call], str, list[Call]]]:
    """Paths to compute, each with a role that has an adapter (empty for the shared one) and the
    calls whose answers are checked in it.
    """
    roles = training.config.adapter.lora_roles
    done: set[str] = set()
    for path in paths(run.calls):
        by_role: dict[str, list[Call]] = {}
        for call in path:
            if call.id not in done and _is_draft(training, call):
                role = call.identity.role if call.identity.role in roles else ""
                by_role.setdefault(role, []).append(call)
                done.add(call.id)
        for role, mine in by_role.items():
            last = path.index(mine[-1])
            yield path[: last + 1], role, mine


def _is_draft(training: RecordedTraining, call: Call) -> bool:
    own = call.model == training.learner.name and call.seed is not None
    return own and call.sampled_tokens > 0 and not call.constrained


def _row(path: Sequence[Call], mine: Mapping[str, int], role: str, number: int) -> Row:
    token_ids = np.array([token for call in path for token in call.token_ids], np.int64)
    mask = [flag and call.id in mine for call in path for flag in call.mask]
    none = np.zeros(len(token_ids), np.float32)
    versions = np.zeros(len(token_ids), np.int64)
    return Row(
        token_ids,
        loss_mask=np.array(mask, np.bool_),
        old_logprobs=none,
        weights=none,
        temperatures=none + 1,
        old_temperatures=none + 1,
        versions=versions,
        sequence=number,
        role=role,
    )


def _budget(training: RecordedTraining) -> int:
    """Maximum number of tokens of a forward pass, all of whose logits are in memory."""
    tokens = decided(training.config.loss.micro_batch_tokens, "micro_batch_tokens")
    model: Any = training.learner.model
    vocabulary = model.get_input_embeddings().weight.shape[0]
    return max(1, min(tokens, CHUNK_ELEMENTS // vocabulary))


def _draw(
    training: RecordedTraining,
    batch: MicroBatch,
    calls: Sequence[Call],
    entries: Sequence[tuple[int, int]],
) -> list[tuple[int, float]]:
    """Token that the loaded weights sample at each entry of a batch, and the log-prob of the
    recorded token there. `entries`: index in `calls`, and index in the answer.
    """
    model: Any = training.learner.model
    if (route := route_of(model)) is not None:
        route.all_through(batch.role)
    batch = batch.to(training.learner.accelerator.device)
    with torch.inference_mode(), as_it_answers(model):
        logits_KV = trained_logits(model, batch)
        sampling = [calls[place].sampled_with for place, _ in entries]
        states = np.array([seed_state(each.seed or 0) for each in sampling], np.uint64)
        noise_K = uniform(states, np.array([index for _, index in entries]))
        device = logits_KV.device
        temperatures_K = torch.tensor([each.temperature for each in sampling], device=device)
        tokens_K, _ = sample_rows(
            logits_KV,
            torch.from_numpy(noise_K).to(device),
            temperatures_K,
            torch.tensor([each.top_p for each in sampling], dtype=torch.float64, device=device),
        )
        recorded_K = batch.token_ids_N[batch.loss_indices_K]
        at_K = torch.where(temperatures_K == 0, 1.0, temperatures_K)
        logprobs_K = chosen_logprobs(logits_KV, recorded_K, at_K)
    return list(zip(tokens_K.tolist(), logprobs_K.tolist(), strict=True))


class DraftedEngine:
    """Engine in this process that takes over drafts up to the first token that differs."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine
        self.name = engine.name
        self.codec = engine.codec
        self.logprob_kind = engine.logprob_kind
        self.drafts: Mapping[RequestKey, Draft] = {}
        """Drafts by request, checked with the engine's weights."""

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the engine."""
        return getattr(self._engine, name)

    @property
    def policy_version(self) -> int:
        """Version of the current weights."""
        return self._engine.policy_version

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Publish weights to the engine. The drafts are dropped, since they were checked with
        others.
        """
        self.drafts = {}
        self._engine.publish(version, state_dict)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        """Queue a request. A request with a draft is answered by it, or continued from it."""
        draft = self.drafts.get((request.prompt_ids, request.sampling.seed, request.role))
        if draft is None or request.schema is not None or draft.call.sampling != request.sampling:
            return self._engine.submit(request)
        begun = draft.answer[: draft.agreed]
        if request.on_token is not None:
            for token in begun:
                request.on_token(token)
        answer: Future[Completion] = Future()
        before = Completion(
            begun,
            draft.logprobs[: draft.agreed],
            draft.call.finish_reason,
            self.policy_version,
        )
        if draft.whole:
            answer.set_result(before)
            return answer
        sampled = self._engine.submit(request, begun)
        answer.add_done_callback(lambda done: sampled.cancel() if done.cancelled() else None)
        sampled.add_done_callback(lambda done: _join(before, done, answer))
        return answer


def _join(before: Completion, sampled: Future[Completion], answer: Future[Completion]) -> None:
    """Resolve `answer` with the tokens of both completions."""
    if sampled.cancelled() or not answer.set_running_or_notify_cancel():
        return
    if (error := sampled.exception()) is not None:
        answer.set_exception(error)
        return
    after = sampled.result()
    answer.set_result(
        Completion(
            (*before.token_ids, *after.token_ids),
            (*before.logprobs, *after.logprobs),
            after.finish_reason,
            after.policy_version,
            after.queue_seconds,
        )
    )
