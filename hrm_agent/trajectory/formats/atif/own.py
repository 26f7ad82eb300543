"""Import of ATIF documents written here, as the original trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.errors import StoreError
from hrm_agent.trajectory.formats.atif.parts import OURS, blocks_of, response_of
from hrm_agent.trajectory.formats.shared.json_documents import refused, valid
from hrm_agent.trajectory.formats.shared.messages import context_hash
from hrm_agent.trajectory.formats.shared.rows import Row
from hrm_agent.trajectory.lint import lint
from hrm_agent.trajectory.schema import Call, ToolCall, Trajectory

if TYPE_CHECKING:
    import atif

__all__ = ["is_own", "own_trajectory"]


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
            f"Export it again; without `extra.{OURS}` it is read as a run of another agent.",
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
        """Tokens that the call adds to the one it extends."""
        metrics = step.metrics
        if (
            metrics is None
            or metrics.prompt_token_ids is None
            or metrics.completion_token_ids is None
        ):
            return {}
        prompt, sampled = tuple(metrics.prompt_token_ids), tuple(metrics.completion_token_ids)
        before = self.seen.get(str(facts.get("parent")), ())
        if facts.get("parent") is not None and (not before or prompt[: len(before)] != before):
            refused(
                self.place,
                f"{at}.metrics.prompt_token_ids",
                "they do not begin with the call that they extend",
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
            refused(self.place, at, f"{index!r} is no place in the trajectory, or is taken")
        return index


def _mapping(value: Any, place: str, at: str) -> Row:
    if not isinstance(value, dict):
        refused(place, at, "an object belongs here")
    return cast("Row", value)
