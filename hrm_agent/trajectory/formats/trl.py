"""Rollouts for TRL, in the columns that a `rollout_func` of `GRPOTrainer` returns.

`prompt_ids` is the beginning of a conversation, `completion_ids` everything after it. `env_mask` is
1 on tokens that the policy sampled and that are to be learned; `logprobs` is aligned with the
completion. Every other key is passed to TRL's reward functions. There is one row for each path of
the message forest that has tokens to learn, cut after the last of these tokens. A trajectory of
several paths gives several rows with one `trajectory_id`, and each token is learned in one of them.
Inherited calls of a fork, and untrainable ones, are context. TRL's trainer has one temperature, so
that a path with calls of several temperatures gives a row for each temperature; `temperature` and
`logprob_kind` describe a row.

    from hrm_agent.trajectory.formats.trl import rollout_columns

    rollouts = rollout_columns(Path("rollouts.jsonl"))
    GRPOTrainer(..., rollout_func=lambda prompts, trainer: rollouts, reward_funcs=lambda reward, **_: reward)

On import, the tokens, masks and log-probs are a trajectory that can be trained on. Rollouts do not
contain the rest of the run (messages, tool calls, times).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.forest import path_mask, path_tokens, paths
from hrm_agent.trajectory.formats.shared.rows import Row, Skipped, incomplete, read_rows
from hrm_agent.trajectory.formats.shared.token_runs import Assembly, Origin, checked
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import (
    Call,
    LogprobKind,
    RunStatus,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
)

__all__ = ["read_trl", "rollout_columns", "trl_rows"]

_NEEDED = ("prompt_ids", "completion_ids")


def trl_rows(trajectory: Trajectory) -> Iterator[Row | Skipped]:
    """Rollouts of one trajectory."""
    if (gap := incomplete(trajectory)) is not None:
        yield gap
        return
    trained: set[str] = set()
    own = {call.id for call in trajectory.policy_calls}
    if not own:
        reasons = (call.why_untrainable for call in trajectory.own_calls)
        yield Skipped(next(filter(None, reasons), "the policy was never asked"))
        return
    for path in paths(trajectory.calls):
        fresh = [call for call in path if call.id in own - trained]
        trained |= {call.id for call in fresh}
        for temperature in dict.fromkeys(call.sampled_with.temperature for call in fresh):
            yield _row(
                trajectory,
                path,
                [call for call in fresh if call.sampled_with.temperature == temperature],
            )


def _row(trajectory: Trajectory, path: tuple[Call, ...], learned: Sequence[Call]) -> Row:
    """Row of the path up to the last of the `learned` calls, which all have one temperature."""
    ids = {call.id for call in learned}
    kinds = {call.logprob_kind for call in learned}
    path = path[: max(index for index, call in enumerate(path) if call.id in ids) + 1]
    begin = path_mask(path).index(True)
    tokens = path_tokens(path)
    logprobs = [value for call in path for value in call.logprobs]
    mask = [int(sampled and call.id in ids) for call in path for sampled in call.mask]
    return {
        "prompt_ids": list(tokens[:begin]),
        "completion_ids": list(tokens[begin:]),
        "logprobs": logprobs[begin:],
        "env_mask": mask[begin:],
        "reward": trajectory.rewards.get("correct"),
        "trajectory_id": trajectory.id,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task.id,
        "task_prompt": trajectory.task.prompt,
        "policy": trajectory.policy,
        "status": trajectory.status.value,
        "stop_reason": trajectory.stop_reason.value if trajectory.stop_reason else None,
        "logprob_kind": (kinds.pop() if len(kinds) == 1 else LogprobKind.NONE).value,
        "temperature": learned[0].sampled_with.temperature,
    }


def rollout_columns(path: Path) -> dict[str, list[Any]]:
    """Rows of a file as the dict of lists that a `rollout_func` returns."""
    rows = [row for _, row in read_rows(path)]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def read_trl(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a file of rollouts. Adjoining rows with one `trajectory_id` are one
    trajectory.
    """
    placed = ((place, checked(row, _NEEDED, place)) for place, row in read_rows(path))
    for id_, group in groupby(placed, key=lambda item: _id(item[1])):
        yield _trajectory(id_, list(group), origin)


def _id(row: Row) -> str:
    """Id of a row's trajectory: the id that the row names, else a hash of the row, which is equal
    on each import.
    """
    return str(row.get("trajectory_id") or content_hash("trl", row))


def _trajectory(id_: str, rows: list[tuple[str, Row]], origin: Origin) -> Trajectory:
    place, first = rows[0]
    assembly = Assembly(id_, origin, place, model=first.get("policy"))
    for at, row in rows:
        prompt = row["prompt_ids"]
        completion = row["completion_ids"]
        mask = row.get("env_mask") or [1] * len(completion)
        logprobs = row.get("logprobs")
        if len(mask) != len(completion) or (
            logprobs is not None and len(logprobs) != len(completion)
        ):
            problem = f"{at}: completion_ids, env_mask and logprobs are not equally long."
            raise StoreError(problem, "Give one entry for each token of the completion.")
        kind = LogprobKind(row.get("logprob_kind") or LogprobKind.SAMPLED)
        said = row.get("temperature")
        sampling = Sampling() if said is None else Sampling(temperature=said)
        end = assembly.add(None, (), [*prompt], [0] * len(prompt), None, kind=kind)
        assembly.add(*end, [*completion], mask, logprobs, kind=kind, sampling=sampling)
    return assembly.finish(
        task=TaskRef(
            id=str(first.get("task_id") or content_hash(first["prompt_ids"])),
            family="trl",
            prompt=str(first.get("task_prompt") or ""),
        ),
        group_id=str(first.get("group_id") or content_hash(first["prompt_ids"])),
        status=RunStatus(first.get("status") or RunStatus.COMPLETED),
        stop_reason=StopReason(first.get("stop_reason") or StopReason.ANSWER),
        rewards={} if first.get("reward") is None else {"correct": float(first["reward"])},
    )
