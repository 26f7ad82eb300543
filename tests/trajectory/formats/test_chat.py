"""Conversations for fine-tuning: only proved ones, each answer once."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.tools import python
from hrm_agent.training.sft import read_chats
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    FinishReason,
    ForkRef,
    RunStatus,
    StopReason,
    TaskRef,
    Trajectory,
    content_hash,
)
from hrm_agent.trajectory.formats import Report, RequestHints, export_to
from hrm_agent.trajectory.formats.shared.messages import context_hash
from tests.support.trajectory.samples import (
    THREAD,
    identity,
    make_call,
    make_tool_call,
    make_trajectory,
)

ASKED = HumanMessage("What is 6 * 7?")
CALLS = AIMessage(
    "Compute.",
    tool_calls=[{"name": "python", "args": {"code": "6 * 7"}, "id": "tc-0", "type": "tool_call"}],
)
RESULT = ToolMessage("42", name="python", tool_call_id="tc-0")
ANSWER = AIMessage("It is\u202842.")
PYTHON = (convert_to_openai_tool(python),)
OFFERED = content_hash(PYTHON)


def said(
    task: str,
    sent: list[BaseMessage],
    answer: AIMessage,
    *,
    asked: list[BaseMessage] | None = None,
    **changes: Any,
) -> Call:
    """A call with its hashes; `asked` are the messages that the record keeps, if it keeps any."""
    facts = {
        "identity": identity(task, changes.pop("thread", THREAD)),
        "context_hash": context_hash([*sent, answer]),
        "tools_hash": content_hash(()),
        "request": (
            None if asked is None else tuple(message.model_dump(mode="json") for message in asked)
        ),
        "response": answer.model_dump(mode="json"),
    }
    return make_call(task, **{**facts, **changes})


def run(*calls: Call, **changes: Any) -> Trajectory:
    task = TaskRef(id="t", family="f", prompt=ASKED.text)
    return make_trajectory(**{"calls": calls, "tool_calls": (), "task": task, **changes})


def export(
    folder: Path,
    *runs: Trajectory,
    known: RequestHints | None = None,
    least: float | None = None,
    roles: Collection[str] = (),
) -> tuple[list[Any], Report]:
    report = export_to(folder / "x.chat", runs, "chat", known, least, roles)
    lines = (folder / "x.chat").read_text().split("\n") if report.rows else []
    return [json.loads(line) for line in lines if line], report


def text_run(**changes: Any) -> Trajectory:
    """Two turns of a model without tokens: each call is a root with its whole request."""
    whole = [ASKED, CALLS, RESULT]
    root = {
        "branch_reason": BranchReason.NO_TOKENS,
        "token_ids": (),
        "mask": (),
        "logprobs": (),
        "untrainable": "text",
    }
    calls = (
        said("a", [ASKED], CALLS, asked=[ASKED], **root),
        said("b", whole, ANSWER, asked=whole, **root),
    )
    return run(*calls, **changes)


def test_the_longest_conversation_teaches_all_its_answers(tmp_path: Path) -> None:
    (row,), report = export(tmp_path, text_run())
    assert row == {
        "messages": [
            {"role": "user", "content": "What is 6 * 7?"},
            {
                "role": "assistant",
                "content": "Compute.",
                "tool_calls": [
                    {
                        "id": "tc-0",
                        "type": "function",
                        "function": {"name": "python", "arguments": {"code": "6 * 7"}},
                    }
                ],
            },
            {"role": "tool", "content": "42", "tool_call_id": "tc-0", "name": "python"},
            {"role": "assistant", "content": "It is\u202842."},
        ],
        "role": "reason",
        "model": "builtin:trained",
        "answer": r"<answer>\boxed{42}</answer>",
        "reward": 1.0,
        "trajectory_id": "trajectory-1",
    }
    assert (report.trajectories, report.rows, report.left_out) == (1, 1, {})


def test_thoughts_stand_beside_the_content_and_come_back(tmp_path: Path) -> None:
    def thinks(answer: AIMessage, thought: str) -> AIMessage:
        return answer.model_copy(update={"additional_kwargs": {"reasoning_content": thought}})

    first = thinks(CALLS, "Six sevens.")
    last = thinks(ANSWER, "So it is.")
    whole = [ASKED, first, RESULT]
    calls = said("a", [ASKED], first, asked=[ASKED]), said("b", whole, last, asked=whole)
    (row,), _ = export(tmp_path, run(calls[0], calls[1].model_copy(update={"parent": calls[0].id})))
    answers = [message for message in row["messages"] if message["role"] == "assistant"]
    assert [(each["content"], each["reasoning_content"]) for each in answers] == [
        ("Compute.", "Six sevens."),
        (ANSWER.text, "So it is."),
    ]
    (conversation,) = read_chats(tmp_path / "x.chat")
    assert [m.additional_kwargs for m in conversation.messages if isinstance(m, AIMessage)] == [
        first.additional_kwargs,
        last.additional_kwargs,
    ]


def test_the_trainer_reads_them(tmp_path: Path) -> None:
    export(tmp_path, text_run(), text_run(id="two"))
    first, second = read_chats(tmp_path / "x.chat")
    assert first == second
    assert [message.type for message in first.messages] == ["human", "ai", "tool", "ai"]
    assert first.messages[1].tool_calls == CALLS.tool_calls
    assert first.messages[3].content == ANSWER.content


def test_a_request_that_holds_what_came_after_the_parent(tmp_path: Path) -> None:
    first = said("a", [ASKED], CALLS, asked=[ASKED])
    second = said("b", [ASKED, CALLS, RESULT], ANSWER, asked=[RESULT], parent=first.id)
    (row,), _ = export(tmp_path, run(first, second))
    assert [message["role"] for message in row["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def remembered(**changes: Any) -> Trajectory:
    """A token model's run: no request on record, and a system turn before the state."""
    system = SystemMessage("Be brief.")
    first = said("a", [system, ASKED], CALLS, tools_hash=OFFERED)
    second = said("b", [system, ASKED, CALLS, RESULT], ANSWER, tools_hash=OFFERED, parent=first.id)
    return run(first, second, **{"tool_calls": (make_tool_call("tc-0"),), **changes})


