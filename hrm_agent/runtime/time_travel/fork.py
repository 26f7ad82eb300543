"""Time travel: look at a run's moments, fork one of them, and compare the outcomes.

    found = history(store, "legs")                       the tree of its checkpoints
    episodes = fork(store, "legs", "before:tools")       a new thread that begins at that moment
    group = await siblings(runner, "legs", 3, count=8)   eight of them, in parallel, as one group
    thread_diff(store, "legs", "legs/fork-1")            the last common moment, and the differences

A fork is a thread that shares the lineage of another one up to the chosen checkpoint, which has the
same id in both. The original is unchanged, and nothing that they share is sampled again.
LangGraph's own way (`invoke` with an old checkpoint's id) puts the new branch into the same thread,
which then continues from the newest checkpoint of any branch. `history` shows such branches too.

Forks of one call are one group, like the rollouts of one task in training. They share a `group_id`
and count their `sample_index`, and each has a seed of its own, derived from the base seed and its
thread's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count as numbers
from typing import Any, NamedTuple

from hrm_agent.errors import ConfigError, GraphError, RunError
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.conversation import CONFIGURABLE
from hrm_agent.runtime.execution.loading import Graph, load_graph
from hrm_agent.runtime.execution.run_context import options_on_record, run_context
from hrm_agent.runtime.time_travel.history import (
    Branch,
    History,
    Moment,
    PendingInterrupt,
    Selector,
    Step,
    Subgraph,
)
from hrm_agent.runtime.time_travel.read_history import history, trajectory_id_of
from hrm_agent.runtime.time_travel.state_edits import Edit, edited_channels, write_edit
from hrm_agent.runtime.time_travel.thread_diff import Change, DiffSide, ThreadDiff, thread_diff
from hrm_agent.store import RunStore
from hrm_agent.trajectory import ForkRef, TaskRef, Trajectory, derive_seed

__all__ = [
    "Branch",
    "Change",
    "DiffSide",
    "Edit",
    "GroupMembership",
    "History",
    "Moment",
    "PendingInterrupt",
    "Selector",
    "Step",
    "Subgraph",
    "ThreadDiff",
    "fork",
    "history",
    "siblings",
    "thread_diff",
]


class GroupMembership(NamedTuple):
    """Place of a thread in a group, and the run that requested it."""

    group_id: str
    """Id shared by the threads of the group."""
    sample_index: int
    """Index within the group, from 0."""
    run_id: str = ""
    """Run that requested the group; empty for a person's fork."""


def fork(
    store: RunStore,
    thread: str,
    at: Selector = "last",
    *,
    edit: Edit | Mapping[str, Any] | None = None,
    count: int = 1,
    name: str | None = None,
    joins: GroupMembership | None = None,
    seed: int | None = None,
    graph: str | None = None,
    task: TaskRef | None = None,
    context: Mapping[str, Any] | None = None,
    verify: Callable[[str], float | Mapping[str, float]] | None = None,
    policy: str | None = None,
    policy_version: int | None = None,
    keep: Callable[[Episode], object] | None = None,
) -> list[Episode]:
    """Record `count` forks of `thread` at a moment, as one group, without running them.

    `edit`: an `Edit`, or new values by channel. `name`: name of the group, and with `count` 1 of
    its thread; else its threads are `name/0`, `name/1` and so on (None: `THREAD/fork-1`, or the
    next free number). `joins`: makes a single fork a member of an existing group, instead of a
    group of its own. `seed`: base of the siblings' seeds (None: drawn from the system). `graph`,
    `task`, `context`, `verify`, `policy`: as for an episode (None: those of the record). `graph` is
    required if the thread was made without a runner and is to be edited or run. `keep`: called with
    each episode before it is recorded, to save its options. Raises `RunError` and `ConfigError`,
    before anything is written.
    """
    if count < 1:
        raise ConfigError(f"{count} forks were asked for.", "Ask for 1 or more.")
    wanted = edit if isinstance(edit, Edit) else Edit(values=edit or {})
    if wanted.as_node is not None and not wanted:
        raise ConfigError(
            f"as_node {wanted.as_node!r} is given without an edit.",
            "Add an edit: --set, --message or --tool.",
        )
    graph_name = graph or _graph_of(store, thread)
    known = store.journal.find_trajectory(thread, requests=False)
    asked = task or (known.task if known is not None else None)
    configurable = asked.metadata.get(CONFIGURABLE, {}) if asked is not None else {}
    compiled = _compiled(store, graph_name, configurable) if wanted else None
    found = history(store, thread, graph=compiled or _loadable(graph, configurable), branches=False)
    moment = _of_the_graph(found, at)
    values = edited_channels(wanted, moment, compiled) if compiled is not None else {}
    options = options_on_record(
        store, found.thread_id, known.task if known else None, moment.checkpoint_id
    )
    context = (options.context or {}) if context is None else context
    group = name or _free_name(store, found.thread_id)
    origin = found.trajectory or _unrecorded(found, moment)
    left = ForkRef(trajectory_id=_owner(store, found, moment), checkpoint_id=moment.checkpoint_id)
    episodes = [
        Episode(
            task=task or _with_configurable(origin.task, options.configurable),
            thread_id=thread_id,
            graph=graph_name,
            run_id=joins.run_id if joins else "",
            group_id=joins.group_id if joins else group,
            sample_index=joins.sample_index if joins else index,
            seed=None if seed is None else derive_seed(seed, "sibling", thread_id),
            context=context,
            verify=verify,
            forked_from=left,
        )
        for index, thread_id in enumerate(
            [group] if count == 1 else [f"{group}/{i}" for i in range(count)]
        )
    ]
    _refuse_known(store, episodes)
    at_work = run_context(compiled, context, graph_name) if compiled is not None else None
    changes = {"policy": policy or origin.policy}
    changes |= {
        "policy_version": origin.policy_version if policy_version is None else policy_version
    }
    inputs = sum(earlier.source == "input" for earlier in found.lineage(moment))
    changes |= {
        "turns": (
            found.trajectory.turns[: max(inputs - 1, 0)] if found.trajectory is not None else ()
        )
    }
    for episode in episodes:
        if keep is not None:
            keep(episode)
        store.fork_thread(found.thread_id, episode.thread_id, moment.checkpoint_id)
        if compiled is not None:
            write_edit(compiled, episode.thread_id, found, moment, values, wanted.as_node, at_work)
        store.journal.write_trajectory(episode.begun(origin.policy).model_copy(update=changes))
    return episodes


