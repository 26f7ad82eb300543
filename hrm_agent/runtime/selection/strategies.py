"""Modes of choosing one answer among several runs of a task.

    outcome = await solve(runner, episode, Mode("search", n=4))
    outcome.trajectory.answer, outcome.chosen, outcome.candidates

* `single`: one run.
* `best-of-n`: n parallel runs. One that the graph's critic accepted is preferred, else a judge is
  asked.
* `majority`: n parallel runs. The most frequent answer is chosen.
* `search`: one run. While its critic does not accept it, the best open run is forked at the moment
  before the blamed step (`hrm_agent.runtime.selection.critic_search`), into `width` parallel forks,
  up to n runs in all. If no run is open, a new one is started.

The task's own thread `T` holds the run that chooses (`hrm_agent.runtime.selection.choice`), a run
like any other: its trajectory has the answer and the reward in every mode. The candidates are the
threads `T/0`, `T/1` and so on, one group named `T`. An `Overlay` records whether each was chosen.
All names and seeds follow from the index in the group, so that a killed mode is resumed by calling
it again: finished runs are read back, and a search takes the same path.

If a candidate waits for a person and no other one is good enough, the choice stays open: T is
running until the question is answered (on the candidate's thread) and the mode is called again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hrm_agent.errors import RunError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.runtime.selection.choice import CHOICE_GRAPH, Candidate, is_choice
from hrm_agent.runtime.selection.critic_search import (
    RetryPoint,
    accepted,
    find_retry_point,
    require_verdict,
)
from hrm_agent.runtime.settings import ModeName
from hrm_agent.runtime.time_travel.fork import GroupMembership, History, fork, history
from hrm_agent.store import RunStore
from hrm_agent.trajectory import Overlay, RunStatus, StopReason, Trajectory, Verdict, derive_seed

__all__ = ["ONE_RUN", "Mode", "OnCandidate", "Outcome", "solve"]

OnCandidate = Callable[[Trajectory], object]
"""Called with each candidate when it has ended, in any order."""


@dataclass(frozen=True, slots=True)
class Mode:
    """Mode: number of runs of a task, and choice of an answer."""

    name: ModeName = "single"
    """Name of the mode."""
    n: int = 4
    """Maximum runs in all; a search may need fewer."""
    width: int = 2
    """Parallel forks of one moment in a search."""


ONE_RUN = Mode()


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a mode."""

    trajectory: Trajectory
    """Trajectory of the task's own thread. Its status is `running` while a candidate waits for a
    person.
    """
    candidates: tuple[Trajectory, ...]
    """Candidates in the order of their numbers; the run itself if it is the only one."""
    chosen: str | None
    """Thread of the chosen candidate (None if there is no choice)."""
    reason: str = ""
    """Reason for the choice, in words."""


async def solve(
    runner: EpisodeRunner,
    episode: Episode,
    mode: Mode,
    *,
    gate: asyncio.Semaphore | None = None,
    keep: Callable[[Episode], object] | None = None,
    on_candidate: OnCandidate | None = None,
) -> Outcome:
    """Run an episode by a mode, resume it, or read it back.

    `gate`: bounds the number of parallel runs. `keep`: called with each candidate before it is
    recorded. Raises `ConfigError` if the graph lacks something that the mode needs, before anything
    is written.
    """
    gate = gate or asyncio.Semaphore(mode.n)
    if mode.name == "single":
        (trajectory,) = await runner.run_all([episode], gate=gate, on_done=on_candidate)
        return Outcome(trajectory, (trajectory,), trajectory.thread_id)
    if mode.name == "search":
        require_verdict(episode.graph)
    group = _Group(runner, episode, mode, gate, keep or _ignore, on_candidate or _ignore)
    return await group.outcome()