def test_messages_that_only_a_guess_could_give_are_proved(tmp_path: Path) -> None:
    known = RequestHints(("Be long.", "Be brief."), (PYTHON,))
    (row,), _ = export(tmp_path, remembered(), known=known)
    assert [message["content"] for message in row["messages"]] == [
        "Be brief.",
        ASKED.text,
        "Compute.",
        "42",
        ANSWER.text,
    ]
    assert row["tools"] == list(PYTHON)


@pytest.mark.parametrize(
    ("known", "changes", "reason"),
    [
        (
            RequestHints(("Be long.",), (PYTHON,)),
            {},
            "the messages that were sent are not on record",
        ),
        (RequestHints(("Be brief.",)), {}, "the tools that were offered are not known"),
        (
            RequestHints(("Be brief.",), (PYTHON,)),
            {"tool_calls": (make_tool_call("tc-0", content="43"),)},
            "the messages that were sent are not on record",
        ),
    ],
)
def test_what_cannot_be_proved_is_left_out(
    known: RequestHints, changes: Any, reason: str, tmp_path: Path
) -> None:
    rows, report = export(tmp_path, remembered(**changes), known=known)
    assert rows == []
    assert report.left_out == {reason: 1}


def test_the_state_of_the_checkpoint_is_asked(tmp_path: Path) -> None:
    """A nudge that a node put into the state is recorded nowhere else."""
    sent = [ASKED, AIMessage("Hm."), HumanMessage("Go on.")]
    call = said("a", sent, ANSWER)
    assert export(tmp_path, run(call))[0] == []
    (row,), _ = export(
        tmp_path, run(call), known=RequestHints(state=lambda asked: sent if asked == call else ())
    )
    assert row["messages"][1] == {
        "role": "assistant",
        "content": "Hm.",
        "weight": 0,
    }, "no recorded call gave it"
    assert "weight" not in row["messages"][3]


