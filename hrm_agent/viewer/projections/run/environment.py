"""Summary of a run's tool calls (outcomes, durations, refused system calls), and figures of a live
environment.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from hrm_agent.errors import StoreError
from hrm_agent.store.values.damage import DAMAGED
from hrm_agent.store.values.packed_records import plain_record
from hrm_agent.trajectory import ToolCall
from hrm_agent.viewer.json_text import short
from hrm_agent.viewer.projections.groups import step_begun_for

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["environment", "live_figures"]

_MOST_CALLS = 100_000
"""Maximum number of tool calls of a run that are counted. The newest are preferred."""
_MOST_NAMES = 200
_ERROR = re.compile(
    r"(?m)^\s*([A-Za-z_][\w.]{0,80}(?:Error|Exception|Warning|Exit|Interrupt|Timeout))\b"
)
_SAMPLE = re.compile(r'(\w{1,100})(?:\{(\w{1,50})="([^"\n]{0,200})"\})? ([-+.\deEinfNa]{1,40})')
_PREFIX = "hrm_environment_"


class ToolFacts(NamedTuple):
    """Facts of a tool call for the summary."""

    name: str
    """Name of the tool."""
    status: str
    """Outcome of the call (`under way` before its end)."""
    seconds: float
    """Seconds from the start to the end."""
    queued: float
    """Seconds in the queue before the start."""
    isolation: str
    """Isolation level of the code."""
    refused: tuple[tuple[str, int], ...]
    """Refused system calls, each with the number of refusals."""
    failure: str | None
    """Class of the error, or the outcome if no class is known (None for a call without a failure).
    """


def environment(place: Place, run: str) -> dict[str, Any]:
    """`GET environment`. The server adds `live`, the figures of the environment server that it was
    given.
    """
    store = place.store()
    query = (
        "SELECT t.id, t.group_id, c.id, c.record FROM tool_calls c JOIN trajectories t ON"
        " t.thread_id = c.thread_id WHERE t.run_id = ? ORDER BY c.seq DESC LIMIT ?"
    )
    newest_first: list[tuple[str, str, str, ToolFacts]] = []
    with store.database.read() as cursor:
        rows = cursor.execute(query, (run, _MOST_CALLS))
        while (row := rows.fetchone()) is not None:
            with suppress(StoreError, *DAMAGED):  # the page of the trajectory reports the damage
                plain = plain_record(store.cipher.open(row[3], "tool", row[2]))
                read = _kept if len(plain) <= 4_096 else _facts
                newest_first.append((str(row[0]), str(row[1]), str(row[2]), read(plain)))
    calls = newest_first[::-1]
    facts = [found for *_, found in calls]
    by_name: dict[str, Counter[str]] = {}
    failures: Counter[str] = Counter()
    examples: dict[str, dict[str, str]] = {}
    total: Counter[int] = Counter()
    failed: Counter[int] = Counter()
    for trajectory, group, tool, each in calls:
        if each.name in by_name or len(by_name) < _MOST_NAMES:
            by_name.setdefault(each.name, Counter())[each.status] += 1
        if each.failure is not None:
            failures[each.failure] += 1
            examples.setdefault(each.failure, {"trajectory": trajectory, "tool": tool})
        step = step_begun_for(run, group)
        if step is not None:
            total[step] += 1
            failed[step] += each.failure is not None
    return {
        "live": None,
        "recorded": {
            "tool_calls": len(facts),
            "complete": len(facts) < _MOST_CALLS,
            "by_status": dict(Counter(each.status for each in facts)),
            "by_name": by_name,
            "percentiles": {
                "run": _percentiles([each.seconds for each in facts]),
                "queue": _percentiles([each.queued for each in facts]),
            },
            "refused": dict(
                sum((Counter(dict(each.refused)) for each in facts if each.refused), Counter[str]())
            ),
            "errors": [
                {"class": name, "count": count, "example": examples[name]}
                for name, count in failures.most_common(50)
            ],
            "isolation": dict(Counter(each.isolation for each in facts if each.isolation)),
            "by_step": [
                {"step": step, "total": total[step], "failed": failed[step]}
                for step in sorted(total)
            ],
        },
    }


def _facts(plain: bytes) -> ToolFacts:
    call = ToolCall.model_validate_json(plain)
    failure = None
    if call.status is not None and call.status.value != "ok":
        # use the class in the last line of the error, or else the outcome
        named = _ERROR.findall((call.stderr or call.content)[-4_000:])
        failure = named[-1] if named else call.status.value
    return ToolFacts(
        short(call.name),
        call.status.value if call.status else "under way",
        call.duration_seconds,
        call.queued_seconds,
        short(call.isolation),
        tuple((short(name), count) for name, count in call.refused.items()),
        failure,
    )


_kept = lru_cache(maxsize=12_000)(_facts)


def _percentiles(values: list[float]) -> dict[str, float | None]:
    ordered = sorted(values)

    def at(share: float) -> float | None:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    return {
        "p50": at(0.5),
        "p95": at(0.95),
        "p99": at(0.99),
        "max": ordered[-1] if ordered else None,
    }


def live_figures(text: str) -> dict[str, Any]:
    """Figures of an environment's `/metrics` as JSON. A percentile is the upper edge of the bucket
    that it is in.
    """
    plain: dict[str, float] = {}
    labelled: dict[str, dict[str, float]] = {}
    for name, label, value, number in _SAMPLE.findall(text[:1_000_000]):
        with suppress(ValueError):
            if label:
                labelled.setdefault(name.removeprefix(_PREFIX), {})[value] = float(number)
            else:
                plain[name.removeprefix(_PREFIX)] = float(number)
    return {
        "queue": plain.get("waiting"),
        "outside": plain.get("outside"),
        "running": plain.get("running"),
        "slots": plain.get("slots"),
        "slot_deaths": plain.get("slot_deaths"),
        "sessions": plain.get("sessions_living"),
        "workers": [],
        "isolation": next(iter(labelled.get("info", {})), None),
        "percentiles": {
            "queue": _of_buckets(labelled.get("queue_seconds_bucket", {})),
            "run": _of_buckets(labelled.get("wall_seconds_bucket", {})),
        },
        "outcomes": {name: int(count) for name, count in labelled.get("calls_total", {}).items()},
        "refused": {name: int(count) for name, count in labelled.get("refused_total", {}).items()},
        "retries": plain.get("retries_total"),
        "cancelled": plain.get("cancelled_total"),
    }


def _of_buckets(buckets: dict[str, float]) -> dict[str, float | None]:
    edges = sorted((float(edge.replace("+Inf", "inf")), count) for edge, count in buckets.items())
    total = edges[-1][1] if edges else 0.0

    def at(share: float) -> float | None:
        edge = next((edge for edge, count in edges if total and count >= share * total), None)
        return edge if edge is not None and edge < float("inf") else None

    return {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99)}
