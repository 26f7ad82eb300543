"""Texts, usage and times of spans stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.trajectory import FinishReason, Trajectory
from hrm_agent.trajectory.formats import Origin, import_from, missing_parts
from tests.trajectory.formats.traces.test_conventions import BASE, Row, event, read, span

TEXTS = ['{"0": "a",  "x": 1}', '"quoted"', "[1, 2.50]", '["x", "y"]', '{"output": null, "e": 1}']


def imported(folder: Path, row: Row, origin: Origin | None = None) -> Trajectory:
    (folder / "x.json").write_text(json.dumps(row))
    (found,) = import_from(folder / "x.json", origin=origin)
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_json_stays_as_it_is(text: str, tmp_path: Path) -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": text}
    logged = [event("gen_ai.user.message", {"content": text})]
    plain = {"openinference.span.kind": "LLM", "input.value": text, "output.value": text}
    found = read(
        tmp_path,
        span("1", {"openinference.span.kind": "AGENT", "input.value": text, "output.value": text}),
        span("2", BASE, "1", events=logged),
        span("3", plain, "1"),
        span("4", tool, "1"),
    )
    assert (found.task.prompt, found.answer) == (text, text)
    assert [[one["content"] for one in call.request or ()] for call in found.calls] == [[text]] * 2
    assert found.calls[1].response["content"] == text
    assert found.tool_calls[0].content == text
    row = {**OBSERVATION, "input": text, "output": text}
    (call,) = imported(tmp_path, row).calls
    assert ((call.request or ())[0]["content"], call.response["content"]) == (text, text)


@pytest.mark.parametrize("given", [(5, 3), (None, 3), (5, None)])
def test_usage_without_an_answer_is_kept(
    given: tuple[int | None, int | None], tmp_path: Path
) -> None:
    named = zip(("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), given, strict=True)
    bare = {name: one for name, one in BASE.items() if "usage" not in name}
    found = read(tmp_path, span("1", bare | {name: one for name, one in named if one is not None}))
    used = found.calls[0].used
    assert used is not None
    assert (used.input_tokens, used.output_tokens) == given
    assert missing_parts(found)["token counts of calls"] == (None in given)


def test_system_instructions_with_messages_in_events(tmp_path: Path) -> None:
    given = {**BASE, "gen_ai.system_instructions": '[{"type": "text", "content": "Add."}]'}
    found = read(
        tmp_path, span("1", given, events=[event("gen_ai.user.message", {"content": "?"})])
    )
    assert [one["content"] for one in found.calls[0].request or ()] == ["Add.", "?"]


def test_a_parent_of_zeros_is_none(tmp_path: Path) -> None:
    assert not missing_parts(read(tmp_path, span("1", BASE, "0")))["enclosing spans of spans"]


OBSERVATION: Row = {
    "id": "o",
    "traceId": "t",
    "type": "GENERATION",
    "startTime": "2026-01-01T00:00:00Z",
    "input": [{"role": "user", "content": "?"}],
    "output": {"role": "assistant", "content": "!"},
}
RUN: Row = {
    "id": "r",
    "trace_id": "r",
    "run_type": "llm",
    "start_time": 1767225600000,
    "inputs": {"messages": [{"role": "user", "content": "?"}], "system": "Add."},
    "outputs": {
        "role": "assistant",
        "content": "!",
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3},
    },
}


def test_an_object_as_a_tool_s_result_is_no_offer(tmp_path: Path) -> None:
    result = {"role": "tool", "content": {"temp": 20}, "name": "weather"}
    offer = {"role": "tool", "content": {"type": "function", "function": {"name": "f"}}}
    row = {**OBSERVATION, "input": [*OBSERVATION["input"], result, offer]}
    (call,) = imported(tmp_path, row).calls
    assert [one["type"] for one in call.request or ()] == ["human", "tool"]
    assert call.tools == (offer["content"],)


def test_a_run_of_langsmith_with_anthropic_s_names(tmp_path: Path) -> None:
    (call,) = imported(tmp_path, RUN).calls
    assert [one["content"] for one in call.request or ()] == ["Add.", "?"]
    assert call.usage is not None
    used = call.usage.input_tokens, call.usage.cached_tokens, call.usage.output_tokens
    assert (used, call.finish_reason) == ((7, 2, 3), FinishReason.LENGTH)


def test_the_first_of_several_prompts_is_the_call(tmp_path: Path) -> None:
    outputs = {"generations": [[{"text": "A"}], [{"text": "B"}]]}
    origin = Origin()
    row = {**RUN, "inputs": {"prompts": ["a", "b"]}, "outputs": outputs}
    (call,) = imported(tmp_path, row, origin).calls
    assert ((call.request or ())[0]["content"], call.response["content"]) == ("a", "A")
    assert origin.notes["answers behind the first one of a request were left out"] == 1


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_counts_of_time_are_read_by_their_size(unit: int, tmp_path: Path) -> None:
    given: Any = 1767225600 * unit
    assert imported(tmp_path, {**RUN, "start_time": given}).started_at == 1767225600
