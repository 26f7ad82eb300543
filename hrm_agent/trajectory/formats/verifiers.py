"""Traces of the `verifiers` library (version 1 of its trace schema): one run a line, as a graph of
messages.

A trace is close to a message forest: its nodes are messages, each with the tokens that it adds to
its parent. All tokens that a recorded call adds, prompt tokens before completion tokens, are on the
node of its answer. Nodes of messages between two answers have no tokens, since the record does not
tell where each message ends; the tokens along a path are complete all the same. Conversations with
a common beginning share those of its nodes that have no tokens. Messages that cannot be proved (see
`messages`) have no node; calls without their messages or tools are counted.

Tokens, masks, log-probs, rewards and times survive a round trip. Tool outcomes, graph identities
and seeds do not, as a trace has no place for them. `mask` is on for tokens sampled by this run's
own trainable calls, so that a fork trains nothing of its origin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.chat import chat_message
from hrm_agent.trajectory.formats.shared.messages import (
    NO_MESSAGES,
    NO_TOOLS,
    RequestHints,
    answer_of,
    messages_of,
    tools_of,
)
from hrm_agent.trajectory.formats.shared.rows import (
    Lacks,
    Row,
    RowMaker,
    Skipped,
    incomplete,
    read_rows,
)
from hrm_agent.trajectory.formats.shared.token_runs import (
    Assembly,
    End,
    Origin,
    checked,
    common_kind,
)
from hrm_agent.trajectory.ids import content_hash
from hrm_agent.trajectory.schema import (
    Call,
    FinishReason,
    LogprobKind,
    RunStatus,
    Sampling,
    StopReason,
    TaskRef,
    Trajectory,
)
from hrm_agent.trajectory.words import REASONING

__all__ = ["read_verifiers", "verifiers_rows"]

TRACE_VERSION = 1
_OURS = "hrm_agent"
"""Key of `info` for data that a trace has no field for."""
_NEUTRAL = {
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""Sampling parameters that the record has no field for -> values that change nothing."""


def verifiers_rows(known: RequestHints) -> RowMaker:
    """Row maker with one trace per trajectory."""

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped | Lacks]:
        if (gap := incomplete(trajectory)) is not None:
            yield gap
            return
        if not trajectory.own_calls:
            yield Skipped("no model was asked")
            return
        for call in _used_calls(trajectory):
            if messages_of(call, trajectory, known) is None:
                yield Lacks(NO_MESSAGES)
            if tools_of(call, known) is None:
                yield Lacks(NO_TOOLS)
        nodes, calls, tools = _graph(trajectory, known)
        task = trajectory.task
        yield {
            "version": TRACE_VERSION,
            "id": trajectory.id,
            "task": {
                "type": task.family,
                "data": {
                    "name": task.id,
                    "prompt": task.prompt,
                    "answer": task.answer,
                    "metadata": task.metadata,
                },
                "key": f"{task.family}:{task.id}",
            },
            "agent": {
                "config": {
                    "model": trajectory.policy,
                    "sampling": _sampling_of(trajectory.own_calls[0]),
                }
            },
            "tools": [_tool(tool) for tool in tools],
            "nodes": nodes,
            "calls": calls,
            "rewards": {
                name: {"score": value, "weight": float(name == "correct")}
                for name, value in trajectory.rewards.items()
            },
            "info": {
                _OURS: {
                    "run_id": trajectory.run_id,
                    "group_id": trajectory.group_id,
                    "graph": trajectory.graph,
                    "status": trajectory.status.value,
                    "logprobs": common_kind(trajectory).value,
                }
            },
            "is_completed": trajectory.status is not RunStatus.RUNNING,
            "ok": trajectory.status is RunStatus.COMPLETED,
            "stop_condition": trajectory.stop_reason.value if trajectory.stop_reason else None,
            "errors": (
                [{"type": "Error", "message": trajectory.error}]
                if trajectory.error and trajectory.status is RunStatus.FAILED
                else []
            ),
            "timing": {
                "start": trajectory.started_at,
                "agent": {"start": trajectory.started_at, "end": trajectory.ended_at or 0.0},
            },
        }

    return rows


def _used_calls(trajectory: Trajectory) -> list[Call]:
    """Own calls of the run, and the inherited ones that they extend."""
    by_id = {call.id: call for call in trajectory.calls}
    used: set[str] = set()
    for call in trajectory.own_calls:
        step: Call | None = call
        while step is not None and step.id not in used:
            used.add(step.id)
            step = by_id.get(step.parent or "")
    return [call for call in trajectory.calls if call.id in used]


def _tool(tool: dict[str, Any]) -> Row:
    function = tool.get("function", tool)
    return {
        name: function.get(name) or default for name, default in (("name", ""), ("description", ""))
    } | {"parameters": function.get("parameters") or {}}