async def siblings(
    runner: EpisodeRunner,
    thread: str,
    at: Selector = "last",
    *,
    concurrency: int = 64,
    **options: Any,
) -> list[Trajectory]:
    """Fork like `fork`, and run the forks in parallel; return their trajectories, in order of
    `sample_index`.
    """
    known = options.get("task") or getattr(
        runner.store.journal.find_trajectory(thread, requests=False), "task", None
    )
    configurable = known.metadata.get(CONFIGURABLE, {}) if known is not None else {}
    _compiled(runner.store, options.get("graph") or _graph_of(runner.store, thread), configurable)
    version = getattr(runner.backend, "policy_version", 0)
    episodes = fork(
        runner.store, thread, at, policy=runner.policy, policy_version=version, **options
    )
    return await runner.run_all(episodes, concurrency=concurrency)


def _with_configurable(task: TaskRef, configurable: Mapping[str, Any]) -> TaskRef:
    """Task with its `configurable` at the moment of the fork."""
    if configurable == task.metadata.get(CONFIGURABLE, {}):
        return task
    return task.model_copy(update={"metadata": {**task.metadata, CONFIGURABLE: configurable}})


def _graph_of(store: RunStore, thread: str) -> str:
    known = store.journal.find_trajectory(thread)
    return known.graph if known is not None else ""


def _loadable(name: str | None, configurable: Mapping[str, Any]) -> Graph | None:
    """Named graph, which declares the types of the states (None if its code is missing: a fork does
    not need it).
    """
    with suppress(GraphError):
        return load_graph(name, configurable) if name else None
    return None


def _compiled(store: RunStore, name: str, configurable: Mapping[str, Any]) -> Graph:
    """Graph over the store's checkpoints, since an edit uses its channels and its edges."""
    if not name:
        raise RunError(
            "The graph of this thread is not recorded.", "Name the graph, to edit or to run a fork."
        )
    graph = load_graph(name, configurable)
    return graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})


def _of_the_graph(found: History, at: Selector) -> Moment:
    moment = found.select(at)
    if moment.namespace:
        outer = moment.index.partition(".")[0]
        raise RunError(
            f"Moment {moment.index} lies inside a subgraph, which runs as one step of the graph"
            " around it.",
            f"Fork at the moment that this step started from: {outer}.",
        )
    return moment


def _free_name(store: RunStore, thread_id: str) -> str:
    taken = {known.group_id for known in store.threads()} | {
        known.thread_id for known in store.threads()
    }
    return next(
        name for number in numbers(1) if (name := f"{thread_id}/fork-{number}") not in taken
    )


def _refuse_known(store: RunStore, episodes: Sequence[Episode]) -> None:
    known = {thread.thread_id for thread in store.threads()}
    for episode in episodes:
        if episode.thread_id in known:
            raise RunError(
                f"Thread {episode.thread_id!r} exists already.", "Give the fork another name."
            )


def _unrecorded(found: History, moment: Moment) -> Trajectory:
    """Trajectory of a thread that the user's own program made: its name, and its prompt."""
    messages: Any = moment.values.get("messages") or ()
    asked = next(
        (message.text for message in messages if getattr(message, "type", "") == "human"), ""
    )
    return Trajectory(
        id=trajectory_id_of(found.thread_id),
        thread_id=found.thread_id,
        task=TaskRef(id=found.thread_id, family="thread", prompt=asked),
        graph="",
        policy="",
        started_at=0.0,
    )


def _owner(store: RunStore, found: History, moment: Moment) -> str:
    """Id of the trajectory that made a moment. Earlier moments of a fork belong to the thread that
    it left.
    """
    owner = found.trajectory
    owner_id = trajectory_id_of(found.thread_id)
    while owner is not None and owner.forked_from is not None:
        shared = next(
            (m for m in found.moments if m.checkpoint_id == owner.forked_from.checkpoint_id), None
        )
        if shared is None or moment.checkpoint_id not in {
            m.checkpoint_id for m in found.lineage(shared)
        }:
            return owner.id
        owner_id = owner.forked_from.trajectory_id
        owner = store.journal.find_trajectory(owner_id)
    return owner.id if owner is not None else owner_id
