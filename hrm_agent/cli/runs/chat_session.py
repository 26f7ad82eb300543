"""Conversation on a thread: sending turns, going back, and forking, independent of the syntax of
commands.

The current position is the newest moment of a thread. Going to another moment makes a fork, and the
old thread is unchanged. One event loop serves the whole session, since an environment's connections
belong to the loop in which they were opened. The loop runs only during a turn, not at the prompt.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from hrm_agent.cli.common.citations_view import values_of
from hrm_agent.cli.common.index_check import refuse_missing_index
from hrm_agent.cli.runs.chat_screen import Screen
from hrm_agent.cli.runs.fork import fork_thread, is_begun
from hrm_agent.cli.runs.run import (
    RunConfig,
    as_given,
    context_given,
    keep_options,
    known_config,
    refuse_other_options,
    refuse_unkept_options,
)
from hrm_agent.config import build_config
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.import_by_name import file_named
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner, policy_for
from hrm_agent.runtime.execution.conversation import takes_turns
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.execution.run_context import run_context
from hrm_agent.runtime.replay.player import Replay, replay_async
from hrm_agent.runtime.time_travel.fork import Edit, History, Moment, PendingInterrupt, history
from hrm_agent.store import Lease, RunStore
from hrm_agent.store.database.leases import CHAT, COMMAND
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory

__all__ = ["ChatSession", "new_name"]


def new_name() -> str:
    return time.strftime("chat-%Y%m%d-%H%M%S-") + secrets.token_hex(2)


class ChatSession:
    """Conversation, open on one thread at a time. No other process can use the thread meanwhile."""

    def __init__(self, store: RunStore, config: RunConfig, screen: Screen) -> None:
        self.store = store
        self.config = config
        self.screen = screen
        self.thread = ""
        self.as_before = True
        """True if the current options are those with which the newest turn of the thread was
        started.
        """
        self._loop = asyncio.Runner()
        self._open = AsyncExitStack()
        self._held = ExitStack()
        self._lease: Lease | None = None
        self._runner: EpisodeRunner | None = None

    def __enter__(self) -> Self:
        self._loop.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._loop.run(self._open.aclose())
        finally:
            self._held.close()
            self._loop.__exit__(kind, error, trace)

    # current position

    @property
    def known(self) -> Trajectory | None:
        """Record of the thread, without its calls (None before the first message)."""
        return next(iter(self.store.journal.headers("thread_id = ?", (self.thread,))), None)

    def stand_on(self, thread: str, config: RunConfig | None = None) -> None:
        """Switch to a new or recorded thread, or back to a thread that another process took over.
        Raises `RunError` if another process is using it.

        `config`: options for the thread (None: those it was run with, or the current options for a
        new thread).
        """
        known = self.store.journal.find_trajectory(thread)
        thread = known.thread_id if known is not None else thread
        if thread == self.thread and not self._is_lost:
            return
        if known is None and (
            self.store.checkpointer.get_tuple({"configurable": {"thread_id": thread}}) is not None
        ):
            raise RunError(
                f"Thread {thread!r} has checkpoints but no recorded run, since hrm-agent did not"
                " make it.",
                f"Fork it first: `hrm-agent fork {thread} --graph GRAPH --name NAME`.",
            )
        if known is not None and config is None:
            config = build_config(
                RunConfig, known_config(self.store, known), f"of thread {thread!r}"
            )
        if thread == self.thread:
            self._held.close()
        held = ExitStack()
        self._lease = held.enter_context(self.store.lease(thread, CHAT))
        self._held.close()
        self._held = held
        self.thread = thread
        self._use(config or self.config)
        self.screen.remember(known.prompts if known is not None else ())

    @property
    def _is_lost(self) -> bool:
        return self._lease is not None and self._lease.error is not None

    def _refuse_lost(self) -> None:
        """Raise `RunError` if another process has taken over the thread. The user has to see the
        new messages before sending another one.
        """
        if self._is_lost:
            raise RunError(
                f"Another process took over thread {self.thread!r} while this one was stopped or"
                " cut off.",
                f"Run `/threads {self.thread}` to continue from its current state.",
            )

    def _use(self, config: RunConfig) -> None:
        """Use options for the thread. If they have changed, the next turn opens a new runner.
        Raises `RunError` if `config` names another graph than the thread's.
        """
        known = self.known
        if known is not None and file_named(config.graph) != file_named(known.graph):
            raise RunError(
                f"Thread {self.thread!r} belongs to graph {known.graph!r}.",
                f"Leave out --graph, or fork it: `hrm-agent fork {self.thread} --graph"
                f" {config.graph}`.",
            )
        self.as_before = known is None or _is_alike(self.store, self.thread, config)
        if self._runner is not None and config != self.config:
            self._loop.run(self._open.aclose())
            self._open = AsyncExitStack()
            self._runner = None
        self.config = config

    def history(self) -> History:
        if self.known is None:
            raise RunError("Nothing has been said yet.", "Say something.")
        return history(self.store, self.thread)

    @property
    def values(self) -> Mapping[str, Any]:
        """State at the current position."""
        return values_of(self.store, self.thread, self.config.graph)

    def questions(self) -> tuple[PendingInterrupt, ...] | None:
        """Questions that wait for an answer (empty at a breakpoint, None if the thread does not
        wait).
        """
        known = self.known
        if known is None or known.stop_reason is not StopReason.INTERRUPT:
            return None
        return history(self.store, self.thread, branches=False).last.questions

    @property
    def cut_short(self) -> bool:
        """True if a turn was running when the process of the thread ended. False for a fork that
        was not started.
        """
        known = self.known
        return (
            known is not None and known.status is RunStatus.RUNNING and is_begun(self.store, known)
        )

    @property
    def can_resume(self) -> bool:
        """True if the newest turn is unfinished, or was stopped by the user, by an error, or at a
        limit.
        """
        known = self.known
        open_ = (RunStatus.RUNNING, RunStatus.ABORTED, RunStatus.FAILED)
        return known is not None and (
            known.status in open_ or known.stop_reason is StopReason.RECURSION_LIMIT
        )

    # turns

    def say(self, text: str) -> Trajectory:
        """Send the next turn. The first message of a thread is its task."""
        self._refuse_lost()
        known = self.known
        if known is None:
            task = TaskRef(
                id=self.thread, family="chat", prompt=text, metadata=self.config.task_options()
            )
            return self._turn(task)
        return self._turn(known.task, say=text)

    def resume(self, answer: Any = NO_ANSWER) -> Trajectory:
        """Answer a waiting question, or resume an interrupted or stopped turn."""
        self._refuse_lost()
        known = self.known
        if known is None:
            raise RunError("Nothing has been said yet.", "Say something.")
        if answer is NO_ANSWER and not self.can_resume:
            raise RunError("No turn is under way.", "Say something.")
        return self._turn(known.task, answer=answer)

    def _turn(self, task: TaskRef, **options: Any) -> Trajectory:
        config = self.config
        refuse_unkept_options(task, self.thread, config)
        context = context_given(task, config)
        episode = Episode(
            as_given(task, config),
            self.thread,
            graph=config.graph,
            seed=config.seed,
            context=context,
        )
        screen = self.screen
        try:
            with self.store.lease(self.thread, COMMAND), screen.turn():
                keep_options(self.store, self.thread, config)
                if self._runner is None:
                    backend = policy_for(
                        self.config.policy, self.config.graph, stand_in=self.config.stand_in
                    )
                    entered = self._open.enter_async_context(
                        EpisodeRunner.open(
                            self.store, self.config.policy, self.config, backend=backend
                        )
                    )
                    self._runner = replace(self._loop.run(entered), takes_up_stopped=True)
                return self._loop.run(
                    self._runner.run(
                        episode,
                        screen.on_update,
                        on_chunk=screen.on_chunk,
                        on_event=screen.on_event,
                        **options,
                    )
                )
        except KeyboardInterrupt:
            # The user stopped the turn. It is marked as aborted, so that it is not resumed
            # automatically.
            known = self.known
            if known is not None and known.status is RunStatus.RUNNING:
                ended = {
                    "status": RunStatus.ABORTED,
                    "stop_reason": StopReason.ABORTED,
                    "ended_at": time.time(),
                }
                self.store.journal.write_trajectory(known.model_copy(update=ended))
            raise

    def check(self, before: Mapping[str, Any]) -> None:
        """Raise an error for invalid options before the first message. `before`: options of the
        recorded thread.
        """
        if self.config.mode != "single":
            raise ConfigError(
                f"--mode {self.config.mode} cannot be used in a chat, which is a single run.",
                "Leave out --mode.",
            )
        if before and before.get("prompts", {}) != self.config.prompts:
            raise RunError(
                "The turns of this thread have other prompts, and a thread is replayed with the same"
                " ones.",
                "Leave out --prompts, or name a new --thread.",
            )
        graph = load_graph(self.config.graph, self.config.configurable)
        if not takes_turns(graph):
            raise ConfigError(
                f"Graph {self.config.graph!r} cannot be used in a chat, since its input has no"
                " messages.",
                f"Run one task: `hrm-agent run TEXT --graph {self.config.graph}`.",
            )
        context = run_context(graph, self.config.context, self.config.graph)
        # with unchanged options, recorded answers are used, which need no index
        if self.config.context != before.get("context"):
            refuse_missing_index(context, self.config.context)

    # branching

    def turns_back(self, count: int) -> Moment | None:
        """Moment before the last `count` turns, which is the end of an earlier turn (None for the
        beginning).
        """
        found = self.history()
        inputs = [moment for moment in found.lineage() if moment.source == "input"]
        if not 1 <= count <= len(inputs):
            raise RunError(f"There are {len(inputs)} turns, not {count}.", "See /history.")
        parent = inputs[-count].parent
        return next((moment for moment in found.moments if moment.checkpoint_id == parent), None)

    def fork(self, at: Moment | None, name: str | None = None) -> None:
        """Fork at a moment and switch to the new thread. With None, switch to an empty thread."""
        if at is None:
            self.stand_on(name or new_name())
            return
        (episode,) = fork_thread(
            self.store, self.thread, at.checkpoint_id, self.config, edit=Edit(), name=name
        )
        self.stand_on(episode.thread_id)
        # at the end of a turn, no node runs, but the end has to be recorded
        if not at.next and not at.questions:
            self._turn(episode.task)

    def replay(self) -> Replay:
        if self.known is None:
            raise RunError("Nothing has been said yet.", "Say something.")
        return self._loop.run(replay_async(self.store, self.thread))


def _is_alike(store: RunStore, thread: str, config: RunConfig) -> bool:
    try:
        refuse_other_options(store, thread, config)
    except RunError:
        return False
    return True