def _graph(
    trajectory: Trajectory, known: RequestHints
) -> tuple[list[Row], list[Row], tuple[dict[str, Any], ...]]:
    """Nodes, each after its parent; model calls; and the longest list of tools offered."""
    nodes: list[Row] = []
    calls: list[Row] = []
    tools: tuple[dict[str, Any], ...] = ()
    answered: dict[str, tuple[int, tuple[BaseMessage, ...]]] = {}
    shared: dict[tuple[int | None, str], int] = {}
    own = {call.id for call in trajectory.policy_calls}
    for call in _used_calls(trajectory):
        at, before = answered.get(call.parent or "", (None, ()))
        messages = messages_of(call, trajectory, known) or ()
        tools = max(tools, tools_of(call, known) or (), key=len)
        begin = len(before) if before or call.parent is None else len(messages)
        for message in messages[begin:-1]:
            row = {"parent": at, "message": _flat_message(message), "timestamp": call.started_at}
            at = shared.setdefault(_key(row), len(nodes))
            nodes += [row] if at == len(nodes) else []
        mask = [sampled and call.id in own for sampled in call.mask]
        row = {
            "parent": at,
            "message": _flat_message(answer_of(call)),
            "sampled": True,
            "timestamp": call.ended_at,
            "token_ids": list(call.token_ids),
            "mask": mask,
            "logprobs": [
                value for value, sampled in zip(call.logprobs, mask, strict=True) if sampled
            ],
        }
        if not call.token_ids:  # a node with tokens belongs to one path
            shared.setdefault(_key(row), len(nodes))
        nodes.append(row)
        answered[call.id] = len(nodes) - 1, messages
        cut = call.finish_reason is FinishReason.LENGTH
        calls.append(
            {
                "node": (len(nodes) - 1),
                "model": call.model,
                "sampling": _sampling_of(call),
                "finish_reason": (
                    "length" if cut else "tool_calls" if call.response.get("tool_calls") else "stop"
                ),
                "time": {"start": call.started_at, "end": call.ended_at},
            }
        )
    return nodes, calls, tools


def _key(node: Row) -> tuple[int | None, str]:
    """Key of a message node: its parent and its content."""
    return node["parent"], json.dumps(node["message"], sort_keys=True, default=str)


def _sampling_of(call: Call) -> Row:
    """Sampling parameters of a call (None for those that a request to another program's model did
    not name).
    """
    held = call.sampling or call.sampling_sent
    return {name: getattr(held, name, None) for name in ("temperature", "top_p", "max_tokens")}


def _flat_message(message: BaseMessage) -> Row:
    """Message with its calls in the form of verifiers: flat, with arguments as JSON text."""
    row = chat_message(message)
    if isinstance(message, AIMessage):
        asked = [
            {
                "id": call["id"] or "",
                "name": call["name"],
                "arguments": json.dumps(call["args"], ensure_ascii=False),
            }
            for call in message.tool_calls
        ]
        asked += [
            {"id": call["id"] or "", "name": call["name"] or "", "arguments": call["args"] or ""}
            for call in message.invalid_tool_calls
        ]
        row["tool_calls"] = asked or None
    return row


def read_verifiers(path: Path, origin: Origin) -> Iterator[Trajectory]:
    """Trajectories of a file of traces."""
    for place, row in read_rows(path):
        checked(row, ("id", "task", "nodes"), place)
        if row.get("version", TRACE_VERSION) != TRACE_VERSION:
            raise StoreError(
                f"{place} is a trace of version {row['version']}; this program reads version"
                f" {TRACE_VERSION}.",
                "Update with `pip install --upgrade hrm-agent`.",
            )
        try:
            yield _trajectory(row, place, origin)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise StoreError(
                f"{place} is not a trace: {type(error).__name__}: {error}.", "Export it again."
            ) from error


def _trajectory(row: Row, place: str, origin: Origin) -> Trajectory:
    config = (row.get("agent") or {}).get("config") or {}
    span = (row.get("timing") or {}).get("agent") or {}
    began = float((row.get("timing") or {}).get("start") or 0.0)
    assembly = Assembly(
        str(row["id"]), origin, place, config.get("model"), began, float(span.get("end") or 0.0)
    )
    ours = (row.get("info") or {}).get(_OURS) or {}
    calls = {call["node"]: call for call in row.get("calls") or () if call.get("node") is not None}
    ends: list[End] = []
    for index, node in enumerate(row["nodes"]):
        end: End = (None, ()) if node.get("parent") is None else ends[node["parent"]]
        ends.append(_add(assembly, end, node, calls.get(index, {}), config, ours))
    scores = {
        name: reward for name, reward in (row.get("rewards") or {}).items() if reward is not None
    }
    rewards = {name: float(reward["score"]) for name, reward in scores.items()}
    if scores:  # `correct` is the weighted sum, on which verifiers trains
        rewards["correct"] = float(
            sum(reward["score"] * reward.get("weight", 1.0) for reward in scores.values())
        )
    task = row["task"]
    data = row["task"]["data"]
    prompt = data.get("prompt") or ""
    key = str(data.get("name") or row["task"].get("key") or content_hash(data))
    return assembly.finish(
        task=TaskRef(
            id=key,
            family=str(task.get("type") or "verifiers"),
            prompt=prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False),
            answer=data.get("answer") if isinstance(data.get("answer"), str) else None,
            metadata=data.get("metadata") or {},
        ),
        run_id=str(ours.get("run_id") or ""),
        group_id=str(ours.get("group_id") or key),
        rewards=rewards,
        **_ending(row, ours.get("status")),
    )


