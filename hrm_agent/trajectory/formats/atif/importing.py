"""Import of ATIF documents: own documents as the original trajectories, others as runs.

An own document carries in `extra.hrm_agent` what ATIF has no field for. Tokens, masks and log-probs
come from the metrics of its steps and texts from the steps, so that an edited step changes what is
read back.

A document of another agent has one model call for each step of the agent. The steps before it, in
order, are taken as its request. Subagents are conversations of the same run. Copied steps are
context; steps without a model call give tool calls only. `extra.reward` and `extra.rewards` are
rewards if they are numbers from 0 to 1. All other data about a document is kept in `task.metadata`.
Files that a document refers to are not opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.errors import ConfigError, StoreError, StoreVersionError, to_install
from hrm_agent.trajectory.formats.atif.parts import OURS, blocks_of, response_of
from hrm_agent.trajectory.formats.shared.json_documents import documents, refused, valid
from hrm_agent.trajectory.formats.shared.message_runs import (
    NO_PROMPT_TOKENS,
    ForeignRun,
    Tokens,
    in_range,
)
from hrm_agent.trajectory.formats.shared.messages import context_hash
from hrm_agent.trajectory.formats.shared.reported import ReportedUsage, usage_parts
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.lint import lint
from hrm_agent.trajectory.schema import (
    Call,
    RunStatus,
    StopReason,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
)
from hrm_agent.trajectory.words import REASONING

if TYPE_CHECKING:
    import atif

__all__ = ["read_atif"]

_NEWEST = 8
"""Minor version of the newest documents that are read."""

_MOST_NESTED = 8
"""Maximum depth of nested subagents."""


def read_atif(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a file that holds one document, or one document a line."""
    try:
        from atif import Trajectory as Document
    except ImportError as error:
        raise ConfigError(
            "Reading ATIF needs the package atif.", f"Run `{to_install('atif')}`."
        ) from error
    for place, row in documents(path):
        version = re.fullmatch(r"ATIF-v1\.(\d{1,3})", str(row.get("schema_version")))
        if version is None:
            refused(place, "schema_version", "it is not that of an ATIF 1 document")
        if int(version[1]) > _NEWEST:
            raise StoreVersionError(
                f"{place} is of {version[0]}; this program reads ATIF up to v1.{_NEWEST}.",
                "Update with `pip install --upgrade hrm-agent`.",
            )
        document = valid(Document, row, place, strict=True)
        _check(document, place)
        if is_own(document):
            yield own_trajectory(document, place)
        else:
            moments = [_seconds(step.timestamp) for step in document.steps if step.timestamp]
            model = document.agent.model_name or next(
                (step.model_name for step in document.steps if step.model_name), None
            )
            began, ended = (min(moments), max(moments)) if moments else (0.0, 0.0)
            run = ForeignRun.of(content_hash("atif", row), origin, place, model, began, ended)
            _tell(run, document, place)
            prompt = next(
                (_text(step.message) for step in document.steps if step.source == "user"), ""
            )
            task = content_hash("atif", prompt)
            answers = [
                _text(step.message)
                for step in document.steps
                if step.source == "agent" and step.message
            ]
            told = document.model_dump(
                mode="json", exclude={"steps", "subagent_trajectories"}, exclude_none=True
            )
            went_on = document.continued_trajectory_ref is not None
            extra = document.extra or {}
            named = extra.get("rewards")
            rewards = {
                str(name): float(value)
                for name, value in (cast("Row", named) if isinstance(named, dict) else {}).items()
                if in_range(value)
            }
            yield run.finish(
                task=TaskRef(id=task, family="atif", prompt=prompt, metadata={"atif": told}),
                group_id=task,
                status=RunStatus.TRUNCATED if went_on else RunStatus.COMPLETED,
                stop_reason=StopReason.MAX_TOKENS if went_on else StopReason.ANSWER,
                answer=answers[-1] if answers else None,
                rewards=(
                    rewards
                    | ({"correct": float(extra["reward"])} if in_range(extra.get("reward")) else {})
                ),
            )


