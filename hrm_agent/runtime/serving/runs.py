"""Chat requests as episodes: admitted or refused, run on threads of their own, recorded like any
other.

A request that names its thread may be sent again: a finished run is read back, an interrupted one
continues from its newest checkpoint, and no model is asked twice for the same answer. If the thread
waits with a question (an `interrupt()`), the user's next message is the answer. A request without a
name gets a thread that no other client knows. When its client disconnects, no client can resume it,
so its run ends as aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessageChunk

from hrm_agent.basics.files import json_line
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.langgraph_format import END, INTERRUPT
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner
from hrm_agent.runtime.execution.conversation import CONFIGURABLE, fields_of
from hrm_agent.runtime.execution.loading import Graph, load_graph
from hrm_agent.runtime.execution.run_context import run_context
from hrm_agent.runtime.serving.answers import visible
from hrm_agent.runtime.serving.requests import ChatRequest, RefusedError
from hrm_agent.trajectory import RunStatus, Sampling, StopReason, Trajectory
from hrm_agent.trajectory.words import answer_thoughts

__all__ = ["AnswerStream", "Chats"]


class Chats:
    """Runs of a server, at most `concurrency` in parallel."""

    def __init__(
        self,
        runner: EpisodeRunner,
        graphs: Sequence[str],
        concurrency: int,
        context: Mapping[str, Any] | None = None,
        configurable: Mapping[str, Any] | None = None,
        keep: Callable[[Episode, Sampling], object] | None = None,
    ) -> None:
        """Load the graphs: a request names one of them and never code. Raises `GraphError`.

        `context`: options of the graphs, unless a request names its own; a request can only lower
        limits. Raises `ConfigError` for an option that no graph knows. `configurable`:
        `config["configurable"]` of every graph and factory. No request can set it, since it holds
        names of models, keys and addresses. `keep`: called with each run before it is recorded, to
        save its options.
        """
        self._configurable = dict(configurable or {})
        self.graphs = {
            name: frozenset(
                edge.source for edge in self._loaded(name).get_graph().edges if edge.target == END
            )
            for name in graphs
        }
        """Name of a graph -> nodes after which it may end."""
        self._context = {name: self._options(name, context or {}) for name in graphs}
        for option in context or {}:
            if not any(option in options for options in self._context.values()):
                raise ConfigError(
                    f"None of the graphs has an option {option!r}.", f"Served: {', '.join(graphs)}."
                )
        self._runner = runner
        self._concurrency = concurrency
        self._keep = keep
        self._threads: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    def _loaded(self, name: str) -> Graph:
        return load_graph(name, self._configurable)

    def _options(self, name: str, context: Mapping[str, Any]) -> dict[str, Any]:
        """Options in `context` that a graph has."""
        schema = self._loaded(name).context_schema
        known = fields_of(schema) if schema is not None else ()
        return {option: context[option] for option in known if option in context}

    @contextmanager
    def admitted(self, asked: ChatRequest, thread: str | None) -> Generator[Episode]:
        """Admit a request; return its episode, which holds its place inside the block. Raises
        `RefusedError`.
        """
        if asked.model not in self.graphs:
            known = ", ".join(self.graphs)
            raise RefusedError(
                404,
                f"No model of that name; there is {known}.",
                code="model_not_found",
                param="model",
            )
        if self.draining:
            raise RefusedError(503, "The server is shutting down.")
        if len(self._threads) >= self._concurrency:
            raise RefusedError(
                429, f"{self._concurrency} runs are under way.", code="rate_limit_exceeded"
            )
        name = thread or f"chat-{uuid4().hex}"
        if name in self._threads:
            raise RefusedError(409, "The thread is being run.", code="thread_busy")
        context = asked.context_over(self._context[asked.model])
        task = asked.task(name)
        if self._configurable:
            task = task.model_copy(
                update={"metadata": {**task.metadata, CONFIGURABLE: self._configurable}}
            )
        episode = Episode(task, name, graph=asked.model, seed=asked.seed, context=context)
        # report an unknown option at once
        run_context(self._loaded(asked.model), context, asked.model)
        self._threads.add(name)
        self._idle.clear()
        try:
            yield episode
        finally:
            self._threads.discard(name)
            if not self._threads:
                self._idle.set()

    async def run(
        self, asked: ChatRequest, episode: Episode, stream_out: AnswerStream, *, lasting: bool
    ) -> Trajectory:
        """Run, resume or read back an episode. `lasting`: the client may request the thread
        again.
        """
        sampling = asked.sampled_by(self._runner.sampling, self._runner.backend)
        runner = replace(self._runner, sampling=sampling, takes_up_stopped=True)
        known = runner.store.journal.find_trajectory(episode.trajectory_id)
        answer = NO_ANSWER
        if known is not None and (known.graph, known.task) != (episode.graph, episode.task):
            if known.graph != episode.graph or known.stop_reason is not StopReason.INTERRUPT:
                raise RefusedError(
                    409, "The thread is on record with another conversation.", code="thread_taken"
                )
            episode = replace(episode, task=known.task)
            answer = asked.said
        if known is None and self._keep is not None:
            self._keep(episode, runner.sampling)
        try:
            on_chunk = stream_out.on_chunk if asked.stream else None
            return await runner.run(episode, stream_out.on_update, answer=answer, on_chunk=on_chunk)
        except asyncio.CancelledError:
            if not lasting and not self.draining:
                self._abort(episode)
            raise

    def _abort(self, episode: Episode) -> None:
        journal = self._runner.store.journal
        # fails if another process holds the thread by now
        with suppress(RunError), self._runner.store.lease(episode.thread_id):
            known = journal.find_trajectory(episode.trajectory_id)
            if known is not None and known.status is RunStatus.RUNNING:
                ended = {
                    "status": RunStatus.ABORTED,
                    "stop_reason": StopReason.ABORTED,
                    "ended_at": time.time(),
                }
                journal.write_trajectory(known.model_copy(update=ended))

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and wait for running ones, for `seconds` at most."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


@dataclass(slots=True)
class AnswerStream:
    """Output of a run while it continues."""

    last_nodes: frozenset[str]
    """Nodes whose answers may be the run's."""
    stops: tuple[str, ...] = ()
    """Texts before which the content ends."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there is something new to send."""
    question: str | None = None
    """Question that the run waits with (None if there is none)."""
    sent: str = ""
    """Content that the client has been sent."""
    _nodes: list[str] = field(default_factory=list[str])
    """Nodes that have ended since the last call of `nodes`, with those around them."""
    _texts: dict[str, str] = field(default_factory=dict[str, str])
    """Text so far of each reply, by message id."""

    def on_update(self, around: tuple[str, ...], data: dict[str, Any]) -> None:
        for node, values in data.items():
            if node == INTERRUPT:
                asked = [
                    question.value
                    for question in {question.id: question for question in values}.values()
                ]
                self.question = "\n\n".join(
                    value if isinstance(value, str) else json_line(value) for value in asked
                )
            else:
                self._nodes.append("/".join((*around, node)))
        self.changed.set()

    def on_chunk(self, around: tuple[str, ...], node: str, piece: AIMessageChunk) -> None:
        if not around and node in self.last_nodes and piece.id and piece.text:
            self._texts[piece.id] = self._texts.get(piece.id, "") + piece.text
            self.changed.set()

    def nodes(self) -> list[str]:
        """Nodes that have ended since the last call."""
        ended = self._nodes
        self._nodes = []
        return ended

    def news(self) -> str:
        """New content of the answer that is being sampled."""
        for text in self._texts.values():
            shown = visible(text, self.stops, ended=False)
            if len(shown) > len(self.sent) and shown.startswith(self.sent):
                news = shown[len(self.sent) :]
                self.sent = shown
                return news
        return ""

    def content(self, ended: Trajectory) -> str:
        """Whole content of a run that has ended."""
        return (
            self.question if self.question is not None else visible(ended.answer or "", self.stops)
        )

    def thoughts(self, ended: Trajectory) -> str | None:
        """Thoughts behind the content (None: there are none). A question that the run waits with is
        the graph's, and has none.
        """
        return answer_thoughts(ended) if self.question is None else None

    def rest(self, ended: Trajectory) -> str:
        """Content that is still to be sent. If the whole content does not continue what was sent so
        far, all of it is sent, below that.
        """
        content = self.content(ended)
        if content.startswith(self.sent):
            return content[len(self.sent) :]
        return f"\n\n{content}"
