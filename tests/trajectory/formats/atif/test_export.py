"""ATIF export: the format's own models accept it, one step per model call. Importing it restores
the trajectory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import atif
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from hrm_agent.errors import StoreError
from hrm_agent.trajectory import BranchReason, Call, ForkRef, RunStatus, Trajectory, content_hash
from hrm_agent.trajectory.formats import RequestHints, export_to, import_from
from hrm_agent.trajectory.lint import lint
from tests.support.properties import few_and_many, holds
from tests.support.trajectory.forests import learned, trajectories
from tests.support.trajectory.samples import THREAD, make_call, make_tool_call, make_trajectory
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

SYSTEM = SystemMessage("Compute.")
KNOWN = RequestHints(tools=(PYTHON,))


def written(folder: Path, *runs: Trajectory, known: RequestHints = KNOWN) -> list[Any]:
    """Documents of a file, each accepted by the real library."""
    export_to(folder / "x.atif", runs, "atif", known)
    documents = [json.loads(line) for line in (folder / "x.atif").read_text().split("\n") if line]
    for document in documents:
        atif.Trajectory.model_validate(document)
    return documents


def back(folder: Path) -> list[Trajectory]:
    return list(import_from(folder / "x.atif"))


def talk(**changes: Any) -> Trajectory:
    """A tool call and the answer after it, as token calls whose messages are on record."""
    whole = [SYSTEM, ASKED, CALLS, RESULT]
    asked = said("a", [SYSTEM, ASKED], CALLS, asked=[SYSTEM, ASKED], tools_hash=OFFERED)
    answered = said(
        "b",
        whole,
        ANSWER,
        asked=[RESULT],
        parent=asked.id,
        tools_hash=OFFERED,
        started_at=102.0,
        ended_at=103.0,
    )
    tool_call = make_tool_call(arguments={"code": "6 * 7"})
    return run(asked, answered, **{"tool_calls": (tool_call,), **changes})


def test_one_step_a_model_call(tmp_path: Path) -> None:
    (document,) = written(tmp_path, talk())
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent"]
    asked, answered = document["steps"][2:]
    assert asked["tool_calls"] == [
        {"tool_call_id": "tc-0", "function_name": "python", "arguments": {"code": "6 * 7"}}
    ]
    (result,) = asked["observation"]["results"]
    assert (result["source_call_id"], result["content"], result["extra"]["status"]) == (
        "tc-0",
        "42",
        "ok",
    )
    assert asked["metrics"]["prompt_token_ids"] == [5, 6]
    assert answered["metrics"] == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "prompt_token_ids": [5, 6, 7, 2, 5, 6],
        "completion_token_ids": [7, 2],
        "logprobs": [-0.5, -0.25],
    }
    assert document["agent"]["tool_definitions"][0]["function"]["name"] == "python"
    assert document["extra"]["reward"] == 1.0
    assert document["final_metrics"] == {
        "total_prompt_tokens": 8,
        "total_completion_tokens": 4,
        "total_steps": 4,
    }
    assert "notes" not in document


def test_what_was_reported_of_a_hosted_call(tmp_path: Path) -> None:
    usage = {
        "input_tokens": 20,
        "output_tokens": 5,
        "total_tokens": 25,
        "input_token_details": {"cache_read": 8},
    }
    paid = {"token_usage": {"cost": 0.25}}
    answer = AIMessage(
        "4",
        usage_metadata=usage,
        response_metadata=paid,
        additional_kwargs={"reasoning_content": "2+2"},
    )
    root = {
        "branch_reason": BranchReason.NO_TOKENS,
        "token_ids": (),
        "mask": (),
        "logprobs": (),
        "untrainable": "text",
    }
    hosted = run(said("a", [ASKED], answer, asked=[ASKED], **root))
    (document,) = written(tmp_path, hosted)
    step = document["steps"][-1]
    assert step["metrics"] == {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "cached_tokens": 8,
        "cost_usd": 0.25,
    }
    assert step["reasoning_content"] == "2+2"
    assert document["final_metrics"]["total_cost_usd"] == 0.25
    assert back(tmp_path) == [hosted]


def test_the_same_trajectory_comes_back(tmp_path: Path) -> None:
    originals = [make_trajectory(id="one"), talk(id="two", rewards={"correct": 0.25, "short": 1.0})]
    written(tmp_path, *originals)
    assert [without_requests(one) for one in back(tmp_path)] == [
        without_requests(one) for one in originals
    ]
    sent = [message["type"] for message in back(tmp_path)[1].calls[1].request or ()]
    assert sent == [
        "system",
        "human",
        "ai",
        "tool",
    ], "all that the call saw, whichever part of it was on record"


def without_requests(run: Trajectory) -> Trajectory:
    return run.model_copy(
        update={"calls": tuple(c.model_copy(update={"request": None}) for c in run.calls)}
    )


@few_and_many
def test_the_same_is_learned(examples: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    def check(original: Trajectory) -> None:
        folder = tmp_path_factory.mktemp("atif")
        written(folder, original)
        assert back(folder) == [original]
        assert learned(back(folder)[0]) == learned(original)

    holds(check, examples, original=trajectories())


def test_parallel_conversations_are_subagents(tmp_path: Path) -> None:
    """Each conversation is one sequence of messages. In a single list of steps, one solver's text
    would be shown to another.
    """
    asked = [HumanMessage("a part"), HumanMessage("another part")]
    calls = [said(name, [one], ANSWER, asked=[one]) for name, one in zip("ab", asked, strict=True)]
    (document,) = written(tmp_path, run(*calls))
    first, *sent = document["steps"]
    assert first["message"] == ASKED.text
    assert [step["llm_call_count"] for step in sent] == [0, 0]
    named = [
        step["observation"]["results"][0]["subagent_trajectory_ref"][0]["trajectory_id"]
        for step in sent
    ]
    assert named == [one["trajectory_id"] for one in document["subagent_trajectories"]]
    assert [
        [step["message"] for step in one["steps"]] for one in document["subagent_trajectories"]
    ] == [[one.text, ANSWER.text] for one in asked]
    assert "2 conversations" in document["notes"]


def test_what_two_conversations_share_is_told_once(tmp_path: Path) -> None:
    first = said("a", [ASKED], CALLS, asked=[ASKED])
    ways = [
        said(name, [ASKED, CALLS, RESULT, again], ANSWER, asked=[RESULT, again], parent=first.id)
        for name, again in (("b", HumanMessage("So?")), ("c", HumanMessage("And?")))
    ]
    (document,) = written(tmp_path, run(first, *ways))
    steps = [
        step
        for one in document["subagent_trajectories"]
        for step in one["steps"]
        if step["source"] == "agent"
    ]
    assert [step.get("is_copied_context", False) for step in steps] == [False, False, True, False]
    assert ["metrics" in step for step in steps] == [True, True, False, True]
    assert [call.token_ids for call in back(tmp_path)[0].calls] == [
        call.token_ids for call in (first, *ways)
    ]


def test_what_a_fork_inherited_is_copied_context(tmp_path: Path) -> None:
    fork = ForkRef(trajectory_id="origin", checkpoint_id="c")
    first = said("a", [ASKED], CALLS, asked=[ASKED], thread="origin")
    own = said("b", [ASKED, CALLS, RESULT], ANSWER, asked=[RESULT], parent=first.id)
    original = run(first, own, forked_from=fork)
    (document,) = written(tmp_path, original)
    assert [step.get("is_copied_context", False) for step in document["steps"]] == [
        False,
        True,
        False,
    ]
    assert learned(back(tmp_path)[0]) == learned(original)


def test_messages_that_are_not_proved_have_no_step(tmp_path: Path) -> None:
    (document,) = written(tmp_path, make_trajectory())
    assert "not on record" in document["notes"]
    assert {
        step["source"] for one in document["subagent_trajectories"] for step in one["steps"]
    } == {"agent"}


def test_an_image_and_what_the_format_has_no_part_for(tmp_path: Path) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    seen = HumanMessage(
        [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    )
    heard = HumanMessage([{"type": "file", "file": {"file_id": "f"}}])
    root = {
        "branch_reason": BranchReason.NO_TOKENS,
        "token_ids": (),
        "mask": (),
        "logprobs": (),
        "untrainable": "text",
    }
    (document,) = written(
        tmp_path, run(said("a", [seen, heard], ANSWER, asked=[seen, heard], **root))
    )
    shown, named = document["steps"][:2]
    assert shown["message"][1] == {
        "type": "image",
        "source": {"media_type": "image/png", "path": url},
    }
    assert named["message"][0]["text"] == "[a part of the type file, which ATIF has no form for]"


def test_a_call_that_could_not_be_decoded_comes_back(tmp_path: Path) -> None:
    broken = {
        "type": "invalid_tool_call",
        "id": "x",
        "name": "python",
        "args": "{",
        "error": "no JSON",
    }
    call = make_call(
        "a", response=AIMessage("", invalid_tool_calls=[broken]).model_dump(mode="json")
    )
    record = make_tool_call("x", arguments="{", status="invalid_call", content="no JSON")
    original = make_trajectory(calls=(call,), tool_calls=(record,))
    written(tmp_path, original)
    assert back(tmp_path) == [original]


def test_a_run_under_way_and_one_without_a_call(tmp_path: Path) -> None:
    running = make_trajectory(status=RunStatus.RUNNING, stop_reason=None, ended_at=None)
    report = export_to(
        tmp_path / "x.atif", [running, make_trajectory(calls=(), tool_calls=())], "atif"
    )
    assert report.left_out == {"the policy was never asked": 1}
    assert back(tmp_path) == [running]


def change(document: Any, *path: Any, to: Any) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = to


@pytest.mark.parametrize(
    ("path", "to", "told"),
    [
        (
            ("steps", 3, "metrics", "prompt_token_ids"),
            [9, 9],
            "steps[3].metrics.prompt_token_ids: they do not begin",
        ),
        (
            ("steps", 3, "metrics", "logprobs"),
            [-1.0],
            "steps[3].metrics.logprobs: 1 logprobs for 2 completion_token_ids",
        ),
        (
            ("steps", 3, "extra", "hrm_agent", "index"),
            0,
            "steps[3].extra.hrm_agent.index: 0 is not an index",
        ),
        (
            ("steps", 3, "extra", "hrm_agent", "call"),
            [],
            "steps[3].extra.hrm_agent.call: an object belongs here",
        ),
        (("steps", 3, "extra", "hrm_agent", "call", "id"), "forged", "call-id"),
        (
            ("extra", "hrm_agent", "trajectory", "status"),
            "odd",
            "extra.hrm_agent.trajectory.status: Input should be",
        ),
        (("extra", "rewards"), {"correct": 7.0}, "reward-range"),
        (
            ("extra", "hrm_agent", "tool_calls"),
            {},
            "extra.hrm_agent.tool_calls: a list belongs here",
        ),
    ],
)
def test_a_document_whose_parts_do_not_fit_is_refused(
    path: Any, to: Any, told: str, tmp_path: Path
) -> None:
    (document,) = written(tmp_path, talk())
    change(document, *path, to=to)
    (tmp_path / "x.atif").write_text(json.dumps(document, indent=2))
    with pytest.raises(StoreError) as raised:
        back(tmp_path)
    assert raised.value.message.startswith(str(tmp_path / "x.atif"))
    assert told in raised.value.message
    assert raised.value.hint


def test_an_edited_text_is_what_is_read_back(tmp_path: Path) -> None:
    (document,) = written(tmp_path, talk())
    change(document, "steps", 3, "message", to="[removed]")
    (tmp_path / "x.atif").write_text(json.dumps(document))
    (found,) = back(tmp_path)
    assert found.calls[1].response["content"] == "[removed]"
    assert lint(found) == []


def test_identical_conversations_are_kept_apart(tmp_path: Path) -> None:
    """Two solvers with the same prompt and the same answer: no call is lost or assigned to the
    other.
    """

    def solver(name: str) -> list[Call]:
        where = {"thread": THREAD, "asked": [ASKED]}
        first = said(f"{name}1", [ASKED], CALLS, **where, **_text)
        return [
            first,
            said(f"{name}2", [ASKED, CALLS, RESULT], ANSWER, asked=[ASKED, CALLS, RESULT], **_text),
        ]

    original = run(*solver("a"), *solver("b"))
    (document,) = written(tmp_path, original)
    assert [len(one["steps"]) for one in document["subagent_trajectories"]] == [3, 3]
    assert [call.id for call in back(tmp_path)[0].calls] == [call.id for call in original.calls]


_text = {
    "branch_reason": BranchReason.NO_TOKENS,
    "token_ids": (),
    "mask": (),
    "logprobs": (),
    "untrainable": "text",
    "tools_hash": content_hash(()),
}
