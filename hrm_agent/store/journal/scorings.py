"""Scorings: scores of recorded runs by rubric, which never replace the rewards that a run was
recorded with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hrm_agent.store.database.cursors import Cursor, WriteCursor
from hrm_agent.store.database.database import Database
from hrm_agent.store.journal.records import HEADERS, SCORINGS, RecordTable
from hrm_agent.store.values.cipher import Cipher
from hrm_agent.trajectory import Scoring

__all__ = ["Scorings"]


class Scorings:
    """Scorings of a store. A rubric has one scoring per trajectory. Scoring again replaces it."""

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        self._rows = RecordTable(SCORINGS, database, cipher)

    def write(self, scorings: Sequence[Scoring], *, as_rewards: bool = False) -> None:
        """Write all scorings in one transaction.

        `as_rewards` also sets the rewards of the trajectories, for scoring by the run that made
        them. A trajectory that has rewards keeps them.
        """

        def write(cursor: Cursor) -> None:
            for scoring in scorings:
                self._rows.insert(cursor, scoring, scoring.rubric, scoring.trajectory_id)
                if as_rewards:
                    self._as_rewards(cursor, scoring)

        self._database.write(write)

    def amend(
        self, rubric: str, trajectory_id: str, change: Callable[[Scoring | None], Scoring | None]
    ) -> Scoring | None:
        """Replace a scoring by the result of `change`, in one transaction (None keeps it).

        `change` may be called again if a commit was lost. Returns the scoring that is then on
        record.
        """
        place = (rubric, trajectory_id)

        def write(cursor: WriteCursor) -> Scoring | None:
            self._database.lock_thread(cursor, f"scoring:{trajectory_id}")
            rows = self._rows.query(cursor, "rubric = ? AND trajectory_id = ?", place)
            standing = next((found for _, found in SCORINGS.rows(self._cipher, rows)), None)
            changed = change(standing)
            if changed is not None:
                self._rows.insert(cursor, changed, *place)
            return changed or standing

        return self._database.write(write)

    def _as_rewards(self, cursor: Cursor, scoring: Scoring) -> None:
        id_ = scoring.trajectory_id
        row = cursor.execute("SELECT record FROM trajectories WHERE id = ?", (id_,)).fetchone()
        if row is None or not scoring.rewards:
            return
        header = HEADERS.opened(self._cipher, (id_,), row[0])
        if not header.rewards:
            scored = header.model_copy(update=scoring.as_rewards)
            sealed = HEADERS.sealed(self._cipher, scored, id_)
            cursor.execute("UPDATE trajectories SET record = ? WHERE id = ?", (sealed, id_))

    def rubrics(self) -> list[str]:
        """Rubrics with at least one scoring, in the order of their first scores."""
        with self._database.read() as cursor:
            rows = cursor.execute(
                "SELECT rubric FROM scorings GROUP BY rubric ORDER BY min(seq)"
            ).fetchall()
        return [str(rubric) for (rubric,) in rows]

    def by_rubric(self, rubric: str) -> dict[str, Scoring]:
        """Scorings by one rubric, by trajectory id."""
        return {found.trajectory_id: found for found in self._rows.read("rubric = ?", (rubric,))}

    def trajectory_ids(self, rubric: str, at_least: float) -> list[str]:
        """Ids of the trajectories whose reward by a rubric is at least `at_least`, in the order in
        which they were first scored.
        """
        found = self._rows.read("rubric = ?", (rubric,))
        return [s.trajectory_id for s in found if s.rewards and s.rewards["reward"] >= at_least]

    def of(self, trajectory_id: str) -> list[Scoring]:
        """Scorings of one trajectory, oldest first."""
        return self._rows.read("trajectory_id = ?", (trajectory_id,))
