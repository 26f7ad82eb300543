"""Import of inspect_ai logs: each sample of an evaluation, in each of its epochs, is a run.

Both forms, the `.eval` archive and the JSON file, are read by `inspect_ai.log`. Model calls come
from the sample's events, with exactly the messages and tools of each request; calls made by a
scorer do not belong to the run. If a log has no events, the answers are taken from the conversation
at its end, and the messages before an answer count as its request. No log contains token ids, so
that a run cannot be trained on by tokens; its conversations can be exported and fine-tuned on.

Scores are rewards by the scorer's name, or by `scorer/value` for a score with several values. The
value C is 1, I is 0, P is 0.5 and N (no answer) is 0. Words and truth values are read as in
inspect. NaN, which means unscored, and a number outside of 0 to 1 give no reward. All scores are
kept in `task.metadata["inspect"]["scores"]`. The score of a single scorer with one value is also
`correct`. Runs of one sample are a group, in which the epoch, counted from 0, is `sample_index`.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json, to_json

from hrm_agent.errors import ConfigError, StoreError, to_install
from hrm_agent.trajectory.formats.shared.json_documents import (
    MOST_BYTES,
    printable,
    refused,
    refused_field,
    valid,
)
from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun, in_range
from hrm_agent.trajectory.formats.shared.reported import ReportedUsage, usage_parts
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import (
    FinishReason,
    RunStatus,
    SentSampling,
    StopReason,
    TaskRef,
    ToolStatus,
    Trajectory,
)
from hrm_agent.trajectory.words import REASONING

if TYPE_CHECKING:
    from inspect_ai.event import ModelEvent, ToolEvent
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage, Content, ModelUsage
    from inspect_ai.tool import ToolCallError, ToolInfo

__all__ = ["read_inspect"]

_MOST_MEMBERS = 200_000
"""Maximum number of members of an archive."""
_MOST_TOTAL = 16 * 2**30
"""Maximum unpacked bytes of all members of an archive."""
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
"""Limit in inspect -> stop reason. Any other limit counts as a limit on calls."""
_STATUS = {
    "approval": ToolStatus.DENIED,
    "cancelled": ToolStatus.INFRASTRUCTURE,
    "limit": ToolStatus.OUTPUT_LIMIT,
    "output_limit": ToolStatus.OUTPUT_LIMIT,
    "parsing": ToolStatus.INVALID_CALL,
    "permission": ToolStatus.DENIED,
    "sandbox_unavailable": ToolStatus.INFRASTRUCTURE,
    "timeout": ToolStatus.TIMEOUT,
}
"""Reason why a tool call failed, in inspect's words -> our status. Any other failure is an
`error`.
"""


class _Part(BaseModel):
    """Base of the checks of numbers, since inspect accepts numbers of any value."""

    model_config = ConfigDict(from_attributes=True)


class _Sample(_Part):
    epoch: int = Field(ge=1, lt=2**31)


class _Config(_Part):
    temperature: float | None = Field(ge=0, allow_inf_nan=False)
    top_p: float | None = Field(gt=0, le=1)
    max_tokens: int | None = Field(ge=1, lt=2**53)


class _Usage(_Part):
    input_tokens: int = Field(ge=0, lt=2**53)
    output_tokens: int = Field(ge=0, lt=2**53)
    input_tokens_cache_write: int | None = Field(ge=0, lt=2**53)
    input_tokens_cache_read: int | None = Field(ge=0, lt=2**53)
    total_cost: float | None = Field(ge=0, allow_inf_nan=False)


class _Output(_Part):
    usage: _Usage | None


class _ModelEvent(_Part):
    config: _Config
    output: _Output


def read_inspect(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a log, one for each sample and epoch."""
    found = _read(path)
    for index, sample in enumerate(found.samples or ()):
        _check_numbers(sample, str(path), f"samples[{index}]")
        began = seconds(sample.started_at or found.eval.created)
        ended = seconds(sample.completed_at) if sample.completed_at else began
        id_ = content_hash("inspect", found.eval.eval_id, sample.id, sample.epoch, sample.uuid)
        run = ForeignRun.of(id_, origin, str(path), found.eval.model, began, ended)
        tell(run, sample)
        rewards: dict[str, float] = {}
        for scorer, given in (sample.scores or {}).items():
            if isinstance(given.value, Mapping):
                several = cast("Mapping[str, Any]", given.value)
                rewards |= {
                    f"{scorer}/{key}": value
                    for key, one in several.items()
                    if (value := _reward(one)) is not None
                }
            elif (value := _reward(given.value)) is not None:
                rewards[scorer] = value
        # If there is one score, and it has one value, it is also `correct`, so that all runs of a
        # sample have this reward.
        values = [score.value for score in (sample.scores or {}).values()]
        if rewards and len(values) == 1 and not isinstance(values[0], Mapping):
            rewards["correct"] = next(iter(rewards.values()))
        answers = [message for message in sample.messages if message.role == "assistant"]
        targets = [sample.target] if isinstance(sample.target, str) else sample.target
        shown = sample.input
        prompt = (
            shown
            if isinstance(shown, str)
            else "\n\n".join(text_of(m.content) for m in shown if m.role == "user")
        )
        facts = {
            "eval_id": found.eval.eval_id,
            "uuid": sample.uuid,
            "epoch": sample.epoch,
            "target": sample.target,
            "scores": {name: score.value for name, score in (sample.scores or {}).items()},
            "limit": sample.limit.type if sample.limit else None,
        }
        yield run.finish(
            task=TaskRef(
                id=str(sample.id),
                family=f"inspect:{found.eval.task}",
                prompt=prompt,
                answer=targets[0] if len(targets) == 1 and targets[0] else None,
                # JSON has no NaN and no infinities
                metadata=from_json(
                    to_json(
                        {**sample.metadata, "inspect": facts}, inf_nan_mode="null", fallback=str
                    )
                ),
            ),
            run_id=found.eval.eval_id,
            group_id=content_hash("inspect", found.eval.eval_id, sample.id),
            sample_index=sample.epoch - 1,
            answer=text_of(answers[-1].content) if answers else None,
            rewards=rewards,
            **_end(sample),
        )


