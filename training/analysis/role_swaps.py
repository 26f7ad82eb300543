"""Swaps of single roles: the gain if one role of a graph had another policy.

Each recorded run is repeated once for each role that it called, with another policy in this role
alone. A request that is equal to a recorded one, at the same place of the run and by a role that is
not swapped, gets the recorded answer: its seed follows from its place and its text, so that it
would be sampled again with the same noise. Other requests are asked. So everything before the first
call of the swapped role costs nothing, and neither does what follows an unchanged answer. A run
without a call of the role is its own swap.

Results of tools are taken from the record until the first request is asked. From then on tools are
run, since a session may hold other values than the recorded one, even if it has printed the same.

    swapped run    what a run of the graph with this policy in this role would be, from the same seed
    gain           mean over tasks of its outcome less the recorded one, paired

The swapped runs are recorded in a store of their own, on threads named by the role. A finished run
is not repeated, and a recorded call is not asked again. Under a budget the swaps of a run begin when
those of the run before have ended. If the budget is used up, the result is based on the first runs
whose swaps have all ended. A run with a swap that could not be judged is left out on both sides.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from hrm_agent.errors import HrmError, RunError
from hrm_agent.models import ActivePolicy
from hrm_agent.models.call_recording import adopt_call
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.run_group import run_group
from hrm_agent.store import RunStore
from hrm_agent.training.evaluation.budget import Meter, RequestTotal
from hrm_agent.training.evaluation.compare import Comparison, compare
from hrm_agent.training.evaluation.metered import MeteredRecording, Stuck, run_until_refused
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.rollout.eligibility import Why, fault_of, needs_second_attempt
from hrm_agent.training.rollout.rollout import second_attempt
from hrm_agent.training.rollout.scoring import Score
from hrm_agent.trajectory import (
    AskedModel,
    Call,
    GraphIdentity,
    Journal,
    RequestSize,
    TaskDraws,
    ToolCall,
    Trajectory,
)

__all__ = ["ALL", "RoleSwap", "SwapRecording", "SwappedRun", "best_role", "role_swaps"]

ALL = "all"
"""Name of the swap of all roles at once."""


@dataclass(frozen=True, slots=True)
class SwappedRun:
    """Recorded run to repeat with swapped roles."""

    trajectory: Trajectory
    """Run that has ended and was judged, without its calls."""
    roles: frozenset[str]
    """Roles that it called."""
    context: Mapping[str, Any]
    """LangGraph's run context of the run."""
    seed: int
    """Base of the seeds of its calls."""
    verify: Callable[[str], float | Mapping[str, float]] | None = None
    """Verifier of the final text (None: a rubric scores the run)."""
    verify_run: Callable[[Trajectory], float | Mapping[str, float] | None] | None = None
    """Verifier of the whole run, in place of `verify`."""


@dataclass(frozen=True, slots=True)
class RoleSwap:
    """Result of the swap of one role."""

    role: str
    """Name of the role, or `ALL`."""
    called: int
    """Number of runs that called the role."""
    comparison: Comparison
    """Recorded runs against swapped ones, on the same tasks."""
    asked: RequestTotal
    """Requests to the swapped policy."""
    asked_others: RequestTotal
    """Requests to the policies of the other roles."""
    unjudged: int
    """Number of runs that are left out for all roles, since a swap of theirs could not be judged."""

    @property
    def gain(self) -> float:
        """Difference of accuracy, in [-1, 1]."""
        return self.comparison.difference.value

    @property
    def clear(self) -> bool:
        """True if the 95 % interval of the gain lies above 0, and the exact test agrees. With a few
        tasks the interval alone is too narrow.
        """
        return self.comparison.difference.low > 0 and self.comparison.certain

    @property
    def tokens(self) -> int:
        """Tokens of all requests."""
        return self.asked.tokens + self.asked_others.tokens

    @property
    def cost(self) -> float:
        """Money by the prices (nan if a model has no price)."""
        return self.asked.cost + self.asked_others.cost

    def for_a_point(self, amount: float) -> float:
        """An amount per gained percentage point (nan without a gain)."""
        return amount / (100 * self.gain) if self.gain > 0 else math.nan


def best_role(swaps: Iterable[RoleSwap]) -> str:
    """Role with the largest gain among those with a clear one (empty if there is none)."""
    gaining = [each for each in swaps if each.role != ALL and each.clear]
    return max(gaining, key=lambda each: each.gain).role if gaining else ""


