"""Engine in this process: a loop in a background thread samples for all graph runs in parallel.

Any number of threads and event loops `submit` requests. The loop takes all requests that have
arrived, puts each into a row of the cache that has its longest cached prefix
(`hrm_agent.models.local.cache_rows`), and runs packed steps
(`hrm_agent.models.local.packed_attention`) until nothing is left to sample. Then the loop sleeps.
This has three effects:

* if a conversation returns with a tool's result, it continues in its row, and only the new tokens
  are fed;
* if one prompt is sampled several times, it is fed once, and the other samples copy its cache;
* no run waits for another: rows begin and end at any step, and one pass feeds prompts and samples.

An answer is a function of (weights, prompt, seed). Other requests in a batch change the last bits
of its logits, but not the random numbers.

The engine shares weights with the given model. A trainer changes that model in place while no
request is running and then calls `publish`. Alternatively, it passes a state dict to `publish`,
which waits until no request is running.

Limits: only attention may mix a model's tokens, and it has to be replaceable. Other models are
refused at loading (`hrm_agent.models.local.attention_survey`). Memory reserved for a long
conversation is released by `free_cache` alone.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import numpy as np
import torch

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.errors import ModelError
from hrm_agent.models.capabilities import Capabilities
from hrm_agent.models.codec.chat_template import PolicyCodec
from hrm_agent.models.codec.opening import open_codec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.attention_survey import survey
from hrm_agent.models.local.blocked_weights import BlockedWeights
from hrm_agent.models.local.cache_rows import FEEDING, Rows, StepInput
from hrm_agent.models.local.captured_steps import CapturedSteps
from hrm_agent.models.local.constrained_decoding import Schemas
from hrm_agent.models.local.gathering import Gathering
from hrm_agent.models.local.kv_cache import KVPool, tensor_on
from hrm_agent.models.local.long_rope import LongRope
from hrm_agent.models.local.model_inspection import (
    capabilities_of,
    kv_shape,
    load_weights,
    longest_conversation,
)
from hrm_agent.models.local.packed_attention import PackedStep, not_in_process, replica
from hrm_agent.models.local.pending_request import PendingRequest, no_distribution, objection
from hrm_agent.models.local.role_adapters import route_of
from hrm_agent.models.local.sampling import Held, sample_rows, seed_state, uniform
from hrm_agent.models.own_defaults import OWN_KEY, own_defaults, usual_answer
from hrm_agent.trajectory import FinishReason, LogprobKind

__all__ = ["TransformersEngine"]

Array = np.ndarray[Any, Any]

_KV_BYTES = 4 << 30
_WORTH_WAITING = 16
"""Number of tokens for which a request waits. If a row that is being fed will have a prefix of the
prompt that is longer by more than this than any cached prefix, the request waits to copy it.
"""


class TransformersEngine:
    """Sampler from a causal LM of `transformers`, for many callers in parallel."""

    logprob_kind = LogprobKind.TEMPERED

    def __init__(
        self,
        model: Any,
        tokenizer_or_codec: Any,
        *,
        name: str,
        max_slots: int = 256,
        max_length: int | None = None,
        threads: int | None = None,
        kv_bytes: int = _KV_BYTES,
        captured: bool = False,
    ) -> None:
        """`max_slots`: maximum number of parallel conversations, each of at most `max_length`
        tokens, in at most `kv_bytes` of cache. `threads`: number of torch's threads in the loop
        (None: unchanged). `captured`: sample with CUDA graphs, on a CPU by the same steps without
        graphs. A model with adapters by role, or with switching rotary factors, samples without.
        """
        self.name = name
        self.codec: PolicyCodec = (
            tokenizer_or_codec
            if hasattr(tokenizer_or_codec, "encode_answer")
            else open_codec(tokenizer_or_codec, generation=model.generation_config)
        )
        self.policy_version = 0
        self.max_length = min(filter(None, (max_length, longest_conversation(model))))
        own = own_defaults({OWN_KEY: getattr(model.config, OWN_KEY, None)}, name)
        self.usual_answer = own.run.max_tokens or usual_answer(self.max_length)
        """Maximum completion tokens of an answer without an explicit limit."""
        self.fed_tokens = 0
        """Number of tokens that went through the model so far, without those found in the cache."""
        self.sampled_tokens = 0
        self._model = replica(model)
        found = survey(self._model)
        if found.objection is not None:
            raise not_in_process(type(model).__name__, found.objection)
        self._route = route_of(self._model)
        self._rope = LongRope.installed_in(self._model)
        self._blocked = BlockedWeights(self._model)
        self._vocab_size = int(model.get_input_embeddings().weight.shape[0])
        shape = kv_shape(model, found)
        self.schemas = Schemas(self.codec, self._vocab_size)
        pool = KVPool(shape, max_rows=max_slots, max_length=self.max_length, max_bytes=kv_bytes)
        windows = [each.window for each in found.layers]
        self._rows = Rows(
            pool,
            self._rope and self._rope.switch,
            windows=windows,
            share=shape.device.type == "cpu" and found.plain,
        )
        self._captured = (
            CapturedSteps(self._logits, pool, windows)
            if captured and self._route is None and self._rope is None
            else None
        )
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=shape.dtype, device=shape.device)
        self._is_control = np.zeros(max(self._vocab_size, *self.codec.control_token_ids) + 1, bool)
        self._is_control[list(self.codec.control_token_ids)] = True
        self._threads = threads
        self._waiting: deque[PendingRequest] = deque()
        self._cancelled: deque[PendingRequest] = deque()
        self._publications: deque[tuple[int, Any, Future[None]]] = deque()
        self._freeing: deque[Future[None]] = deque()
        self._wake = threading.Condition()
        self._guard = LoopGuard(f"engine {name}")
        self._gathering = Gathering()
        self._closing = False
        self._failure: BaseException | None = None
        """Error that made the engine close by itself (None if there is none)."""
        self._loop = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)
        self._loop.start()
        atexit.register(self.close)

    def submit(self, request: GenerationRequest, begun: Sequence[int] = ()) -> Future[Completion]:
        """Queue a request. Cancelling the future frees its row before the next step.

        `begun`: first tokens of the answer, if they are known. They are fed with the prompt, and
        the completion has only the tokens after them, sampled with the random numbers of their
        indices in the answer. Raises `ValueError` if `begun` fills the answer, or if the request
        has a schema.
        """
        self._gathering.called()
        future: Future[Completion] = Future()
        fed = (*request.prompt_ids, *begun)
        error = objection(fed, self.max_length, self._vocab_size, self.name)
        if error is not None:
            future.set_exception(error)
            return future
        job = PendingRequest(request, future, self.max_length, begun)
        if begun and (request.schema is not None or len(fed) >= job.limit):
            raise ValueError(f"an answer cannot continue from {len(begun)} given tokens")
        job.adapter = 0 if self._route is None else self._route.number(request.role)
        future.add_done_callback(
            lambda done: self._cancelled.append(job) if done.cancelled() else None
        )
        schema = None if request.schema is None else self.schemas.compile(request.schema)
        if schema is None or schema.done():
            self._queue(job, schema)
        else:
            threading.Thread(target=self._queue_late, args=(job, schema), daemon=True).start()
        return future

    def _queue(self, job: PendingRequest, schema: Future[Any] | None) -> None:
        job.held = None if schema is None else self.schemas.begin(schema)
        with self._wake:
            if self._closing:
                raise self._closed()
            self._waiting.append(job)
            self._wake.notify()

    def _queue_late(self, job: PendingRequest, schema: Future[Any]) -> None:
        """Queue a request once its schema is compiled, or has taken too long."""
        self.schemas.wait(schema)
        try:
            self._queue(job, schema)
        except BaseException as error:  # the caller must not be left waiting, whatever the error
            job.fail(error)

    def publish(self, version: int, state_dict: Any = None) -> None:
        """Answer with new weights from now on. Returns once they are used.

        Running requests end with the weights that they started with, so no answer mixes two
        versions. `state_dict`: weights to copy (None: the shared model was changed in place). In
        both cases, the cache is dropped.
        """
        done: Future[None] = Future()
        self._hand_over(self._publications, (version, state_dict, done))
        done.result()

    def free_cache(self) -> None:
        """Free the memory of the cache until the next request. If an answer is being sampled, the
        cache stays.
        """
        done: Future[None] = Future()
        self._hand_over(self._freeing, done)
        done.result()

    def _hand_over(self, queue: deque[Any], work: Any) -> None:
        """Give the loop work whose end the caller waits for."""
        if threading.current_thread() is self._loop:
            raise RuntimeError("the engine's loop cannot wait for itself")
        with self._wake:
            if self._closing:
                raise self._closed()
            queue.append(work)
            self._wake.notify()

    def capabilities(self) -> Capabilities:
        """Capabilities of the model in this engine."""
        return capabilities_of(
            self._model, self.max_length, self.schemas.lack, getattr(self.codec, "speech", None)
        )

    def close(self) -> None:
        """Stop the loop. Pending requests fail with `ModelError`."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._loop:
            self._loop.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # everything below runs in the loop's thread

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while self._has_work():
            try:
                self._turn()
            except BaseException as error:  # callers must not be left waiting, whatever the error
                self._guard.call(self._fail_all, error)
                self._guard.call(self._start_afresh)
                self._guard.caught(error)
        self._guard.call(self._fail_all, self._closed())

    def _has_work(self) -> bool:
        """Sleep until there is something to do. Returns False when the engine closes."""
        with self._wake:
            while not (
                self._closing
                or self._waiting
                or self._publications
                or self._freeing
                or self._rows.active
            ):
                self._wake.wait()
            return not self._closing

    def _turn(self) -> None:
        self._gathering.wait(lambda: self._rows.active + len(self._waiting))
        while self._cancelled:
            job = self._cancelled.popleft()
            for row in np.flatnonzero(self._rows.jobs == job):
                self._release(int(row), job)
        if self._publications:
            if not self._rows.active:
                self._publish_next()
        elif self._waiting:
            self._admit()
        while self._freeing:
            self._free_cache(self._freeing.popleft())
        self._rows.arrange()
        step = self._rows.plan()
        if step is not None:
            with torch.inference_mode():
                self._blocked.refresh()
                self._step(step)

    def _step(self, step: StepInput) -> None:
        rows = self._rows
        row_S = step.row_S
        logits_SV = self._forward(step)
        self.fed_tokens += step.ids_1T.shape[1]
        if not len(row_S):
            rows.advance(step, np.zeros(0, np.int64), np.zeros(0, np.float32))
            return
        noise_S = uniform(rows.seed[row_S], rows.known[row_S] - rows.start[row_S])
        device = logits_SV.device
        held: Held | None = None
        held_S = np.flatnonzero(rows.held[row_S])
        if len(held_S):
            allowed = np.stack([rows.jobs[row].held.allowed() for row in row_S[held_S]])
            held = tensor_on(device, held_S), tensor_on(device, allowed)
        token_S, logprob_S = sample_rows(
            logits_SV,
            tensor_on(device, noise_S),
            tensor_on(device, rows.temperature[row_S], torch.float32),
            tensor_on(device, rows.top_p[row_S]),
            held,
        )
        tokens = token_S.cpu().numpy()
        logprobs = logprob_S.cpu().numpy()
        for index in held_S:
            rows.jobs[row_S[index]].held.take(int(tokens[index]))
        rows.advance(step, tokens, logprobs)
        self.sampled_tokens += len(tokens)
        for row in row_S[step.step.sampling :]:
            rows.jobs[row].fed = True
        sound_S = ~np.isnan(logprobs)
        for row in row_S[~sound_S]:
            self._fail(int(row), no_distribution(self.name))
        self._end_answers(row_S[sound_S], tokens[sound_S])

    def _forward(self, step: StepInput) -> torch.Tensor:
        if self._captured is not None:
            logits_SV = self._captured.logits(step)
            if logits_SV is not None:
                return logits_SV
        keep = (
            step.last_S
            if len(step.row_S)
            else torch.zeros(1, dtype=torch.int64, device=self._no_mask.device)
        )
        if self._route is not None:
            self._route.by_token(step.adapters_T, keep.device)
        if self._rope is not None:
            self._rope.by_token(step.long_T, keep.device)
        return self._logits(step.ids_1T, step.positions_1T, step.step, keep)

    def _logits(
        self, ids_1T: torch.Tensor, positions_1T: torch.Tensor, step: PackedStep, keep: torch.Tensor
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids_1T,
            position_ids=positions_1T,
            attention_mask=self._no_mask,
            use_cache=False,
            packed_step=step,
            logits_to_keep=keep,
        )
        return output.logits[0]

    def _end_answers(self, row_S: Array, token_S: Array) -> None:
        rows = self._rows
        control_S = self._is_control[token_S]
        stopped_S = np.asarray(
            [rows.jobs[row].watched and self._watch(rows.jobs[row], row) for row in row_S]
        )
        ended_S = control_S | stopped_S | (rows.known[row_S] >= rows.limit[row_S])
        for row, token, control, stopped in np.stack(
            [row_S, token_S, control_S, stopped_S], axis=1
        )[ended_S].tolist():
            if stopped or token in self.codec.ends:
                self._finish(row, FinishReason.STOP)
            else:
                self._finish(row, FinishReason.CONTROL_TOKEN if control else FinishReason.LENGTH)

    def _fail(self, row: int, error: Exception) -> None:
        job: PendingRequest = self._rows.jobs[row]
        self._release(row, job)
        job.fail(error)

    def _watch(self, job: PendingRequest, row: int) -> bool:
        """Pass a row's new token to the request's callback and stop strings. Returns True if the
        token completes a stop string.
        """
        rows = self._rows
        answer = rows.tokens[row, rows.start[row] : rows.known[row]].tolist()
        try:
            return job.see(answer, self.codec.decode)
        except Exception as error:  # the caller's callback may raise anything
            self._fail(row, error)
            return False

    def _finish(self, row: int, reason: FinishReason) -> None:
        """Resolve the future of a row, unless its request is already over."""
        rows = self._rows
        job: PendingRequest | None = rows.jobs[row]
        if job is None:
            return
        answer = slice(job.start + job.begun, int(rows.known[row]))
        tokens = rows.tokens[row, answer].tolist()
        logprobs = rows.logprobs[row, answer].tolist()
        self._release(row, job)
        version = self.policy_version
        constrained = job.held is not None
        job.complete(
            Completion(
                tuple(tokens), tuple(logprobs), reason, version, job.queue_seconds, constrained
            )
        )

    def _release(self, row: int, job: PendingRequest) -> None:
        job.fed = True
        self._rows.release(row)

    def _admit(self) -> None:
        """Give rows to as many waiting requests as fit, in order of arrival."""
        left: list[PendingRequest] = []
        with self._wake:
            longest = max(job.limit for job in self._waiting)
        try:
            while self._waiting:
                job = self._waiting.popleft()
                left.append(job)
                if job.future.cancelled():
                    left.pop()
                elif not job.waits_for_prefix:
                    if not self._make_room(job, longest, len(left) + len(self._waiting)):
                        break
                    if self._place(job):
                        left.pop()
        finally:
            self._waiting.extendleft(reversed(left))

    def _make_room(self, job: PendingRequest, longest: int, waiting: int) -> bool:
        """Make room for a request. `longest`: tokens of the longest of those that wait, for which
        room is made at once if all `waiting` ones then fit. Without a row for the request, there
        will be half as many again, or enough for all that wait. Returns False if all rows that fit
        into memory are busy.
        """
        rows = self._rows
        pool = rows.pool
        wanted = rows.active + waiting
        longest = max(longest, job.limit)  # the job may have arrived since
        length = longest if pool.rows_for(longest) >= wanted else job.limit
        allowed = pool.rows_for(length)
        if rows.active >= allowed:
            return False
        count = min(pool.rows, allowed)
        if count < allowed and not rows.has_row_for(job.prompt, job.adapter):
            count = min(max(count + count // 2, wanted), allowed)
        if (count, pool.length_for(length)) != (pool.rows, pool.length):
            rows.arrange()
            rows.resize(count, pool.length_for(length))
        return True

    def _place(self, job: PendingRequest) -> bool:
        """Give a row to a request. Returns False if the request should wait for a prefix that is
        being fed.
        """
        rows = self._rows
        prefix_R = rows.prefixes(job.prompt, job.adapter)
        ready = int(np.minimum(prefix_R, rows.cached).max())
        coming_R = np.where(rows.kind == FEEDING, prefix_R, 0)
        if min(int(coming_R.max()), len(job.prompt) - 1) > ready + _WORTH_WAITING:
            job.donor = rows.jobs[int(coming_R.argmax())]
            return False
        row = rows.place(job.prompt, prefix_R)
        sampling = job.request.sampling
        rows.start[row] = job.start
        rows.limit[row] = job.limit
        rows.jobs[row] = job
        rows.temperature[row], rows.top_p[row] = sampling.temperature, sampling.top_p
        rows.held[row], rows.adapter[row] = job.held is not None, job.adapter
        rows.seed[row] = seed_state(
            secrets.randbits(63) if sampling.seed is None else sampling.seed
        )
        job.queue_seconds = time.monotonic() - job.submitted_at
        return True

    def _publish_next(self) -> None:
        version, state_dict, done = self._publications.popleft()
        try:
            if state_dict is not None:
                load_weights(self._model, state_dict)
            self.policy_version = version
        except Exception as error:  # reported to the caller of `publish`
            done.set_exception(error)
        else:
            done.set_result(None)
        finally:
            self._blocked.weights_changed()
            self._rows.forget()

    def _free_cache(self, done: Future[None]) -> None:
        try:
            if not (self._rows.active or self._waiting):
                self._rows.shrink()
        except BaseException as error:  # reported to the caller, and the loop starts afresh
            done.set_exception(error)
            raise
        done.set_result(None)

    def _start_afresh(self) -> None:
        """Empty the cache and free its memory. If even that fails (for example, because of a broken
        device), the engine closes.
        """
        try:
            self._rows.shrink()
        except BaseException as error:  # a broken engine must raise for later callers
            with self._wake:
                self._closing = True
                self._failure = error

    def _fail_all(self, error: BaseException) -> None:
        jobs: list[PendingRequest] = [job for job in self._rows.jobs if job is not None]
        with self._wake:
            jobs.extend(self._waiting)
            self._waiting.clear()
            publications = list(self._publications) if self._closing else []
            freeing = list(self._freeing) if self._closing else []
        for job in jobs:
            job.fed = True
            job.fail(error)
        for done in (*(done for _, _, done in publications), *freeing):
            done.set_exception(error)

    def _closed(self) -> ModelError:
        why = (
            "" if self._failure is None else f": its cache could not be emptied ({self._failure!r})"
        )
        return ModelError(f"The engine {self.name!r} is closed{why}.", "Open a new engine.")
