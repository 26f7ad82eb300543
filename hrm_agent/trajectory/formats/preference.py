"""Pairs of answers to one prompt, the better and the worse: `{"prompt": [...], "chosen": [...],
"rejected": [...]}`, as TRL's DPO, KTO and reward trainers read conversations.

A group of rollouts gives a pair for each role, of the rollout with the highest reward and the one
with the lowest (of equal ones the first). Of the role's conversations in the two, those are taken
that begin alike for longest. `prompt` is what both begin with, `chosen` and `rejected` begin with
the first answer that differs, and contain all that followed, tool results included. Beside them are
`tools`, `role`, `reason`, the rewards, and the ids of group and runs. A role whose conversations
differ before an answer gives no pair: its prompts are not the same. Only completed runs that were
scored are compared. Conversations are those of `chat`; one with an answer that `chat` gives weight
0 behind the prompt gives no pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

from hrm_agent.trajectory.formats.chat import chat_rows
from hrm_agent.trajectory.formats.shared.messages import RequestHints
from hrm_agent.trajectory.formats.shared.rows import Lacks, Report, Row, Skipped, write_rows
from hrm_agent.trajectory.schema import RunStatus, Trajectory

__all__ = ["write_preference"]


class _Run(NamedTuple):
    reward: float
    id: str
    by_role: dict[str, list[Row]]
    """Conversations of each role."""


class _Ends(NamedTuple):
    best: _Run
    worst: _Run
    rollouts: int
    """Number of rollouts of the group."""


def write_preference(trajectories: Iterable[Trajectory], path: Path, known: RequestHints) -> Report:
    """Write a pair for each group and role, one a line. Without pairs no file is written."""
    report = Report()
    groups: dict[str, _Ends] = {}
    conversations = chat_rows(known)
    last: Trajectory | None = None
    for trajectory in trajectories:
        report.trajectories += 1
        last = trajectory
        run = _read(trajectory, report, conversations(trajectory))
        if run is None:
            continue
        ends = groups.get(trajectory.group_id)
        groups[trajectory.group_id] = (
            _Ends(run, run, 1)
            if ends is None
            else _Ends(
                run if run.reward > ends.best.reward else ends.best,
                run if run.reward < ends.worst.reward else ends.worst,
                ends.rollouts + 1,
            )
        )
    pairs = [each for group, ends in groups.items() for each in _pairs(group, ends)]
    if last is None:
        return report
    written = write_rows([last], path, lambda _: pairs)
    report.rows = written.rows
    report.left_out.update(written.left_out)
    return report


def _read(
    trajectory: Trajectory, report: Report, rows: Iterable[Row | Skipped | Lacks]
) -> _Run | None:
    if trajectory.status is RunStatus.COMPLETED and "correct" not in trajectory.rewards:
        report.left_out["the run was not scored"] += 1
        return None
    if trajectory.status is RunStatus.COMPLETED and not trajectory.group_id:
        report.left_out["the run is of no group: there is nothing to compare it with"] += 1
        return None
    by_role: dict[str, list[Row]] = {}
    for row in rows:
        if isinstance(row, Skipped):
            report.left_out[row.reason] += 1
        elif isinstance(row, dict):
            by_role.setdefault(row["role"], []).append(row)
    return _Run(trajectory.reward, trajectory.id, by_role) if by_role else None


def _pairs(group: str, ends: _Ends) -> Iterator[Row | Skipped]:
    best, worst = ends.best, ends.worst
    if best.reward == worst.reward:
        alone = "the run is alone in its group" if ends.rollouts == 1 else ""
        yield Skipped(alone or "the rewards of the group are equal")
        return
    for role in [name for name in best.by_role if name in worst.by_role]:
        found = [
            _pair(chosen, rejected)
            for chosen, rejected in product(best.by_role[role], worst.by_role[role])
        ]
        pairs = [each for each in found if isinstance(each, dict)]
        if not pairs:
            yield next(each for each in found if isinstance(each, Skipped))
            continue
        yield {
            **max(pairs, key=lambda pair: len(pair["prompt"])),
            "role": role,
            "reason": f"reward {best.reward:g} against {worst.reward:g}",
            "chosen_reward": best.reward,
            "rejected_reward": worst.reward,
            "group_id": group,
            "chosen_id": best.id,
            "rejected_id": worst.id,
        }


def _pair(first: Row, second: Row) -> Row | Skipped:
    """Two conversations from the first answer that differs on."""
    chosen, rejected = _messages(first), _messages(second)
    shared = next(
        (n for n, pair in enumerate(zip(chosen, rejected, strict=False)) if pair[0] != pair[1]),
        min(len(chosen), len(rejected)),
    )
    if chosen == rejected:
        return Skipped("the best and the worst of the group say the same")
    follow = [each[shared]["role"] for each in (chosen, rejected) if len(each) > shared]
    if follow != ["assistant", "assistant"] or first.get("tools") != second.get("tools"):
        return Skipped("the best and the worst of the group had different prompts")
    if any("weight" in each for row in (first, second) for each in row["messages"][shared:]):
        return Skipped("an answer of the pair was cut off, or is not the role's own")
    tools = {"tools": first["tools"]} if first.get("tools") else {}
    return {
        "prompt": chosen[:shared],
        "chosen": chosen[shared:],
        "rejected": rejected[shared:],
        **tools,
    }


def _messages(conversation: Row) -> list[Row]:
    """Messages without weights, in which tool calls are numbered: their ids differ from run to run."""
    numbers: dict[str, str] = {}
    found: list[Row] = []
    for message in conversation["messages"]:
        plain = {key: value for key, value in message.items() if key != "weight"}
        if asked := plain.get("tool_calls"):
            plain["tool_calls"] = [
                {**call, "id": numbers.setdefault(call["id"], f"call-{len(numbers) + 1}")}
                for call in asked
            ]
        if "tool_call_id" in plain:
            plain["tool_call_id"] = numbers.get(plain["tool_call_id"], plain["tool_call_id"])
        found.append(plain)
    return found
