"""Trajectory of a trace: a call for each model span, a tool call for each tool span.

What the trace does not have is not made up. It is counted by name in
`task.metadata["trace"]["missing"]`, and `task.metadata["not_recorded"]` names it for readers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from hrm_agent.langgraph_format import task_of_namespace
from hrm_agent.trajectory.formats.shared.json_documents import refused
from hrm_agent.trajectory.formats.shared.message_runs import ForeignRun
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.formats.traces.foreign_span import ForeignSpan, Kind
from hrm_agent.trajectory.formats.traces.tool_matching import asked_tools, matched_spans
from hrm_agent.trajectory.formats.traces.values import as_float, as_int, mapping, text_at
from hrm_agent.trajectory.ids import NOT_RECORDED, call_id, content_hash, tool_record_id
from hrm_agent.trajectory.schema import (
    Call,
    CallUsage,
    GraphIdentity,
    RaisedError,
    RunStatus,
    StopReason,
    TaskRef,
    ToolStatus,
    Trajectory,
    Turn,
    TurnEnd,
)

__all__ = ["missing_parts", "trajectory_of"]

_TOKEN_IDS = "token ids and log-probs of calls"
_STATES = "states of graphs (checkpoints) of runs"
_PARENTS = "enclosing spans of spans"
_REQUESTS = "messages that calls were sent"
_ANSWERS = "answers of calls"
_TOOLS = "tools that calls were offered"
_USAGE = "token counts of calls"
_COST = "costs of calls"
_NODES = "nodes or agents that made calls"
_OUTCOMES = "outcomes of tool calls that have no span, which are taken as ok"
_ARGUMENTS = "arguments of tool calls"
_RESULTS = "results of tool calls"
_TOOL_IDS = "ids of tool calls in an answer"
_UNRUN = "results and spans of tool calls in answers"
_END = "ends of runs"
_LONGEST = 500


@dataclass(slots=True)
class _Trace:
    """Trace while its trajectory is made."""

    run: ForeignRun
    spans: list[ForeignSpan]
    """All spans, each after its parent."""
    roots: list[ForeignSpan]
    """Spans without a parent in the file, by start."""
    missing: Counter[str] = field(default_factory=Counter[str])
    failed: list[Call] = field(default_factory=list[Call])
    answered: list[ForeignSpan] = field(default_factory=list[ForeignSpan])
    """Model spans whose calls did not fail."""
    in_task: Counter[str] = field(default_factory=Counter[str])
    """Number of model calls so far, by task."""


def missing_parts(trajectory: Trajectory) -> Counter[str]:
    """Parts that the trace of a trajectory did not have, in words -> their number."""
    told = mapping(mapping(trajectory.task.metadata.get("trace")).get("missing"))
    return Counter({name: count for name, value in told.items() if (count := as_int(value))})


def trajectory_of(
    spans: Sequence[ForeignSpan], origin: Origin, format_name: str
) -> Trajectory | None:
    """Trajectory of all spans of a trace (None if no span is a model call)."""
    ordered, roots, orphans = _parents_first(spans)
    calls = _outermost_calls(ordered)
    if not calls:
        return None
    inner = sum(span.kind is Kind.MODEL for span in ordered) - len(calls)
    if inner:
        origin.notes[
            "model spans inside of a model span, taken as the same call, were left out"
        ] += inner
    _add_places(ordered)
    began = min(span.started_at for span in ordered)
    ended = max(span.ended_at or span.started_at for span in ordered)
    first = min(calls, key=_start)
    id_ = content_hash("trace", first.trace_id)
    model = next((span.model for span in sorted(calls, key=_start) if span.model), None)
    run = ForeignRun.of(id_, origin, first.place, model, began, ended)
    trace = _Trace(run, ordered, roots)
    trace.missing[_PARENTS] += orphans
    for span in sorted(calls, key=lambda one: (one.ended_at or one.started_at, *_start(one))):
        _add_call(trace, span)
    _add_tools(trace)
    trace.missing[_TOKEN_IDS] += len(calls)
    trace.missing[_STATES] += 1
    return _finished(trace, sorted(calls, key=_start), format_name)


def _start(span: ForeignSpan) -> tuple[float, str]:
    return span.started_at, span.id


def _parents_first(
    spans: Sequence[ForeignSpan],
) -> tuple[list[ForeignSpan], list[ForeignSpan], int]:
    """Spans, each after its parent; the roots by start; number of spans whose parent is missing.
    Raises `StoreError` for a span that is its own ancestor.
    """
    known = {span.id for span in spans}
    inside: defaultdict[str, list[ForeignSpan]] = defaultdict(list)
    roots: list[ForeignSpan] = []
    orphans = 0
    for span in spans:
        if span.parent is None or span.parent not in known:
            orphans += span.parent is not None
            roots.append(span)
        else:
            inside[span.parent].append(span)
    roots.sort(key=lambda span: (span.parent is not None, *_start(span)))
    ordered: list[ForeignSpan] = []
    waiting = list(roots)
    while waiting:
        ordered += waiting
        waiting = [one for span in waiting for one in sorted(inside.pop(span.id, ()), key=_start)]
    if len(ordered) < len(spans):
        reached = {span.id for span in ordered}
        lost = next(span for span in spans if span.id not in reached)
        refused(lost.place, "parent", f"span {lost.id[:80]} is its own ancestor")
    return ordered, roots, orphans


def _outermost_calls(ordered: list[ForeignSpan]) -> list[ForeignSpan]:
    """Model spans that are in no other one: a client's span inside of LangChain's is the same call.
    A tool or an agent inside of a model span makes calls of its own.
    """
    within: set[str] = set()
    found: list[ForeignSpan] = []
    for span in ordered:
        inside = span.parent in within
        if span.kind is Kind.MODEL and not inside:
            found.append(span)
        if span.kind is Kind.MODEL or (inside and span.kind is Kind.OTHER):
            within.add(span.id)
    return found


def _add_places(ordered: list[ForeignSpan]) -> None:
    """Add the agent, and the task of own spans, of the spans around each span."""
    agents: dict[str, str] = {}
    inside: dict[str, str] = {}
    spaces: dict[str, str] = {}
    for span in ordered:
        around = spaces.get(span.parent or "", "")
        task = text_at(span.ours, "graph_task_id")
        if task and span.node:
            around = "|".join(filter(None, (around, f"{span.node}:{task}")))
        spaces[span.id] = around
        agent = span.name if span.kind is Kind.AGENT else agents.get(span.parent or "", "")
        agents[span.id] = agent
        span.agent_span = inside.get(span.parent or "", "")
        inside[span.id] = span.id if span.kind is Kind.AGENT else span.agent_span
        if span.kind in (Kind.MODEL, Kind.TOOL):
            if not span.checkpoint_ns and around and task_of_namespace(around):
                span.checkpoint_ns = around
                span.node = around.rpartition("|")[2].partition(":")[0]
            span.node = span.node or agent or text_at(span.ours, "role")


def _add_call(trace: _Trace, span: ForeignSpan) -> None:
    run = trace.run
    task = task_of_namespace(span.checkpoint_ns) if span.checkpoint_ns else f"call-{span.id}"
    index = trace.in_task[task]
    trace.in_task[task] += 1
    identity = GraphIdentity(
        thread_id=run.assembly.id,
        task_id=task,
        checkpoint_ns=span.checkpoint_ns,
        agent=span.agent,
    )
    run.begin(span.sent or ())
    failed = span.error is not None and span.answer is None
    facts: dict[str, Any] = {}
    if failed:
        kind = span.error_class.rpartition(".")
        facts["error"] = RaisedError(
            kinds=(f"{kind[0] or 'builtins'}:{kind[2]}", "builtins:Exception")
            if kind[2]
            else ("builtins:Exception",),
            message=span.error or "",
        )
    elif span.answer is None:
        facts["lost"] = ("content",)
    call = run.answer(
        span.answer or AIMessage(""),
        tools=span.tools or (),
        node=span.node,
        id=call_id(run.assembly.id, task, index),
        identity=identity,
        call_index=index,
        request_hash=content_hash("imported", run.assembly.id, task, index),
        answered_by=span.answered_by,
        policy_version=as_int(span.ours.get("policy_version")) or 0,
        sampling_sent=span.sampling,
        finish_reason=span.finish_reason,
        started_at=span.started_at,
        ended_at=max(span.started_at, span.ended_at or span.started_at),
        **({"model": span.model} if span.model and not run.assembly.origin.policy else {}),
        **facts,
    )
    unknown: dict[str, Any] = {}
    if span.sent is None:
        trace.missing[_REQUESTS] += 1
        unknown |= {"request": None, "context_hash": ""}
    if span.tools is None:
        trace.missing[_TOOLS] += 1
        unknown |= {"tools": None, "tools_hash": ""}
    reported = {**span.usage.model_dump(exclude_none=True), **_known(call.usage)}
    if reported:
        unknown["usage"] = CallUsage(**reported)
    run.assembly.origin.notes.update(span.left_out)
    call = call.model_copy(update=unknown)
    run.assembly.calls[-1] = call
    if failed:
        trace.failed.append(run.assembly.calls.pop())
        return
    trace.missing[_NODES] += not span.node
    trace.missing[_ANSWERS] += span.answer is None
    used = call.usage or CallUsage()
    trace.missing[_USAGE] += None in (used.input_tokens, used.output_tokens)
    trace.missing[_COST] += used.cost is None
    trace.answered.append(span)


def _known(usage: CallUsage | None) -> dict[str, Any]:
    return usage.model_dump(exclude_none=True) if usage else {}


def _add_tools(trace: _Trace) -> None:
    """Add the tool calls: those with a span, then those that only messages show."""
    run = trace.run
    spans = _outermost_tools(trace.spans)
    asked = asked_tools(trace.answered)
    matched = matched_spans(asked, spans)
    taken: set[str] = set()
    for span in spans:
        call = matched.get(span.id)
        id_ = span.tool_call_id or (call.id if call else "")
        arguments = span.arguments
        if call is not None and not isinstance(arguments, dict):
            arguments = call.arguments
        shown = call.result if call else None
        content = span.content if span.content is not None else _failure(span)
        if content is None and shown is not None:
            content = shown.text
        status = span.status
        if status is None:
            failed = span.error is not None or (shown is not None and shown.status == "error")
            status = ToolStatus.ERROR if failed else ToolStatus.OK
        trace.missing[_ARGUMENTS] += arguments is None
        trace.missing[_RESULTS] += content is None
        trace.missing[_TOOL_IDS] += not id_
        space = span.checkpoint_ns
        task = task_of_namespace(space) if space else ""
        if not task or tool_record_id(run.assembly.id, task, id_ or span.id) in taken:
            task = f"tool-{span.id}"
            space = ""
        taken.add(tool_record_id(run.assembly.id, task, id_ or span.id))
        ended = max(span.started_at, span.ended_at or span.started_at)
        run.tool_result(
            id_ or span.id,
            span.name,
            {} if arguments is None else arguments,
            status=status,
            content=content or "",
            task=task,
            node=span.node,
            checkpoint_ns=space,
            started_at=span.started_at,
            ended_at=ended,
            duration_seconds=ended - span.started_at,
        )
    with_span = {id(call) for call in matched.values()}
    for call in asked:
        shown = call.result
        if id(call) in with_span:
            continue
        if shown is None:
            trace.missing[_UNRUN] += 1
            continue
        trace.missing[_OUTCOMES] += shown.status != "error"
        trace.missing[_TOOL_IDS] += not call.id
        place = f"{call.span.id}-{call.index}"
        run.tool_result(
            call.id or place,
            call.name,
            call.arguments,
            status=ToolStatus.ERROR if shown.status == "error" else ToolStatus.OK,
            content=shown.text,
            task=f"message-{content_hash(place)[:16]}",
        )


def _outermost_tools(ordered: list[ForeignSpan]) -> list[ForeignSpan]:
    """Tool spans by start. One directly inside of another with the same id of the tool call is the
    same call, and adds what the outer one does not have.
    """
    around: dict[str, ForeignSpan] = {}
    found: list[ForeignSpan] = []
    for span in ordered:
        outer = around.get(span.parent or "")
        if span.kind is Kind.OTHER and outer is not None:
            around[span.id] = outer
        if span.kind is not Kind.TOOL:
            continue
        if outer is not None and span.tool_call_id and outer.tool_call_id == span.tool_call_id:
            around[span.id] = outer
            outer.arguments = span.arguments if outer.arguments is None else outer.arguments
            if outer.content is None and outer.error is None:
                outer.content = span.content
        else:
            around[span.id] = span
            found.append(span)
    return sorted(found, key=_start)


def _failure(span: ForeignSpan) -> str | None:
    """Text of a span's error, with its class (None if it did not fail)."""
    name = span.error_class.rpartition(".")[2]
    if span.error is None or not name or name in (span.error, span.error[: len(name)]):
        return span.error
    return f"{name}: {span.error}"