def _add(assembly: Assembly, end: End, node: Row, call: Row, config: Row, ours: Row) -> End:
    mask = node.get("mask") or []
    given = node.get("logprobs") or []
    spread = iter(given)
    complete = len(given) == sum(map(bool, mask))
    said = {**(config.get("sampling") or {}), **(call.get("sampling") or {})}
    sampling = {
        n: said[n] for n in ("temperature", "top_p", "max_tokens") if said.get(n) is not None
    }
    plain = said.get("temperature") == 1 and said.get("top_p") in (None, 1)
    span = call.get("time") or {}
    moment = float(node.get("timestamp") or assembly.started_at)
    changed = [name for name, neutral in _NEUTRAL.items() if said.get(name) not in (None, *neutral)]
    return assembly.add(
        *end,
        node.get("token_ids") or [],
        mask,
        [next(spread) if sampled else 0.0 for sampled in mask] if complete else None,
        kind=LogprobKind(
            ours.get("logprobs") or (LogprobKind.RAW if plain else LogprobKind.SAMPLED)
        ),
        sampling=Sampling.model_validate(sampling),
        untrainable=(
            f"{changed[0]} {said[changed[0]]} changed the sampled distribution" if changed else None
        ),
        response=_ai_message(node["message"]).model_dump(mode="json"),
        finish_reason=(
            FinishReason.LENGTH if call.get("finish_reason") == "length" else FinishReason.STOP
        ),
        started_at=float(span.get("start") or moment),
        ended_at=max(float(span.get("end") or moment), float(span.get("start") or moment)),
    )


def _ai_message(message: Row) -> AIMessage:
    """Answer with its calls. A call whose arguments are no JSON object is kept as
    undecodable text.
    """
    thoughts = message.get(REASONING)
    answer = AIMessage(
        message.get("content") or "", additional_kwargs={REASONING: thoughts} if thoughts else {}
    )
    for call in message.get("tool_calls") or ():
        try:
            arguments = json.loads(call["arguments"])
        except ValueError:
            arguments = None
        if isinstance(arguments, dict):
            answer.tool_calls.append(
                {"type": "tool_call", "id": call["id"], "name": call["name"], "args": arguments}
            )
        else:
            answer.invalid_tool_calls.append(
                {
                    "type": "invalid_tool_call",
                    "id": call["id"],
                    "name": call["name"] or None,
                    "args": call["arguments"],
                    "error": "the arguments are no JSON object",
                }
            )
    return answer


def _ending(row: Row, status: str | None = None) -> dict[str, Any]:
    """Status, stop reason and error of a run. Limits are the stop conditions `max_...` of
    verifiers.
    """
    said = str(row.get("stop_condition") or "")
    errors = row.get("errors") or ([row["error"]] if row.get("error") else [])
    if status == RunStatus.RUNNING or (status is None and not row.get("is_completed", True)):
        return {"status": RunStatus.RUNNING}
    if status == RunStatus.ABORTED:
        return {"status": RunStatus.ABORTED, "stop_reason": StopReason.ABORTED}
    if errors or status == RunStatus.FAILED:
        last: Any = errors[-1] if errors else said or "unknown"
        text = (
            str(last.get("message") or last.get("error")) if isinstance(last, dict) else str(last)
        )
        ours = said in (StopReason.UNUSABLE_ANSWER, StopReason.VERIFIER_ERROR)
        reason = StopReason(said) if ours else StopReason.ERROR
        return {"status": RunStatus.FAILED, "stop_reason": reason, "error": text or "unknown"}
    reason = _stop_of(said, truncated=bool(row.get("is_truncated")))
    done = reason is StopReason.ANSWER
    return {"status": RunStatus.COMPLETED if done else RunStatus.TRUNCATED, "stop_reason": reason}


def _stop_of(said: str, *, truncated: bool = False) -> StopReason:
    """Nearest stop reason of a stop condition. A limit remains a limit."""
    limits = {
        StopReason.RECURSION_LIMIT,
        StopReason.INTERRUPT,
        StopReason.MAX_TURNS,
        StopReason.MAX_SECONDS,
    }
    if said in limits:
        return StopReason(said)
    if "timeout" in said:
        return StopReason.MAX_SECONDS
    if said.startswith("max_") or said == "context_length" or truncated:
        return StopReason.MAX_TOKENS
    return StopReason.ANSWER
