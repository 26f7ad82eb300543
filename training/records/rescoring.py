"""Rescoring of stored runs, by another rubric or a changed one.

Scores are stored beside the record (`hrm_agent.trajectory.Scoring`), under the name of their
rubric. Nothing is sampled, and no lease is taken. Runs in progress are left out; a later call of
`rescore` finds them. Scores are written twice a second, so that a killed call loses almost nothing,
and the next call goes on from there.

If no reward reads calls, only the header of a trajectory is read. The state is read only if a
reward needs it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from hrm_agent.errors import RunError, StoreError
from hrm_agent.rewards import Rollout, Scorer
from hrm_agent.rewards.rubric import RECORD, STATE
from hrm_agent.runtime.newest_state import newest_state
from hrm_agent.store import RunStore
from hrm_agent.training.rollout.eligibility import SECOND_ATTEMPT
from hrm_agent.training.tasks.own_verifier import VERIFIER
from hrm_agent.trajectory import RunStatus, Scoring, Trajectory

__all__ = ["Again", "Rescored", "can_be_scored", "rescore"]

Again = Literal["", "faults", "all"]
"""Trajectories that are scored again although the rubric's code is unchanged: none (empty), those
whose score has a fault, or all.
"""
_AT_ONCE = 128
"""Maximum number of groups that are read and scored at a time."""
_SECONDS_BETWEEN_WRITES = 0.5


@dataclass(slots=True)
class Rescored:
    """Result of scoring stored runs."""

    rubric: str
    """Name of the scorings."""
    code: str
    """Digest of the rubric's module (empty for a rubric without a source file)."""
    scored: int = 0
    """Trajectories scored by this call."""
    skipped: int = 0
    """Trajectories that had been scored by the same code."""
    replaced: Counter[str] = field(default_factory=Counter[str])
    """Digest of other code -> number of trajectories whose scores by that code were replaced."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Reason -> number of trajectories that were not scored."""
    trajectories: list[Trajectory] = field(default_factory=list[Trajectory])
    """Headers of trajectories that have a scoring now, in the order in which they began."""
    scorings: dict[str, Scoring] = field(default_factory=dict[str, Scoring])
    """Trajectory id -> its current scoring, made by this call or before."""


async def rescore(
    store: RunStore,
    scorer: Scorer,
    headers: Sequence[Trajectory],
    *,
    wanted: Collection[str] | None = None,
    again: Again = "",
    on_scored: Callable[[int], object] | None = None,
) -> Rescored:
    """Score the ended trajectories among `headers`. `wanted`: ids of the trajectories to score
    (None: all). If the rubric compares rollouts, the rest of their groups is scored, too.

    `on_scored`: called with the number of newly scored trajectories. Raises `RunError` if the
    rubric needs states and no trajectory has a state any more, `HrmError` for a rubric that cannot
    work, and `StoreError` if a state has a type that is not allowed.
    """
    return await _Rescoring(store, scorer, headers, again, on_scored).of(wanted)


def can_be_scored(trajectory: Trajectory) -> str:
    """Reason why a trajectory cannot be scored (empty if it can)."""
    match trajectory.status:
        case RunStatus.RUNNING:
            return "still under way"
        case RunStatus.ABORTED:
            return "stopped from outside"
        case RunStatus.FAILED if trajectory.answer is None:  # else the verifier failed
            return "failed, without an answer"
        case _:
            return ""


