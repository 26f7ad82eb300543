"""Pairs of the best and the worst rollout of a group, as TRL reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, SystemMessage
from trl.data_utils import is_conversational, maybe_apply_chat_template

from hrm_agent.models.loading.policy_loader import load_policy
from hrm_agent.trajectory import RunStatus, Trajectory
from hrm_agent.trajectory.formats import RequestHints, export_to
from tests.trajectory.formats.test_chat import ANSWER, ASKED, CALLS, RESULT, run, said


def rollout(name: str, reward: float | None, *answers: AIMessage, **changes: Any) -> Trajectory:
    """A run in which the model calls the tool as `answers` say, and ends with the last."""
    sent: list[Any] = [SystemMessage("Use the tool."), ASKED]
    calls = list[Any]()
    for number, answer in enumerate(answers):
        calls.append(said(f"{name}-{number}", sent, answer, asked=sent))
        asked = answer.tool_calls[0]["id"] if answer.tool_calls else ""
        sent = [*sent, answer, RESULT.model_copy(update={"tool_call_id": asked})]
    facts: dict[str, Any] = {"id": name, "group_id": "group", **changes}
    facts["rewards"] = {} if reward is None else {"correct": reward}
    return run(*calls, **facts)


def exported(runs: list[Trajectory], folder: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    path = folder / "pairs.jsonl"
    report = export_to(path, runs, "preference", RequestHints())
    assert report.trajectories == len(runs)
    rows = path.read_text().split("\n")[:-1] if path.exists() else []
    assert report.rows == len(rows)
    return [json.loads(row) for row in rows], dict(report.left_out)


OTHER = AIMessage("It is 43.")


def test_the_best_and_the_worst_part_at_the_first_answer_that_differs(tmp_path: Path) -> None:
    again = CALLS.model_copy(update={"tool_calls": [{**CALLS.tool_calls[0], "id": "tc-9"}]})
    runs = [
        rollout("a", 0.0, again, OTHER),
        rollout("b", 0.5, OTHER),
        rollout("c", 1.0, CALLS, ANSWER),
        rollout("d", 1.0, ANSWER),
    ]
    (pair,), left_out = exported(runs, tmp_path)
    assert [message["role"] for message in pair["prompt"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert [message["content"] for message in pair["chosen"]] == [ANSWER.text]
    assert [message["content"] for message in pair["rejected"]] == [OTHER.text]
    names = ("reason", "chosen_id", "rejected_id", "group_id", "role")
    assert [pair[name] for name in names][:4] == ["reward 1 against 0", "c", "a", "group"]
    assert left_out == {}

    assert is_conversational(pair)
    tokenizer = load_policy("builtin:cold-start").codec.tokenizer
    texts = maybe_apply_chat_template(
        {name: pair[name] for name in ("prompt", "chosen", "rejected")}, tokenizer
    )
    assert ANSWER.text in texts["chosen"] and OTHER.text in texts["rejected"]
    assert ASKED.text in texts["prompt"] and ASKED.text not in texts["chosen"]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        (
            [rollout("a", 1.0, ANSWER), rollout("b", 1.0, OTHER)],
            "the rewards of the group are equal",
        ),
        (
            [rollout("a", 1.0, ANSWER), rollout("b", 0.0, ANSWER)],
            "the best and the worst of the group say the same",
        ),
        ([rollout("a", 1.0, ANSWER), rollout("b", None, OTHER)], "the run was not scored"),
        (
            [rollout("a", 1.0, ANSWER), rollout("b", 0.0, OTHER, status=RunStatus.TRUNCATED)],
            "the run is truncated, not completed",
        ),
        (
            [rollout("a", 1.0, ANSWER, group_id=""), rollout("b", 0.0, OTHER, group_id="")],
            "the run is of no group: there is nothing to compare it with",
        ),
    ],
)
def test_what_makes_no_pair_is_counted(runs: list[Trajectory], why: str, tmp_path: Path) -> None:
    rows, left_out = exported(runs, tmp_path)
    assert rows == [] and why in left_out
