"""Import of inspect_ai logs: each sample of an evaluation, in each of its epochs, is a run.

Both forms, the `.eval` archive and the JSON file, are read by `inspect_ai.log`. Model calls come
from the sample's events, with exactly the messages and tools of each request; calls made by a
scorer do not belong to the run. A log without events gives its answers from the conversation at the
end, where the messages before an answer are taken as its request. Such logs contain no token ids,
so that they cannot be trained on by tokens; their conversations can be exported and fine-tuned on.

Scores are rewards by the scorer's name, or by `scorer/value` for a score with several values. C and
I are 1 and 0, P is 0.5 and N, no answer, 0; words and truth values are read as in inspect; numbers
must be from 0 to 1. NaN means unscored and gives no reward, nor does a number outside. All scores
are kept in `task.metadata["inspect"]["scores"]`. The score of a single scorer with one value is
also `correct`. Runs of one sample are a group, in which the epoch, counted from 0, is
`sample_index`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from hrm_agent.errors import ConfigError, StoreError, to_install
from hrm_agent.trajectory.formats.inspect.calls import seconds, tell, text_of
from hrm_agent.trajectory.formats.shared.json_documents import printable, refused_field
from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun, in_range
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import RunStatus, StopReason, TaskRef, Trajectory

if TYPE_CHECKING:
    from inspect_ai.log import EvalSample, EvalSpec

__all__ = ["read_inspect"]

_WORDS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_LIMITS = {
    "context": StopReason.MAX_TOKENS,
    "cost": StopReason.MAX_COST,
    "message": StopReason.MAX_TURNS,
    "time": StopReason.MAX_SECONDS,
    "token": StopReason.MAX_TOKENS,
    "turn": StopReason.MAX_TURNS,
    "working": StopReason.MAX_SECONDS,
}
"""Limit in inspect -> stop reason. Any other limit counts as one of calls."""


def read_inspect(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a log, one for each sample and epoch."""
    try:
        from inspect_ai import log
    except ImportError as error:
        raise ConfigError(
            "Reading logs of inspect needs the package inspect_ai.",
            f"Run `{to_install('inspect')}`.",
        ) from error
    form = "eval" if zipfile.is_zipfile(path) else "json"
    try:
        found = log.read_eval_log(path, resolve_attachments="core", format=form)
    except ValidationError as error:
        refused_field(error, str(path))
    except Exception as error:  # the library raises any kind for a file that is no log
        told = printable(f"{type(error).__name__}: {error}"[:500])
        raise StoreError(f"{path} cannot be read: {told}", "Copy the file again.") from error
    for sample in found.samples or ():
        yield _trajectory(sample, found.eval, str(path), origin)


def _trajectory(sample: EvalSample, head: EvalSpec, place: str, origin: Origin) -> Trajectory:
    began = seconds(sample.started_at or head.created)
    ended = seconds(sample.completed_at) if sample.completed_at else began
    id_ = content_hash("inspect", head.eval_id, sample.id, sample.epoch, sample.uuid)
    run = ForeignRun.of(id_, origin, place, head.model, began, ended)
    tell(run, sample)
    rewards = _rewards(sample)
    # one score with one value, whatever the value, so that runs of one sample all have `correct`
    values = [score.value for score in (sample.scores or {}).values()]
    if rewards and len(values) == 1 and not isinstance(values[0], Mapping):
        rewards["correct"] = next(iter(rewards.values()))
    answers = [message for message in sample.messages if message.role == "assistant"]
    return run.finish(
        task=_task(sample, head),
        run_id=head.eval_id,
        group_id=content_hash("inspect", head.eval_id, sample.id),
        sample_index=sample.epoch - 1,
        answer=text_of(answers[-1].content) if answers else None,
        rewards=rewards,
        **_end(sample),
    )


def _task(sample: EvalSample, head: EvalSpec) -> TaskRef:
    targets = [sample.target] if isinstance(sample.target, str) else sample.target
    shown = sample.input
    prompt = (
        shown
        if isinstance(shown, str)
        else "\n\n".join(text_of(m.content) for m in shown if m.role == "user")
    )
    told = {
        "eval_id": head.eval_id,
        "uuid": sample.uuid,
        "epoch": sample.epoch,
        "target": sample.target,
        "scores": {name: score.value for name, score in (sample.scores or {}).items()},
        "limit": sample.limit.type if sample.limit else None,
    }
    return TaskRef(
        id=str(sample.id),
        family=f"inspect:{head.task}",
        prompt=prompt,
        answer=targets[0] if len(targets) == 1 and targets[0] else None,
        # JSON has no NaN and no infinities
        metadata=from_json(
            to_json({**sample.metadata, "inspect": told}, inf_nan_mode="null", fallback=str)
        ),
    )


def _end(sample: EvalSample) -> dict[str, Any]:
    if sample.error is not None:
        message = sample.error.message or "unknown"
        return {"status": RunStatus.FAILED, "stop_reason": StopReason.ERROR, "error": message}
    if sample.limit is None:
        return {"status": RunStatus.COMPLETED, "stop_reason": StopReason.ANSWER}
    if sample.limit.type == "operator":
        return {"status": RunStatus.ABORTED, "stop_reason": StopReason.ABORTED}
    return {
        "status": RunStatus.TRUNCATED,
        "stop_reason": _LIMITS.get(sample.limit.type, StopReason.MAX_CALLS),
    }


def _rewards(sample: EvalSample) -> dict[str, float]:
    rewards: dict[str, float] = {}
    for name, score in (sample.scores or {}).items():
        if isinstance(score.value, Mapping):
            several = cast("Mapping[str, Any]", score.value)
            rewards |= {
                f"{name}/{key}": value
                for key, one in several.items()
                if (value := _reward(one)) is not None
            }
        elif (value := _reward(score.value)) is not None:
            rewards[name] = value
    return rewards


def _reward(value: Any) -> float | None:
    """Score as a number from 0 to 1 (None if unscored, or no such number)."""
    if isinstance(value, str):
        word = value if len(value) == 1 else value.lower()
        try:
            value = _WORDS[word] if word in _WORDS else float(value)
        except ValueError:
            return None
    return float(value) if in_range(value) else None
