"""A LangChain chat model that records what it samples.

`PolicyModel` is what a graph calls. Behind it stands a token engine (exact ids and log-probs, trainable) or any other
LangChain chat model (recorded as text, marked as not trainable). However it is called (invoke, ainvoke, stream,
astream, batch, through `bind_tools` or `with_structured_output`), the call passes `open_turn` and `close_turn` once,
and its record is committed before the caller sees the answer.

Streaming shows text while it is sampled, up to the first tool call; tool calls come whole, in the last chunk. LangChain
rebuilds a streamed message from its chunks and thereby drops calls that could not be decoded, so those stand in
`response_metadata` too; `invalid_tool_calls` reads both.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, InvalidToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field

from hrm_agent.models.active import ActivePolicy, Backend, active_policy
from hrm_agent.models.engine import Completion, Engine, GenerationRequest
from hrm_agent.models.streaming import StreamDecoder
from hrm_agent.models.turns import Prefix, Turn, close_text_turn, close_turn, find_prefix, open_turn
from hrm_agent.trajectory import RECORDED, Call, GraphIdentity, Sampling, active_recording
from hrm_agent.trajectory.identity import graph_identity

__all__ = ["PolicyModel", "invalid_tool_calls", "policy"]

_INVALID = "invalid_tool_calls"


class PolicyModel(BaseChatModel):
    """A chat model whose calls are recorded with their exact tokens."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    backend: Any = Field(default=None, exclude=True)
    """An engine or another chat model; None uses the policy in force (`using_policy`)."""
    temperature: float | None = None
    """None uses the sampling parameters in force; so do the next three."""
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    metadata: dict[str, Any] | None = Field(default_factory=lambda: {RECORDED: True}, exclude=True)

    @property
    def _llm_type(self) -> str:
        return "hrm-agent-policy"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Offer `tools` with every call, in the conversation format of the policy's chat template."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    # the four ways in

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        job = self._open(messages, stop, run_manager, kwargs)
        return _result(job.recorded or job.finish(job.submit().result()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        job = self._open(messages, stop, run_manager, kwargs)
        return _result(job.recorded or job.finish(await asyncio.wrap_future(job.submit())))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        job = self._open(messages, stop, run_manager, kwargs)
        if job.recorded:
            yield _chunk(job.recorded, "")
            return
        tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        future = job.submit(tokens.put)
        future.add_done_callback(lambda _: tokens.put(None))
        text = _TextStream(job)
        for token in iter(tokens.get, None):
            yield from text.add(token)
        yield _chunk(job.finish(future.result()), text.shown)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        job = self._open(messages, stop, run_manager, kwargs)
        if job.recorded:
            yield _chunk(job.recorded, "")
            return
        loop, tokens = asyncio.get_running_loop(), asyncio.Queue[int | None]()

        def on_token(token: int) -> None:
            loop.call_soon_threadsafe(tokens.put_nowait, token)

        future = job.submit(on_token)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(tokens.put_nowait, None))
        text = _TextStream(job)
        while (token := await tokens.get()) is not None:
            for chunk in text.add(token):
                yield chunk
        yield _chunk(job.finish(await asyncio.wrap_future(future)), text.shown)

    def _open(
        self, messages: list[BaseMessage], stop: list[str] | None, run_manager: Any, options: dict[str, Any]
    ) -> _Job:
        active = ActivePolicy(self.backend) if self.backend is not None else active_policy()
        return _Job(active.backend, messages, self._sampling(active.sampling, stop, options), run_manager, options)

    def _sampling(self, base: Sampling, stop: list[str] | None, options: dict[str, Any]) -> Sampling:
        """Parameters of the call itself, then of this model, then those in force; of token limits the lowest holds."""
        names = ("temperature", "top_p", "max_tokens", "seed")
        own = {name: options.get(name, getattr(self, name)) for name in names}
        given = {name: value for name, value in own.items() if value is not None}
        given["max_tokens"] = min(base.max_tokens, given.get("max_tokens", base.max_tokens))
        return Sampling.model_validate({**base.model_dump(), **given, **({"stop": tuple(stop)} if stop else {})})


class _Job:
    """One call on its way through a backend."""

    def __init__(
        self,
        backend: Backend,
        messages: list[BaseMessage],
        sampling: Sampling,
        run_manager: Any,
        options: dict[str, Any],
    ) -> None:
        recording = active_recording()
        identity = _identity(run_manager)
        self.backend, self.journal, self.options = backend, recording.journal, options
        opened = open_turn(recording, identity, messages, options.get("tools", ()), sampling)
        self.recorded = AIMessage.model_validate(opened.response) if isinstance(opened, Call) else None
        self.turn = opened if isinstance(opened, Turn) else None
        self.prefix: Prefix | None = None

    def submit(self, on_token: Callable[[int], None] | None = None) -> Future[Any]:
        """Start sampling; the future gives a `Completion`, or the message of a model without tokens."""
        assert self.turn is not None
        if isinstance(self.backend, BaseChatModel):
            return _ask_in_thread(self.backend, self.turn, self.options)
        self.prefix = find_prefix(self.journal, self.backend, self.turn)
        request = GenerationRequest(self.prefix.prompt_ids, self.turn.sampling, self.turn.messages, on_token)
        return self.backend.submit(request)

    def finish(self, answer: Completion | AIMessage) -> AIMessage:
        """Commit the record, then hand out the message."""
        assert self.turn is not None
        if isinstance(answer, AIMessage):
            call, message = close_text_turn(self.turn, _model_name(self.backend), answer)
        else:
            engine: Engine = self.backend  # pyright: ignore[reportAssignmentType]
            assert self.prefix is not None
            call, message = close_turn(self.turn, self.prefix, engine, answer)
        self.journal.write_call(call)
        return message

    @property
    def id(self) -> str:
        return self.turn.call_id if self.turn else ""


def _identity(run_manager: Any) -> GraphIdentity:
    """LangGraph's identity; LangChain passes no run manager when a model is streamed, but the config is in context."""
    if run_manager is None:
        return graph_identity(ensure_config().get("metadata"), str(uuid4()))
    return graph_identity(run_manager.metadata, str(run_manager.run_id))


def _ask_in_thread(model: BaseChatModel, turn: Turn, options: dict[str, Any]) -> Future[Any]:
    """Ask a chat model that is not ours. In a thread, because sync and async callers share one way."""
    future: Future[Any] = Future()
    tools, choice = options.get("tools"), options.get("tool_choice")
    runnable: Any = model.bind_tools(tools, **({"tool_choice": choice} if choice else {})) if tools else model
    stop = list(turn.sampling.stop) or None

    def ask() -> None:
        try:
            future.set_result(runnable.invoke(list(turn.messages), config={"callbacks": []}, stop=stop))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return future


def _model_name(backend: Backend) -> str:
    name = getattr(backend, "model_name", None) or getattr(backend, "model", None)
    return str(name or type(backend).__name__)


class _TextStream:
    """Turns tokens into the chunks that may be shown before the turn ends."""

    def __init__(self, job: _Job) -> None:
        self.shown = ""
        self._id = job.id
        self._decoder = None if isinstance(job.backend, BaseChatModel) else StreamDecoder(job.backend.codec.decode)

    def add(self, token: int) -> Iterator[ChatGenerationChunk]:
        text = self._decoder.push(token) if self._decoder else ""
        if text:
            self.shown += text
            yield ChatGenerationChunk(message=AIMessageChunk(content=text, id=self._id))


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])


def _chunk(message: AIMessage, shown: str) -> ChatGenerationChunk:
    """The last chunk of a stream: what was not shown yet, the tool calls and the metadata."""
    text = str(message.content)
    metadata = dict(message.response_metadata)
    if message.invalid_tool_calls:
        metadata[_INVALID] = message.invalid_tool_calls
    usage: UsageMetadata | None = message.usage_metadata
    last = AIMessageChunk(
        content=text[len(shown) :] if text.startswith(shown) else "",
        id=message.id,
        tool_call_chunks=[
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i)
            for i, call in enumerate(message.tool_calls)
        ],
        response_metadata=metadata,
        usage_metadata=usage,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=last)


def invalid_tool_calls(message: AIMessage) -> list[InvalidToolCall]:
    """The tool calls of a message that could not be decoded, whether it was streamed or not."""
    return message.invalid_tool_calls or message.response_metadata.get(_INVALID, [])


def policy(**sampling: Any) -> PolicyModel:
    """The chat model of the policy in force; `sampling` fixes temperature, top_p, max_tokens or seed for its calls."""
    return PolicyModel(**sampling)
