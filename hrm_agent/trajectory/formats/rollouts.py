"""Rollouts of `verifiers` before its traces, in its `legacy` interface.

A step of `trajectory` is one model call with its whole prompt, so that a file grows with the square
of a conversation's length; `verifiers` is the format to prefer. `completion_mask` is 0 for calls
that are not the run's own or cannot be trained on.

On import, a step whose prompt begins with the prompt and answer of an earlier step extends that
one; any other step is a root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.forest import path_to, path_tokens
from hrm_agent.trajectory.formats.shared.messages import RequestHints, answer_of, messages_of
from hrm_agent.trajectory.formats.shared.rows import (
    Lacks,
    Row,
    RowMaker,
    Skipped,
    incomplete,
    read_rows,
)
from hrm_agent.trajectory.formats.shared.token_runs import Assembly, Origin, checked, common_kind
from hrm_agent.trajectory.formats.verifiers import (
    NEVER_ASKED,
    ai_message,
    ending,
    flat_message,
    lacks,
    sampling_of,
    used_calls,
)
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import (
    Call,
    FinishReason,
    LogprobKind,
    RunStatus,
    Sampling,
    TaskRef,
    Trajectory,
)

__all__ = ["read_rollouts", "rollout_rows"]

Seen = tuple[tuple[int, ...], str]
"""All tokens up to an answer, inclusive, and the id of its call."""


def rollout_rows(known: RequestHints) -> RowMaker:
    """Row maker with one rollout per trajectory."""

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped | Lacks]:
        if (gap := incomplete(trajectory)) is not None:
            yield gap
            return
        steps = [_step(call, trajectory, known) for call in used_calls(trajectory)]
        if not steps:
            yield Skipped(NEVER_ASKED)
            return
        yield from lacks(trajectory, known)
        task = trajectory.task
        yield {
            "example_id": int(content_hash(task.family, task.id)[:8], 16),
            "prompt": steps[0]["prompt"],
            "completion": _completion(steps),
            "answer": task.answer or "",
            "task": task.family,
            "info": {
                "trajectory_id": trajectory.id,
                "task_id": task.id,
                "task_prompt": task.prompt,
                "run_id": trajectory.run_id,
                "group_id": trajectory.group_id,
                "policy": trajectory.policy,
                "status": trajectory.status.value,
                "logprobs": common_kind(trajectory).value,
            },
            "reward": trajectory.reward,
            "metrics": trajectory.rewards,
            "timing": {"start_time": trajectory.started_at},
            "is_completed": trajectory.status is not RunStatus.RUNNING,
            "is_truncated": trajectory.status is RunStatus.TRUNCATED,
            "stop_condition": trajectory.stop_reason.value if trajectory.stop_reason else None,
            "error": (
                {"error": "Error", "message": trajectory.error} if _has_failed(trajectory) else None
            ),
            "trajectory": steps,
        }

    return rows


def _has_failed(trajectory: Trajectory) -> bool:
    return trajectory.status is RunStatus.FAILED and bool(trajectory.error)


def _completion(steps: list[Row]) -> list[Row]:
    """Messages after the first prompt in the last conversation that continues it."""
    first = steps[0]["prompt"]
    last = next(step for step in reversed(steps) if step["prompt"][: len(first)] == first)
    return [*last["prompt"][len(first) :], *last["completion"]]


def _step(call: Call, trajectory: Trajectory, known: RequestHints) -> Row:
    messages = (messages_of(call, trajectory, known) or ())[:-1]
    answer = flat_message(answer_of(call))
    cut = call.finish_reason is FinishReason.LENGTH
    return {
        "prompt": [flat_message(message) for message in messages],
        "completion": [answer],
        "response": {
            "id": call.id,
            "created": int(call.ended_at),
            "model": call.model,
            "message": {
                **answer,
                "finish_reason": "length" if cut else "stop",
                "is_truncated": cut,
            },
        },
        "tokens": _tokens(call, trajectory) if call.token_ids else None,
        "reward": None,
        "advantage": None,
        "is_truncated": cut,
        "trajectory_id": trajectory.id,
        "extras": {"started_at": call.started_at, "ended_at": call.ended_at, **sampling_of(call)},
    }


def _tokens(call: Call, trajectory: Trajectory) -> Row:
    split = len(call.mask) - call.sampled_tokens
    seen = [*path_tokens(path_to(trajectory.calls, call.id)[:-1]), *call.token_ids[:split]]
    trained = any(call.id == own.id for own in trajectory.policy_calls)
    return {
        "prompt_ids": seen,
        "prompt_mask": [0] * len(seen),
        "completion_ids": list(call.token_ids[split:]),
        "completion_mask": [int(trained)] * call.sampled_tokens,
        "completion_logprobs": list(call.logprobs[split:]),
        "overlong_prompt": False,
        "is_truncated": call.finish_reason is FinishReason.LENGTH,
        "routed_experts": None,
    }


def read_rollouts(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a file of rollouts that kept their `trajectory`."""
    for place, row in read_rows(path):
        checked(row, ("trajectory",), place)
        try:
            yield _trajectory(row, place, origin)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise StoreError(
                f"{place} is not a rollout: {type(error).__name__}: {error}.", "Export it again."
            ) from error


