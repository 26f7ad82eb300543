"""Pairs of answers to one prompt, the better and the worse: `{"prompt": [...], "chosen": [...],
"rejected": [...]}`, as TRL's DPO, KTO and reward trainers read conversations.

A group of rollouts gives a pair for each role: the first conversation of the role in the rollout with
the highest reward, and in the one with the lowest (of equal ones the first). `prompt` is what both
conversations begin with, `chosen` and `rejected` begin with the first answer that differs, and
contain all that followed, tool results included. Beside them are `tools`, `role`, `reason`, the
rewards, and the ids of group and runs. A role whose conversations differ before an answer gives no
pair: its prompts are not the same. Only completed runs that were scored are compared; conversations are
those of `chat`, without its weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    by_role: dict[str, Row]
    """First conversation of each role."""


class _Ends(NamedTuple):
    best: _Run
    worst: _Run


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
            _Ends(run, run)
            if ends is None
            else _Ends(
                run if run.reward > ends.best.reward else ends.best,
                run if run.reward < ends.worst.reward else ends.worst,
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
    by_role: dict[str, Row] = {}
    for row in rows:
        if isinstance(row, Skipped):
            report.left_out[row.reason] += 1
        elif isinstance(row, dict):
            by_role.setdefault(row["role"], row)
    return _Run(trajectory.reward, trajectory.id, by_role) if by_role else None


def _pairs(group: str, ends: _Ends) -> Iterator[Row | Skipped]:
    best, worst = ends
    if best.reward == worst.reward:
        yield Skipped("the rewards of the group are equal")
        return
    for role in [name for name in best.by_role if name in worst.by_role]:
        chosen, rejected = (_messages(run.by_role[role]) for run in ends)
        tools = best.by_role[role].get("tools")
        shared = next(
            (n for n, pair in enumerate(zip(chosen, rejected, strict=False)) if pair[0] != pair[1]),
            min(len(chosen), len(rejected)),
        )
        follow = [each[shared]["role"] for each in (chosen, rejected) if len(each) > shared]
        if chosen == rejected:
            yield Skipped("the best and the worst of the group say the same")
        elif follow != ["assistant", "assistant"] or tools != worst.by_role[role].get("tools"):
            yield Skipped("the best and the worst of the group had different prompts")
        else:
            yield {
                "prompt": chosen[:shared],
                "chosen": chosen[shared:],
                "rejected": rejected[shared:],
                **({"tools": tools} if tools else {}),
                "role": role,
                "reason": f"reward {best.reward:g} against {worst.reward:g}",
                "chosen_reward": best.reward,
                "rejected_reward": worst.reward,
                "group_id": group,
                "chosen_id": best.id,
                "rejected_id": worst.id,
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