def _finished(trace: _Trace, calls: list[ForeignSpan], format_name: str) -> Trajectory:
    run = trace.run
    own = [root for root in trace.roots if root.ours]
    main = own[0] if own else trace.roots[0]
    ours = main.ours
    prompt = main.prompt
    if prompt is None:
        texts = (message.text for one in calls for message in one.sent or () if _is_human(message))
        prompt = next(texts, "")
    task = text_at(ours, "task_id") or content_hash(format_name, prompt)
    end = _end_of(trace, main if not own else max(own, key=_start))
    missing = {name: count for name, count in trace.missing.items() if count}
    named = {
        "format": format_name,
        "id": main.trace_id,
        "name": main.name[:_LONGEST],
        "session": main.session,
        **({"trajectory_id": text_at(ours, "trajectory_id")} if ours else {}),
        "missing": missing,
    }
    rewards = _rewards(ours)
    return run.finish(
        task=TaskRef(
            id=task,
            family=text_at(ours, "task_family") or format_name,
            prompt=prompt,
            metadata={
                "trace": {name: value for name, value in named.items() if value},
                NOT_RECORDED: ", ".join(missing),
            },
        ),
        run_id=text_at(ours, "run_id"),
        group_id=text_at(ours, "group_id") or task,
        sample_index=as_int(ours.get("sample_index")) or 0,
        status=end.status,
        stop_reason=end.stop_reason,
        error=end.error,
        answer=end.answer,
        turns=_turns(trace, own),
        policy_version=as_int(ours.get("policy_version")) or 0,
        rewards=rewards,
        failed_calls=tuple(trace.failed),
    )


