"""What training runs judged: one row for each trajectory of a run."""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.store.cipher import Cipher
from hrm_agent.store.damage import reading
from hrm_agent.store.database import Database
from hrm_agent.trajectory import Overlay

__all__ = ["OverlaysJournal"]


class OverlaysJournal:
    """The part of a store's journal that holds them."""

    _database: Database
    _cipher: Cipher

    def write_overlays(self, overlays: Sequence[Overlay]) -> None:
        """Write the judgement of one training step, as a whole."""
        rows = [(o.run_id, o.step, o.trajectory_id, self._sealed_overlay(o)) for o in overlays]
        self._database.add(
            lambda cursor: cursor.executemany(
                "INSERT INTO overlays (run_id, step, trajectory_id, record) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (run_id, trajectory_id) DO UPDATE SET step = excluded.step, record = excluded.record",
                rows,
            )
        )

    def _sealed_overlay(self, overlay: Overlay) -> bytes:
        # Left out where they say nothing: an earlier version refuses a field that it does not know.
        silent = {name for name in ("carried_from", "credit", "penalty_by_role") if getattr(overlay, name) is None}
        record = overlay.model_dump_json(exclude=silent)
        return self._cipher.seal(record.encode(), "overlay", overlay.run_id, overlay.trajectory_id)

    def overlays(self, run_id: str, step: int | None = None) -> list[Overlay]:
        """The judgements of one training run, by step; or those of one step."""
        which, values = ("", (run_id,)) if step is None else (" AND step = ?", (run_id, step))
        query = f"SELECT trajectory_id, record FROM overlays WHERE run_id = ?{which} ORDER BY step, seq"
        with self._database.read() as cursor:
            rows = cursor.execute(query, values).fetchall()
        found: list[Overlay] = []
        for trajectory_id, record in rows:
            with reading("judgement", f"{run_id} of {trajectory_id}"):
                opened = self._cipher.open(record, "overlay", run_id, trajectory_id)
                found.append(Overlay.model_validate_json(opened))
        return found