def test_two_answers_to_one_conversation_teach_what_they_share_once(tmp_path: Path) -> None:
    first = said("a", [ASKED], CALLS, asked=[ASKED])
    sent = [ASKED, CALLS, RESULT]
    ends = [said(task, sent, AIMessage(task), asked=[RESULT], parent=first.id) for task in "bc"]
    rows, _ = export(tmp_path, run(first, *ends))
    weights = [
        [m.get("weight") for m in row["messages"] if m["role"] == "assistant"] for row in rows
    ]
    assert weights == [[None, None], [0, None]]


def test_a_fork_teaches_only_its_own_answers(tmp_path: Path) -> None:
    inherited = said("a", [ASKED], CALLS, asked=[ASKED], thread="origin")
    left = said(
        "b",
        [ASKED, CALLS, RESULT],
        AIMessage("Left."),
        asked=[RESULT],
        thread="origin",
        parent=inherited.id,
    )
    own = said("c", [ASKED, CALLS, RESULT], ANSWER, asked=[RESULT], parent=inherited.id)
    fork = run(inherited, left, own, forked_from=ForkRef(trajectory_id="origin", checkpoint_id="c"))
    (row,), _ = export(tmp_path, fork)
    assert [m.get("weight") for m in row["messages"] if m["role"] == "assistant"] == [0, None]
    assert row["messages"][-1]["content"] == ANSWER.text


def test_which_runs_are_taken(tmp_path: Path) -> None:
    cut = text_run(status=RunStatus.TRUNCATED, stop_reason=StopReason.MAX_TURNS)
    wrong, unverified = text_run(rewards={"correct": 0.0}), text_run(rewards={})
    rows, report = export(tmp_path, text_run(), cut, wrong, unverified, least=0.5)
    assert len(rows) == 1
    assert report.left_out == {
        "the run is truncated, not completed": 1,
        "the reward is below 0.5": 2,
    }
    assert len(export(tmp_path, wrong, unverified)[0]) == 2


def test_an_answer_that_was_cut_off_is_context(tmp_path: Path) -> None:
    cut = FinishReason.LENGTH
    plan = by("planner", [ASKED], AIMessage("First, m"), finish_reason=cut)
    draft = by("solver", [ASKED], AIMessage("It is 4"), finish_reason=cut)
    sent = [ASKED, AIMessage("It is 4"), HumanMessage("Go on.")]
    rows, report = export(tmp_path, run(plan, draft, by("solver", sent, ANSWER)))
    assert learnt(rows) == [("solver", [ANSWER.text])]
    assert [m.get("weight") for m in rows[0]["messages"] if m["role"] == "assistant"] == [0, None]
    assert report.left_out == {"the answer was cut off at its limit on tokens": 2}


def test_a_call_that_could_not_be_decoded_is_not_taught(tmp_path: Path) -> None:
    bad = AIMessage(
        "",
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "id": "x", "name": None, "args": "{", "error": ""}
        ],
    )
    rows, report = export(tmp_path, run(said("a", [ASKED], bad, asked=[ASKED])))
    assert rows == []
    assert report.left_out == {"a tool call of the conversation could not be decoded": 1}


TEXT: dict[str, Any] = {
    "branch_reason": BranchReason.NO_TOKENS,
    "token_ids": (),
    "mask": (),
    "logprobs": (),
    "untrainable": "text",
    "sampling": None,
}


def by(role: str, sent: list[BaseMessage], answer: AIMessage, **changes: Any) -> Call:
    """A call of a hosted model that a node made."""
    where = identity(f"{role} {len(sent)}", node=role)
    return said("", sent, answer, asked=sent, **{"identity": where, **TEXT, **changes})


def learnt(rows: list[Any]) -> list[tuple[str, list[str]]]:
    """Role of each row, and the answers that the row teaches."""
    answers = [
        [m["content"] for m in row["messages"] if m["role"] == "assistant" and "weight" not in m]
        for row in rows
    ]
    return list(zip((row["role"] for row in rows), answers, strict=True))