def _read(path: Path) -> EvalLog:
    """Read a log. Its numbers may be out of range."""
    try:
        from inspect_ai import log
    except ImportError as error:
        raise ConfigError(
            "Reading logs of inspect needs the package inspect_ai.",
            f"Run `{to_install('inspect')}`.",
        ) from error
    form = "eval" if zipfile.is_zipfile(path) else "json"
    try:
        if form == "eval":
            _check_archive(path)
        elif path.stat().st_size > MOST_BYTES:
            refused(str(path), "", f"it is larger than {MOST_BYTES // 2**20} MiB")
        # The library gets an open file, so that it reads the members that were checked. Given a
        # path, it would read the archive in another way.
        with path.open("rb") as file:
            return log.read_eval_log(file, resolve_attachments="core", format=form)
    except StoreError:
        raise
    except ValidationError as error:
        refused_field(error, str(path))
    except Exception as error:  # the library raises any kind for a file that is no log
        told = printable(f"{type(error).__name__}: {error}"[:500])
        raise StoreError(f"{path} cannot be read: {told}", "Copy the file again.") from error


def _check_archive(path: Path) -> None:
    """Raise `StoreError` for an archive of too many or too large members. Each is unpacked and
    measured, since the sizes that an archive declares may be false.
    """
    total = 0
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if len(members) > _MOST_MEMBERS:
            refused(str(path), "", f"the archive has more than {_MOST_MEMBERS:,} members")
        for info in members:
            place = f"{path}: {info.filename[:200]}"
            size = 0
            info.file_size = sys.maxsize  # so that `read` ignores the declared size
            with archive.open(info) as member:
                # Read little at a time, since zstandard unpacks all that it is given, to up to
                # 32,768 times the size.
                while chunk := member.read(4096):
                    size += len(chunk)
                    if size > MOST_BYTES:
                        refused(place, "", f"it unpacks to more than {MOST_BYTES // 2**20} MiB")
            total += size
            if total > _MOST_TOTAL:
                told = f"with it, the archive unpacks to more than {_MOST_TOTAL // 2**30} GiB"
                refused(place, "", told)


def _check_numbers(sample: EvalSample, place: str, at: str) -> None:
    """Raise `StoreError` for a number out of range."""
    valid(_Sample, sample, place, at)
    for index, event, _ in _of_the_run(sample):
        if event.event == "model":
            valid(_ModelEvent, event, place, f"{at}.events[{index}]")


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


def _reward(value: Any) -> float | None:
    """Score as a number from 0 to 1 (None if unscored, or outside of this range)."""
    if isinstance(value, str):
        word = value if len(value) == 1 else value.lower()
        try:
            value = _WORDS[word] if word in _WORDS else float(value)
        except ValueError:
            return None
    return float(value) if in_range(value) else None


def tell(run: ForeignRun, sample: EvalSample) -> None:
    """Add the model calls and tool calls of a sample to `run`."""
    events = list(_of_the_run(sample))
    if not any(event.event == "model" for _, event, _ in events):
        _tell_conversation(run, sample)
        return
    for index, event, node in events:
        if event.event == "model":
            _add_call(run, event, node)
        elif not event.pending:
            began = seconds(event.timestamp)
            ended = max(began, seconds(event.completed) if event.completed else began)
            run.tool_result(
                event.id,
                event.function,
                event.arguments,
                status=_status(event.error),
                content=text_of(event.result) or (event.error.message if event.error else ""),
                task=f"event-{index}",
                node=node,
                started_at=began,
                ended_at=ended,
                duration_seconds=ended - began,
            )


