"""Headers of the journal: the own fields of trajectories, and their descent from others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hrm_agent.store.database.cursors import Cursor, answered
from hrm_agent.store.journal.records import HEADERS, JournalTables
from hrm_agent.store.values.damage import OnDamage
from hrm_agent.trajectory import CheckpointLineage, RunStatus, Trajectory

__all__ = ["TrajectoryHeaders"]

_LINE = """
WITH RECURSIVE line (id, parent_id, depth) AS (
    SELECT id, parent_id, 0 FROM checkpoints WHERE thread_id = ? AND ns = ? AND id = ?
    UNION ALL SELECT c.id, c.parent_id, l.depth + 1 FROM checkpoints c JOIN line l ON c.id = l.parent_id
    WHERE c.thread_id = ? AND c.ns = ? AND l.depth < 200000
)
SELECT id, parent_id FROM line ORDER BY depth DESC
"""


class TrajectoryHeaders(JournalTables):
    """Trajectories of a store without their calls."""

    def write_trajectory(self, trajectory: Trajectory) -> None:
        """Write a trajectory's own fields. Its calls are written one by one, as they happen.

        A trajectory that has ended is not overwritten, unless it is resumed (`RunStatus.RUNNING`).
        """
        header = HEADERS.dump(trajectory)
        row = (
            trajectory.id,
            trajectory.run_id,
            trajectory.group_id,
            trajectory.thread_id,
            trajectory.status.value,
            trajectory.started_at,
            trajectory.forked_from.trajectory_id if trajectory.forked_from else None,
            self._cipher.seal(header, HEADERS.word, trajectory.id),
        )

        held = self._database.held.of(trajectory.thread_id)
        held = held if held is not None and held.new and trajectory.forked_from is None else None

        def write(cursor: Cursor) -> None:
            query = (
                "INSERT INTO trajectories (id, run_id, group_id, thread_id, status, started_at,"
                " origin, record) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " status = excluded.status, record = excluded.record WHERE trajectories.status = ?"
                " OR excluded.status = ? RETURNING 1"
            )
            if (
                answered(
                    cursor, query, (*row, RunStatus.RUNNING.value, RunStatus.RUNNING.value), (1,)
                )
                is not None
            ):
                _describe_thread(cursor, trajectory)
                if held is not None:
                    held.header = header

        if self._database.joins(held) and trajectory.status is RunStatus.RUNNING:
            stop = self._database.fence.stopping(trajectory.thread_id, held.lease)
            self._database.defer(write, trajectory.thread_id, stop, self._database.joined_seconds)
        else:
            self._database.add(write, trajectory.thread_id)

    def is_over(self, trajectory_id: str) -> bool:
        """True if a trajectory is on record and not running."""
        query = "SELECT 1 FROM trajectories WHERE id = ? AND status <> ?"
        with self._database.peek() as cursor:
            return (
                cursor.execute(query, (trajectory_id, RunStatus.RUNNING.value)).fetchone()
                is not None
            )

    def count_trajectories(self, run_id: str | None = None) -> int:
        """Number of trajectories on record, readable or not."""
        where, values = ("1 = 1", ()) if run_id is None else ("run_id = ?", (run_id,))
        ((count,),) = self._rows(f"SELECT count(*) FROM trajectories WHERE {where}", values)
        return int(count)

    def headers(
        self, where: str = "1 = 1", values: Sequence[Any] = (), on_damage: OnDamage | None = None
    ) -> list[Trajectory]:
        """Trajectories without their calls.

        `on_damage` is called for an unreadable one, which is then left out. By default `StoreError`
        is raised.
        """
        return self._headers.read(where, values, on_damage)

    def threads_behind(self, header: Trajectory) -> list[tuple[str, set[str]]]:
        """Threads that a fork descends from, oldest first, with the steps that it shares with
        each.
        """
        left: list[tuple[str, set[str]]] = []
        steps: set[str] | None = None
        fork = header
        seen = {header.thread_id}
        while fork.forked_from is not None:
            taken = fork.forked_from.checkpoint_id
            before = self.line(fork.thread_id, "", taken).order.keys() - {taken}
            steps = before if steps is None else steps & before
            origin = self.headers("id = ?", (fork.forked_from.trajectory_id,))
            # forks may form a cycle in a forged store
            if not origin or origin[0].thread_id in seen:
                break
            fork = origin[0]
            seen.add(fork.thread_id)
            left.append((fork.thread_id, steps))
        return left[::-1]

    def line(self, thread_id: str, namespace: str, checkpoint_id: str) -> CheckpointLineage:
        held = self._database.held.of(thread_id)
        known = {} if held is None else held.parents
        line: list[str] = []
        step: str | None = checkpoint_id
        while step is not None and (namespace, step) in known:
            line.append(step)
            step = known[namespace, step]
        if step is None:
            return CheckpointLineage(
                {id_: number for number, id_ in enumerate(reversed(line))}, None
            )
        where = thread_id, namespace
        rows = self._rows(_LINE, (*where, step, *where))
        known.update({(namespace, str(id_)): parent for id_, parent in rows})
        order = [*(str(id_) for id_, _ in rows), *reversed(line)]
        oldest = rows[0][1] if rows else step
        return CheckpointLineage({id_: number for number, id_ in enumerate(order)}, oldest)


def _describe_thread(cursor: Cursor, trajectory: Trajectory) -> None:
    """Write the summary of a thread that has a trajectory, for listings."""
    at = trajectory.ended_at or trajectory.started_at
    cursor.execute(
        "INSERT INTO threads (id, trajectory_id, run_id, group_id, status, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET trajectory_id ="
        " excluded.trajectory_id, run_id = excluded.run_id, group_id = excluded.group_id, status ="
        " excluded.status",
        (
            trajectory.thread_id,
            trajectory.id,
            trajectory.run_id,
            trajectory.group_id,
            trajectory.status.value,
            trajectory.started_at,
            at,
        ),
    )