def _check(document: atif.Trajectory, place: str, at: str = "") -> None:
    """Raise `StoreError` for values that the package accepts, but no trajectory may contain."""
    if not document.steps:
        refused(place, f"{at}steps", "at least one step belongs here")
    _check_numbers(document.final_metrics, place, f"{at}final_metrics")
    for index, step in enumerate(document.steps):
        here = f"{at}steps[{index}]"
        if (text := step.timestamp) is not None:
            try:
                moment = _seconds(text)
            except (ValueError, OverflowError):
                refused(place, f"{here}.timestamp", f"{text[:80]!r} is no ISO 8601 time")
            if moment < 0:
                refused(place, f"{here}.timestamp", f"{text[:80]!r} is before 1970")
        asked = [call.tool_call_id for call in step.tool_calls or ()]
        if len(set(asked)) < len(asked):
            refused(place, f"{here}.tool_calls", "two tool calls have one tool_call_id")
        _check_numbers(step.metrics, place, f"{here}.metrics")
        logprobs = step.metrics.logprobs if step.metrics else None
        tokens = step.metrics.completion_token_ids if step.metrics else None
        if logprobs is not None and tokens is not None and len(logprobs) != len(tokens):
            told = f"{len(logprobs)} logprobs for {len(tokens)} completion_token_ids"
            refused(place, f"{here}.metrics.logprobs", told)
    for index, inner in enumerate(document.subagent_trajectories or ()):
        _check(inner, place, f"{at}subagent_trajectories[{index}].")


def _check_numbers(part: atif.Metrics | atif.FinalMetrics | None, place: str, at: str) -> None:
    """Raise `StoreError` for a count or cost that is negative or too large."""
    for name, value in part or ():
        if isinstance(value, (int, float)) and not 0 <= value < 2**53:
            refused(place, f"{at}.{name}", f"{value} is not from 0 to 2**53")


def _tell(
    run: ForeignRun, document: atif.Trajectory, place: str, at: str = "", level: int = 0
) -> None:
    """Add the conversation of a document, then those of its subagents."""
    if level > _MOST_NESTED:
        refused(place, at, f"subagents are nested more than {_MOST_NESTED} levels deep")
    run.begin()
    node = "" if level == 0 else document.agent.name
    for index, step in enumerate(document.steps):
        _add(run, step, document, node, content_hash(at, index)[:16])
    for index, inner in enumerate(document.subagent_trajectories or ()):
        _tell(run, inner, place, f"{at}subagent_trajectories[{index}].", level + 1)


def _add(run: ForeignRun, step: atif.Step, document: atif.Trajectory, node: str, task: str) -> None:
    """Add a step. Its tool calls belong to a LangGraph task named `task`."""
    content: Any = blocks_of(step.model_dump()["message"])
    if step.source != "agent":
        run.say(SystemMessage(content) if step.source == "system" else HumanMessage(content))
        return
    metrics = step.metrics
    usage = ReportedUsage(
        *(
            ()
            if metrics is None
            else (metrics.prompt_tokens, metrics.completion_tokens, metrics.cached_tokens)
        ),
        cost_usd=metrics.cost_usd if metrics else None,
    )
    thought = {REASONING: step.reasoning_content} if step.reasoning_content else {}
    asked = [
        {
            "type": "tool_call",
            "id": call.tool_call_id,
            "name": call.function_name,
            "args": call.arguments,
        }
        for call in step.tool_calls or ()
    ]
    message = AIMessage(content, tool_calls=asked, additional_kwargs=thought, **usage_parts(usage))
    calls = run.assembly.calls
    last = calls[-1].ended_at if calls else run.assembly.started_at
    moment = _seconds(step.timestamp) if step.timestamp else last
    if step.is_copied_context or step.llm_call_count == 0:
        run.say(message)
    else:
        named = step.model_name or document.agent.model_name
        if _several(step):
            why = "the step stands for several model calls"
        else:
            why = NO_PROMPT_TOKENS if step.metrics and step.metrics.completion_token_ids else None
        run.answer(
            message,
            tools=document.agent.tool_definitions or (),
            tokens=_tokens(step),
            node=node,
            untrainable=why,
            **({} if named in (None, run.assembly.model) else {"model": named}),
            started_at=moment,
            ended_at=moment,
        )
    _add_results(run, step, node, moment, task)


