"""Formats of other programs: training on the file equals training on the trajectory, token for
token.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import LogprobKind, RunStatus, StopReason, Trajectory
from hrm_agent.trajectory.formats import Origin, export_to, import_from
from hrm_agent.trajectory.formats.trl import rollout_columns
from hrm_agent.trajectory.lint import lint
from tests.support.properties import few_and_many, holds
from tests.support.trajectory.forests import learned, trajectories
from tests.support.trajectory.samples import make_call, make_trajectory

TOKENS = ("trl", "verifiers")
of_tokens = pytest.mark.parametrize("name", TOKENS)


def there_and_back(original: Trajectory, name: str, folder: Path) -> list[Trajectory]:
    report = export_to(folder / "file", [original], name)
    return list(import_from(folder / "file")) if report.rows else []


@of_tokens
@few_and_many
def test_the_same_is_learned(
    name: str, examples: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def check(original: Trajectory) -> None:
        assert lint(original) == []
        found = there_and_back(original, name, tmp_path_factory.mktemp("formats"))
        expected = learned(original)
        assert sum(map(learned, found), type(expected)()) == expected
        for trajectory in found:
            assert lint(trajectory) == []
            assert trajectory.id == original.id
            assert trajectory.rewards == original.rewards
            assert trajectory.policy == original.policy

    holds(check, examples, original=trajectories())


@of_tokens
def test_read_twice_it_is_the_same(name: str, tmp_path: Path) -> None:
    export_to(tmp_path / "file", [make_trajectory()], name)
    assert list(import_from(tmp_path / "file", name)) == list(import_from(tmp_path / "file"))


@of_tokens
@pytest.mark.parametrize(
    "end",
    [
        {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TURNS},
        {"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_TOKENS},
        {"status": RunStatus.COMPLETED, "stop_reason": StopReason.ANSWER},
    ],
)
def test_how_a_run_ended(name: str, end: dict[str, Any], tmp_path: Path) -> None:
    (found,) = there_and_back(make_trajectory(**end), name, tmp_path)
    assert (found.status, found.stop_reason) == (end["status"], end["stop_reason"])


def test_a_failure_says_of_what(tmp_path: Path) -> None:
    failed = make_trajectory(
        status=RunStatus.FAILED, stop_reason=StopReason.ERROR, error="KeyError: x"
    )
    (found,) = there_and_back(failed, "verifiers", tmp_path)
    assert (found.status, found.error) == (RunStatus.FAILED, "KeyError: x")


def test_a_trajectory_without_tokens_is_counted_with_its_reason(tmp_path: Path) -> None:
    call = make_call(
        "a", untrainable="the model reports no token ids", token_ids=(), mask=(), logprobs=()
    )
    report = export_to(tmp_path / "x.trl", [make_trajectory(calls=(call,))], "trl")
    assert (report.trajectories, report.rows) == (1, 0)
    assert report.left_out == {"the model reports no token ids": 1}


@of_tokens
def test_a_call_without_its_beginning_is_not_told_as_if_it_had_none(
    name: str, tmp_path: Path
) -> None:
    broken = make_trajectory(calls=(make_call("b", parent="elsewhere"),))
    report = export_to(tmp_path / "x", [broken, make_trajectory(id="two")], name)
    assert report.left_out == {"its calls extend calls that are not on record": 1}
    assert [trajectory.id for trajectory in import_from(tmp_path / "x")] == ["two"]


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROLLOUT = {
    "prompt_ids": [5, 6],
    "completion_ids": [7, 8, 9, 2],
    "logprobs": [-0.5, -0.5, 0.0, -1.0],
}


def test_a_rollout_of_another_program(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x", {**ROLLOUT, "env_mask": [1, 1, 0, 1], "reward": 0.5, "policy": "m"}
    )
    (found,) = import_from(path, origin=Origin(raw_logprobs=True))
    assert [call.token_ids for call in found.calls] == [(5, 6, 7, 8), (9, 2)]
    assert [call.mask for call in found.calls] == [(False, False, True, True), (False, True)]
    assert found.calls[1].logprobs == (0.0, -1.0)
    assert found.calls[1].parent == found.calls[0].id
    assert found.trainable
    assert found.rewards == {"correct": 0.5}


def test_what_is_missing_makes_a_call_untrainable(tmp_path: Path) -> None:
    path = write(tmp_path / "x", ROLLOUT, {**ROLLOUT, "logprobs": None})
    unsaid, absent = import_from(path)
    assert "does not say that its log-probs are raw" in str(unsaid.calls[0].untrainable)
    assert unsaid.calls[0].logprob_kind is LogprobKind.SAMPLED
    assert absent.calls[0].untrainable == "the file gives no log-probs"
    assert lint(unsaid) == lint(absent) == []


TRACE = {
    "version": 1,
    "id": "abc",
    "task": {"type": "GSM", "data": {"prompt": "2 + 2?", "answer": "4"}, "key": "k1"},
    "agent": {"config": {"model": "m", "sampling": {"temperature": 1.0}}},
    "nodes": [
        {
            "parent": None,
            "message": {"role": "system", "content": "s"},
            "token_ids": [1, 2],
            "mask": [False, False],
        },
        {
            "parent": 0,
            "message": {"role": "user", "content": "2 + 2?"},
            "token_ids": [3],
            "mask": [False],
        },
        {
            "parent": 1,
            "sampled": True,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "a", "name": "add", "arguments": '{"x": 2}'},
                    {"id": "b", "name": "add", "arguments": "{"},
                ],
            },
            "token_ids": [4, 5, 6],
            "mask": [False, True, True],
            "logprobs": [-0.5, -0.25],
        },
        {
            "parent": 2,
            "message": {"role": "tool", "tool_call_id": "a", "content": "4"},
            "token_ids": [7],
            "mask": [False],
        },
        {
            "parent": 3,
            "sampled": True,
            "message": {"role": "assistant", "content": "4"},
            "token_ids": [8, 9],
            "mask": [False, True],
            "logprobs": [-1.0],
        },
    ],
    "calls": [
        {
            "node": 4,
            "finish_reason": "length",
            "sampling": {"temperature": 1.0},
            "time": {"start": 5, "end": 7},
        }
    ],
    "rewards": {
        "right": {"score": 1.0, "weight": 0.5},
        "short": {"score": 1.0, "weight": 0.0},
        "late": None,
    },
    "is_completed": True,
    "ok": True,
    "stop_condition": "max_turns",
    "timing": {"start": 1.0, "agent": {"start": 1.0, "end": 9.0}},
}


def test_a_trace_of_another_program(tmp_path: Path) -> None:
    (found,) = import_from(write(tmp_path / "x", TRACE))
    asked, answered = found.calls
    assert asked.token_ids == (1, 2, 3, 4, 5, 6)
    assert asked.logprobs == (0.0, 0.0, 0.0, 0.0, -0.5, -0.25)
    assert (answered.token_ids, answered.mask, answered.parent) == (
        (7, 8, 9),
        (False, False, True),
        asked.id,
    )
    assert asked.response["tool_calls"][0]["args"] == {"x": 2}
    assert asked.response["invalid_tool_calls"][0]["args"] == "{"
    assert (answered.finish_reason, answered.started_at, answered.ended_at) == ("length", 5.0, 7.0)
    assert found.trainable
    assert found.rewards == {"right": 1.0, "short": 1.0, "correct": 0.5}
    assert (found.status, found.stop_reason) == (RunStatus.TRUNCATED, StopReason.MAX_TURNS)
    assert (found.task.prompt, found.task.answer, found.task.family) == ("2 + 2?", "4", "GSM")


def test_log_probs_at_another_temperature_are_not_raw(tmp_path: Path) -> None:
    cold = {**TRACE, "agent": {"config": {"sampling": {"temperature": 0.6}}}, "calls": []}
    (found,) = import_from(write(tmp_path / "x", cold))
    assert not found.trainable


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**ROLLOUT, "reward": 7.0}, "x:1 is not a valid trajectory: reward-range"),
        ({**ROLLOUT, "logprobs": [3.0] * 4}, "logprob-nonpositive"),
        (
            {**ROLLOUT, "env_mask": [1]},
            "x:1: completion_ids, env_mask and logprobs are not equally long",
        ),
        ({**ROLLOUT, "prompt_ids": []}, "root-prompt"),
        ({**TRACE, "version": 2}, "x:1 is a trace of version 2"),
        ({**TRACE, "nodes": [{"parent": 4}]}, "x:1 is not a trace"),
        ({"messages": []}, "cannot be imported as runs"),
        ([1], "x:1 is not a JSON object"),
    ],
)
def test_what_cannot_be_read_is_named(row: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        list(import_from(write(tmp_path / "x", row)))
    assert said in raised.value.message
    assert raised.value.hint


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verifiers"):
        export_to(tmp_path / "x", [], "verifier")


def test_a_version_1_line_is_read(tmp_path: Path) -> None:
    old = make_trajectory().model_dump(mode="json")
    old["schema_version"] = 1
    for call in (*old["calls"], *old["tool_calls"]):
        del call["identity"]["root_checkpoint_id"]
    for tool_call in old["tool_calls"]:
        del tool_call["output"], tool_call["idempotency_key"]
    (found,) = import_from(write(tmp_path / "x.jsonl", old))
    assert found == make_trajectory(schema_version=1)


def test_the_columns_of_a_rollout_func(tmp_path: Path) -> None:
    """One row per path, cut after its last trained token. The second of two paths with a common
    prefix trains only its own end.
    """
    first = make_call("a")
    one, other = (make_call(task, parent=first.id, branch_reason=None) for task in "bc")
    export_to(tmp_path / "x", [make_trajectory(calls=(first, one, other))], "trl")
    columns = rollout_columns(tmp_path / "x")
    assert {len(values) for values in columns.values()} == {2}
    assert columns["prompt_ids"] == [[5, 6]] * 2
    assert columns["completion_ids"] == [[7, 2, 5, 6, 7, 2]] * 2
    assert columns["env_mask"] == [[1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1]]
    assert columns["logprobs"] == [[-0.5, -0.25, 0.0, 0.0, -0.5, -0.25]] * 2
    assert columns["reward"] == [1.0, 1.0]
