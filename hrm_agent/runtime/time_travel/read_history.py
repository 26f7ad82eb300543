"""Reader of the history of a thread: from the record alone, and with the graph's help if its code
can be loaded.

The channels of a checkpoint name the nodes that it triggers (`branch:to:NODE`, a full `join:`, the
sent tasks), and a call names the checkpoints, of every enclosing graph, that its step started from.
So a history can be read without the code, also for a thread that the user's own program made with
`store.checkpointer`. If the graph's code exists, it is asked for the next nodes, since it also
knows deferred nodes and the functional API. `StateSnapshot.next` is not used, since it leaves out
tasks that have finished in an unfinished step; `tasks` includes them.

Without states (`values=False`), only the record is read for built-in graphs, whose channels name
all next nodes, and for threads without a graph: LangGraph takes most of a second to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hrm_agent.errors import GraphError, RunError, nearest
from hrm_agent.langgraph_format import (
    INPUT,
    INTERRUPT,
    SNAPSHOT_BUMPS,
    is_internal,
    is_reserved,
    namespace_parts,
    triggered_nodes,
)
from hrm_agent.runtime.execution.builtin_graphs import BUILTIN_GRAPHS
from hrm_agent.runtime.time_travel.history import (
    Branch,
    History,
    Moment,
    PendingInterrupt,
    Step,
    Subgraph,
)
from hrm_agent.store import RunStore
from hrm_agent.store.browse.state import outlines
from hrm_agent.store.checkpoints.reader import CheckpointOutline
from hrm_agent.store.values.plain_reader import NeedsItsType
from hrm_agent.trajectory import Call, ToolCall, Trajectory, content_hash

if TYPE_CHECKING:
    from langgraph.checkpoint.base import CheckpointTuple

    from hrm_agent.runtime.execution.loading import Graph

    Found = CheckpointTuple | CheckpointOutline

__all__ = ["history", "trajectory_id_of"]

C = TypeVar("C", Call, ToolCall)


def history(
    store: RunStore,
    thread: str,
    *,
    graph: Graph | None = None,
    branches: bool = True,
    values: bool = True,
) -> History:
    """History of a thread, named by its id or by its trajectory's. Raises `RunError` if there is
    none.

    `graph`: asked for the next nodes (None: the trajectory's, if it can be loaded). `branches`:
    also read threads that were forked from this one. `values`: False leaves the moments without the
    values of their channels.
    """
    trajectory = store.journal.find_trajectory(thread)
    thread_id = trajectory.thread_id if trajectory else thread
    moments = (
        None if values or graph is not None else _outlined_moments(store, thread_id, trajectory)
    )
    if moments is None:
        moments = _moments(store, thread_id, trajectory, graph, values)
    if not moments:
        from hrm_agent.runtime.execution.conversation import kept_elsewhere

        if (told := kept_elsewhere(trajectory)) is not None:
            raise told
        known = [found.thread_id for found in store.threads()]
        raise RunError(
            f"There is no checkpoint of thread {thread!r} in {store.url}. {nearest(thread, known)}".strip(),
            f"`hrm-agent history --store {store.url}` lists what there is.",
        )
    return History(
        thread_id,
        trajectory,
        moments,
        tuple(_branches(store, thread_id, values)) if branches else (),
    )


def _moments(
    store: RunStore,
    thread_id: str,
    trajectory: Trajectory | None,
    graph: Graph | None,
    values: bool,
) -> tuple[Moment, ...]:
    if graph is None and trajectory is not None:
        from hrm_agent.runtime.execution.loading import load_graph

        with suppress(GraphError):
            graph = load_graph(trajectory.graph)
    saver = store.checkpointer.allowing(graph) if graph is not None else store.checkpointer
    listed = sorted(saver.list({"configurable": {"thread_id": thread_id}}), key=_id)
    asked = _ask(graph.copy(update={"checkpointer": saver}), thread_id) if graph and listed else {}
    if not values:
        return tuple(HistoryReader(thread_id, trajectory, listed, asked).moments())
    from hrm_agent.runtime.state import StateReader

    state = StateReader(saver, graph, listed).values
    return tuple(HistoryReader(thread_id, trajectory, listed, asked, state).moments())


def _outlined_moments(
    store: RunStore, thread_id: str, trajectory: Trajectory | None
) -> tuple[Moment, ...] | None:
    """Moments without values (None if the record alone does not show all of them)."""
    if trajectory is not None and trajectory.graph not in BUILTIN_GRAPHS:
        return None
    try:
        listed = sorted(outlines(store, thread_id), key=_id)
    except NeedsItsType:
        return None
    moments = tuple(HistoryReader(thread_id, trajectory, listed, {}).moments())
    found = History(thread_id, trajectory, moments, ())
    if trajectory is not None and any(
        not asked.node for moment in found.walk() for asked in moment.questions
    ):
        return None  # the graph knows whose question it is
    return moments


def trajectory_id_of(thread_id: str) -> str:
    """Id of a thread's trajectory, as `Episode.trajectory_id`, also for a thread that no episode
    made.
    """
    return content_hash("trajectory", thread_id)[:16]


def _branches(store: RunStore, thread_id: str, values: bool) -> Iterator[Branch]:
    for other in store.journal.forks_of(trajectory_id_of(thread_id)):
        with suppress(RunError):  # its checkpoints were deleted
            at = other.forked_from.checkpoint_id if other.forked_from else ""
            yield Branch(at, history(store, other.thread_id, values=values))


class HistoryReader:
    """Builder of the moments of one thread from its checkpoints."""

    def __init__(
        self,
        thread_id: str,
        trajectory: Trajectory | None,
        listed: Sequence[Found],
        asked: Mapping[str, dict[str, str]],
        values: Callable[[Any], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        """`listed`: the thread's checkpoints, oldest first. `asked`: facts from the graph; see
        `_ask`. `values`: reads the state at one of them; the default leaves states out.
        """
        self._thread_id = thread_id
        self._asked = asked
        self._values = values
        self._by_id = {_id(found): found for found in listed}
        self._within = _grouped(listed, _around)
        """Checkpoint id -> checkpoints of the subgraphs that its step ran (empty id: those of the
        graph itself).
        """
        self._ended = {_parent(found) for found in listed if found.metadata.get("source") == "loop"}
        """Ids of checkpoints whose step is over."""
        self._index: dict[str, str] = {}
        self._calls = self._by_start(trajectory.calls if trajectory else ())
        self._tool_calls = self._by_start(trajectory.tool_calls if trajectory else ())

    def moments(self) -> list[Moment]:
        return self._numbered(self._within.get("", []), "")

    def some(self, numbers: Mapping[str, int], ids: Iterable[str]) -> list[Moment]:
        """Moments of some of the checkpoints, if only these and their neighbours were listed.

        `numbers`: id of each checkpoint of the graph itself -> its number among all.
        """
        self._index |= {id_: str(numbers[id_]) for id_ in self._by_id if id_ in numbers}
        return [self._moment(self._by_id[id_]) for id_ in ids if id_ in self._by_id]

    def _numbered(self, checkpoints: Sequence[Found], prefix: str) -> list[Moment]:
        self._index |= {_id(found): f"{prefix}{number}" for number, found in enumerate(checkpoints)}
        return [self._moment(found) for found in checkpoints]

    def _by_start(self, calls: Iterable[C]) -> dict[str, list[C]]:
        """Calls by the checkpoints, one of each enclosing graph, that their step started from."""
        grouped: dict[str, list[C]] = {}
        for call in calls:
            found = self._by_id.get(call.identity.checkpoint_id)
            around = found.metadata.get("parents", {}) if found else {}
            for start in {
                *around.values(),
                call.identity.checkpoint_id,
                call.identity.root_checkpoint_id,
            }:
                grouped.setdefault(start, []).append(call)
        return grouped

    def _moment(self, found: Found) -> Moment:
        parent = self._by_id.get(_parent(found))
        source = str(found.metadata.get("source", ""))
        over = _id(found) in self._ended
        begun = Step() if over else self._step(found, None)
        return Moment(
            index=self._index[_id(found)],
            thread_id=self._thread_id,
            checkpoint_id=_id(found),
            namespace=_namespace(found),
            parent=_parent(found) or None,
            step=int(found.metadata.get("step", -1)),
            source=source,
            created_at=found.checkpoint["ts"],
            ran=self._step(parent, found) if parent and source == "loop" else Step(),
            next=tuple(self._tasks(found).values()),
            questions=(
                ()
                if over
                else tuple({asked.id: asked for asked in self._questions(found)}.values())
            ),
            under_way=begun if begun.calls or begun.tool_calls or begun.inside else None,
            values={
                name: value for name, value in self._values(found).items() if not is_internal(name)
            },
        )

    def _step(self, start: Found, end: Found | None) -> Step:
        """Step from `start`. `end`: its next checkpoint (None while the step is not over: a kill, a
        failure, a question).
        """
        calls = tuple(self._calls.get(_id(start), ()))
        tool_calls = tuple(self._tool_calls.get(_id(start), ()))
        spans = [(call.started_at, call.ended_at) for call in calls]
        spans += [(tool.started_at, tool.started_at + tool.duration_seconds) for tool in tool_calls]
        span = max(end for _, end in spans) - min(start for start, _ in spans) if spans else None
        runs = _grouped(self._within.get(_id(start), []), _namespace)
        prefix = self._index.get(_id(start), "")
        return Step(
            nodes=tuple(self._tasks(start).values()) or (_seen_since(start, end) if end else ()),
            calls=calls,
            tool_calls=tool_calls,
            seconds=_between(start, end) if span is None and end else span,
            inside=tuple(
                Subgraph(
                    *_innermost(namespace),
                    tuple(self._numbered(checkpoints, f"{prefix}.{number}.")),
                )
                for number, (namespace, checkpoints) in enumerate(runs.items())
            ),
        )

    def _tasks(self, found: Found) -> dict[str, str]:
        """Task id -> node. Task ids that the record does not hold are replaced by numbers."""
        asked = self._asked.get(_id(found))
        names = triggered_nodes(found.checkpoint["channel_values"])
        return asked or {str(number): name for number, name in enumerate(names)}

    def _questions(self, found: Found) -> Iterator[PendingInterrupt]:
        """Interrupts of tasks that have not finished since."""
        writes = found.pending_writes or []
        finished = {task for task, channel, _ in writes if not is_reserved(channel)}
        for task, channel, value in writes:
            if channel == INTERRUPT and task not in finished:
                for asked in cast("Sequence[Any]", value):
                    yield PendingInterrupt(asked.id, asked.value, self._node_of(found, task))

    def _node_of(self, found: Found, task: str) -> str:
        """Node of a task by its id, else the only node."""
        tasks = self._tasks(found)
        names = set(tasks.values())
        return tasks.get(task) or (names.pop() if len(names) == 1 else "")


def _ask(graph: Graph, thread_id: str) -> dict[str, dict[str, str]]:
    """Checkpoint id -> task id -> node, according to the graph's code; empty if it is no longer the
    same graph.
    """
    with suppress(Exception):
        snapshots = graph.get_state_history({"configurable": {"thread_id": thread_id}})
        return {
            str(snapshot.config.get("configurable", {})["checkpoint_id"]): {
                t.id: t.name for t in snapshot.tasks
            }
            for snapshot in snapshots
        }
    return {}


def _seen_since(start: Found, end: Found) -> tuple[str, ...]:
    """Nodes that saw new versions of their channels. In a graph whose channels name no triggers,
    these are the nodes that ran.
    """
    before = start.checkpoint["versions_seen"]
    after = end.checkpoint["versions_seen"]
    return tuple(
        name
        for name in after
        if name not in (INPUT, SNAPSHOT_BUMPS) and after[name] != before.get(name)
    )


def _between(start: Found, end: Found) -> float:
    began, ended = (datetime.fromisoformat(found.checkpoint["ts"]) for found in (start, end))
    return max(0.0, (ended - began).total_seconds())


def _grouped(found: Iterable[Found], key: Callable[[Found], str]) -> dict[str, list[Found]]:
    groups: dict[str, list[Found]] = {}
    for checkpoint in found:
        groups.setdefault(key(checkpoint), []).append(checkpoint)
    return groups


def _id(found: Found) -> str:
    return str(found.checkpoint["id"])


def _namespace(found: Found) -> str:
    return str(found.config.get("configurable", {}).get("checkpoint_ns", ""))


def _parent(found: Found) -> str:
    """Id of the checkpoint before; empty for a root."""
    return str((found.parent_config or {}).get("configurable", {}).get("checkpoint_id", ""))


def _around(found: Found) -> str:
    """Id of the checkpoint of the enclosing graph whose step contains this one; empty for a
    checkpoint of the outermost graph.
    """
    around = found.metadata.get("parents", {})
    innermost = max(around, key=lambda namespace: len(namespace_parts(namespace)), default="")
    return around[innermost] if around and _namespace(found) else ""


def _innermost(namespace: str) -> tuple[str, str]:
    """Node and task id of the innermost task; the id is empty for a subgraph that keeps its state
    between runs.
    """
    part = next(part for part in reversed(namespace_parts(namespace)) if not part.is_number)
    return part.node, part.task_id
