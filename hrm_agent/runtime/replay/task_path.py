"""Place of a task in a run, without the ids that LangGraph draws in each run.

A task's id is a hash of the checkpoint that its step started from, of its namespace and step, and
of its origin: the number of a `Send`, or the triggers of a node. LangGraph finds the writes of
stored threads by these ids, so the way in which they are made cannot change between its versions.
A task is identified by making the ids of all candidates again. The metadata of a subgraph's
checkpoint names the checkpoints of the graphs around it. So two runs of one graph agree on the
place of each task, at every depth, even if parallel branches make the same requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.pregel import Pregel

from hrm_agent.langgraph_format import PULL, PUSH, SENDS, namespace_parts, subgraphs_of, task_id_of
from hrm_agent.trajectory import GraphIdentity

__all__ = ["PathStep", "TaskPath", "TaskPathResolver", "in_words", "without_steps"]


_FUNCTIONAL = f"~{PUSH}, ~"
"""Prefix of LangGraph's name of a task of the functional API, before its caller and number."""


class PathStep(NamedTuple):
    """Task within its own graph."""

    step: int
    """LangGraph's number of the step within its graph."""
    node: str
    """Name of the node."""
    number: str
    """Number of the `Send` that made the task; empty for a node that its edges trigger. For a task
    of the functional API, the calls that led to it, if known.
    """


TaskPath = tuple[PathStep, ...]
"""Path of a task, from the outermost graph inwards."""


def without_steps(place: TaskPath) -> tuple[tuple[str, str], ...]:
    """Place without its steps, which is unchanged when a node is added before it."""
    return tuple((level.node, level.number) for level in place)


def in_words(place: TaskPath) -> str:
    """Nodes that lead to a task, with the number of the `Send` that made it: `solve/reason`."""
    named = [f"{level.node} {level.number}".rstrip() for level in place if level.node]
    return "/".join(named) or "a task of the functional API"


class TaskPathResolver:
    """Places of the tasks of one thread."""

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        thread_id: str,
        graph: Pregel[Any, Any, Any, Any],
        paths: Callable[[str], str] = lambda _: "",
    ) -> None:
        """`paths`: function from the id of a task that has written to LangGraph's name of the task
        (empty if unknown). The name distinguishes tasks of the functional API.
        """
        self._saver = saver
        self._thread_id = thread_id
        self._paths = paths
        graphs = (graph, *(inner for _, inner in subgraphs_of(graph)))
        self._triggers = {
            (name, tuple(sorted(node.triggers)))
            for each in graphs
            for name, node in each.nodes.items()
        }
        self._checkpoints: dict[tuple[str, str], CheckpointTuple | None] = {}

    def of(self, identity: GraphIdentity) -> TaskPath:
        """Place of a call."""
        parts = namespace_parts(identity.checkpoint_ns)
        namespace, own = (parts[-1].around, parts[-1].node) if parts else ("", "")
        step, _, rest = identity.path.partition("/")
        way = rest.partition("/")[2]
        index = way.removeprefix(f"{PUSH}/").removesuffix("/False") if way.startswith(PUSH) else ""
        around = self._around(namespace, identity.checkpoint_id, identity.root_checkpoint_id)
        return (*around, PathStep(int(step or 0), own, index))

    def of_write(self, namespace: str, checkpoint_id: str, task_id: str) -> TaskPath:
        """Place of the task that wrote to a checkpoint."""
        step = self._step(namespace, checkpoint_id)
        node, index = self._made_by(namespace, checkpoint_id, task_id, "")
        if not node and (path := self._paths(task_id)).startswith(_FUNCTIONAL):
            index = path
        return (*self._around(namespace, checkpoint_id, ""), PathStep(step, node, index))

    def of_checkpoint(self, found: CheckpointTuple) -> TaskPath:
        """Place of a graph's checkpoint: the tasks around the graph, and the step that led to it,
        without a node.
        """
        configured = found.config.get("configurable", {})
        around = self._around(configured["checkpoint_ns"], configured["checkpoint_id"], "")
        return (*around, PathStep(found.metadata.get("step", -1), "", ""))

    def is_within(self, place: TaskPath, what: str, identity: GraphIdentity, number: int) -> bool:
        """True if a place lies in a subgraph or task of the functional API (`what`) that a task
        ran.
        """
        task = self.of(identity)
        if what == "tasks":
            called = f"~{PUSH}, {self._paths(identity.task_id)}, {number:010d}, "
            return place[: len(task) - 1] == task[:-1] and any(
                called in level.number for level in place[len(task) - 1 :]
            )
        after = place[len(task)] if len(place) > len(task) else None
        numbered = (
            after is not None and after.node.isdecimal() and after == PathStep(0, after.node, "")
        )
        return place[: len(task)] == task and (after.node if after and numbered else "0") == str(
            number
        )

    def _around(self, namespace: str, checkpoint_id: str, root: str) -> Iterator[PathStep]:
        """Tasks around a graph."""
        found = self._checkpoint(namespace, checkpoint_id)
        parents: Mapping[str, str] = found.metadata.get("parents", {}) if found else {}
        for node, task_id, outer in namespace_parts(namespace):
            started = parents.get(outer) or (root if not outer else "")
            if not task_id:
                yield PathStep(0, node, "")
            else:
                index = self._made_by(outer, started, task_id, node)[1]
                yield PathStep(self._step(outer, started), node, index)

    def _made_by(
        self, namespace: str, checkpoint_id: str, task_id: str, node: str
    ) -> tuple[str, str]:
        """Node and `Send` of a task. `node`: its name, if known. Unknown parts are empty."""
        found = self._checkpoint(namespace, checkpoint_id)
        if found is None:
            return node, ""
        step = self._step(namespace, checkpoint_id)
        sends: Any = found.checkpoint["channel_values"].get(SENDS) or ()
        for index, send in enumerate(sends):
            if task_id_of(checkpoint_id, namespace, step, send.node, PUSH, str(index)) == task_id:
                return send.node, str(index)
        for name, triggers in self._triggers if not node else ():
            if task_id_of(checkpoint_id, namespace, step, name, PULL, *triggers) == task_id:
                return name, ""
        return node, ""

    def _step(self, namespace: str, checkpoint_id: str) -> int:
        """Number of the step that starts from a checkpoint."""
        found = self._checkpoint(namespace, checkpoint_id)
        return found.metadata.get("step", -1) + 1 if found else 0

    def _checkpoint(self, namespace: str, checkpoint_id: str) -> CheckpointTuple | None:
        key = (namespace, checkpoint_id)
        if checkpoint_id and self._checkpoints.get(key) is None:
            where = {
                "thread_id": self._thread_id,
                "checkpoint_ns": namespace,
                "checkpoint_id": checkpoint_id,
            }
            self._checkpoints[key] = self._saver.get_tuple({"configurable": where})
        return self._checkpoints.get(key)