async def role_swaps(
    runner: EpisodeRunner,
    source: RunStore,
    runs: Sequence[SwappedRun],
    roles: Sequence[str],
    swapped: ActivePolicy,
    score: Score,
    meter: Meter,
    *,
    run_id: str,
    together: bool = False,
    concurrency: int = 64,
    on_done: Callable[[Trajectory], object] | None = None,
) -> list[RoleSwap]:
    """Swaps of each of `roles`, in their order, and with `together` of all of them at once.

    `runner`: writes to a store of its own, as run `run_id`. `source`: store of `runs`. `swapped`:
    policy that replaces that of a role. Raises `RunError` if the budget does not suffice for one
    run, or no swap could be judged.
    """
    by_name = {role: frozenset({role}) for role in roles}
    if together:
        by_name[ALL] = frozenset(roles)
    work = [
        _Work(rank, run, name, swap, _episode(run, name, run_id))
        for rank, run in enumerate(runs)
        for name, swap in by_name.items()
        if run.roles & swap
    ]
    attempts = await _ended(runner, source, work, swapped, meter, concurrency, on_done)
    scored = [each[-1] for each in await score([(each[-1],) for each in attempts if each])]
    by_thread = {each.thread_id: each for each in scored}
    found = {
        (each.name, each.run.trajectory.thread_id): (*made[:-1], by_thread[made[-1].thread_id])
        for each, made in zip(work, attempts, strict=True)
        if made
    }
    ended = _ended_first(runs, by_name, found)
    if not ended:
        raise RunError(
            "The budget does not suffice for the swaps of one run.", "Name a larger --budget."
        )
    based = list[SwappedRun]()
    faults = list[Why]()
    for run in ended:
        swaps = (found.get((name, run.trajectory.thread_id)) for name in by_name)
        fault = next(filter(None, (fault_of(each[-1]) for each in swaps if each)), None)
        if fault is None:
            based.append(run)
        else:
            faults.append(fault)
    if not based:
        raise RunError(
            f"None of {len(ended)} runs has swaps that could be judged: {faults[0][1]}.",
            "Repair the cause, and repeat the command.",
        )
    return [_result(name, by_name[name], based, found, meter, len(faults)) for name in by_name]


@dataclass(frozen=True, slots=True)
class _Work:
    rank: int
    run: SwappedRun
    name: str
    roles: frozenset[str]
    episode: Episode


def _episode(run: SwappedRun, name: str, run_id: str) -> Episode:
    origin = run.trajectory
    return Episode(
        task=origin.task,
        thread_id=f"{run_id}/{name}/{origin.thread_id}",
        graph=origin.graph,
        run_id=run_id,
        group_id=origin.group_id and f"{run_id}/{name}/{origin.group_id}",
        sample_index=origin.sample_index,
        seed=run.seed,
        context=run.context,
        verify=run.verify,
        verify_run=run.verify_run,
    )


async def _ended(
    runner: EpisodeRunner,
    source: RunStore,
    work: Sequence[_Work],
    swapped: ActivePolicy,
    meter: Meter,
    concurrency: int,
    on_done: Callable[[Trajectory], object] | None,
) -> list[Sequence[Trajectory]]:
    """Attempts of each piece of work (empty if the budget did not suffice)."""
    gate = asyncio.Semaphore(concurrency)
    errors = list[HrmError]()

    async def attempt(each: _Work, episode: Episode) -> Trajectory | None:
        try:
            return await _run(runner, source, each, episode, swapped, meter)
        except HrmError as error:
            # requests under way in other runs are answered and recorded, so none is asked twice
            meter.close()
            errors.append(error)
            return None

    async def run(each: _Work) -> Sequence[Trajectory]:
        async with gate:
            first = last = await attempt(each, each.episode)
            if first is not None and needs_second_attempt(first):
                last = await attempt(each, second_attempt(each.episode))
        if first is None or last is None:
            return ()
        if on_done is not None:
            on_done(last)
        return (last,) if last is first else (first, last)

    ends = list[Sequence[Trajectory]]()
    # parallel runs would share a budget that suffices for the swaps of one
    by_run = groupby(work, lambda each: each.rank if meter.limited else 0)
    for _, parallel in by_run:
        ends += await run_group([*parallel], run)
    if errors:
        raise errors[0]
    return ends


async def _run(
    runner: EpisodeRunner,
    source: RunStore,
    each: _Work,
    episode: Episode,
    swapped: ActivePolicy,
    meter: Meter,
) -> Trajectory | None:
    """Run, resume or read back an episode (None if a request of it was refused)."""
    journal = runner.store.journal
    if journal.is_over(episode.trajectory_id):
        return journal.trajectory(episode.trajectory_id)
    if meter.closed:
        return None
    origin = source.journal.with_calls(each.run.trajectory)
    draws = source.journal.draws_of(each.run.trajectory)
    before = journal.find_trajectory(episode.trajectory_id)
    stuck = Stuck(asyncio.get_running_loop())
    record = partial(
        SwapRecording,
        origin=origin,
        draws=draws,
        own=before.calls if before is not None else (),
        roles=each.roles,
        meter=meter,
        stuck=stuck,
    )
    alone = replace(runner, by_role=dict.fromkeys(each.roles, swapped), record=record)
    return await run_until_refused(alone, episode, stuck)