def seconds(moment: datetime | str) -> float:
    """Unix time. A time without a zone is taken as UTC."""
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _of_the_run(sample: EvalSample) -> Iterator[tuple[int, ModelEvent | ToolEvent, str]]:
    """Model and tool events as (index in the log, event, name of their solver or agent), without
    the events of scorers.
    """
    spans: dict[str | None, list[tuple[str | None, str]]] = {}
    steps: list[tuple[str | None, str]] = []
    for index, event in enumerate(sample.events):
        if event.event == "span_begin":
            spans[event.id] = [*spans.get(event.parent_id, [])[-20:], (event.type, event.name)]
        elif event.event == "step":  # older form of spans
            steps = [*steps, (event.type, event.name)] if event.action == "begin" else steps[:-1]
        elif event.event in ("model", "tool"):
            around = [*steps, *spans.get(event.span_id, [])]
            if not any((kind or "").startswith("scorer") for kind, _ in around):
                names = [name for kind, name in around if kind in ("agent", "solver")]
                yield index, cast("ModelEvent | ToolEvent", event), names[-1] if names else ""


def _add_call(run: ForeignRun, event: ModelEvent, node: str) -> None:
    """Add a model call, unless it failed, had not ended, or has no answer."""
    if event.pending or not event.output.choices or event.error is not None:
        return
    run.begin(map(_message, event.input))
    choice = event.output.choices[0]
    cut = choice.stop_reason in ("max_tokens", "model_length")
    began = seconds(event.timestamp)
    sent = {"temperature", "top_p", "max_tokens", "seed"}
    run.answer(
        _answer(choice.message, event.output.usage),
        tools=[_tool(tool) for tool in event.tools],
        node=node,
        model=run.assembly.policy if event.model == run.assembly.model else event.model,
        sampling_sent=SentSampling(**event.config.model_dump(include=sent)),
        finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
        started_at=began,
        ended_at=max(began, seconds(event.completed) if event.completed else began),
    )


def _tell_conversation(run: ForeignRun, sample: EvalSample) -> None:
    """Add the conversation at the end of a sample. Each answer counts as a call that was sent the
    messages before it.
    """
    run.begin()
    asked: Row = {}
    for index, message in enumerate(sample.messages):
        if message.role == "assistant":
            run.answer(_answer(message))
            asked |= {call.id: call for call in message.tool_calls or ()}
            continue
        run.say(_message(message))
        call = asked.pop(message.tool_call_id or "", None) if message.role == "tool" else None
        if message.role == "tool" and call is not None:
            run.tool_result(
                call.id,
                call.function,
                call.arguments,
                status=_status(message.error),
                content=message.text or (message.error.message if message.error else ""),
                task=f"message-{index}",
                started_at=run.assembly.started_at,
                ended_at=run.assembly.started_at,
            )


def _status(error: ToolCallError | None) -> ToolStatus:
    return _STATUS.get(error.type, ToolStatus.ERROR) if error else ToolStatus.OK


def _message(message: ChatMessage) -> BaseMessage:
    content: Any = _content(message.content)
    match message.role:
        case "system":
            return SystemMessage(content)
        case "user":
            return HumanMessage(content)
        case "tool":
            shown = content or (message.error.message if message.error else "")
            return ToolMessage(
                shown, tool_call_id=message.tool_call_id or "", name=message.function
            )
        case "assistant":
            return _answer(message)


def _answer(message: ChatMessage, usage: ModelUsage | None = None) -> AIMessage:
    content: Any = _content(message.content)
    parts = [] if isinstance(message.content, str) else message.content
    thought = "\n\n".join(part.reasoning for part in parts if part.type == "reasoning")
    calls = (message.tool_calls if message.role == "assistant" else None) or ()
    reported = ReportedUsage()
    if usage is not None:  # cached tokens are not among `input_tokens`
        cached = usage.input_tokens_cache_read
        prompt = usage.input_tokens + (cached or 0) + (usage.input_tokens_cache_write or 0)
        reported = ReportedUsage(prompt, usage.output_tokens, cached, usage.total_cost)
    return AIMessage(
        content,
        tool_calls=[
            {"type": "tool_call", "id": call.id, "name": call.function, "args": call.arguments}
            for call in calls
            if call.parse_error is None
        ],
        invalid_tool_calls=[
            {
                "type": "invalid_tool_call",
                "id": call.id,
                "name": call.function,
                "args": None,
                "error": call.parse_error,
            }
            for call in calls
            if call.parse_error is not None
        ],
        additional_kwargs={REASONING: thought} if thought else {},
        **usage_parts(reported),
    )


def _tool(tool: ToolInfo) -> Row:
    told = tool.model_dump(mode="json", exclude_none=True)
    function = {name: told[name] for name in ("name", "description", "parameters")}
    return {"type": "function", "function": function}


def _content(content: str | Sequence[Content]) -> str | list[Row]:
    """Text, or parts in OpenAI's form if an image is among them. Thoughts are left out."""
    if isinstance(content, str):
        return content
    parts: list[Row] = []
    for part in content:
        if part.type == "image":
            parts.append({"type": "image_url", "image_url": {"url": part.image}})
        elif part.type == "text":
            parts.append({"type": "text", "text": part.text})
        elif part.type != "reasoning":
            parts.append({"type": "text", "text": f"[a part of the type {part.type}]"})
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def text_of(content: Any) -> str:
    """Text of a message or of a tool's result, which may also be a number."""
    if isinstance(content, list):
        parts = cast("list[Content]", content)
        return "\n".join(part.text for part in parts if part.type == "text")
    return "" if content is None else str(content)
