"""Chat models that a graph holds itself: asked once, recorded, and answered from the record from then on.

A user's graph may ask a hosted model without knowing of records. Inside a recording, its answer is written before the
node sees it, as text, marked as not trainable; a node that runs again after a crash, or in a replay, gets that answer
back. Outside of a recording nothing changes.

This wraps two places in LangChain's `BaseChatModel`, once per process: where one request is answered (under invoke,
batch, and streams of events alike, so that callbacks hear of a recorded answer as of any other), and the streams, which
bypass it. A stream holds each chunk back until the next has come, so that the record is there before the last one is
seen; a recorded answer comes as one chunk. Of several answers to one request the first is recorded.

What is not a LangChain chat model (a bare HTTP call in a node) cannot be seen here, and is made again.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables.config import ensure_config

from hrm_agent.models.call_recording import PendingCall, as_chunk, close_text_call, in_one_order, plain
from hrm_agent.models.chat import PolicyModel
from hrm_agent.models.hosted import sent_sampling
from hrm_agent.trajectory import Call, Recording, open_recording
from hrm_agent.trajectory.conversation_digest import HashedContext
from hrm_agent.trajectory.draws import while_answered
from hrm_agent.trajectory.identity import graph_identity, in_graph, metadata_of

__all__ = ["record_external_models"]

T = TypeVar("T")
_TRACED = ("ls_structured_output_format", "structured_output_format")
"""Options that are for tracing only; one of the two ways in drops them."""


@functools.cache
def record_external_models() -> None:
    """From now on, chat models that are asked inside a recording are recorded. Once per process."""
    model: Any = BaseChatModel
    model._generate_with_cache = _answering(model._generate_with_cache)
    model._agenerate_with_cache = _answering_async(model._agenerate_with_cache)
    model.stream, model.astream = _streaming(model.stream), _streaming_async(model.astream)


class _ModelRequest:
    """One request to a foreign model. Left without an answer, it frees its index."""

    def __init__(
        self,
        recording: Recording,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        metadata: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self._recording, self._model = recording, _model_name(model, options)
        identity = graph_identity(metadata, str(uuid4()))
        asked = plain({name: value for name, value in options.items() if name not in _TRACED and value is not None})
        context = HashedContext.of(messages)
        tools: Sequence[Any] = asked.get("tools") or ()
        ordered = {**asked, "tools": in_one_order(tools)} if isinstance(tools, list) else asked
        request_hash, offered_hash = (context.hash(options, self._model) for options in (ordered, asked))
        claimed = recording.claim(identity, request_hash, messages, tools, former_hash=offered_hash)
        self.recorded = AIMessage.model_validate(claimed.response) if isinstance(claimed, Call) else None
        if isinstance(claimed, int):
            self._pending = PendingCall(identity, claimed, request_hash, messages, context, tools)
            self._sent = sent_sampling(model, options)

    def close(self, answer: BaseMessage) -> AIMessage:
        """Commit the record; the answer as it will be given back."""
        message = message_chunk_to_message(answer)
        assert isinstance(message, AIMessage), "chat models answer with AI messages"
        call, _ = close_text_call(self._pending, self._model, message, self._sent)
        self.recorded = AIMessage.model_validate(self._recording.write_call(call, self._pending.messages).response)
        return self.recorded

    def next(self, chunks: Iterator[T]) -> T | None:
        """The next chunk, None at the end; what is drawn meanwhile is not the node's."""
        with while_answered(self._pending.identity.checkpoint_ns):
            return next(chunks, None)

    async def anext(self, chunks: AsyncIterator[T]) -> T | None:
        """The next chunk, None at the end; what is drawn meanwhile is not the node's."""
        with while_answered(self._pending.identity.checkpoint_ns):
            return await anext(chunks, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.recorded is None:
            self._recording.release(self._pending.identity, self._pending.call_index)


def _question(
    model: BaseChatModel, messages: Sequence[BaseMessage], metadata: dict[str, Any] | None, options: dict[str, Any]
) -> _ModelRequest | None:
    """None where a call is none of ours: outside a recording or a graph, or of a model that records itself."""
    recording = open_recording()
    if recording is None or isinstance(model, PolicyModel) or not in_graph(metadata):
        return None
    return _ModelRequest(recording, model, messages, metadata or {}, options)


def _answering(entry: Any) -> Any:
    @functools.wraps(entry)
    def answer(
        self: BaseChatModel, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        metadata = metadata_of(run_manager)
        question = _question(self, messages, metadata, {**options, "stop": stop})
        with while_answered(_namespace(metadata)):
            if question is None:
                return entry(self, messages, stop=stop, run_manager=run_manager, **options)
            with question:
                if question.recorded is not None:
                    return _result(question.recorded)
                return _recorded(question, entry(self, messages, stop=stop, run_manager=run_manager, **options))

    return answer


def _answering_async(entry: Any) -> Any:
    @functools.wraps(entry)
    async def answer(
        self: BaseChatModel, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        metadata = metadata_of(run_manager)
        question = _question(self, messages, metadata, {**options, "stop": stop})
        with while_answered(_namespace(metadata)):
            if question is None:
                return await entry(self, messages, stop=stop, run_manager=run_manager, **options)
            with question:
                if question.recorded is not None:
                    return _result(question.recorded)
                return _recorded(question, await entry(self, messages, stop=stop, run_manager=run_manager, **options))

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
        if self._should_stream(async_api=False, **{**options, "stream": True}):  # else it is answered as a whole
            messages = self._convert_input(input).to_messages()
            question = _question(self, messages, ensure_config(config).get("metadata"), {**options, "stop": stop})
        if question is None:
            yield from entry(self, input, config, stop=stop, **options)
            return
        with question:
            if question.recorded is None:
                kept, chunks = _Kept(question), iter(entry(self, input, config, stop=stop, **options))
                while (chunk := question.next(chunks)) is not None:
                    yield from kept.swap(chunk)
                yield kept.last()
            else:
                yield as_chunk(question.recorded)

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
            messages = self._convert_input(input).to_messages()
            question = _question(self, messages, ensure_config(config).get("metadata"), {**options, "stop": stop})
        if question is None:
            async for chunk in entry(self, input, config, stop=stop, **options):
                yield chunk
            return
        with question:
            if question.recorded is None:
                kept, chunks = _Kept(question), aiter(entry(self, input, config, stop=stop, **options))
                while (chunk := await question.anext(chunks)) is not None:
                    for shown in kept.swap(chunk):
                        yield shown
                yield kept.last()
            else:
                yield as_chunk(question.recorded)

    return stream


class _Kept:
    """The newest chunk of a stream, and the sum of those before it."""

    def __init__(self, question: _ModelRequest) -> None:
        self._question = question
        self._before: AIMessageChunk | None = None
        self._newest: AIMessageChunk | None = None
        self._said: dict[str, Any] = {}
        """What the provider says of the answer, the newest of each: LangChain's sum joins texts that each chunk has."""

    def swap(self, chunk: AIMessageChunk) -> Iterator[AIMessageChunk]:
        """Keep `chunk`; give out the one that was kept."""
        if self._newest is not None:
            yield self._newest
            self._before = self._newest if self._before is None else self._before + self._newest
        self._newest = chunk
        self._said |= chunk.response_metadata

    def last(self) -> AIMessageChunk:
        """The last chunk, when the whole answer is on record."""
        assert self._newest is not None, "LangChain raises where a stream has no chunk"
        whole = self._newest if self._before is None else self._before + self._newest
        recorded = self._question.close(whole.model_copy(update={"response_metadata": self._said}))
        added = {k: v for k, v in recorded.response_metadata.items() if k not in whole.response_metadata}
        return self._newest.model_copy(update={"response_metadata": {**self._newest.response_metadata, **added}})


def _recorded(question: _ModelRequest, result: ChatResult) -> ChatResult:
    first = result.generations[0]
    first.message = question.close(first.message)
    return result


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def _namespace(metadata: Mapping[str, Any] | None) -> str:
    """Of the task that asks; empty outside of a graph."""
    return str((metadata or {}).get("langgraph_checkpoint_ns", ""))


def _model_name(model: BaseChatModel, options: dict[str, Any]) -> str:
    said = model._get_ls_params(**options).get("ls_model_name")  # pyright: ignore[reportPrivateUsage]
    return str(said or type(model).__name__)
