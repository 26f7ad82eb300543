"""ATIF, the Agent Trajectory Interchange Format, version 1.8: one document per run and line.

A file of one run is the `trajectory.json` that other programs read. A step is one model call with
its tool calls and their results; system and user turns are separate steps. `prompt_token_ids` is
the whole prompt, so that a file grows with the square of a conversation's length.

Steps are read as one conversation in order. A run with several conversations (parallel solvers, a
planner and its critic, two samples of one request) has each of them in `subagent_trajectories`. The
steps of the run itself are then its task and, for each conversation, a step without a model call
(`llm_call_count` 0) that refers to the conversation. If all steps were in one list, programs that
make training data from ATIF would take one solver's answers as part of another solver's prompt.
`extra.node` names the node of a graph. Parts that a conversation shares with an earlier one, or a
fork with its origin, are marked `is_copied_context`.

ATIF has no field for rewards, status, task and masks. `extra.reward` and `extra.rewards` are for
every reader; `extra.hrm_agent` holds what restores the trajectory: identities, links, sampling,
outcomes of tools. Messages that cannot be proved (see `Messages`) have no step, and `notes` reports
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent import __version__
from hrm_agent.trajectory.forest import path_to, path_tokens
from hrm_agent.trajectory.formats.atif.parts import ATIF_VERSION, OURS, call_record, parts_of
from hrm_agent.trajectory.formats.shared.lines import Line, lines
from hrm_agent.trajectory.formats.shared.messages import RequestHints
from hrm_agent.trajectory.formats.shared.reported import ReportedUsage, tool_definitions, usage_of
from hrm_agent.trajectory.formats.shared.rows import Row, RowMaker, Skipped, incomplete
from hrm_agent.trajectory.schema import Call, LogprobKind, ToolCall, Trajectory
from hrm_agent.trajectory.words import REASONING, thoughts_of

__all__ = ["atif_rows"]


def atif_rows(known: RequestHints) -> RowMaker:
    """Row maker with one document per trajectory."""

    def rows(trajectory: Trajectory) -> Iterator[Row | Skipped]:
        gap = incomplete(trajectory)
        if gap is None and not trajectory.calls:
            gap = Skipped("the policy was never asked")
        yield gap or _Document(trajectory, known).row()

    return rows


@dataclass
class _Document:
    """Conversion of one run to ATIF. Calls already written appear again only as copied context."""

    trajectory: Trajectory
    known: RequestHints
    told: set[str] = field(default_factory=set[str])
    """Ids of calls that have a step."""
    results: dict[str, list[ToolCall]] = field(default_factory=dict[str, list[ToolCall]])
    """Tool call id of the model -> records that have no place yet."""

    def row(self) -> Row:
        for record in self.trajectory.tool_calls:
            self.results.setdefault(record.tool_call_id, []).append(record)
        found = lines(self.trajectory, self.known)
        conversations = [self._conversation(line) for line in found]
        if len(found) == 1:
            steps = conversations[0]
            tools = found[0].tools
            inner = None
        else:
            inner = [
                {
                    "schema_version": ATIF_VERSION,
                    "session_id": self.trajectory.thread_id,
                    "trajectory_id": f"{self.trajectory.id}/{i}",
                    "agent": self._agent(line.tools, line.calls[-1].identity.node),
                    "steps": _numbered(steps),
                }
                for i, (line, steps) in enumerate(zip(found, conversations, strict=True))
            ]
            steps = self._dispatch(found, inner)
            tools = ()
        run = self.trajectory
        notes: list[str] = []
        if len(found) > 1:
            notes.append(
                f"The run had {len(found)} conversations; final_metrics counts the model calls of all"
                " of them."
            )
        if unproved := sum(not line.proved for line in found):
            notes.append(
                f"The messages that were sent in {unproved} conversations are not on record, so"
                " that only the answers are shown."
            )
        return _filled(
            {
                "schema_version": ATIF_VERSION,
                "session_id": self.trajectory.thread_id,
                "trajectory_id": self.trajectory.id,
                "agent": self._agent(tools),
                "steps": _numbered(steps),
                "notes": " ".join(notes) or None,
                "final_metrics": _totals(self.trajectory, len(steps)),
                "extra": _filled(
                    {
                        "reward": run.rewards.get("correct"),
                        "rewards": run.rewards or None,
                        "status": run.status.value,
                        OURS: {
                            "trajectory": run.model_dump(
                                mode="json", exclude={"calls", "tool_calls", "rewards"}
                            ),
                            "tool_calls": [
                                self._record(one) for left in self.results.values() for one in left
                            ],
                        },
                    }
                ),
                "subagent_trajectories": inner,
            }
        )

    def _agent(self, tools: tuple[dict[str, Any], ...], node: str = "") -> Row:
        return _filled(
            {
                "name": node or "hrm-agent",
                "version": __version__,
                "model_name": self.trajectory.policy,
                "tool_definitions": tool_definitions(tools) or None,
                "extra": {"graph": self.trajectory.graph},
            }
        )

    def _dispatch(self, found: list[Line], inner: list[Row]) -> list[Row]:
        """Steps of a run of several conversations: its task, and a reference to each."""
        steps: list[Row] = [{"source": "user", "message": self.trajectory.task.prompt}]
        for line, subagent in zip(found, inner, strict=True):
            reference = {
                "trajectory_id": subagent["trajectory_id"],
                "session_id": self.trajectory.thread_id,
            }
            steps.append(
                {
                    "source": "agent",
                    "timestamp": _moment(line.calls[0].started_at),
                    "message": "",
                    "llm_call_count": 0,
                    "observation": {"results": [{"subagent_trajectory_ref": [reference]}]},
                    "extra": {"node": line.calls[-1].identity.node},
                }
            )
        return steps

    def _conversation(self, line: Line) -> list[Row]:
        """Steps of one conversation, without their numbers."""
        steps: list[Row] = []
        for message, call in line.messages:
            match message:
                case ToolMessage() if steps and steps[-1]["source"] == "agent":
                    self._add_result(steps[-1], message)
                case AIMessage():
                    self._add_recorded(steps)
                    steps.append(self._answer(message, call))
                case SystemMessage():
                    steps.append({"source": "system", "message": parts_of(message)})
                case _:
                    # Turn of neither the system nor the model. ATIF has no source for a custom
                    # role, so that `extra` names the role.
                    step: Row = {"source": "user", "message": parts_of(message)}
                    steps.append(
                        step
                        if isinstance(message, HumanMessage)
                        else {**step, "extra": {"role": message.type}}
                    )
        self._add_recorded(steps)
        return steps

    def _answer(self, message: AIMessage, call: Call | None) -> Row:
        step: Row = {
            "source": "agent",
            "message": parts_of(message),
            REASONING: thoughts_of(vars(message)) or None,
            "tool_calls": [
                {
                    "tool_call_id": call["id"] or f"call_{i}",
                    "function_name": call["name"],
                    "arguments": call["args"],
                }
                for i, call in enumerate(message.tool_calls)
            ]
            or None,
        }
        if call is None:
            return _filled({**step, "llm_call_count": None, "is_copied_context": True})
        inherited = call.identity.thread_id != self.trajectory.thread_id
        extra: Row = {"node": call.identity.node, "call_id": call.id}
        shown: Row = {
            **step,
            "timestamp": _moment(call.started_at),
            "model_name": call.model,
            "llm_call_count": 1,
            "is_copied_context": True if inherited or call.id in self.told else None,
            "extra": extra,
        }
        if call.id not in self.told:
            self.told.add(call.id)
            index = next(i for i, one in enumerate(self.trajectory.calls) if one.id == call.id)
            shown["metrics"] = _metrics(call, self.trajectory)
            extra[OURS] = {
                "index": index,
                "request": call.request is not None,
                "call": call_record(call, shown),
            }
        return _filled(shown)

    def _add_result(self, step: Row, message: ToolMessage) -> None:
        """Add a result as the model was shown it. If its call is on record, add the outcome."""
        content = parts_of(message)
        named = next(
            (c for c in step.get("tool_calls", ()) if c["tool_call_id"] == message.tool_call_id),
            None,
        )
        records = self.results.get(message.tool_call_id, [])
        record = next(
            (one for one in records if _is_of(one, named) and one.content == message.text), None
        )
        self._add(step, message.tool_call_id if named else None, content, record)

    def _add_recorded(self, steps: list[Row]) -> None:
        """Add the results that no message of the conversation shows: those of its last answer, or
        all of them if the conversation is not proved.
        """
        if not steps or steps[-1]["source"] != "agent" or "observation" in steps[-1]:
            return
        for named in steps[-1].get("tool_calls", ()):
            records = self.results.get(named["tool_call_id"], [])
            if (record := next((one for one in records if _is_of(one, named)), None)) is not None:
                self._add(steps[-1], named["tool_call_id"], record.content, record)

    def _add(self, step: Row, id_: str | None, content: Any, record: ToolCall | None) -> None:
        extra: Row | None = None
        if record is not None:
            self.results[record.tool_call_id].remove(record)
            status = record.status.value if record.status else None
            extra = _filled({"status": status, OURS: self._record(record)})
        results: list[Row] = step.setdefault("observation", {"results": []})["results"]
        results.append(_filled({"source_call_id": id_, "content": content, "extra": extra}))

    def _record(self, record: ToolCall) -> Row:
        index = next(i for i, one in enumerate(self.trajectory.tool_calls) if one.id == record.id)
        return {"index": index, "tool_call": record.model_dump(mode="json", exclude_defaults=True)}


def _is_of(record: ToolCall, named: Mapping[str, Any] | None) -> bool:
    """True if `record` belongs to the call `named` as the model made it. A call that could not be
    decoded is None here, since only its id is known.
    """
    return named is None or (record.name, record.arguments) == (
        named["function_name"],
        named["arguments"],
    )


def _metrics(call: Call, trajectory: Trajectory) -> Row | None:
    usage = _usage(call, trajectory)
    seen = list(_seen(call, trajectory))
    shown: Row = asdict(usage)
    if call.token_ids:
        split = len(call.mask) - call.sampled_tokens
        shown |= {"prompt_token_ids": seen, "completion_token_ids": list(call.token_ids[split:])}
        if call.logprob_kind is not LogprobKind.NONE or any(call.logprobs):
            shown["logprobs"] = list(call.logprobs[split:])
    return _filled(shown) or None


def _usage(call: Call, trajectory: Trajectory) -> ReportedUsage:
    """Reported usage. Prompt and completion tokens are counted if they are on record."""
    usage = usage_of(call)
    if not call.token_ids:
        return usage
    return replace(
        usage, prompt_tokens=len(_seen(call, trajectory)), completion_tokens=call.sampled_tokens
    )


def _seen(call: Call, trajectory: Trajectory) -> tuple[int, ...]:
    """Tokens of the prompt: everything before the tokens that the policy sampled."""
    before = path_tokens(path_to(trajectory.calls, call.id)[:-1])
    return (*before, *call.token_ids[: len(call.mask) - call.sampled_tokens])


def _totals(trajectory: Trajectory, steps: int) -> Row:
    """Sums over this run's own calls. A value that is unknown for any of these calls is left out,
    since its sum would be too small.
    """
    found = [asdict(_usage(call, trajectory)) for call in trajectory.own_calls]
    totals: Row = {"total_steps": steps}
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"):
        values = [one[name] for one in found]
        totals[f"total_{name}"] = None if None in values or not values else sum(values)
    return _filled(totals)


def _moment(seconds: float) -> str | None:
    """ISO 8601 text (None for a time that has no such form)."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _numbered(steps: list[Row]) -> list[Row]:
    return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]


def _filled(row: Row) -> Row:
    """`row` without None values, which ATIF leaves out."""
    return {name: value for name, value in row.items() if value is not None}
