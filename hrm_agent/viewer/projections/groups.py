"""Groups of rollouts. For each rollout, they have the verdict of a training step with its reason,
and the outcomes of tool calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore
from hrm_agent.store.browse.lists import (
    headers_page,
    overlays_of,
    tool_marks,
    uses_of_threads,
)
from hrm_agent.store.database.cursors import placeholders
from hrm_agent.trajectory import Overlay, Trajectory, Verdict, step_in_name
from hrm_agent.viewer.json_text import NotThere, cut_text, foreign, short
from hrm_agent.viewer.projections.runs import is_own_run, step_base
from hrm_agent.viewer.run_files import config_of, metrics_of

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["Damaged", "groups", "overlay_data", "step", "step_begun_for", "task_data"]

_Wanted = TypeVar("_Wanted")
_Row = TypeVar("_Row")
_MOST_ROLLOUTS = 20_000
"""Maximum number of rollouts of a step."""


def step_begun_for(run: str, group: str) -> int | None:
    """Number (from 1) of the step for which a training run began a group, found in the group's name
    (None for other groups).
    """
    number = step_in_name(group, run)
    return None if number is None else number + 1


class Damaged:
    """Rows that cannot be read. They are reported beside the readable rows."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}

    def __call__(self, id_: str, error: StoreError) -> None:
        if len(self.rows) < 50:
            self.rows[id_] = error.message

    def readable(
        self,
        read: Callable[[list[_Wanted]], Iterable[_Row]],
        wanted: list[_Wanted],
        id_of: Callable[[_Wanted], str] = str,
    ) -> list[_Row]:
        """Rows of `wanted` that can be read. If reading all at once fails, each row is read
        separately.
        """
        with suppress(StoreError):
            return list(read(wanted))
        found: list[_Row] = []
        for each in wanted:
            try:
                found += list(read([each]))
            except StoreError as error:
                self(id_of(each), error)
        return found

    def data(self) -> list[dict[str, str]]:
        """Damaged rows as JSON."""
        return [{"id": short(id_), "message": short(message)} for id_, message in self.rows.items()]


def step(place: Place, run: str, step: int) -> dict[str, Any]:
    """`GET step`. Steps count from 1, as in the console."""
    store = place.store()
    damaged = Damaged()
    folder = place.folder if is_own_run(place, run) else None
    base = step_base(str(config_of(folder).get("command", "")))
    number = step - base
    tail = metrics_of(folder)
    judged = overlays_of(store, run, damaged, step=number)
    headers = _headers_of_step(store, run, number, judged, damaged)
    if tail:
        taken = list(tail.steps)
    else:
        query = "SELECT DISTINCT step FROM overlays WHERE run_id = ? ORDER BY step"
        with store.database.read() as cursor:
            rows = cursor.execute(query, (run,)).fetchall()
        # in SQLite, a forged row may have a text
        taken = [row[0] for row in rows if isinstance(row[0], int)]
    if number not in taken and not headers:
        raise NotThere(f"The run {run!r} has no step {step}.", f"It has {len(taken)} steps.")
    row = tail.row(taken.index(number)) if tail and number in taken else {}
    return {
        "step": step,
        "metrics": row,
        "previous": max((each + base for each in taken if each < number), default=None),
        "next": min((each + base for each in taken if each > number), default=None),
        "groups": _groups(store, headers, judged, damaged),
        "damaged": damaged.data(),
    }


def groups(place: Place, run: str, after: int = 0, limit: int = 50) -> dict[str, Any]:
    """`GET groups`: groups of a run, a page at a time, in the order of their first trajectories."""
    store = place.store()
    damaged = Damaged()
    query = (
        "SELECT min(seq), CASE WHEN group_id = '' THEN id ELSE group_id END AS g FROM trajectories"
        " WHERE run_id = ? GROUP BY CASE WHEN group_id = '' THEN id ELSE group_id END HAVING"
        " min(seq) > ? ORDER BY min(seq) LIMIT ?"
    )
    with store.database.read() as cursor:
        rows = cursor.execute(query, (run, after, limit + 1)).fetchall()
    names = [str(name) for _, name in rows[:limit]]
    headers: list[Trajectory] = []
    if names:
        marks = placeholders(len(names))
        where = f"run_id = ? AND (group_id IN ({marks}) OR (group_id = '' AND id IN ({marks})))"
        found = headers_page(store, where, (run, *names, *names), damaged, limit=_MOST_ROLLOUTS)
        headers = [each.header for each in found]
    judged = overlays_of(store, run, damaged, ids=[each.id for each in headers])
    return {
        "groups": _groups(store, headers, judged, damaged),
        "next": int(rows[limit - 1][0]) if len(rows) > limit else None,
        "damaged": damaged.data(),
    }