def _ignore(_: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _Group:
    """Candidates of one task, and the choice among them."""

    runner: EpisodeRunner
    """Runner of the candidates and of the choice."""
    episode: Episode
    """Episode of the task itself; candidates are made from it."""
    mode: Mode
    """Number of candidates, and the choice among them."""
    gate: asyncio.Semaphore
    """Semaphore that bounds the number of parallel runs."""
    keep: Callable[[Episode], object]
    """Called with each candidate before it is recorded."""
    on_candidate: OnCandidate
    """Called with each candidate when it has ended."""

    @property
    def store(self) -> RunStore:
        return self.runner.store

    async def outcome(self) -> Outcome:
        known = self._begun()
        stopped = known.status in (RunStatus.FAILED, RunStatus.ABORTED)
        if known.status is not RunStatus.RUNNING and not (stopped and self.runner.takes_up_stopped):
            found = self.store.journal.trajectories(group_id=self.episode.thread_id)
            return self._concluded(
                known, sorted(found, key=lambda candidate: candidate.sample_index)
            )
        candidates = (
            await self._search()
            if self.mode.name == "search"
            else await self._run(range(self.mode.n))
        )
        entries = [_as_candidate(self.store, candidate) for candidate in candidates]
        if _waits(candidates, entries):
            return Outcome(known, tuple(candidates), None)
        # the critic judges, if the graph's roles have models of their own
        models: Any = self.episode.context.get("models")
        options = {
            "mode": self.mode.name,
            "candidates": entries,
            "judge": (
                cast("Mapping[str, str]", models).get("critic")
                if isinstance(models, Mapping)
                else None
            ),
        }
        choice = replace(self.episode, graph=CHOICE_GRAPH, context=options)
        return self._concluded(await self.runner.run(choice), candidates)

    def _begun(self) -> Trajectory:
        """Trajectory of the task's own thread, recorded before its candidates."""
        thread = self.episode.thread_id
        known = self.store.journal.find_trajectory(thread)
        if known is not None and not is_choice(known.graph):
            raise RunError(
                f"Thread {thread!r} is on record as a single run of {known.graph!r}.",
                f"Name another thread, or resume it as it was: `hrm-agent resume {thread}`.",
            )
        return known or self.runner.begin(replace(self.episode, graph=CHOICE_GRAPH))

    # candidates

    def _candidate(self, index: int) -> Episode:
        base = self.episode.seed
        return replace(
            self.episode,
            thread_id=f"{self.episode.thread_id}/{index}",
            group_id=self.episode.thread_id,
            sample_index=index,
            seed=None if base is None else derive_seed(base, "candidate", index),
        )

    async def _run(self, indices: Sequence[int]) -> list[Trajectory]:
        episodes = [self._candidate(index) for index in indices]
        for episode in episodes:
            self.keep(episode)
        # A search has decided by how its runs ended. So stopped runs are not continued, and a
        # search that is resumed takes the same path.
        again = self.runner.takes_up_stopped and self.mode.name != "search"
        runner = replace(self.runner, takes_up_stopped=again)
        return await runner.run_all(episodes, gate=self.gate, on_done=self.on_candidate)

    async def _search(self) -> list[Trajectory]:
        tried = await self._run([0])
        left: set[str] = set()
        while len(tried) < self.mode.n and not any(map(self._ends_search, tried)):
            place = self._best_open(
                [candidate for candidate in tried if candidate.thread_id not in left]
            )
            if place is None:
                tried += await self._run([len(tried)])
                continue
            parent, blame = place
            left.add(parent.thread_id)
            indices = range(len(tried), min(len(tried) + self.mode.width, self.mode.n))
            for index in indices:
                self._fork(parent, blame, index)
            tried += await self._run(indices)
        return tried

    def _ends_search(self, candidate: Trajectory) -> bool:
        if candidate.stop_reason is StopReason.INTERRUPT:
            return True
        return candidate.status is not RunStatus.FAILED and bool(accepted(self._history(candidate)))

    def _best_open(self, candidates: Sequence[Trajectory]) -> tuple[Trajectory, RetryPoint] | None:
        """Run with the fewest subgoals to solve again; of several the newest, which has followed
        the most hints.
        """
        found = [
            (candidate, find_retry_point(self._history(candidate)))
            for candidate in reversed(candidates)
        ]
        places = [(candidate, blame) for candidate, blame in found if blame is not None]
        return min(places, key=lambda place: place[1].again, default=None)

    def _fork(self, parent: Trajectory, blame: RetryPoint, index: int) -> None:
        """Record a fork, unless it is recorded. A fork that was killed halfway is made again."""
        wanted = self._candidate(index)
        if self.store.journal.find_trajectory(wanted.thread_id) is not None:
            return
        self.store.checkpointer.delete_thread(wanted.thread_id)
        fork(
            self.store,
            parent.thread_id,
            blame.moment,
            edit=blame.values,
            name=wanted.thread_id,
            joins=GroupMembership(wanted.group_id, index, wanted.run_id),
            graph=wanted.graph,
            context=wanted.context,
            policy=self.runner.policy,
            policy_version=getattr(self.runner.backend, "policy_version", 0),
        )

    def _history(self, candidate: Trajectory) -> History:
        return history(self.store, candidate.thread_id, branches=False)

    # the choice

    def _concluded(self, choice: Trajectory, candidates: Sequence[Trajectory]) -> Outcome:
        state = newest_state(self.store, choice.thread_id, CHOICE_GRAPH) or {}
        chosen = state.get("chosen")
        reason = str(state.get("reason", choice.error or ""))
        self.store.journal.write_overlays(
            [_judged(candidate, chosen, reason) for candidate in candidates]
        )
        return Outcome(choice, tuple(candidates), chosen, reason)


def _as_candidate(store: RunStore, candidate: Trajectory) -> Candidate:
    failed = candidate.status in (RunStatus.FAILED, RunStatus.ABORTED)
    return Candidate(
        thread=candidate.thread_id,
        answer=candidate.answer,
        stop_reason=candidate.stop_reason.value if candidate.stop_reason else "",
        accepted=accepted(history(store, candidate.thread_id, branches=False)),
        error=(candidate.error or candidate.status.value) if failed else None,
    )


def _waits(candidates: Sequence[Trajectory], entries: Sequence[Candidate]) -> bool:
    """True if a candidate waits for a person, and no other one was accepted or, in a graph without
    a critic, has answered.
    """
    judged = any(entry["accepted"] is not None for entry in entries)
    fine = [c["accepted"] if judged else c["stop_reason"] == StopReason.ANSWER for c in entries]
    return not any(fine) and any(
        candidate.stop_reason is StopReason.INTERRUPT for candidate in candidates
    )


def _judged(candidate: Trajectory, chosen: str | None, reason: str) -> Overlay:
    kept = candidate.thread_id == chosen
    return Overlay(
        run_id=candidate.run_id,
        step=0,
        trajectory_id=candidate.id,
        group_id=candidate.group_id,
        reward=candidate.reward,
        verdict=Verdict.KEPT if kept else Verdict.DROPPED,
        reason=(
            f"chosen: {reason}"
            if kept
            else f"{chosen} was chosen"
            if chosen
            else f"none was chosen: {reason}"
        ),
        penalty_error=0.0,
        penalty_format=0.0,
    )
