"""Import of inspect_ai logs: each sample of an evaluation, in each of its epochs, is a run.

Both forms, the `.eval` archive and the JSON file, are read without the library: only documented
fields, strictly and within bounds. Model calls come from the sample's events, with exactly the
messages and tools of each request; calls made by a scorer do not belong to the run. A log without
events gives its answers from the conversation at the end, where the messages before an answer are
taken as its request. Such logs contain no token ids, so that they cannot be trained on by tokens;
their conversations can be exported and fine-tuned on.

Scores are rewards by the scorer's name, or by `scorer/value` for a score with several values. C and
I are 1 and 0, P is 0.5 and N, no answer, 0; words and truth values are read as in inspect; numbers
must be from 0 to 1. NaN means unscored and gives no reward, nor does a number outside. All scores
are kept in `task.metadata["inspect"]["scores"]`. The score of a single scorer with one value is
also `correct`. Runs of one sample are a group, in which the epoch, counted from 0, is
`sample_index`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from hrm_agent.errors import StoreVersionError
from hrm_agent.trajectory.formats.inspect.calls import tell, text_of
from hrm_agent.trajectory.formats.inspect_schema import (
    NEWEST,
    InspectEval,
    InspectHeader,
    InspectSample,
)
from hrm_agent.trajectory.formats.shared.archives import is_archive, open_archive
from hrm_agent.trajectory.formats.shared.json_documents import MOST_BYTES, parsed, refused, valid
from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun, in_range
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import RunStatus, StopReason, TaskRef, Trajectory

__all__ = ["read_inspect"]

_ATTACHMENT = "attachment://"
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
    if not is_archive(path):
        yield from _read_json(path, origin)
        return
    with open_archive(path) as archive:
        names = list(archive.names())
        # The log of a killed run has only its beginning.
        start = "header.json" if "header.json" in names else "_journal/start.json"
        head = _header(
            parsed(archive.read(start), f"{path}: {start}", nan=True), f"{path}: {start}"
        )
        for name in names:
            if name.startswith("samples/") and name.endswith(".json"):
                place = f"{path}: {name[:200]}"
                yield _trajectory(
                    parsed(archive.read(name), place, nan=True), "", head, place, origin
                )


def _read_json(path: Path, origin: Origin) -> Iterator[Trajectory]:
    try:
        with path.open("rb") as file:
            document: Any = parsed(file.read(MOST_BYTES + 1), str(path), nan=True)
    except OSError as error:
        refused(str(path), "", f"it cannot be read: {error}")
    head = _header(document, str(path))
    samples: Any = document.get("samples") or []
    if not isinstance(samples, list):
        refused(str(path), "samples", "a list belongs here")
    for index, sample in enumerate(cast("list[Any]", samples)):
        yield _trajectory(sample, f"samples[{index}]", head, str(path), origin)


def _header(document: Any, place: str) -> InspectEval:
    header = valid(InspectHeader, document, place)
    if header.version > NEWEST:
        raise StoreVersionError(
            f"{place} is a log of version {header.version}; this program reads versions up to"
            f" {NEWEST}.",
            "Update with `pip install --upgrade hrm-agent`.",
        )
    return header.eval


def _trajectory(row: Any, at: str, head: InspectEval, place: str, origin: Origin) -> Trajectory:
    held = row.get("attachments") if isinstance(row, dict) else None
    sample = valid(
        InspectSample, _Plain(held if isinstance(held, dict) else {}, place, at).of(row), place, at
    )
    began = sample.started_at or head.created
    id_ = content_hash("inspect", head.eval_id, sample.id, sample.epoch, sample.uuid)
    run = ForeignRun.of(id_, origin, place, head.model, began, sample.completed_at or began)
    tell(run, sample, place, at)
    rewards = _rewards(sample)
    answers = [message for message in sample.messages if message.role == "assistant"]
    return run.finish(
        task=_task(sample, head),
        run_id=head.eval_id,
        group_id=content_hash("inspect", head.eval_id, sample.id),
        sample_index=sample.epoch - 1,
        answer=text_of(answers[-1].content) if answers else None,
        rewards=rewards
        | ({"correct": next(iter(rewards.values()))} if rewards and _is_single(sample) else {}),
        **_end(sample),
    )


def _task(sample: InspectSample, head: InspectEval) -> TaskRef:
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
        metadata={**sample.metadata, "inspect": told},
    )


def _end(sample: InspectSample) -> dict[str, Any]:
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


def _rewards(sample: InspectSample) -> dict[str, float]:
    rewards: dict[str, float] = {}
    for name, score in (sample.scores or {}).items():
        if isinstance(score.value, dict):
            several = cast("Mapping[str, Any]", score.value)
            rewards |= {
                f"{name}/{key}": value
                for key, one in several.items()
                if (value := _reward(one)) is not None
            }
        elif (value := _reward(score.value)) is not None:
            rewards[name] = value
    return rewards


def _is_single(sample: InspectSample) -> bool:
    """True for one score with one value, whatever the value, so that runs of one sample all have
    `correct`, or none.
    """
    values = [score.value for score in (sample.scores or {}).values()]
    return len(values) == 1 and not isinstance(values[0], dict)


def _reward(value: Any) -> float | None:
    """Score as a number from 0 to 1 (None if unscored, or no such number)."""
    if isinstance(value, str):
        word = value if len(value) == 1 else value.lower()
        value = _WORDS[word] if word in _WORDS else _number(value)
    return float(value) if in_range(value) else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class _Plain:
    """Sample with its attached long texts inserted, and None for numbers that JSON does not
    have.
    """

    def __init__(self, attachments: Row, place: str, at: str) -> None:
        self._attachments, self._place, self._at = attachments, place, at
        self._left = MOST_BYTES

    def of(self, value: Any) -> Any:
        match value:
            case str() if value.startswith(_ATTACHMENT):
                return self._attached(value)
            case float() if not math.isfinite(value):
                return None
            case dict():
                return {name: self.of(one) for name, one in cast("Row", value).items()}
            case list():
                return [self.of(one) for one in cast("list[Any]", value)]
            case _:
                return value

    def _attached(self, reference: str) -> str:
        text = self._attachments.get(reference.removeprefix(_ATTACHMENT))
        if not isinstance(text, str):
            return reference
        self._left -= len(text)
        if self._left < 0:
            refused(
                self._place,
                self._at,
                f"its attachments come to more than {MOST_BYTES // 2**20} MiB",
            )
        return text
