"""Tool calls whose ids do not name one call of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hrm_agent.trajectory.formats import missing_parts
from tests.trajectory.formats.traces.test_conventions import BASE, Row, read, span

TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add"}


def at(id_: str, second: int, given: Row, parent: str = "") -> Row:
    begin = 10**18 + second * 10**9
    times = {"startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + 10**9)}
    return span(id_, given, parent, **times)


def turns(id_: Row, arguments: tuple[int, int], kept: int = 5) -> list[Row]:
    """Two turns with a tool call each and an answer, whose request has the last `kept` messages."""
    user = {"role": "user", "content": "?"}
    asked = [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", **id_, "name": "add", "arguments": x}],
        }
        for x in ({"x": arguments[0]}, {"x": arguments[1]})
    ]
    shown = [
        {"role": "tool", "parts": [{"type": "tool_call_response", **id_, "response": text}]}
        for text in ("first", "second")
    ]
    said = [*asked, {"role": "assistant", "content": "done"}]
    sent = [[user], [user, asked[0], shown[0]], [user, asked[0], shown[0], asked[1], shown[1]]]
    return [
        at(
            str(n + 1),
            2 * n,
            {
                **BASE,
                "gen_ai.input.messages": json.dumps(sent[n][-kept:]),
                "gen_ai.output.messages": json.dumps([said[n]]),
            },
        )
        for n in range(3)
    ]


@pytest.mark.parametrize("with_spans", [False, True])
@pytest.mark.parametrize("id_", [{"id": "call_0"}, {}], ids=["same id", "no id"])
@pytest.mark.parametrize("arguments", [(1, 2), (1, 1)])
@pytest.mark.parametrize("kept", [5, 4])
def test_an_id_is_that_of_one_answer(
    id_: Row, arguments: tuple[int, int], kept: int, with_spans: bool, tmp_path: Path
) -> None:
    named = {"gen_ai.tool.call.id": "call_0"} if id_ else {"gen_ai.tool.call.arguments": ""}
    ours = [{**TOOL, **named} for _ in range(2)]
    if not id_:
        for one, x in zip(ours, arguments, strict=True):
            one["gen_ai.tool.call.arguments"] = json.dumps({"x": x})
    spans = [at("6", 1, ours[0]), at("7", 3, ours[1])] if with_spans else []
    found = read(tmp_path, *turns(id_, arguments, kept), *spans)
    assert [(one.arguments, one.content) for one in found.tool_calls] == [
        ({"x": arguments[0]}, "first"),
        ({"x": arguments[1]}, "second"),
    ]
    assert len({one.id for one in found.tool_calls}) == 2


def test_a_call_without_a_result_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, turns({"id": "call_0"}, (1, 2))[0])
    assert found.tool_calls == ()
    assert missing_parts(found)["results and spans of tool calls in answers"] == 1


@pytest.mark.parametrize(
    ("between", "number"), [({}, 1), ({**TOOL, "gen_ai.tool.call.id": "c1"}, 2)]
)
def test_calls_inside_of_calls(between: Row, number: int, tmp_path: Path) -> None:
    """A tool inside of a model span makes calls of its own. Its own spans are one tool call."""
    spans = [span("1", BASE), span("2", between, "1"), span("3", BASE, "2")]
    inner = span("4", {**between, "gen_ai.tool.call.result": "r"} if between else {}, "2")
    found = read(tmp_path, *spans, inner)
    assert len(found.calls) == number
    assert [one.content for one in found.tool_calls] == (["r"] if between else [])