class _Rescoring:
    def __init__(
        self,
        store: RunStore,
        scorer: Scorer,
        headers: Sequence[Trajectory],
        again: Again,
        on_scored: Callable[[int], object] | None,
    ) -> None:
        self._store = store
        self._scorer = scorer
        self._headers = headers
        self._again = again
        self._on_scored = on_scored
        self._threads = {header.thread_id for header in headers}
        self._wants = scorer.rubric.wants
        self._standing = store.scorings.by_rubric(scorer.rubric.name)
        self._found = Rescored(scorer.rubric.name, scorer.code)
        self._written: list[Scoring] = []
        self._writing = asyncio.Lock()
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def of(self, wanted: Collection[str] | None) -> Rescored:
        groups = self._groups(wanted)
        due = [group for group in groups if any(map(self._is_due, group))]
        if STATE in self._wants and due:
            there = self._store.threads_with_checkpoints()
            ended = [trajectory for group in due for trajectory in group]
            if not any(trajectory.thread_id in there for trajectory in ended):
                raise RunError(
                    f"The rubric {self._scorer.rubric.name!r} reads the state, but none of the"
                    f" {len(ended)} trajectories has a state on record any more: their"
                    " checkpoints were deleted.",
                    "Score them by a rubric that reads text, calls or tool_calls, which are still"
                    " on record.",
                )
        self._found.skipped = sum(map(len, groups)) - sum(map(len, due))
        await self._score_all(due)
        known = {trajectory.id for group in groups for trajectory in group} & self._standing.keys()
        self._found.trajectories = [header for header in self._headers if header.id in known]
        self._found.scorings = {id_: self._standing[id_] for id_ in known}
        return self._found

    def _groups(self, wanted: Collection[str] | None) -> list[list[Trajectory]]:
        """Trajectories to score, as groups. If no reward compares rollouts, each trajectory is a
        group.
        """
        comparing = any(part.compares for part in self._scorer.rubric.parts)
        grouped: defaultdict[tuple[str, str], list[Trajectory]] = defaultdict(list)
        for header in self._headers:
            alone = not comparing or not header.group_id
            grouped[("", header.id) if alone else (header.run_id, header.group_id)].append(header)
        kept: list[list[Trajectory]] = []
        for group in grouped.values():
            if wanted is not None and not any(t.id in wanted for t in group):
                continue
            if comparing and len(group) > 1 and any(t.status is RunStatus.RUNNING for t in group):
                self._found.left_out["of a group that is still under way"] += len(group)
                continue
            reasons = [self._left_out(trajectory, comparing) for trajectory in group]
            self._found.left_out.update(filter(None, reasons))
            rest = [each for each, reason in zip(group, reasons, strict=True) if not reason]
            if rest:
                kept.append(rest)
        return kept

    def _left_out(self, trajectory: Trajectory, comparing: bool) -> str:
        if comparing and trajectory.thread_id + SECOND_ATTEMPT in self._threads:
            return "run once more: the second attempt is compared"
        if self._scorer.rubric.name == VERIFIER and trajectory.turns:
            return "a later turn asks for something else than the task"
        return can_be_scored(trajectory)

    def _is_due(self, trajectory: Trajectory) -> bool:
        scoring = self._standing.get(trajectory.id)
        if scoring is None or self._again == "all" or scoring.code != self._scorer.code:
            return True
        return self._again == "faults" and any(score.fault is not None for score in scoring.scores)

    async def _score_all(self, due: Sequence[Sequence[Trajectory]]) -> None:
        """Score all groups. If a write fails, scoring ends, since later scores would be
        lost, too.
        """
        over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as writing:
                writing.create_task(self._flush_until(over))
                async with asyncio.TaskGroup() as tasks:
                    for group in due:
                        await self._gate.acquire()
                        tasks.create_task(self._score(group))
                over.set()
        except ExceptionGroup as group:
            raise _first(group) from None
        finally:
            await self._flush()

    async def _score(self, group: Sequence[Trajectory]) -> None:
        try:
            if self._wants & (RECORD | {STATE}):
                rollouts = await asyncio.to_thread(self._read, group)
            else:
                rollouts = [Rollout(header) for header in group]
            if not rollouts:
                return
            scorings = await self._scorer.score(rollouts)
        finally:
            self._gate.release()
        for scoring in scorings:
            before = self._standing.get(scoring.trajectory_id)
            if before is not None and before.code != scoring.code:
                self._found.replaced[before.code] += 1
            self._standing[scoring.trajectory_id] = scoring
        self._written += scorings
        self._found.scored += len(scorings)
        if self._on_scored is not None:
            self._on_scored(len(scorings))

    def _read(self, group: Sequence[Trajectory]) -> list[Rollout]:
        found: list[Rollout] = []
        for header in group:
            try:
                whole = self._store.journal.with_calls(header) if self._wants & RECORD else header
                state = None
                if STATE in self._wants:
                    state = newest_state(self._store, header.thread_id, header.graph)
                found.append(Rollout(whole, state))
            except StoreError as error:
                from hrm_agent.store.values.refusals import UnknownType

                if isinstance(error.__cause__, UnknownType):
                    raise StoreError(
                        error.message, "Name your own types: --allow package.module:Class."
                    ) from error
                self._found.left_out["cannot be read: `hrm-agent store verify` lists why"] += 1
        return found

    async def _flush_until(self, over: asyncio.Event) -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _SECONDS_BETWEEN_WRITES)
            await self._flush()

    async def _flush(self) -> None:
        async with self._writing:
            scorings = self._written
            self._written = []
            if scorings:
                await asyncio.to_thread(self._store.scorings.write, scorings)


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
