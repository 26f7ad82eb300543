"""The table in docs/formats.md of fields restored from each format is correct."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from hrm_agent.trajectory import ForkRef, LogprobKind, Sampling, TaskRef, Trajectory, Turn, TurnEnd
from hrm_agent.trajectory.formats import FORMATS, RequestHints, export_to, import_from
from hrm_agent.trajectory.formats.otel.file import otel_rows
from hrm_agent.trajectory.formats.shared.messages import ConversationOfCall, conversation_of
from hrm_agent.trajectory.formats.shared.reported import usage_of
from hrm_agent.trajectory.formats.shared.rows import write_rows
from hrm_agent.trajectory.words import thoughts_of
from tests.support.trajectory.samples import make_tool_call
from tests.trajectory.formats.test_chat import (
    ANSWER,
    ASKED,
    CALLS,
    OFFERED,
    PYTHON,
    RESULT,
    run,
    said,
)

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
KNOWN = RequestHints(tools=(PYTHON,))
READ_BACK = [name for name, one in FORMATS.items() if one.read and (one.rows or one.write)]


def sample() -> Trajectory:
    """Two tempered calls with a tool call between them. Every field required by a row of the table
    has a value.
    """
    usage = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
    reported = AIMessage(
        ANSWER.text,
        additional_kwargs={"reasoning_content": "Six sevens."},
        usage_metadata=usage,
        response_metadata={"token_usage": {"cost": 0.25}},
    )
    tempered: dict[str, Any] = {
        "logprob_kind": LogprobKind.TEMPERED,
        "sampling": Sampling(temperature=0.5, seed=7, max_tokens=8),
        "tools_hash": OFFERED,
    }
    first = said("a", [ASKED], CALLS, asked=[ASKED], **tempered)
    whole = [ASKED, CALLS, RESULT]
    second = said(
        "b",
        whole,
        reported,
        asked=whole,
        parent=first.id,
        started_at=102.0,
        ended_at=103.0,
        **tempered,
    )
    before = TurnEnd(status="completed", stop_reason="answer")
    return run(
        first,
        second,
        task=TaskRef(id="t", family="sums", prompt=ASKED.text, answer="42", metadata={"level": 1}),
        tool_calls=(make_tool_call(arguments={"code": "6 * 7"}),),
        rewards={"correct": 0.25, "short": 1.0},
        rewards_by_call={"tidy": {first.id: -1.0}, "reward": {first.id: -1.0}},
        sample_index=2,
        turns=(Turn(id="m", prompt="And?", before=before, started_at=101.9),),
        forked_from=ForkRef(trajectory_id="origin", checkpoint_id="c"),
    )


def of_calls(*fields: str) -> Callable[[Trajectory], Any]:
    return lambda one: [[getattr(call, field) for field in fields] for call in one.calls]


def sent(one: Trajectory) -> list[list[str]] | None:
    """Types of the messages sent to each call, as far as they can be proved."""
    found = [conversation_of(call, one, KNOWN) for call in one.calls]
    return [
        [m.type for m in each.messages] for each in found if isinstance(each, ConversationOfCall)
    ]


def said_by_the_model(one: Trajectory) -> list[Any]:
    return [
        (call.response["content"], [c["args"] for c in call.response["tool_calls"]])
        for call in one.calls
    ]


def fields(*names: str) -> Callable[[Trajectory], Any]:
    return lambda one: [getattr(one, name) for name in names]


ROWS: dict[str, Callable[[Trajectory], Any]] = {
    "token ids and masks": of_calls("token_ids", "mask"),
    "log-probs": of_calls("logprobs"),
    "what the log-probs are of": of_calls("logprob_kind"),
    "temperature": lambda one: [
        (call.sampling or call.sampling_sent).temperature for call in one.calls
    ],
    "seed and other sampling": of_calls("sampling"),
    "reward `correct`": lambda one: one.rewards["correct"],
    "other rewards": fields("rewards"),
    "rewards of single calls": fields("rewards_by_call"),
    "status and stop reason": fields("status", "stop_reason"),
    "id of the trajectory": fields("id"),
    "id of the group": fields("group_id"),
    "id of the run": fields("run_id"),
    "thread, graph, sample index": fields("thread_id", "graph", "sample_index"),
    "policy": fields("policy"),
    "versions of the policy": lambda one: [
        one.policy_version,
        *(call.policy_version for call in one.calls),
    ],
    "id and prompt of the task": lambda one: (one.task.id, one.task.prompt),
    "family and reference answer": lambda one: (one.task.family, one.task.answer),
    "metadata of the task": lambda one: one.task.metadata,
    "texts and tool calls of answers": said_by_the_model,
    "thoughts of answers": lambda one: [thoughts_of(call.response) for call in one.calls],
    "messages that calls were sent": sent,
    "tokens and cost as reported": lambda one: [usage_of(call) for call in one.calls],
    "outcomes of tools": fields("tool_calls"),
    "times of the run": fields("started_at", "ended_at"),
    "times of calls": of_calls("started_at", "ended_at"),
    "ids of calls, nodes, checkpoints": of_calls("id", "identity"),
    "fork and turns": fields("forked_from", "turns"),
}


def measured(name: str, folder: Path) -> dict[str, bool]:
    original = sample()
    path = folder / f"x-{name}"
    if name == "otel":  # as with --otel-content
        assert write_rows([original], path, otel_rows(KNOWN)).rows == 1
    else:
        assert export_to(path, [original], name, KNOWN).rows == 1
    (found,) = import_from(path, name)
    return {row: value(found) == value(original) for row, value in ROWS.items()}


@pytest.fixture(scope="module")
def table() -> list[list[str]]:
    """Rows of the page's table with a column for each format that is read back."""
    text = PAGE.read_text(encoding="utf-8").partition("## What comes back")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]


def test_the_table_has_every_format_and_every_row(table: list[list[str]]) -> None:
    assert table[0][1:] == [f"`{name}`" for name in READ_BACK]
    assert [row[0] for row in table[2:]] == list(ROWS)


@pytest.mark.parametrize("name", READ_BACK)
def test_what_is_kept_is_what_the_page_says(
    name: str, table: list[list[str]], tmp_path: Path
) -> None:
    column = table[0].index(f"`{name}`")
    written = {row[0]: row[column] == "yes" for row in table[2:]}
    assert measured(name, tmp_path) == written


def test_the_page_names_every_format() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in FORMATS if f"`{name}`" not in text] == []
