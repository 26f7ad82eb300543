"""Runs of all places, newest first."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.errors import HrmError
from hrm_agent.store import RunStore
from hrm_agent.store.browse.lists import headers_page
from hrm_agent.store.database.leases import leased
from hrm_agent.store.values.damage import DAMAGED, in_a_line
from hrm_agent.viewer.json_text import short
from hrm_agent.viewer.projections.bare_threads import count_bare_threads
from hrm_agent.viewer.run_files import MetricsTail, config_of, json_file, metrics_of, own_run_id

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["held_out_of", "is_own_run", "place_runs", "runs", "step_base"]

_LIVE_SECONDS = 60.0
"""Seconds after its last write for which an unfinished run counts as live. A run that holds the
lease of a thread is live, too.
"""
_SPARK = 60
_MOST_AVERAGED = 20_000
"""Maximum number of trajectories whose rewards are read for the accuracy of a run without
metrics.
"""
_outcomes: BoundedMap[tuple[str, str], tuple[tuple[int, int, int], float | None]] = BoundedMap(
    1_000
)
_lock = threading.Lock()
_RUNS = (
    "SELECT run_id, count(*), min(started_at), max(started_at), max(seq), sum(CASE WHEN status ="
    " 'running' THEN 1 ELSE 0 END), sum(length(record)) FROM trajectories GROUP BY run_id"
)
_HELD = (
    "SELECT t.id, t.run_id FROM leases l JOIN threads t ON t.id = l.thread_id WHERE"
    " l.expires_at > 0"
)


def runs(places: Sequence[Place]) -> dict[str, Any]:
    """`GET runs`: runs of all places, newest first."""
    found: list[dict[str, Any]] = []
    bare: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    for place in places:
        try:
            own, count = place.read(
                lambda place=place: (place_runs(place), count_bare_threads(place.store()))
            )
            found += own
            if count:
                bare.append({"place": place.id, "threads": count})
        except HrmError as error:
            problems.append({"place": place.id, "message": error.message, "hint": error.hint})
        except DAMAGED as error:  # a forged row or file of one place must not hide other places
            message = f"{place.where} cannot be read: {in_a_line(error)}."
            problems.append(
                {
                    "place": place.id,
                    "message": message,
                    "hint": "Run `hrm-agent store verify`, which lists where.",
                }
            )
    found.sort(key=lambda run: run["updated_at"] or run["started_at"] or 0.0, reverse=True)
    return {"runs": found, "bare_threads": bare, "problems": problems}


def place_runs(place: Place) -> list[dict[str, Any]]:
    """Runs of one place. Raises the errors of opening its store."""
    store = place.store()
    with store.database.read() as cursor:
        rows = {str(row[0]): row[1:] for row in cursor.execute(_RUNS).fetchall()}
        seen = dict(
            cursor.execute("SELECT run_id, max(updated_at) FROM threads GROUP BY run_id").fetchall()
        )
        taken = cursor.execute(_HELD).fetchall()
        live = leased(store.database, cursor) if taken else set[str]()
    held = {str(run) for thread, run in taken if str(thread) in live}
    own = own_run_id(place.folder) if place.folder is not None and config_of(place.folder) else None
    names = [*rows, *([own] if own is not None and own not in rows else [])]
    if not names and seen:
        names = [""]  # threads of a user's program
    return [
        _run(place, store, name, rows.get(name), seen.get(name), name in held, name == own)
        for name in names
    ]


def is_own_run(place: Place, run: str) -> bool:
    """True if the files of the place's folder belong to this run."""
    return place.folder is not None and own_run_id(place.folder) == run


def _run(
    place: Place, store: RunStore, name: str, row: Any, seen: float | None, held: bool, own: bool
) -> dict[str, Any]:
    count, first, last, newest, running, size = row or (0, None, None, None, 0, 0)
    folder = place.folder if own else None
    config = config_of(folder)
    metrics = metrics_of(folder)
    kind = str(config.get("command") or ("run" if not own else ""))
    read = headers_page(store, "seq = ?", (newest,), lambda *_: None) if newest is not None else []
    header = read[0].header if read else None
    updated = max((time_ for time_ in (seen, last) if time_ is not None), default=None)
    if updated is None and folder is not None:
        with suppress(OSError):
            updated = (folder / "metrics.jsonl").stat().st_mtime
    steps = metrics.steps[-1] + step_base(kind) if metrics else None
    of_steps = config.get("steps", config.get("train.steps"))
    if not isinstance(of_steps, int) or (metrics is None and "train" not in kind):
        of_steps = None
    results = json_file(folder, "results.json")
    done = bool(json_file(folder, "report.json") or results)
    left = bool(running) or (
        steps is not None and of_steps is not None and steps < of_steps and not done
    )
    live = held or (updated is not None and time.time() - updated < _LIVE_SECONDS and left)
    held_out = held_out_of(place, store, name) if folder is not None else []
    if held_out:
        accuracy = held_out[-1]["value"]
        of = "held-out"
    elif isinstance(results.get("pass_at_1"), float):
        accuracy = results["pass_at_1"]
        of = "held-out"
    else:
        counts = (int(count), int(running or 0), int(size))
        accuracy = (
            metrics.last("rollout/correct") if metrics else _mean_outcome(store, name, counts)
        )
        of = None if accuracy is None else "rollouts"
    return {
        "place": place.id,
        "run": name,
        "name": short(name or f"{place.id}: single runs"),
        "kind": kind,
        "graph": short(
            str(
                config.get("graph") or config.get("train.graph") or (header.graph if header else "")
            )
        ),
        "policy": short(
            str(
                config.get("policy")
                or config.get("train.policy")
                or (header.policy if header else "")
            )
        ),
        "steps": steps,
        "of_steps": of_steps,
        "accuracy": accuracy,
        "accuracy_of": of,
        "spark": _spark(metrics),
        "trajectories": int(count),
        "status": "running" if live else "stopped" if left else "ended",
        "live": live,
        "started_at": first,
        "updated_at": updated,
    }