def _is_human(message: BaseMessage) -> bool:
    return isinstance(message, HumanMessage)


def _end_of(trace: _Trace, root: ForeignSpan) -> TurnEnd:
    status = text_at(root.ours, "status")
    reason = text_at(root.ours, "stop_reason")
    last = trace.run.assembly.calls[-1] if trace.run.assembly.calls else None
    answer = root.result
    if answer is None and last is not None and root.error is None:
        answer = AIMessage.model_validate(last.response).text or None
    told: str | None = None
    if status in {one.value for one in RunStatus} - {RunStatus.RUNNING}:
        found = RunStatus(status)
        stop = StopReason(reason) if reason in {one.value for one in StopReason} else None
        told = root.error or ("failed" if found is RunStatus.FAILED else None)
    elif root.error is not None:
        found = RunStatus.FAILED
        stop = StopReason.ERROR
        told = _failure(root)
    elif root.ended_at is None:
        trace.missing[_END] += 1
        found = RunStatus.ABORTED
        stop = StopReason.ABORTED
    else:
        found = RunStatus.COMPLETED
        stop = StopReason.ANSWER
    return TurnEnd(status=found, stop_reason=stop, error=told, answer=answer)


def _turns(trace: _Trace, own: list[ForeignSpan]) -> tuple[Turn, ...]:
    """Turns of a conversation of this project, each of which has a root."""
    ordered = sorted(own, key=_start)
    return tuple(
        Turn(
            id=turn.id,
            prompt=turn.prompt or "",
            before=_end_of(trace, before),
            started_at=turn.started_at,
        )
        for before, turn in pairwise(ordered)
    )


def _rewards(ours: dict[str, Any]) -> dict[str, float]:
    """Rewards of the run. The sum is one of them if it is not the outcome."""
    held = mapping(ours.get("reward"))
    rewards = {
        name: value
        for name, one in held.items()
        if name and (value := as_float(one)) is not None and (name != "correct" or 0 <= value <= 1)
    }
    total = as_float(held.get("") if held else ours.get("reward"))
    if total is not None and total != rewards.get("correct", 0.0):
        rewards["reward"] = total
    return rewards
