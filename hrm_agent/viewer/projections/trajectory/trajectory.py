"""Projection of one trajectory: its header, judgements and counts, and commands for a terminal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from hrm_agent.errors import StoreError
from hrm_agent.trajectory import CallUsage, RunStatus, StopReason, ToolStatus, Trajectory
from hrm_agent.trajectory.call_facts import total_usage
from hrm_agent.viewer.json_text import cut_text, foreign, short
from hrm_agent.viewer.projections.groups import Damaged, overlay_data, task_data
from hrm_agent.viewer.projections.trajectory.threads import (
    Transcript,
    forks_of,
    overlays_on,
    siblings_of,
    transcript,
)

if TYPE_CHECKING:
    from hrm_agent.store import RunStore
    from hrm_agent.viewer.places import Place

__all__ = ["commands_of", "header_data", "trajectory"]


def trajectory(place: Place, id: str) -> dict[str, Any]:  # noqa: A002  the query value's name
    """`GET trajectory`: header, forks, judgements, counts and commands of a trajectory."""
    store = place.store()
    found = transcript(place, id)
    header = found.header
    damaged = found.damaged
    origin = header.forked_from
    query = "SELECT count(*) FROM checkpoints WHERE thread_id = ? AND ns = ?"
    with store.database.read() as cursor:
        moments = int(cursor.execute(query, (header.thread_id, "")).fetchone()[0])
    calls = [mark for mark in found.own if mark.kind == "call" and mark.status is None]
    used: CallUsage = total_usage(mark.used for mark in calls)
    seconds = header.ended_at - header.started_at if header.ended_at is not None else None
    return {
        "header": header_data(header),
        "forked_from": origin.model_dump() if origin else None,
        "forks": [
            {
                "trajectory": fork.id,
                "thread": fork.thread_id,
                "at": fork.forked_from.checkpoint_id if fork.forked_from else None,
                "status": fork.status.value,
            }
            for fork in forks_of(store, header)
        ],
        "siblings": siblings_of(store, header),
        "overlays": [
            {
                "run": overlay.run_id,
                "step": overlay.step + 1,
                "group": overlay.group_id,
                "reward": foreign(overlay.reward),
                **overlay_data(overlay),
                "credit": foreign(overlay.credit),
            }
            for overlay in overlays_on(store, header, damaged)
        ],
        "scorings": _scorings(store, header, damaged),
        "counts": {
            "model_calls": len(calls),
            "tool_calls": sum(1 for mark in found.own if mark.kind == "tool"),
            "tokens": used.output_tokens,
            "reasoning_tokens": used.reasoning_tokens,
            "seconds": foreign(seconds),
            "cost": foreign(used.cost),
            "models": [short(model) for model in dict.fromkeys(mark.model for mark in calls)],
        },
        "items": len(found.items),
        "focus": _focus(found),
        "roles": list(dict.fromkeys(short(mark.role) for mark in found.own)),
        "commands": commands_of(place, header),
        "thread_moments": moments,
        "damaged": damaged.data(),
    }


def header_data(header: Trajectory) -> dict[str, Any]:
    """Trajectory without its calls, as JSON."""
    item = f"trajectory:{header.id}"
    return {
        "trajectory": header.id,
        "thread": header.thread_id,
        "run": header.run_id,
        "group": header.group_id,
        "sample": header.sample_index,
        "task": task_data(header),
        "graph": short(header.graph),
        "policy": short(header.policy),
        "policy_version": header.policy_version,
        "status": header.status.value,
        "stop_reason": header.stop_reason.value if header.stop_reason else None,
        "error": cut_text(header.error, item, "error"),
        "answer": cut_text(header.answer, item, "answer"),
        "rewards": foreign(header.rewards),
        "outcome": foreign(header.rewards.get("correct")),
        "turns": len(header.turns),
        "started_at": foreign(header.started_at),
        "ended_at": foreign(header.ended_at),
    }


def _scorings(store: RunStore, header: Trajectory, damaged: Damaged) -> list[dict[str, Any]]:
    try:
        scorings = store.scorings.of(header.id)
    except StoreError as error:
        damaged(f"scorings of {header.id}", error)
        return []
    found: list[dict[str, Any]] = []
    for scoring in scorings:
        item = f"scoring:{scoring.trajectory_id}:{scoring.rubric}"
        found.append(
            {
                "rubric": short(scoring.rubric),
                "total": foreign(scoring.total),
                "outcome": foreign(scoring.outcome),
                "fault": cut_text(scoring.fault or None, item, "fault"),
                "scores": [
                    {
                        "name": short(score.name),
                        "value": foreign(score.value),
                        "weight": foreign(score.weight),
                        "fault": score.fault.value if score.fault else None,
                        "reason": cut_text(score.reason or None, item, f"reason/{number}"),
                    }
                    for number, score in enumerate(scoring.scores)
                ],
            }
        )
    return found


def _focus(found: Transcript) -> dict[str, Any] | None:
    """Item to look at first: the item that failed, or else the item that gave the answer (None
    without such an item).
    """
    header = found.header
    own = [
        (n, item)
        for n, item in enumerate(found.items)
        if item.mark and item.mark.thread_id == header.thread_id
    ]
    failed = [
        (n, item)
        for n, item in own
        if item.mark is not None
        and item.mark.status is not None
        and item.mark.status != ToolStatus.OK.value
    ]
    if header.status in (RunStatus.FAILED, RunStatus.ABORTED, RunStatus.TRUNCATED) and own:
        number, item = failed[-1] if failed and failed[-1][0] == own[-1][0] else own[-1]
        return {"index": number, "id": item.id, "why": "failed"}
    if failed and header.rewards.get("correct") == 0:
        return {"index": failed[-1][0], "id": failed[-1][1].id, "why": "failed"}
    answered = [
        (n, item)
        for n, item in own
        if item.kind == "call" and item.mark and item.mark.status is None
    ]
    return (
        {"index": answered[-1][0], "id": answered[-1][1].id, "why": "answer"} if answered else None
    )


def commands_of(place: Place, header: Trajectory) -> dict[str, str]:
    """Commands for a terminal, by name."""
    store = shlex.quote(place.where)
    thread = shlex.quote(header.thread_id)
    id_ = shlex.quote(header.id)
    waits = header.stop_reason is StopReason.INTERRUPT
    return {
        **(
            {"resume": f"hrm-agent resume {thread} --answer ANSWER --store {store}"}
            if waits
            else {}
        ),
        "show": f"hrm-agent show {id_} --store {store}",
        "history": f"hrm-agent history {thread} --store {store}",
        "replay": f"hrm-agent replay {id_} --store {store}",
        "fork": f"hrm-agent fork {thread} --at last --run --store {store}",
    }