def _tokens(step: atif.Step) -> Tokens | None:
    """Exact tokens of a step (None unless it has prompt and answer of a single call)."""
    metrics = step.metrics
    if (
        metrics is None
        or not metrics.prompt_token_ids
        or not metrics.completion_token_ids
        or _several(step)
    ):
        return None
    return Tokens(metrics.prompt_token_ids, metrics.completion_token_ids, metrics.logprobs)


def _several(step: atif.Step) -> bool:
    return step.llm_call_count is not None and step.llm_call_count > 1


def _add_results(run: ForeignRun, step: atif.Step, node: str, moment: float, task: str) -> None:
    """Add the results of a step: those of tool calls as tool messages, others as human messages."""
    asked = {call.tool_call_id: call for call in step.tool_calls or ()}
    for result in step.observation.results if step.observation else ():
        text = _text(result.content) if result.content is not None else ""
        call = asked.pop(result.source_call_id or "", None)
        if call is not None:
            run.say(ToolMessage(text, name=call.function_name, tool_call_id=call.tool_call_id))
            # ATIF has no field for the outcome of a tool call. It is `ok`, unless the result's
            # `extra` names another outcome.
            extra = result.extra or {}
            told = extra.get("status")
            if isinstance(told, str) and told in {status.value for status in ToolStatus}:
                status = ToolStatus(told)
            else:
                status = (
                    ToolStatus.ERROR
                    if extra.get("is_error") is True or extra.get("error")
                    else ToolStatus.OK
                )
            run.tool_result(
                call.tool_call_id,
                call.function_name,
                call.arguments,
                status=status,
                content=text,
                task=task,
                node=node,
                started_at=moment,
                ended_at=moment,
            )
        elif text:
            run.say(HumanMessage(text))


