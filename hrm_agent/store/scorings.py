"""Scores given to runs on record, by rubric: beside the rewards that a run was recorded with, never in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from hrm_agent.store.cipher import Cipher
from hrm_agent.store.cursors import Cursor, WriteCursor
from hrm_agent.store.damage import reading
from hrm_agent.store.database import Database
from hrm_agent.store.packed_records import plain_record
from hrm_agent.trajectory import Scoring, Trajectory

__all__ = ["Scorings"]

_WRITE = (
    "INSERT INTO scorings (rubric, trajectory_id, record) VALUES (?, ?, ?) "
    "ON CONFLICT (rubric, trajectory_id) DO UPDATE SET record = excluded.record"
)


class Scorings:
    """The scorings of a store. One rubric has one scoring of a trajectory: scored again, the newest stands."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database, self._cipher = database, cipher

    def write(self, scorings: Sequence[Scoring], *, as_rewards: bool = False) -> None:
        """Write all of them in one transaction.

        `as_rewards`: also as the rewards of the trajectories themselves, by the run that made them; one that has
        rewards keeps them.
        """
        rows = [(s.rubric, s.trajectory_id, self._sealed(s)) for s in scorings]

        def write(cursor: Cursor) -> None:
            for row in rows:
                cursor.execute(_WRITE, row)
            for scoring in scorings if as_rewards else ():
                self._as_rewards(cursor, scoring)

        self._database.write(write)

    def amend(
        self, rubric: str, trajectory_id: str, change: Callable[[Scoring | None], Scoring | None]
    ) -> Scoring | None:
        """Write what `change` makes of the scoring that stands, in the same transaction; None leaves it as it is.

        `change` may be called again where a commit was lost. Returns the scoring that stands then.
        """
        place = (rubric, trajectory_id)

        def write(cursor: WriteCursor) -> Scoring | None:
            self._database.lock_thread(cursor, f"scoring:{trajectory_id}")
            query = "SELECT record FROM scorings WHERE rubric = ? AND trajectory_id = ?"
            row = cursor.execute(query, place).fetchone()
            standing = None if row is None else self._opened(*place, row[0])
            changed = change(standing)
            if changed is not None:
                cursor.execute(_WRITE, (*place, self._sealed(changed)))
            return changed or standing

        return self._database.write(write)

    def _as_rewards(self, cursor: Cursor, scoring: Scoring) -> None:
        id_ = scoring.trajectory_id
        row = cursor.execute("SELECT record FROM trajectories WHERE id = ?", (id_,)).fetchone()
        if row is None or not scoring.rewards:
            return
        with reading("trajectory", id_):
            header = Trajectory.model_validate_json(plain_record(self._cipher.open(row[0], "trajectory", id_)))
        if not header.rewards:
            scored = header.model_copy(update={"rewards": scoring.rewards})
            record = scored.model_dump_json(exclude={"calls", "tool_calls", "failed_calls"}).encode()
            sealed = self._cipher.seal(record, "trajectory", id_)
            cursor.execute("UPDATE trajectories SET record = ? WHERE id = ?", (sealed, id_))

    def _sealed(self, scoring: Scoring) -> bytes:
        place = ("scoring", scoring.rubric, scoring.trajectory_id)
        return self._cipher.seal(scoring.model_dump_json().encode(), *place)

    def rubrics(self) -> list[str]:
        """Every rubric that something was scored by, in the order of their first scores."""
        with self._database.read() as cursor:
            rows = cursor.execute("SELECT rubric FROM scorings GROUP BY rubric ORDER BY min(seq)").fetchall()
        return [str(rubric) for (rubric,) in rows]

    def by_rubric(self, rubric: str) -> dict[str, Scoring]:
        """What one rubric gave, by trajectory id."""
        return {found.trajectory_id: found for found in self._read("rubric = ?", rubric)}

    def trajectory_ids(self, rubric: str, at_least: float) -> list[str]:
        """Of those whose reward by a rubric is `at_least` so much, in the order in which they were scored first."""
        found = self._read("rubric = ?", rubric)
        return [s.trajectory_id for s in found if s.rewards and s.rewards["reward"] >= at_least]

    def of(self, trajectory_id: str) -> list[Scoring]:
        """What every rubric gave for one trajectory, oldest first."""
        return list(self._read("trajectory_id = ?", trajectory_id))

    def _read(self, where: str, value: str) -> Iterable[Scoring]:
        query = f"SELECT rubric, trajectory_id, record FROM scorings WHERE {where} ORDER BY seq"
        with self._database.read() as cursor:
            rows = cursor.execute(query, (value,)).fetchall()
        for rubric, trajectory_id, record in rows:
            yield self._opened(rubric, trajectory_id, record)

    def _opened(self, rubric: str, trajectory_id: str, record: bytes) -> Scoring:
        with reading("scoring", f"of {trajectory_id} by {rubric}"):
            opened = self._cipher.open(record, "scoring", rubric, trajectory_id)
            return Scoring.model_validate_json(opened)