def test_each_role_learns_its_own_answers_in_a_conversation_that_all_share(tmp_path: Path) -> None:
    plan, draft, better = AIMessage("plan"), AIMessage("draft"), AIMessage("better")
    calls = [
        by("planner", [ASKED], plan),
        by("solver", [ASKED, plan], draft),
        by("solver", [ASKED, plan, draft, HumanMessage("Again.")], better),
    ]
    rows, report = export(tmp_path, run(*calls))
    assert (
        learnt(rows) == [("solver", ["draft", "better"]), ("planner", ["plan"])]
        and not report.left_out
    )
    rows, report = export(tmp_path, run(*calls), roles=["planner"])
    assert learnt(rows) == [("planner", ["plan"])]
    assert report.left_out == {"the role 'solver' was not asked for": 1}


def test_a_call_of_tokens_that_another_role_extends_is_taught_by_its_own_role(
    tmp_path: Path,
) -> None:
    first = said("a", [ASKED], CALLS, asked=[ASKED], identity=identity("a", node="planner"))
    second = said(
        "b", [ASKED, CALLS, RESULT], ANSWER, asked=[ASKED, CALLS, RESULT], parent=first.id
    )
    assert learnt(export(tmp_path, run(first, second))[0]) == [
        ("reason", [ANSWER.text]),
        ("planner", ["Compute."]),
    ]


def test_an_answer_is_learned_with_the_tools_that_it_had(tmp_path: Path) -> None:
    with_tools = by("solver", [ASKED], CALLS, tools=PYTHON, tools_hash=OFFERED)
    without = by("solver", [ASKED, CALLS, RESULT], ANSWER, tools=())
    long, short = export(tmp_path, run(with_tools, without))[0]
    assert learnt([long, short]) == [("solver", [ANSWER.text]), ("solver", ["Compute."])]
    assert "tools" not in long and short["tools"] == list(PYTHON)


def test_a_tool_that_is_the_providers_own_has_no_row(tmp_path: Path) -> None:
    call = by("solver", [ASKED], ANSWER, tools=({"odd": 1},), tools_hash="x")
    rows, report = export(tmp_path, run(call))
    assert rows == [] and report.left_out == {
        "an offered tool is the provider's own and has no form in OpenAI's API": 1
    }


def test_a_shorter_conversation_is_taught_where_the_longer_one_is_left_out(tmp_path: Path) -> None:
    bad = AIMessage(
        "",
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "id": "x", "name": None, "args": "{", "error": ""}
        ],
    )
    calls = by("solver", [ASKED], CALLS), by("solver", [ASKED, CALLS, RESULT], bad)
    rows, report = export(tmp_path, run(*calls))
    assert learnt(rows) == [("solver", ["Compute."])] and sum(report.left_out.values()) == 1


def test_a_trace_says_which_calls_it_has_no_messages_of(tmp_path: Path) -> None:
    report = export_to(tmp_path / "x", [remembered()], "verifiers")
    assert report.rows == 1 and report.left_out == {}
    assert report.lacking == {
        "the messages that were sent are not on record": 2,
        "the tools that were offered are not known": 2,
    }
    assert export_to(tmp_path / "y", [run()], "verifiers").left_out == {"no model was asked": 1}
    assert not (tmp_path / "y").exists()


def test_a_conversation_of_a_hosted_model_is_one_path_of_a_trace(tmp_path: Path) -> None:
    report = export_to(tmp_path / "x", [text_run()], "verifiers")
    trace = json.loads((tmp_path / "x").read_text())
    shown = [(node["message"]["role"], node["parent"]) for node in trace["nodes"]]
    assert shown[:3] == [("user", None), ("assistant", 0), ("tool", 1)] and shown[-1] == (
        "assistant",
        2,
    )
    assert [call["node"] for call in trace["calls"]] == [1, 3] and not report.lacking
