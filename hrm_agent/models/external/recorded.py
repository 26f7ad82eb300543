"""Recording of chat models that a graph holds itself. Each call is made once. When it is repeated,
the record gives the answer.

A user's graph may call a hosted model without knowing about records. Inside a recording, the
model's answer is recorded before the node sees it, as text, marked as not trainable. The node gets
the model's own object. If the node runs again, after a crash or in a replay, it gets the recorded
answer. Errors of a model are recorded, too. A replay raises a recorded error again. After a crash,
the model is called again instead. Outside of a recording, nothing changes.

Two parts of LangChain's `BaseChatModel` are wrapped, once per process. The first is the method that
answers one request, for invoke, batch and streams of events. At this place, callbacks see a
recorded answer like any other. The second are the streams, which bypass that method. A stream holds
each chunk back until the next chunk arrives, so that the record is written before the node sees the
last chunk. A recorded answer comes as one chunk. If a model gives several answers to one request,
the first is recorded.

Two kinds of calls are not recorded and are made again: those without a LangChain chat model (a bare
HTTP call in a node), and those of a class that overrides `invoke` or `stream` without calling its
base class.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables.config import ensure_config
from langgraph.errors import GraphBubbleUp

from hrm_agent.errors import HrmError
from hrm_agent.models.call_recording import (
    PendingCall,
    as_chunk,
    close_failed_call,
    close_text_call,
    in_one_order,
    plain,
)
from hrm_agent.models.chat import PolicyModel
from hrm_agent.models.hosted import is_text, most_prompt_tokens, sent_sampling
from hrm_agent.models.recorded_values import is_of_a_model, pack_error, raised, unpack_answer
from hrm_agent.prompts import replacing_nothing, with_prompts
from hrm_agent.trajectory import (
    AskedModel,
    Call,
    Recording,
    RequestSize,
    SentSampling,
    open_recording,
)
from hrm_agent.trajectory.call_facts import RaisedError
from hrm_agent.trajectory.conversation_digest import HashedContext
from hrm_agent.trajectory.draws import while_answered
from hrm_agent.trajectory.identity import graph_identity, in_graph, metadata_of

__all__ = ["record_external_models"]

T = TypeVar("T")
_TRACED = ("ls_structured_output_format", "structured_output_format")
"""Options for tracing only. They are left out, since only one of the two wrapped parts gets them.
"""


@functools.cache
def record_external_models() -> None:
    """Record, from now on, chat models that are called inside a recording. Only the first call in a
    process has an effect.
    """
    model: Any = BaseChatModel
    model._generate_with_cache = _answering(model._generate_with_cache)
    model._agenerate_with_cache = _answering_async(model._agenerate_with_cache)
    model.stream, model.astream = _streaming(model.stream), _streaming_async(model.astream)


class _ModelRequest:
    """Request to a user's chat model. If it ends without an answer, its index becomes free."""

    def __init__(
        self,
        recording: Recording,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        metadata: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self._recording = recording
        said = None
        with suppress(Exception):  # a class may override this method
            said = model._get_ls_params(**options).get("ls_model_name")  # pyright: ignore[reportPrivateUsage]
        self._model = str(said or type(model).__name__)
        identity = graph_identity(metadata, str(uuid4()))
        self._namespace = identity.checkpoint_ns
        asked = plain(
            {
                name: value
                for name, value in options.items()
                if name not in _TRACED and value is not None
            }
        )
        context = HashedContext.of(messages)
        tools: Sequence[Any] = asked.get("tools") or ()
        ordered = {**asked, "tools": in_one_order(tools)} if isinstance(tools, list) else asked
        request_hash, offered_hash = (
            context.hash(options, self._model) for options in (ordered, asked)
        )
        sent = SentSampling()
        with suppress(Exception):
            sent = sent_sampling(model, options)
        asked_model = AskedModel(self._model, sent)
        claimed = recording.claim(
            identity, request_hash, messages, tools, former_hash=offered_hash, model=asked_model
        )
        self.claimed = claimed if isinstance(claimed, Call) else None
        """Recorded call of this request (None if there is none)."""
        self.over = self.claimed is not None
        """True if the request has ended, recorded or not."""
        if isinstance(claimed, int):
            again = recording.asked_again(identity, claimed)
            self._pending = PendingCall(
                identity, claimed, request_hash, messages, context, tools, instead_of=again
            )
            self._sent = sent
            if recording.metered:
                recording.may_ask(
                    RequestSize(
                        self._pending.call_id,
                        self._model,
                        most_prompt_tokens(messages, tools),
                        self._sent.max_tokens,
                        engine=False,
                        by_policy=False,
                        can_wait=False,
                        retries=getattr(model, "max_retries", 0) != 0,
                        text_only=is_text(messages),
                    )
                )

    def recorded(self, model: BaseChatModel) -> AIMessage | None:
        """Recorded answer (None if the model has to be called). A replay raises the recorded
        error.
        """
        call = self.claimed
        if call is None:
            return None
        if call.error is not None and call.error.kinds:
            raise raised(call.error, type(model))
        return unpack_answer(call) if call.response else AIMessage("")

    async def as_cancelled(self) -> None:
        """Wait for the program to cancel this call, if it cancelled the recorded call. Otherwise,
        return at once.

        The time to wait is limited. If it ends without a cancellation, `recorded` raises the
        recorded one.
        """
        call = self.claimed
        if call is not None and call.error is not None and call.error.kinds == _CANCELLED.kinds:
            await asyncio.sleep(_PATIENCE + 2 * (call.ended_at - call.started_at))

    def close(self, answer: BaseMessage) -> BaseMessage:
        """Commit the record. Returns the answer with the ids of its record. If the answer cannot be
        recorded, it is returned unchanged.
        """
        self.over = True
        try:
            if not isinstance(answer, AIMessage):
                raise TypeError(
                    f"{self._model} answered with a {type(answer).__name__}, which is not recorded"
                )
            call, message = close_text_call(self._pending, self._model, answer, self._sent)
            stands = self._recording.write_call(call, self._pending.messages)
            return message if stands is call else unpack_answer(stands)
        except HrmError:
            raise
        except Exception as error:
            self._release()
            self.lose(error)
            return answer

    def fail(self, error: RaisedError, shown: AIMessage | None = None) -> None:
        """Record that the model raised, or that the program abandoned the stream after `shown`."""
        self.over = True
        self._release()
        try:
            call = close_failed_call(self._pending, self._model, error, shown)
            self._recording.write_call(call, self._pending.messages)
        except Exception as lost:  # the program gets the model's error instead of this error
            if not isinstance(lost, HrmError):
                self._recording.lose(lost)

    def lose(self, error: Exception) -> None:
        """Report an answer that is not recorded."""
        self._recording.lose(error)

    def next(self, chunks: Iterator[T]) -> T | None:
        """Next chunk (None at the end). Draws of the model's code do not count as the node's."""
        with while_answered(self._namespace):
            return next(chunks, None)

    def each(self, chunks: Iterator[T]) -> Iterator[T]:
        while (chunk := self.next(chunks)) is not None:
            yield chunk

    async def anext(self, chunks: AsyncIterator[T]) -> T | None:
        """Next chunk (None at the end). Draws of the model's code do not count as the node's."""
        with while_answered(self._namespace):
            return await anext(chunks, None)

    def _release(self) -> None:
        self._recording.release(self._pending.identity, self._pending.call_index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.over:
            return
        if is_of_a_model(error):
            self.fail(pack_error(error))
        else:
            self._release()


def _question(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    metadata: dict[str, Any] | None,
    options: dict[str, Any],
) -> _ModelRequest | None:
    """Request to be recorded (None outside of a recording or a graph, or for a model that records
    itself).
    """
    recording = open_recording()
    if recording is None or isinstance(model, PolicyModel) or not in_graph(metadata):
        return None
    try:
        return _ModelRequest(recording, model, messages, metadata or {}, options)
    except (HrmError, GraphBubbleUp):
        raise
    except Exception as error:  # a request that cannot be recorded
        recording.lose(error)
        return None


def _with_prompts(
    model: BaseChatModel, messages: Sequence[BaseMessage], metadata: dict[str, Any] | None
) -> Sequence[BaseMessage]:
    """Request of a model of the graph, with the prompts in force. Unchanged for the policy, which
    replaces them itself.
    """
    if isinstance(model, PolicyModel):
        return messages
    return with_prompts(messages, in_graph=in_graph(metadata))


def _replaced_once(model: BaseChatModel) -> AbstractContextManager[None]:
    """Replace no prompts while a model answers, since it may pass its request on to another model."""
    return nullcontext() if isinstance(model, PolicyModel) else replacing_nothing()


def _answering(entry: Any) -> Any:
    @functools.wraps(entry)
    def answer(
        self: BaseChatModel,
        messages: Any,
        stop: Any = None,
        run_manager: Any = None,
        **options: Any,
    ) -> ChatResult:
        metadata = metadata_of(run_manager)
        messages = _with_prompts(self, messages, metadata)
        question = _question(self, messages, metadata, {**options, "stop": stop})
        with while_answered(_namespace(metadata)), _replaced_once(self):
            if question is None:
                return entry(self, messages, stop=stop, run_manager=run_manager, **options)
            with question:
                if (recorded := question.recorded(self)) is not None:
                    return _result(recorded)
                return _recorded(
                    question, entry(self, messages, stop=stop, run_manager=run_manager, **options)
                )

    return answer


def _answering_async(entry: Any) -> Any:
    @functools.wraps(entry)
    async def answer(
        self: BaseChatModel,
        messages: Any,
        stop: Any = None,
        run_manager: Any = None,
        **options: Any,
    ) -> ChatResult:
        metadata = metadata_of(run_manager)
        messages = _with_prompts(self, messages, metadata)
        question = _question(self, messages, metadata, {**options, "stop": stop})
        with while_answered(_namespace(metadata)), _replaced_once(self):
            if question is None:
                return await entry(self, messages, stop=stop, run_manager=run_manager, **options)
            with question:
                await question.as_cancelled()
                if (recorded := question.recorded(self)) is not None:
                    return _result(recorded)
                try:
                    result = await entry(
                        self, messages, stop=stop, run_manager=run_manager, **options
                    )
                except asyncio.CancelledError:
                    question.fail(_CANCELLED)
                    raise
                return _recorded(question, result)

    return answer


def _streaming(entry: Any) -> Any:
    @functools.wraps(entry)
    def stream(
        self: Any,
        input: Any,  # noqa: A002  # its name is part of the interface
        config: Any = None,
        *,
        stop: Any = None,
        **options: Any,
    ) -> Iterator[Any]:
        question = None
        # if the model does not stream, LangChain invokes it, and the invocation is recorded instead
        if self._should_stream(async_api=False, **{**options, "stream": True}):
            metadata = ensure_config(config).get("metadata")
            messages = self._convert_input(input).to_messages()
            input = messages = _with_prompts(self, messages, metadata)  # noqa: A001
            question = _question(self, messages, metadata, {**options, "stop": stop})
        if question is None:
            yield from entry(self, input, config, stop=stop, **options)
            return
        with question, _Kept(question) as kept:
            if question.claimed is not None:
                yield from question.each(
                    entry(_OnRecord(self, question), input, config, stop=stop, **options)
                )
            else:
                yield from kept.through(iter(entry(self, input, config, stop=stop, **options)))

    return stream


def _streaming_async(entry: Any) -> Any:
    @functools.wraps(entry)
    async def stream(
        self: Any,
        input: Any,  # noqa: A002  # its name is part of the interface
        config: Any = None,
        *,
        stop: Any = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        question = None
        if self._should_stream(async_api=True, **{**options, "stream": True}):
            metadata = ensure_config(config).get("metadata")
            messages = self._convert_input(input).to_messages()
            input = messages = _with_prompts(self, messages, metadata)  # noqa: A001
            question = _question(self, messages, metadata, {**options, "stop": stop})
        if question is None:
            async for chunk in entry(self, input, config, stop=stop, **options):
                yield chunk
            return
        with question, _Kept(question) as kept:
            if question.claimed is not None:
                answer = entry(_OnRecord(self, question), input, config, stop=stop, **options)
                while (chunk := await question.anext(answer)) is not None:
                    yield chunk
            else:
                async for shown in kept.through_async(
                    aiter(entry(self, input, config, stop=stop, **options))
                ):
                    yield shown

    return stream


_LEFT = RaisedError(kinds=(), message="the program left the stream")
_CANCELLED = RaisedError(kinds=("asyncio:CancelledError",), message="the call was cancelled")
_PATIENCE = 10.0
"""Seconds that a replay waits for a cancellation, in addition to twice the time after which the
recorded run cancelled.
"""


class _OnRecord:
    """Model that streams the recorded answer, so that callbacks and streams of events see it. The
    stream is one chunk: the answer, or the recorded part of an interrupted stream, followed by the
    recorded error.
    """

    rate_limiter = output_version = None
    """Attributes of a chat model that are switched off, since a recorded answer needs no rate limit
    and is already formatted.
    """

    def __init__(self, model: BaseChatModel, question: _ModelRequest) -> None:
        self._model = model
        self._question = question

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        call = self._question.claimed
        if call is not None and call.response:
            yield ChatGenerationChunk(message=as_chunk(unpack_answer(call)))
        self._question.recorded(self._model)

    async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        call = self._question.claimed
        if call is not None and call.response:
            yield ChatGenerationChunk(message=as_chunk(unpack_answer(call)))
        await self._question.as_cancelled()
        self._question.recorded(self._model)


class _Kept:
    """Chunks of a stream. The newest is held back until the next one arrives."""

    def __init__(self, question: _ModelRequest) -> None:
        self._question = question
        self._chunks: list[AIMessageChunk] = []
        self._said: dict[str, Any] = {}
        """Newest metadata of the provider. It replaces the metadata of LangChain's sum of chunks,
        in which texts that each chunk repeats are joined.
        """

    def through(self, chunks: Iterator[AIMessageChunk]) -> Iterator[AIMessageChunk]:
        """Chunks of the model. The last one comes once the whole answer is recorded."""
        try:
            while (chunk := self._question.next(chunks)) is not None:
                yield from self._swap(chunk)
        except Exception as error:
            yield from self._failed(error)
            raise
        yield self._last()

    async def through_async(
        self, chunks: AsyncIterator[AIMessageChunk]
    ) -> AsyncIterator[AIMessageChunk]:
        try:
            while (chunk := await self._question.anext(chunks)) is not None:
                for shown in self._swap(chunk):
                    yield shown
        except Exception as error:
            for shown in self._failed(error):
                yield shown
            raise
        yield self._last()

    def _swap(self, chunk: AIMessageChunk) -> Iterator[AIMessageChunk]:
        """Hold `chunk` back, and yield the chunk that was held back before."""
        self._chunks.append(chunk)
        self._said |= chunk.response_metadata
        yield from self._chunks[-2:-1]

    def _failed(self, error: Exception) -> Iterator[AIMessageChunk]:
        """Record that the model raised, and yield the chunk that was held back."""
        if is_of_a_model(error):
            self._question.fail(pack_error(error), self._sum(self._chunks))
        yield from self._chunks[-1:]

    def _last(self) -> AIMessageChunk:
        """Last chunk, once the whole answer is recorded."""
        newest = self._chunks[-1]
        whole = self._sum(self._chunks)
        if whole is None:
            return newest
        recorded = self._question.close(whole.model_copy(update={"response_metadata": self._said}))
        added = {k: v for k, v in recorded.response_metadata.items() if k not in self._said}
        return newest.model_copy(
            update={"response_metadata": {**newest.response_metadata, **added}}
        )

    def _sum(self, chunks: Sequence[AIMessageChunk]) -> AIMessageChunk | None:
        """Sum of the chunks (None if there are no chunks, or they cannot be added)."""
        try:
            return (
                functools.reduce(lambda before, chunk: before + chunk, chunks) if chunks else None
            )
        except Exception as error:
            self._question.lose(error)
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._question.over:
            return
        if kind is GeneratorExit and len(self._chunks) > 1:
            self._question.fail(_LEFT, self._sum(self._chunks[:-1]))
        if kind is asyncio.CancelledError:
            self._question.fail(_CANCELLED, self._sum(self._chunks[:-1]))


def _recorded(question: _ModelRequest, result: ChatResult) -> ChatResult:
    if result.generations:
        first = result.generations[0]
        first.message = question.close(first.message)
    return result


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def _namespace(metadata: Mapping[str, Any] | None) -> str:
    """Checkpoint namespace of the calling task (empty outside of a graph)."""
    return str((metadata or {}).get("langgraph_checkpoint_ns", ""))
