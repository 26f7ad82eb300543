"""ATIF import: runs of other agents as trajectories. Hostile documents are refused with the
location of the error.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import atif
import pytest

from hrm_agent.errors import ConfigError, StoreError, StoreVersionError
from hrm_agent.trajectory import LogprobKind, RunStatus, StopReason, ToolStatus, Trajectory
from hrm_agent.trajectory.formats import Origin, RequestHints, export_to, import_from
from hrm_agent.trajectory.formats.shared import message_runs as foreign_run
from hrm_agent.trajectory.formats.shared.messages import ConversationOfCall, conversation_of

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "", "parameters": {"type": "object"}},
}
RUN: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "other", "version": "2", "model_name": "m", "tool_definitions": [TOOL]},
    "steps": [
        {"step_id": 1, "source": "system", "message": "You add."},
        {"step_id": 2, "source": "user", "message": "2 + 2?", "timestamp": "2026-01-01T00:00:00Z"},
        {
            "step_id": 3,
            "source": "agent",
            "timestamp": "2026-01-01T00:00:05",
            "message": "I add.",
            "reasoning_content": "Sums.",
            "tool_calls": [{"tool_call_id": "c", "function_name": "add", "arguments": {"a": 2}}],
            "observation": {"results": [{"source_call_id": "c", "content": "4"}]},
            "metrics": {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "cached_tokens": 1,
                "cost_usd": 0.5,
                "prompt_token_ids": [1, 2, 3],
                "completion_token_ids": [4, 5],
                "logprobs": [-0.1, -0.2],
            },
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "4",
            "metrics": {
                "prompt_token_ids": [1, 2, 3, 4, 5, 6],
                "completion_token_ids": [7],
                "logprobs": [-0.3],
            },
        },
    ],
    "extra": {"reward": 1, "rewards": {"short": 0.5, "odd": 7}},
}


def read(
    folder: Path, *rows: Any, indent: int | None = None, origin: Origin | None = None
) -> list[Trajectory]:
    path = folder / "x.json"
    path.write_text("\n".join(json.dumps(row, indent=indent) for row in rows))
    return list(import_from(path, origin=origin))


def changed(*path: Any, to: Any) -> Any:
    row = copy.deepcopy(RUN)
    at: Any = row
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = to
    return row


def test_a_run_of_another_agent(tmp_path: Path) -> None:
    atif.Trajectory.model_validate(RUN)
    (found,) = read(tmp_path, RUN, indent=2, origin=Origin(raw_logprobs=True))
    asked, answered = found.calls
    assert (asked.token_ids, asked.mask) == ((1, 2, 3, 4, 5), (False, False, False, True, True))
    assert asked.logprobs == (0.0, 0.0, 0.0, -0.1, -0.2)
    assert (answered.parent, answered.token_ids, answered.mask) == (asked.id, (6, 7), (False, True))
    assert found.trainable
    assert found.rewards == {"correct": 1.0, "short": 0.5}
    assert found.task.metadata["atif"]["extra"]["rewards"]["odd"] == 7
    assert (found.task.prompt, found.policy, found.answer) == ("2 + 2?", "m", "4")
    assert (found.started_at, asked.ended_at) == (1767225600.0, 1767225605.0)
    (tool_call,) = found.tool_calls
    assert (tool_call.name, tool_call.arguments, tool_call.content) == ("add", {"a": 2}, "4")
    assert tool_call.status is ToolStatus.OK
    assert asked.response["usage_metadata"]["input_token_details"] == {"cache_read": 1}
    assert asked.response["additional_kwargs"] == {"reasoning_content": "Sums."}


def test_what_it_was_sent_is_proved(tmp_path: Path) -> None:
    (found,) = read(tmp_path, RUN)
    conversation = conversation_of(found.calls[1], found, RequestHints(tools=((TOOL,),)))
    assert isinstance(conversation, ConversationOfCall)
    assert [message.type for message in conversation.messages] == [
        "system",
        "human",
        "ai",
        "tool",
        "ai",
    ]


def test_out_again_it_is_what_it_was(tmp_path: Path) -> None:
    (found,) = read(tmp_path, RUN)
    export_to(tmp_path / "y.json", [found], "atif", RequestHints(tools=((TOOL,),)))
    document = json.loads((tmp_path / "y.json").read_text())
    atif.Trajectory.model_validate(document)
    names = ("source", "message", "tool_calls", "reasoning_content")
    assert [{n: step.get(n) for n in names} for step in document["steps"]] == [
        {n: step.get(n) for n in names} for step in RUN["steps"]
    ]
    assert document["steps"][2]["metrics"] == RUN["steps"][2]["metrics"]
    assert document["agent"]["tool_definitions"] == [TOOL]
    assert next(import_from(tmp_path / "y.json")).rewards == found.rewards


def test_log_probs_of_an_unknown_kind_train_nothing(tmp_path: Path) -> None:
    (found,) = read(tmp_path, RUN)
    assert found.calls[0].logprob_kind is LogprobKind.SAMPLED
    assert "does not say" in str(found.calls[0].untrainable)


def test_tokens_without_a_prompt_are_not_placed(tmp_path: Path) -> None:
    (found,) = read(
        tmp_path,
        changed("steps", 2, "metrics", to={"completion_token_ids": [4, 5], "logprobs": [-1, -1]}),
    )
    assert found.calls[0].token_ids == ()
    assert found.calls[0].untrainable == "the file gives no token ids of the prompt"
    assert found.calls[1].branch_reason is not None


def test_steps_that_are_no_model_call(tmp_path: Path) -> None:
    row = copy.deepcopy(RUN)
    del row["steps"][2]["metrics"], row["steps"][2]["reasoning_content"]
    row["steps"][2]["llm_call_count"] = 0
    (dispatched,) = read(tmp_path, row)
    assert (len(dispatched.calls), len(dispatched.tool_calls)) == (1, 1)
    (copied,) = read(tmp_path, changed("steps", 2, "is_copied_context", to=True))
    assert len(copied.calls) == 1
    (several,) = read(tmp_path, changed("steps", 2, "llm_call_count", to=3))
    assert several.calls[0].untrainable == "the step stands for several model calls"


def test_how_tool_calls_ended_where_it_is_told(tmp_path: Path) -> None:
    for extra, status in (
        ({"status": "timeout"}, "timeout"),
        ({"is_error": True}, "error"),
        ({"status": 3}, "ok"),
    ):
        result = {"source_call_id": "c", "content": "x", "extra": extra}
        (found,) = read(tmp_path, changed("steps", 2, "observation", "results", to=[result]))
        assert found.tool_calls[0].status == status


def test_subagents_are_conversations_of_the_run(tmp_path: Path) -> None:
    inner = {**RUN, "trajectory_id": "sub", "agent": {**RUN["agent"], "name": "helper"}}
    (found,) = read(tmp_path, {**RUN, "subagent_trajectories": [inner]})
    assert [call.identity.node for call in found.calls] == [
        "imported",
        "imported",
        "helper",
        "helper",
    ]
    assert len(found.tool_calls) == 2


def test_a_part_of_a_run_is_truncated(tmp_path: Path) -> None:
    (found,) = read(tmp_path, {**RUN, "continued_trajectory_ref": "/etc/passwd"})
    assert (found.status, found.stop_reason) == (RunStatus.TRUNCATED, StopReason.MAX_TOKENS)


def test_several_documents_in_one_file(tmp_path: Path) -> None:
    assert len(read(tmp_path, RUN, changed("steps", 1, "message", to="2 + 3?"))) == 2


DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (
            changed("steps", 2, "tool_calls", 0, "arguments", to="{}"),
            "steps[2].tool_calls[0].arguments: Input should",
        ),
        (
            changed("steps", 2, "surprise", to=1),
            "steps[2].surprise: Extra inputs are not permitted",
        ),
        (changed("steps", 3, "step_id", to=9), "steps[3].step_id=9 is not sequential"),
        (
            changed("steps", 1, "model_name", to="m"),
            "steps[1]: Field `model_name` is only valid on",
        ),
        (
            changed("steps", 2, "metrics", "logprobs", to=[-1]),
            "steps[2].metrics.logprobs: 1 logprobs for 2",
        ),
        (changed("steps", 2, "metrics", "logprobs", to=[3.0, 3.0]), "logprob-nonpositive"),
        (
            changed("steps", 2, "metrics", "prompt_token_ids", to=[2**31]),
            "token-range: 2147483648 is not a token id",
        ),
        (
            changed("steps", 2, "metrics", "prompt_tokens", to=True),
            "steps[2].metrics.prompt_tokens",
        ),
        (
            changed("steps", 2, "timestamp", to="soon"),
            "steps[2].timestamp: timestamp must be ISO 8601, got 'soon'",
        ),
        (
            changed("steps", 2, "observation", "results", 0, "source_call_id", to="d"),
            "source_call_id='d' does not match",
        ),
        (changed("steps", 1, "message", to=[{"type": "text"}]), "steps[1].message"),
        (changed("subagent_trajectories", to=[RUN, RUN]), "must set `trajectory_id`"),
        (changed("extra", "x", to=DEEP), "nested more than 64 levels deep"),
        (changed("extra", "x", to="\ud800"), "lone surrogate"),
        (
            changed("schema_version", to="ATIF-v2.0"),
            "schema_version: it is not that of an ATIF 1 document",
        ),
    ],
)
def test_what_cannot_be_read_is_named(row: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        read(tmp_path, RUN, row)
    assert raised.value.message.startswith(f"{tmp_path / 'x.json'}:2")
    assert told in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("path", "to", "told"),
    [
        (("steps", 2, "metrics", "logprobs"), [], "metrics.logprobs: 0 logprobs for 2"),
        (("steps", 2, "timestamp"), "2025-01-01Z", "timestamp: '2025-01-01Z' is no ISO 8601 time"),
        (("steps", 2, "timestamp"), "0001-01-01T00:00:00+23:59", "is before 1970"),
        (
            ("steps", 2, "tool_calls"),
            RUN["steps"][2]["tool_calls"] * 2,
            "tool_calls: two tool calls have one tool_call_id",
        ),
        (("steps", 2, "metrics", "cached_tokens"), -1, "metrics.cached_tokens: -1 is not from 0"),
        (("steps", 2, "metrics", "cost_usd"), -0.5, "metrics.cost_usd: -0.5 is not from 0"),
        (("final_metrics",), {"total_steps": -1}, "final_metrics.total_steps: -1 is not from 0"),
        (("steps",), [], "steps: at least one step"),
    ],
)
def test_what_the_package_accepts_and_no_run_may_contain(
    path: tuple[Any, ...], to: Any, told: str, tmp_path: Path
) -> None:
    row = changed(*path, to=to)
    atif.Trajectory.model_validate(row)
    inner = {**row, "trajectory_id": "sub"}
    for document, at in ((row, ""), ({**RUN, "subagent_trajectories": [inner]}, "sub")):
        with pytest.raises(StoreError) as raised:
            read(tmp_path, document)
        assert raised.value.message.startswith(f"{tmp_path / 'x.json'}:1: {at}")
        assert told in raised.value.message


@pytest.mark.parametrize("number", ["NaN", "1e999", "1" * 5000])
def test_numbers_that_are_none(number: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(json.dumps(RUN).replace('"odd": 7', f'"odd": {number}'))
    with pytest.raises(StoreError, match="is not JSON"):
        list(import_from(tmp_path / "x", "atif"))


def test_a_conversation_sent_again_with_each_step_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [RUN["steps"][0]] + [
        {"step_id": n, "source": "agent", "message": "x"} for n in range(2, 22)
    ]
    long = changed("steps", to=steps)
    (found,) = read(tmp_path, long)
    sent = sum(len(call.request or ()) for call in found.calls)
    assert sent == sum(range(1, 21))
    monkeypatch.setattr(foreign_run, "MOST_SENT", sent - 1)
    with pytest.raises(
        StoreError, match=r"x\.json:1: its model calls were sent more than 209 messages"
    ):
        read(tmp_path, long)


def test_subagents_without_an_end(tmp_path: Path) -> None:
    row = RUN
    for _ in range(12):
        row = {
            **RUN,
            "trajectory_id": "t",
            "subagent_trajectories": [{**row, "trajectory_id": "t"}],
        }
    with pytest.raises(StoreError, match="nested more than 8 levels deep"):
        read(tmp_path, row)


def test_without_the_package_atif(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "atif", None)
    with pytest.raises(ConfigError, match=r"needs the package atif\. Run `pip install .*\[atif\]"):
        read(tmp_path, RUN)


def test_a_newer_version_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(StoreVersionError, match=r"is of ATIF-v1\.9"):
        read(tmp_path, changed("schema_version", to="ATIF-v1.9"))