def step_base(kind: str) -> int:
    """Offset from a row's step to the step in the console, which counts from 1. Rows of training by
    rollouts count from 0, and rows of fine-tuning from 1.
    """
    return 0 if kind == "train sft" else 1


def _mean_outcome(store: RunStore, run: str, counts: tuple[int, int, int]) -> float | None:
    """Mean outcome of the scored trajectories. It is cached until a trajectory begins, ends or gets
    other rewards.

    `counts`: number of trajectories, number of running trajectories, and bytes of all records. If
    one of them changes, the mean is computed again. The bytes are included since `score` adds
    rewards after the end.
    """
    if not 0 < counts[0] <= _MOST_AVERAGED:
        return None
    key = (store.url, run)
    with _lock:
        known = _outcomes.get(key)
    if known is not None and known[0] == counts:
        return known[1]
    headers = [each.header for each in headers_page(store, "run_id = ?", (run,), lambda *_: None)]
    scored = [each.rewards["correct"] for each in headers if "correct" in each.rewards]
    mean = math.fsum(scored) / len(scored) if scored else None
    with _lock:
        _outcomes[key] = (counts, mean)
    return mean


def held_out_of(place: Place, store: RunStore, run: str) -> list[dict[str, Any]]:
    """Recorded accuracy on held-out problems by step, with a 95 % interval."""
    from hrm_agent.basics.intervals import wilson_interval

    report = json_file(place.folder, "report.json")
    metrics = metrics_of(place.folder)
    found: dict[int, dict[str, Any]] = {}
    if metrics is not None and metrics.last("eval/correct") is not None:
        problems = _evaluated_problems(store, run)
        for step, value in zip(metrics.steps, metrics.series("eval/correct"), strict=True):
            if value is not None:
                count = problems.get(step + 1)
                # a forged file may have any number
                known = count if count and 0 <= value <= 1 else None
                low, high = wilson_interval(value * known, known) if known else (None, None)
                found[step + 1] = {
                    "step": step + 1,
                    "value": value,
                    "low": low,
                    "high": high,
                    "problems": count,
                }
    for step, stage in ((0, report.get("before")), (report.get("steps"), report.get("after"))):
        match stage:
            case {
                "pass_at_1": float(value),
                "interval": [float(low), float(high)],
                "problems": int(count),
            }:
                if isinstance(step, int):
                    found[step] = {
                        "step": step,
                        "value": value,
                        "low": low,
                        "high": high,
                        "problems": count,
                    }
            case _:
                pass
    return [found[step] for step in sorted(found)]


def _evaluated_problems(store: RunStore, run: str) -> dict[int, int]:
    """Number of problems of each evaluation, by the number of updates before it."""
    prefix = f"{run}/eval-"
    query = (
        "SELECT DISTINCT group_id FROM trajectories WHERE run_id = ? AND substr(group_id, 1, ?) = ?"
    )
    with store.database.read() as cursor:
        rows = cursor.execute(query, (run, len(prefix), prefix)).fetchall()
    counts: dict[int, int] = {}
    for (group,) in rows:
        taken = str(group)[len(prefix) :].split("/")[0]
        if taken.isascii() and taken.isdecimal() and len(taken) < 10:
            counts[int(taken)] = counts.get(int(taken), 0) + 1
    return counts


def _spark(metrics: MetricsTail | None) -> list[float]:
    if metrics is None:
        return []
    values = [v for v in metrics.series("rollout/correct") or () if v is not None]
    values = values or [v for v in metrics.series("accuracy") if v is not None]
    every = -(-len(values) // _SPARK) if values else 1
    return values[::-1][::every][::-1]
