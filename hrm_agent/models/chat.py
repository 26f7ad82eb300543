"""A LangChain chat model that records what it samples.

Graphs call `PolicyModel`. Its backend is a token engine (exact ids and log-probs, trainable) or any
other LangChain chat model (recorded as text, marked as not trainable). Any call (invoke, ainvoke,
stream, astream, batch, through `bind_tools` or `with_structured_output`) passes `open_call` and
`close_call` once, and its record is committed before the caller sees the answer.

Streaming shows text while it is sampled, up to the first tool call. Tool calls and everything else
come whole, in the last chunk. If LangChain streams behind an `invoke`, the caller gets the recorded
message, as without streaming. If a node streams and joins the chunks, LangChain drops calls that
could not be decoded. So the last chunk also has them in `response_metadata`, and the function
`invalid_tool_calls` reads them from there, too.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.basics.bounded import remember
from hrm_agent.errors import StoreError
from hrm_agent.models.call_recording import (
    PendingCall,
    Prefix,
    as_chunk,
    close_call,
    close_failed_call,
    close_text_call,
    find_prefix,
    open_call,
)
from hrm_agent.models.codec.messages import INVALID_CALLS, invalid_tool_calls
from hrm_agent.models.current_policy import ActivePolicy, Backend, active_policy
from hrm_agent.models.engine import Completion, Engine, GenerationRequest, TextStream
from hrm_agent.models.hosted import (
    ask_in_thread,
    is_text,
    most_prompt_tokens,
    name_of_model,
    policy_options,
    sent_sampling,
)
from hrm_agent.models.loading.policy_loader import load_policy, loaded_policy
from hrm_agent.models.own_defaults import with_limit
from hrm_agent.models.recorded_values import is_of_a_model, pack_error, raised, unpack_answer
from hrm_agent.prompts import with_prompts
from hrm_agent.trajectory import Call, RequestSize, Sampling, active_recording, open_recording
from hrm_agent.trajectory.identity import graph_identity, metadata_of

__all__ = ["PolicyModel", "invalid_tool_calls", "policy"]

_PAUSE = 0.02
"""Seconds between two attempts of a request that has to wait for others."""


class PolicyModel(BaseChatModel):
    """Chat model whose calls are recorded with their exact tokens."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    backend: Any = Field(default=None, exclude=True)
    """Engine or another chat model (None: the current policy, see `using_policy`)."""
    model: str | None = None
    """Model string of another model than the current policy, loaded at the first call."""
    answer_schema: dict[str, Any] | None = None
    """JSON schema for the text of an answer. The caller still has to check the answer, since not
    every engine can constrain it, and a call that offers tools is not constrained.
    """
    temperature: float | None = None
    """Sampling temperature (None: the current policy's)."""
    top_p: float | None = None
    """Nucleus sampling limit (None: the current policy's)."""
    max_tokens: int | None = None
    """Maximum completion tokens (None: the current policy's, which is also the upper limit)."""
    budget: int | None = None
    """Tokens that the graph has left. This number limits an engine's answer like `max_tokens`. It
    is sent to a hosted model only if it is below the default of `Sampling`, since a larger limit
    would only cut the model off while it thinks.
    """
    seed: int | None = None
    """Seed of the calls (None: the current policy's)."""
    cache: Any = Field(default=False, exclude=True)
    """LangChain's global cache is never used, since its answers would not be recorded."""

    @property
    def _llm_type(self) -> str:
        return "hrm-agent-policy"

    @property
    def _serialized(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Constant description for callbacks. LangChain's description prints the whole model.
        Graphs make a model for each call, and printing would cost more than the rest of a call's
        preparation.
        """
        return _SERIALIZED

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer `tools` with every call, in the conversation format of the policy's chat
        template.
        """
        return self.bind(tools=list(map(_openai_form, tools)), **kwargs)

    def _generate_with_cache(self, *given: Any, **named: Any) -> ChatResult:
        """Return the recorded message of a streamed answer, since LangChain's joined chunks lose
        parts of it.
        """
        with _opened() as jobs:
            return _as_recorded(super()._generate_with_cache(*given, **named), jobs)

    async def _agenerate_with_cache(self, *given: Any, **named: Any) -> ChatResult:
        with _opened() as jobs:
            return _as_recorded(await super()._agenerate_with_cache(*given, **named), jobs)

    # the four entry points

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._open(messages, stop, run_manager, kwargs) as job:
            if job.recorded is None:
                job.wait()
                job.finish(job.submit().result())
            assert job.recorded is not None
            return _result(job.recorded)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        with self._open(messages, stop, run_manager, kwargs) as job:
            if job.recorded is None:
                await job.ready()
                await job.recording.apart(job.finish, await asyncio.wrap_future(job.submit()))
            assert job.recorded is not None
            return _result(job.recorded)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        with self._open(messages, stop, run_manager, kwargs) as job:
            text = _TextStream(job)
            if job.recorded is None:
                job.wait()
                tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
                future = job.submit(tokens.put)
                future.add_done_callback(lambda _: tokens.put(None))
                for token in iter(tokens.get, None):
                    yield from text.add(token)
                job.finish(future.result())
            yield text.last()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        with self._open(messages, stop, run_manager, kwargs) as job:
            text = _TextStream(job)
            if job.recorded is None:
                await job.ready()
                loop = asyncio.get_running_loop()
                tokens = asyncio.Queue[int | None]()

                def tell(token: int | None) -> None:
                    with suppress(RuntimeError):  # the caller's loop may be closed
                        loop.call_soon_threadsafe(tokens.put_nowait, token)

                future = job.submit(tell)
                future.add_done_callback(lambda _: tell(None))
                while (token := await tokens.get()) is not None:
                    for chunk in text.add(token):
                        yield chunk
                await job.recording.apart(job.finish, await asyncio.wrap_future(future))
            yield text.last()

    def _open(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: Any,
        options: dict[str, Any],
    ) -> _PolicyCall:
        active = (
            ActivePolicy(self.backend)
            if self.backend is not None
            else active_policy(
                self.model, lambda: graph_identity(metadata_of(run_manager), "none").role
            )
        )
        limits = _Limits(options.get("max_tokens", self.max_tokens), self.budget)
        sampling = self._sampling(active.sampling, stop, options, limits)
        schema = None if options.get("tools") else self.answer_schema
        special = {
            name: asked
            for name, asked in (("model", self.model), ("schema", schema))
            if asked is not None
        }
        held_to = schema if active.constrain else None
        is_other = active.own_sampling and self.model is not None
        sent = self._sampling(Sampling(), stop, options, limits) if is_other else sampling
        asked = _AskedSampling(sampling, sent, limits)
        request = with_prompts(messages)
        return _PolicyCall(active.backend, request, asked, run_manager, options, special, held_to)

    def _sampling(
        self, base: Sampling, stop: list[str] | None, options: dict[str, Any], limits: _Limits
    ) -> Sampling:
        """Sampling parameters. Each comes from the call, else from this model, else from the
        current policy. The lowest token limit applies.
        """
        own = {
            name: options.get(name, getattr(self, name))
            for name in ("temperature", "top_p", "seed")
        }
        own["max_tokens"] = limits.lowest
        given = {name: value for name, value in own.items() if value is not None}
        # a limit that does not lower the policy's stays unset, if it is unset in the policy
        if given.get("max_tokens", base.max_tokens) >= base.max_tokens:
            given.pop("max_tokens", None)
        held = base.model_dump(exclude_unset=True)
        return Sampling.model_validate({**held, **given, **({"stop": tuple(stop)} if stop else {})})


_SERIALIZED = {
    "lc": 1,
    "type": "not_implemented",
    "id": [*PolicyModel.__module__.split("."), PolicyModel.__qualname__],
    "name": PolicyModel.__qualname__,
}


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of completion tokens that a graph sets in a call."""

    asked: int | None
    """Limit that the graph requests: `max_tokens`."""
    budget: int | None
    """Tokens that the graph has left."""

    @property
    def lowest(self) -> int | None:
        return min(
            (limit for limit in (self.asked, self.budget) if limit is not None), default=None
        )


@dataclass(frozen=True, slots=True)
class _AskedSampling:
    """Sampling parameters of a call before its backend is known: an engine or a hosted model."""

    sampling: Sampling
    """Parameters in the recorded request, with the default of `Sampling` for an unset limit."""
    sent: Sampling
    """Parameters for a hosted model, which gets only those that are set."""
    limits: _Limits
    """Limits of the call."""

    def of(self, backend: Backend, drawn: Sampling) -> Sampling:
        """Parameters of the request to `backend`. `drawn`: recorded parameters, with a seed."""
        if not isinstance(backend, BaseChatModel):
            return with_limit(drawn, backend, self.limits.asked, self.limits.budget)
        if self.limits.asked is None or "max_tokens" in self.sent.model_fields_set:
            return self.sent
        return self.sent.model_copy(update={"max_tokens": self.limits.asked})


_forms: dict[int, tuple[BaseTool, tuple[Any, ...], dict[str, Any]]] = {}


def _openai_form(tool: Any) -> dict[str, Any]:
    """OpenAI schema of a tool, cached until name, description or arguments change, since graphs
    bind tools at each step.
    """
    # a dict may be changed in place
    if not isinstance(tool, BaseTool) or isinstance(tool.args_schema, dict):
        return convert_to_openai_tool(tool)
    shown = (tool.name, tool.description, tool.args_schema)
    known = _forms.get(id(tool))
    if known is None or known[0] is not tool or known[1] != shown:
        known = tool, shown, convert_to_openai_tool(tool)
        remember(_forms, id(tool), known)
    return dict(known[2])


class _PolicyCall:
    """Call on its way through a backend. If the call ends without an answer, its place in the
    engine and its index become free.
    """

    def __init__(
        self,
        backend: Backend | str,
        messages: list[BaseMessage],
        asked: _AskedSampling,
        run_manager: Any,
        options: dict[str, Any],
        special: dict[str, Any],
        schema: dict[str, Any] | None,
    ) -> None:
        self.options, self.recording = options, active_recording()
        self._backend = backend
        self._schema = schema
        self._asked = asked
        self.recorded: AIMessage | None = None
        _jobs.get([]).append(self)
        self._pending: PendingCall | None = None
        self._prefix: Prefix | None = None
        self._future: Future[Any] | None = None
        tools = options.get("tools", ())
        run_id = uuid4() if run_manager is None else run_manager.run_id
        identity = graph_identity(metadata_of(run_manager), str(run_id))
        opened = open_call(
            self.recording, identity, messages, tools, asked.sampling, special, _name_of(backend)
        )
        if isinstance(opened, Call):
            if opened.error is not None:
                raise raised(opened.error, type(self._backend))
            self.recorded = unpack_answer(opened)
        else:
            self._pending = opened

    @property
    def backend(self) -> Backend:
        if isinstance(self._backend, str):
            self._backend = load_policy(self._backend)
        return self._backend

    async def ready(self) -> None:
        """Load the model if it is not loaded yet, and wait until the request may be sent. A thread
        reads the weights, so the event loop goes on.
        """
        while True:
            if self.recording.may_load(can_wait=True):
                break
            await asyncio.sleep(_PAUSE)
        if isinstance(self._backend, str):
            self._backend = loaded_policy(self._backend) or await asyncio.to_thread(
                load_policy, self._backend
            )
        while True:
            if self._may_ask():
                return
            await asyncio.sleep(_PAUSE)

    def wait(self) -> None:
        """Wait until the request may be sent. Blocks the thread."""
        can_wait = not _in_event_loop()
        while not self.recording.may_load(can_wait=can_wait):
            time.sleep(_PAUSE)
        while not self._may_ask(can_wait=can_wait):
            time.sleep(_PAUSE)

    def _may_ask(self, *, can_wait: bool = True) -> bool:
        """True if the recording accepts the request now."""
        if not self.recording.metered:
            return True
        pending = self.pending
        sampling = self._asked.of(self.backend, pending.sampling)
        if isinstance(self.backend, BaseChatModel):
            limit = sent_sampling(self.backend, policy_options(sampling)).max_tokens
            name = name_of_model(self.backend)
            read = most_prompt_tokens(pending.messages, pending.tools)
            size = RequestSize(
                pending.call_id,
                name,
                read,
                limit,
                engine=False,
                can_wait=can_wait,
                text_only=is_text(pending.messages),
            )
        else:
            engine = self.backend
            if self._prefix is None:
                self._prefix = find_prefix(self.recording, engine, pending, thinks=self.thinks)
            read = len(self._prefix.prompt_ids)
            size = RequestSize(
                pending.call_id,
                engine.name,
                read,
                sampling.max_tokens,
                engine=True,
                can_wait=can_wait,
            )
        return self.recording.may_ask(size)

    def submit(self, on_token: Callable[[int], None] | None = None) -> Future[Any]:
        """Start sampling. The future gives a `Completion`, or the message of a model without
        tokens.
        """
        sampling = self._asked.of(self.backend, self.pending.sampling)
        self._pending = pending = replace(self.pending, sampling=sampling)
        if isinstance(self.backend, BaseChatModel):
            self._future = ask_in_thread(self.backend, pending, self.options)
        else:
            if self._prefix is None:
                self._prefix = find_prefix(
                    self.recording, self.backend, pending, thinks=self.thinks
                )
            seen = (self._prefix.prompt_ids, pending.sampling, pending.messages)
            request = GenerationRequest(*seen, on_token, self._schema, pending.role, pending.thread)
            self._future = self.backend.submit(request)
        return self._future

    def finish(self, answer: Completion | AIMessage) -> AIMessage:
        """Commit the record, then return the message."""
        if isinstance(answer, AIMessage):
            assert isinstance(self.backend, BaseChatModel), "an engine answers with tokens"
            answer = answer.model_copy(update={"id": None})  # providers may use an id twice
            sent = sent_sampling(self.backend, policy_options(self.pending.sampling))
            call, message = close_text_call(self.pending, name_of_model(self.backend), answer, sent)
        else:
            engine: Engine = self.backend  # pyright: ignore[reportAssignmentType]
            assert self._prefix is not None
            call, message = close_call(self.pending, self._prefix, engine, answer)
        stands = self.recording.write_call(call, self.pending.messages)
        if stands is call and self._prefix is not None and isinstance(answer, Completion):
            self.recording.keep_open(call, (*self._prefix.prompt_ids, *answer.token_ids))
        self.recorded = message if stands is call else unpack_answer(stands)
        return self.recorded

    @property
    def pending(self) -> PendingCall:
        assert self._pending is not None, "a recorded answer is not asked for again"
        return self._pending

    @property
    def thinks(self) -> bool:
        """False for an answer that a schema constrains from its first token on."""
        return self._schema is None

    @property
    def id(self) -> str:
        return self._pending.call_id if self._pending else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pending = self._pending
        if self.recorded is not None or pending is None:
            return
        if self._future is not None:
            self._future.cancel()
        self.recording.release(pending.identity, pending.call_index)
        if not is_of_a_model(error) or open_recording() is None:
            return
        with suppress(StoreError):  # a recording that is broken cannot be written
            call = close_failed_call(pending, _name_of(self._backend), pack_error(error))
            self.recording.write_call(call, pending.messages)


def _name_of(backend: Backend | str) -> str:
    """Recorded name of a backend. One that is not loaded has its model string."""
    if isinstance(backend, str):
        return backend
    return name_of_model(backend) if isinstance(backend, BaseChatModel) else backend.name


def _in_event_loop() -> bool:
    """True in a thread whose event loop is running, as in an async node."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_jobs: ContextVar[list[_PolicyCall]] = ContextVar("hrm_agent_policy_calls")


@contextmanager
def _opened() -> Generator[list[_PolicyCall]]:
    """Calls that are opened inside the block."""
    jobs: list[_PolicyCall] = []
    token = _jobs.set(jobs)
    try:
        yield jobs
    finally:
        _jobs.reset(token)


def _as_recorded(result: ChatResult, jobs: Sequence[_PolicyCall]) -> ChatResult:
    """Result with the recorded message."""
    recorded = jobs[-1].recorded if jobs else None
    if recorded is not None:
        result.generations[0].message = recorded
    return result


class _TextStream:
    """Conversion of tokens into the chunks that may be shown before the turn ends.

    The message of an answer has no white space at its ends. So white space is shown only between
    texts, once the second text arrives.
    """

    def __init__(self, job: _PolicyCall) -> None:
        self._job = job
        self._shown = ""
        self._blank = ""
        self._decoder: TextStream | None = None

    def add(self, token: int) -> Iterator[ChatGenerationChunk]:
        if self._decoder is None:  # only engines report tokens
            engine: Engine = self._job.backend  # pyright: ignore[reportAssignmentType]
            self._decoder = engine.codec.stream(self._job.pending.tools, thinks=self._job.thinks)
        text = self._blank + self._decoder.push(token)
        text = text if self._shown else text.lstrip()
        ready = text.rstrip()
        self._blank = text[len(ready) :]
        if ready:
            self._shown += ready
            yield ChatGenerationChunk(message=AIMessageChunk(content=ready, id=self._job.id))

    def last(self) -> ChatGenerationChunk:
        """Last chunk: the message without the text already shown. Its metadata has the calls that
        could not be decoded.
        """
        message = self._job.recorded
        assert message is not None
        if message.invalid_tool_calls:
            metadata = message.response_metadata | {INVALID_CALLS: message.invalid_tool_calls}
            message = message.model_copy(
                update={"invalid_tool_calls": [], "response_metadata": metadata}
            )
        if self._shown:
            text = message.text
            rest = text[len(self._shown) :] if text.startswith(self._shown) else ""
            message = message.model_copy(update={"content": rest})
        return ChatGenerationChunk(message=as_chunk(message))


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def policy(
    *,
    model: str | None = None,
    schema: type[BaseModel] | Mapping[str, Any] | None = None,
    **sampling: Any,
) -> PolicyModel:
    """Chat model of the current policy.

    `sampling` sets temperature, top_p, max_tokens or seed for its calls. `sampling` may also hold
    `budget`, the tokens that the graph has left for an answer (`PolicyModel.budget`). `model`:
    model string of another model, loaded at the first call. `schema`: constrains the text of an
    answer to JSON that follows it, if the engine can.
    """
    answer_schema = None
    if schema is not None:
        answer_schema = dict(schema) if isinstance(schema, Mapping) else _schema_of(schema)
    return PolicyModel(model=model, answer_schema=answer_schema, **sampling)


@lru_cache
def _schema_of(output: type[BaseModel]) -> dict[str, Any]:
    return output.model_json_schema()