def _headers_of_step(
    store: RunStore, run: str, number: int, judged: dict[str, Overlay], damaged: Damaged
) -> list[Trajectory]:
    """Headers of trajectories that were judged in the step, whichever run made them, or that were
    begun for the step.
    """
    prefix = f"{run}/step-{number}/"
    begun = headers_page(
        store,
        "run_id = ? AND substr(group_id, 1, ?) = ?",
        (run, len(prefix), prefix),
        damaged,
        limit=_MOST_ROLLOUTS,
    )
    known = {each.header.id for each in begun}
    missing = [id_ for id_ in judged if id_ not in known]
    for start in range(0, len(missing), 500):
        some = missing[start : start + 500]
        begun += headers_page(store, f"id IN ({placeholders(len(some))})", some, damaged)
    return [each.header for each in sorted(begun, key=lambda each: each.seq)]


def _groups(
    store: RunStore, headers: Sequence[Trajectory], judged: dict[str, Overlay], damaged: Damaged
) -> list[dict[str, Any]]:
    threads = [each.thread_id for each in headers]
    uses = uses_of_threads(store, threads)
    marks = tool_marks(store, threads, damaged)
    by_group: dict[str, list[Trajectory]] = {}
    for each in headers:
        overlay = judged.get(each.id)
        by_group.setdefault(
            (overlay.group_id if overlay else "") or each.group_id or each.id, []
        ).append(each)
    found: list[dict[str, Any]] = []
    for name, siblings in by_group.items():
        overlays = [judged[each.id] for each in siblings if each.id in judged]
        rejected = next((o for o in overlays if o.verdict is Verdict.GROUP_REJECTED), None)
        rollouts: list[dict[str, Any]] = []
        for each in sorted(siblings, key=lambda each: each.sample_index):
            overlay = judged.get(each.id)
            use = uses.get(each.thread_id)
            reward = overlay.reward if overlay else each.reward if each.rewards else None
            seconds = each.ended_at - each.started_at if each.ended_at is not None else None
            rollouts.append(
                {
                    "trajectory": each.id,
                    "thread": each.thread_id,
                    "sample": each.sample_index,
                    "status": each.status.value,
                    "stop_reason": each.stop_reason.value if each.stop_reason else None,
                    "reward": foreign(reward),
                    "rewards": foreign(each.rewards),
                    "outcome": foreign(each.rewards.get("correct")),
                    **overlay_data(overlay),
                    "tools": [
                        {
                            "id": mark.id,
                            "status": mark.status.value if mark.status else None,
                            "name": short(mark.name),
                            "role": short(mark.role),
                            "seconds": foreign(mark.seconds),
                        }
                        for mark in marks.get(each.thread_id, ())
                    ],
                    "tokens": use.output_tokens if use else None,
                    "model_calls": use.model_calls if use else 0,
                    "seconds": foreign(seconds),
                    "answer": cut_text(each.answer, f"trajectory:{each.id}", "answer"),
                    "error": cut_text(each.error, f"trajectory:{each.id}", "error"),
                }
            )
        found.append(
            {
                "group": name,
                "task": task_data(siblings[0]),
                "rejected": overlay_data(rejected)["reason"],
                "kept": sum(o.verdict is Verdict.KEPT for o in overlays),
                "rollouts": rollouts,
            }
        )
    return found


def task_data(trajectory: Trajectory) -> dict[str, Any]:
    """Task of a trajectory as JSON."""
    task = trajectory.task
    item = f"trajectory:{trajectory.id}"
    return {
        "id": short(task.id),
        "family": short(task.family),
        "prompt": cut_text(task.prompt, item, "prompt"),
        "answer": cut_text(task.answer, item, "reference"),
    }


_UNJUDGED = {
    "verdict": None,
    "reason": None,
    "advantage": None,
    "penalty_error": None,
    "penalty_format": None,
    "penalty_by_role": None,
}


def overlay_data(overlay: Overlay | None) -> dict[str, Any]:
    """JSON of a run's judgement of a trajectory. All values are null if the trajectory was not
    judged.
    """
    if overlay is None:
        return _UNJUDGED
    by_role = overlay.penalty_by_role
    return {
        "verdict": overlay.verdict.value,
        "reason": cut_text(
            overlay.reason, f"overlay:{overlay.trajectory_id}:{overlay.run_id}", "reason"
        ),
        "advantage": foreign(overlay.advantage),
        "penalty_error": foreign(overlay.penalty_error),
        "penalty_format": foreign(overlay.penalty_format),
        "penalty_by_role": (
            foreign({role: each.model_dump() for role, each in by_role.items()})
            if by_role
            else None
        ),
    }