def _ended_first(
    runs: Sequence[SwappedRun],
    by_name: Mapping[str, frozenset[str]],
    found: Mapping[tuple[str, str], Sequence[Trajectory]],
) -> list[SwappedRun]:
    """First runs whose swaps have all ended. A choice among later ones would prefer short runs."""
    ended = list[SwappedRun]()
    for run in runs:
        swaps = (
            (name, run.trajectory.thread_id) for name, roles in by_name.items() if run.roles & roles
        )
        if any(each not in found for each in swaps):
            break
        ended.append(run)
    return ended


def _result(
    name: str,
    roles: frozenset[str],
    runs: Sequence[SwappedRun],
    found: Mapping[tuple[str, str], Sequence[Trajectory]],
    meter: Meter,
    unjudged: int,
) -> RoleSwap:
    swaps = [found.get((name, run.trajectory.thread_id), ()) for run in runs]
    after = [each[-1] if each else run.trajectory for each, run in zip(swaps, runs, strict=True)]
    calls = [call for attempts in swaps for each in attempts for call in each.own_calls]
    return RoleSwap(
        role=name,
        called=sum(map(bool, swaps)),
        comparison=compare(
            samples_of(run.trajectory for run in runs), samples_of(after), ("recorded", name)
        ),
        asked=meter.asked(call.id for call in calls if call.identity.role in roles),
        asked_others=meter.asked(call.id for call in calls if call.identity.role not in roles),
        unjudged=unjudged,
    )


class SwapRecording(MeteredRecording):
    """Recording that takes answers from a recorded run, and asks swapped roles and changed requests
    within a budget.
    """

    def __init__(
        self,
        journal: Journal,
        seed: int | None,
        inherited: Collection[str],
        *,
        origin: Trajectory,
        draws: Iterable[TaskDraws],
        own: Sequence[Call],
        roles: Collection[str],
        meter: Meter,
        stuck: Stuck,
    ) -> None:
        """`origin`: recorded run with its calls. `own`: calls of this run that earlier processes
        recorded.
        """
        super().__init__(journal, seed, inherited, meter=meter, stuck=stuck)
        self._roles = roles
        self._answers_lock = threading.Lock()
        taken = {(call.identity.path, call.started_at) for call in own}
        self._answers: defaultdict[tuple[Any, ...], list[Call]] = defaultdict(list)
        for call in origin.calls:
            if (call.identity.path, call.started_at) not in taken:
                self._answers[_place(call.identity, call.request_hash)].append(call)
        self._tools = {_key_of(tool): tool for tool in origin.tool_calls if tool.status is not None}
        self._origin_draws = {(each.identity.path, each.identity.attempt): each for each in draws}
        self._asks = any(meter.was_asked(call.id) for call in own)

    def claim(
        self,
        identity: GraphIdentity,
        request_hash: str,
        messages: Sequence[Any] = (),
        tools: Sequence[Any] = (),
        *,
        former_hash: str = "",
        model: AskedModel | None = None,
    ) -> Call | int:
        claimed = super().claim(
            identity, request_hash, messages, tools, former_hash=former_hash, model=model
        )
        if isinstance(claimed, Call):
            return claimed
        found = self._answer(identity, request_hash)
        if found is None:
            return claimed
        return adopt_call(self, found, identity, claimed, request_hash, messages)

    def _answer(self, identity: GraphIdentity, request_hash: str) -> Call | None:
        """Recorded answer to a request, which no other request gets (None if it is to be asked)."""
        if identity.role in self._roles:
            return None
        with self._answers_lock:
            found = self._answers[_place(identity, request_hash)]
            return found.pop(0) if found else None

    def may_ask(self, request: RequestSize) -> bool:
        accepted = super().may_ask(request)
        self._asks = self._asks or accepted
        return accepted

    def claim_tool_call(self, started: ToolCall) -> ToolCall | None:
        own = super().claim_tool_call(started)
        if own is not None or self._asks:
            return own
        with self._answers_lock:
            found = self._tools.pop(_key_of(started), None)
        if found is None:
            return None
        copy = found.model_copy(update={"id": started.id, "identity": started.identity})
        self.journal.write_tool_call(copy)
        return copy

    def _draws_on_record(self, identity: GraphIdentity) -> TaskDraws | None:
        own = super()._draws_on_record(identity)
        found = self._origin_draws.get((identity.path, identity.attempt))
        if own is not None or found is None:
            return own
        copy = found.model_copy(update={"identity": identity})
        self.journal.write_draws(identity.thread_id, copy.key, lambda: copy)
        return copy


def _place(identity: GraphIdentity, request_hash: str) -> tuple[Any, ...]:
    """Facts from which a call's seed is derived."""
    return identity.path, identity.attempt, request_hash


def _key_of(tool: ToolCall) -> tuple[str, str, str]:
    return tool.tool_call_id, tool.name, json.dumps(tool.arguments, sort_keys=True)