def _trajectory(row: Row, place: str, origin: Origin) -> Trajectory:
    info = row.get("info") if isinstance(row.get("info"), dict) else {}
    assert info is not None
    id_ = str(info.get("trajectory_id") or content_hash("rollout", row))
    began = float((row.get("timing") or {}).get("start_time") or 0.0)
    model = info.get("policy") or next(
        (step["response"].get("model") for step in row["trajectory"]), None
    )
    assembly = Assembly(id_, origin, place, model, began, began)
    seen: list[Seen] = []
    for step in row["trajectory"]:
        _add(assembly, seen, step, info)
    task = str(info.get("task_id") or row.get("example_id") or "")
    reward = row.get("reward")
    return assembly.finish(
        task=TaskRef(
            id=task,
            family=str(row.get("task") or "verifiers"),
            prompt=str(info.get("task_prompt") or ""),
            answer=row.get("answer") or None,
        ),
        run_id=str(info.get("run_id") or ""),
        group_id=str(info.get("group_id") or task),
        rewards={} if reward is None else {**(row.get("metrics") or {}), "correct": float(reward)},
        **ending(row, info.get("status")),
    )


def _add(assembly: Assembly, seen: list[Seen], step: Row, info: dict[str, Any]) -> None:
    tokens = step.get("tokens")
    if tokens is None:
        return
    prompt, completion = tuple(tokens["prompt_ids"]), tuple(tokens["completion_ids"])
    fits = [one for one in seen if prompt[: len(one[0])] == one[0]]
    before, parent = max(fits, key=lambda one: len(one[0]), default=((), None))
    extras = step.get("extras") or {}
    began = float(extras.get("started_at") or assembly.started_at)
    mask = tokens.get("completion_mask") or [1] * len(completion)
    call, rest = assembly.add(
        parent,
        prompt[len(before) :],
        completion,
        mask,
        tokens.get("completion_logprobs"),
        kind=LogprobKind(info.get("logprobs") or LogprobKind.SAMPLED),
        branch_of=seen[-1][1] if seen and parent is None else None,
        sampling=Sampling.model_validate(
            {n: extras[n] for n in ("temperature", "top_p") if extras.get(n) is not None}
        ),
        response=ai_message(step["completion"][-1] if step.get("completion") else {}).model_dump(
            mode="json"
        ),
        finish_reason=FinishReason.LENGTH if step.get("is_truncated") else FinishReason.STOP,
        started_at=began,
        ended_at=max(began, float(extras.get("ended_at") or began)),
    )
    if call is not None and call != parent:
        seen.append(((*prompt, *completion[: len(completion) - len(rest)]), call))