def _seconds(text: str) -> float:
    """Unix time of an ISO 8601 text. A time without a zone is taken as UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _text(message: str | Sequence[atif.ContentPart]) -> str:
    """Text of a message, with the type of each other part in its place."""
    if isinstance(message, str):
        return message
    return "\n".join(part.text if part.text is not None else f"[{part.type}]" for part in message)


def is_own(document: atif.Trajectory) -> bool:
    """True for a document that `hrm-agent export` wrote."""
    return OURS in (document.extra or {})


def own_trajectory(document: atif.Trajectory, place: str) -> Trajectory:
    """Trajectory of a document. Raises `StoreError` if its parts no longer fit together."""
    extra = document.extra or {}
    ours = _mapping(extra[OURS], place, f"extra.{OURS}")
    found = _Reading(place, {}, {}, {})
    for at, one in _documents(document):
        found.read(one, at)
    value = ours.get("tool_calls")
    if not isinstance(value, list):
        refused(place, (f"extra.{OURS}.tool_calls"), "a list belongs here")
    for index, row in enumerate(cast("list[Any]", value)):
        found.take_tool_call(row, f"extra.{OURS}.tool_calls[{index}]")
    facts = _mapping(ours.get("trajectory"), place, f"extra.{OURS}.trajectory")
    record = {
        **facts,
        "rewards": extra.get("rewards") or {},
        "calls": (),
        "tool_calls": tuple(found.tool_calls[index] for index in sorted(found.tool_calls)),
    }
    bare = valid(Trajectory, record, place, f"extra.{OURS}.trajectory")
    trajectory = bare.model_copy(
        update={"calls": tuple(found.calls[index] for index in sorted(found.calls))}
    )
    if problems := lint(trajectory):
        raise StoreError(
            f"{place} is not a valid trajectory: {problems[0].name}: {problems[0].message}.",
            f"Export it again, or remove `extra.{OURS}` to read it as another agent's run.",
        )
    return trajectory


def _documents(document: atif.Trajectory) -> Iterator[tuple[str, atif.Trajectory]]:
    yield "", document
    for index, inner in enumerate(document.subagent_trajectories or ()):
        yield f"subagent_trajectories[{index}].", inner


@dataclass
class _Reading:
    """Calls and tool calls read so far."""

    place: str
    """Place of the document, for messages."""
    calls: dict[int, Call]
    """Calls by index in the trajectory."""
    tool_calls: dict[int, ToolCall]
    """Tool calls by index in the trajectory."""
    seen: dict[str, tuple[int, ...]]
    """Id of a call -> all tokens up to its answer, inclusive."""

    def read(self, document: atif.Trajectory, at: str) -> None:
        messages: list[BaseMessage] = []
        for index, step in enumerate(document.steps):
            here = f"{at}steps[{index}]"
            content: Any = blocks_of(step.model_dump()["message"])
            if step.source == "agent":
                self._read_answer(step, messages, here)
            else:
                messages.append(
                    SystemMessage(content) if step.source == "system" else HumanMessage(content)
                )
            for number, result in enumerate(step.observation.results if step.observation else ()):
                self._read_result(step, result, messages, f"{here}.observation.results[{number}]")

    def _read_answer(self, step: atif.Step, messages: list[BaseMessage], at: str) -> None:
        said = response_of(step.model_dump())
        held = (step.extra or {}).get(OURS)
        if held is None:
            messages.append(valid(AIMessage, said, self.place, at))
            return
        ours = _mapping(held, self.place, f"{at}.extra.{OURS}")
        facts = dict(_mapping(ours.get("call"), self.place, f"{at}.extra.{OURS}.call"))
        facts["response"] = {
            **said,
            **_mapping(facts.get("response"), self.place, f"{at}.extra.{OURS}.call.response"),
        }
        call = valid(
            Call, facts | self._tokens(step, facts, at), self.place, f"{at}.extra.{OURS}.call"
        )
        answer = valid(AIMessage, call.response, self.place, at)
        sent = tuple(messages)
        messages.append(answer)
        if ours.get("request") is True and call.context_hash == context_hash(messages):
            call = call.model_copy(
                update={"request": tuple(message.model_dump(mode="json") for message in sent)}
            )
        index = self._index(ours, self.calls, f"{at}.extra.{OURS}.index")
        self.calls[index] = call

    def _tokens(self, step: atif.Step, facts: Row, at: str) -> Row:
        """Tokens that the call adds to those of the call that it extends."""
        metrics = step.metrics
        if (
            metrics is None
            or metrics.prompt_token_ids is None
            or metrics.completion_token_ids is None
        ):
            return {}
        prompt = tuple(metrics.prompt_token_ids)
        sampled = tuple(metrics.completion_token_ids)
        before = self.seen.get(str(facts.get("parent")), ())
        if facts.get("parent") is not None and (not before or prompt[: len(before)] != before):
            refused(
                self.place,
                f"{at}.metrics.prompt_token_ids",
                "they do not begin with the tokens of the call that this call extends",
            )
        inserted = prompt[len(before) :]
        self.seen[str(facts.get("id"))] = (*prompt, *sampled)
        logprobs = tuple(metrics.logprobs or (0.0,) * len(sampled))
        return {
            "token_ids": (*inserted, *sampled),
            "mask": (False,) * len(inserted) + (True,) * len(sampled),
            "logprobs": (0.0,) * len(inserted) + logprobs,
        }

    def _read_result(
        self, step: atif.Step, result: atif.ObservationResult, messages: list[BaseMessage], at: str
    ) -> None:
        held = (result.extra or {}).get(OURS)
        record = None if held is None else self.take_tool_call(held, f"{at}.extra.{OURS}")
        if result.content is None:
            return
        content: Any = blocks_of(result.model_dump()["content"])
        id_ = result.source_call_id or (record.tool_call_id if record else "")
        named = {call.tool_call_id: call.function_name for call in step.tool_calls or ()}
        messages.append(ToolMessage(content, tool_call_id=id_, name=named.get(id_)))

    def take_tool_call(self, held: Any, at: str) -> ToolCall:
        ours = _mapping(held, self.place, at)
        record = valid(ToolCall, ours.get("tool_call"), self.place, f"{at}.tool_call")
        self.tool_calls[self._index(ours, self.tool_calls, f"{at}.index")] = record
        return record

    def _index(self, ours: Row, taken: dict[int, Any], at: str) -> int:
        index = ours.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or index in taken:
            refused(self.place, at, f"{index!r} is not an index, or another call has this index")
        return index


def _mapping(value: Any, place: str, at: str) -> Row:
    if not isinstance(value, dict):
        refused(place, at, "an object belongs here")
    return cast("Row", value)
