"""Logs of inspect_ai: one that inspect_ai 0.3.285 itself wrote (a mock model, a tool, two epochs),
and hostile ones.

`write_inspect_log.py` beside the log is the program that wrote it.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.log import read_eval_log
from inspect_ai.log._file import eval_log_json_str

from hrm_agent.errors import ConfigError, StoreError
from hrm_agent.trajectory import FinishReason, RunStatus, StopReason, ToolStatus, Trajectory
from hrm_agent.trajectory.formats import RequestHints, export_to, import_from
from hrm_agent.trajectory.formats.inspect import logs
from hrm_agent.trajectory.formats.shared import message_runs as foreign_run
from hrm_agent.trajectory.formats.shared.messages import ConversationOfCall, conversation_of

LOG = Path(__file__).parents[3] / "support" / "trajectory" / "data" / "inspect.eval"


def log() -> Any:
    """The log as the JSON form has it."""
    return json.loads(eval_log_json_str(read_eval_log(LOG)))


WHOLE = log()
SAMPLE = WHOLE["samples"][0]


def read(folder: Path, **changes: Any) -> Trajectory:
    """The first sample, changed, out of a JSON log."""
    sample = {**copy.deepcopy(SAMPLE), **changes}
    (folder / "x.json").write_text(json.dumps({**WHOLE, "samples": [sample]}, indent=1))
    (found,) = import_from(folder / "x.json")
    return found


def test_a_log_of_the_real_library() -> None:
    first, second = sorted(import_from(LOG), key=lambda one: one.sample_index)
    asked, answered = first.calls
    assert (first.task.id, first.task.family, first.task.prompt) == (
        "sum",
        "inspect:sums",
        "What is 17 + 25?",
    )
    assert (first.task.answer, first.task.metadata["level"]) == ("42", 1)
    assert (first.policy, first.answer, first.status) == (
        "mockllm/model",
        "It is 40.",
        RunStatus.COMPLETED,
    )
    assert first.rewards == {"match": 0.0}, "NaN of the other scorer is no reward"
    assert second.rewards == {"match": 1.0, "length": 0.5}
    assert first.group_id == second.group_id
    assert first.id != second.id
    assert asked.identity.node == "generate"
    assert asked.response["tool_calls"][0]["args"] == {"x": 17, "y": 25}
    usage = asked.response["usage_metadata"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (
        24,
        5,
    ), "inspect counts cached tokens apart"
    assert asked.ended_at >= asked.started_at > 1.7e9
    assert answered.untrainable == "the file gives no token ids"
    (tool_call,) = first.tool_calls
    assert (tool_call.name, tool_call.content, tool_call.status) == ("add", "42", ToolStatus.OK)


def test_the_json_form_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps(WHOLE, indent=2))
    found = sorted(import_from(tmp_path / "x.json"), key=lambda one: one.sample_index)
    assert found == sorted(import_from(LOG), key=lambda one: one.sample_index)


def test_what_each_call_was_sent_is_proved(tmp_path: Path) -> None:
    first = min(import_from(LOG), key=lambda one: one.sample_index)
    event = next(event for event in SAMPLE["events"] if event["event"] == "model")
    tool = {"type": "function", "function": event["tools"][0]}
    known = RequestHints(tools=((tool,),))
    conversation = conversation_of(first.calls[1], first, known)
    assert isinstance(conversation, ConversationOfCall)
    assert [message.type for message in conversation.messages] == [
        "system",
        "human",
        "ai",
        "tool",
        "ai",
    ]
    assert export_to(tmp_path / "x.chat", [first], "chat", known).rows == 1


def test_a_log_without_events(tmp_path: Path) -> None:
    found = read(tmp_path, events=[], events_data=None)
    assert [len(call.request or ()) for call in found.calls] == [2, 4]
    assert [(one.name, one.content) for one in found.tool_calls] == [("add", "42")]


def test_what_a_scorer_asked_is_not_the_runs(tmp_path: Path) -> None:
    events = copy.deepcopy(SAMPLE["events"])
    grader = {**next(event for event in events if event["event"] == "model"), "span_id": "inner"}
    events += [
        {"event": "span_begin", "id": "outer", "type": "scorers", "name": "scorers"},
        {
            "event": "span_begin",
            "id": "inner",
            "parent_id": "outer",
            "type": "scorer",
            "name": "match",
        },
        grader,
        {"event": "step", "action": "begin", "type": "scorer", "name": "old"},
        {**grader, "span_id": None},
        {"event": "step", "action": "end", "type": "scorer", "name": "old"},
    ]
    assert len(read(tmp_path, events=events).calls) == 2


def test_messages_named_again_and_again_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, pool = copy.deepcopy(SAMPLE["events"]), [{"role": "user", "content": "x"}] * 100
    event = next(event for event in events if event["event"] == "model") | {
        "input": [],
        "input_refs": [[0, 100]] * 20,
    }
    told = {"events": [event], "events_data": {"messages": pool, "calls": []}}
    assert len(read(tmp_path, **told).calls[0].request or ()) == 2000
    monkeypatch.setattr(foreign_run, "MOST_SENT", 1999)
    with pytest.raises(StoreError, match="were sent more than 1,999 messages"):
        read(tmp_path, **told)


def test_calls_that_came_to_nothing_are_none(tmp_path: Path) -> None:
    events = copy.deepcopy(SAMPLE["events"])
    first, second = (event for event in events if event["event"] == "model")
    first["error"], second["output"]["choices"][0]["stop_reason"] = "Overloaded", "max_tokens"
    (call,) = read(tmp_path, events=events).calls
    assert call.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("value", "rewards"),
    [
        ("C", {"s": 1.0, "correct": 1.0}),
        ("I", {"s": 0.0, "correct": 0.0}),
        ("P", {"s": 0.5, "correct": 0.5}),
        ("N", {"s": 0.0, "correct": 0.0}),
        ("yes", {"s": 1.0, "correct": 1.0}),
        ("False", {"s": 0.0, "correct": 0.0}),
        ("0.25", {"s": 0.25, "correct": 0.25}),
        (True, {"s": 1.0, "correct": 1.0}),
        (0.75, {"s": 0.75, "correct": 0.75}),
        (7, {}),
        (math.nan, {}),
        (math.inf, {}),
        ("great", {}),
        ([1, 0], {}),
        ({"a": "C", "b": 3, "c": 0.5}, {"s/a": 1.0, "s/c": 0.5}),
    ],
)
def test_scores(value: Any, rewards: dict[str, float], tmp_path: Path) -> None:
    found = read(tmp_path, scores={"s": {"value": value}})
    assert found.rewards == rewards
    kept = found.task.metadata["inspect"]["scores"]["s"]
    assert kept == (None if isinstance(value, float) and not math.isfinite(value) else value)


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (
            {"error": {"message": "Boom", "traceback": "", "traceback_ansi": ""}},
            RunStatus.FAILED,
            StopReason.ERROR,
        ),
        ({"limit": {"type": "token", "limit": 5}}, RunStatus.TRUNCATED, StopReason.MAX_TOKENS),
        ({"limit": {"type": "working", "limit": 5}}, RunStatus.TRUNCATED, StopReason.MAX_SECONDS),
        ({"limit": {"type": "custom", "limit": 5}}, RunStatus.TRUNCATED, StopReason.MAX_CALLS),
        ({"limit": {"type": "operator", "limit": 1}}, RunStatus.ABORTED, StopReason.ABORTED),
    ],
)
def test_how_a_sample_ended(
    end: Any, status: RunStatus, reason: StopReason, tmp_path: Path
) -> None:
    found = read(tmp_path, **end)
    assert (found.status, found.stop_reason) == (status, reason)
    assert found.error == ("Boom" if "error" in end else None)


def test_how_a_tool_call_failed(tmp_path: Path) -> None:
    events = copy.deepcopy(SAMPLE["events"])
    tool = next(event for event in events if event["event"] == "tool")
    for word, status in (
        ("timeout", "timeout"),
        ("approval", "denied"),
        ("unicode_decode", "error"),
    ):
        tool |= {"error": {"type": word, "message": "why"}, "result": ""}
        (tool_call,) = read(tmp_path, events=events).tool_calls
        assert (tool_call.status, tool_call.content) == (status, "why")


def test_attachments_images_and_thoughts(tmp_path: Path) -> None:
    said = [
        {"type": "reasoning", "reasoning": "attachment://a"},
        {"type": "text", "text": "Here:"},
        {"type": "image", "image": "attachment://b"},
        {"type": "video", "video": "x", "format": "mp4"},
    ]
    found = read(
        tmp_path,
        events=[],
        messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": said}],
        attachments={"a": "Hm.", "b": "data:image/png;base64,AAAA"},
    )
    response = found.calls[0].response
    assert response["additional_kwargs"] == {"reasoning_content": "Hm."}
    assert response["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64,AAAA"},
    }
    assert response["content"][2]["text"] == "[a part of the type video]"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"events": [{"event": "model", "model": 3}]},
            "samples[0].events[0].model.model: Input should be a valid string",
        ),
        (
            {"events": [{"event": "tool", "id": "x"}]},
            "samples[0].events[0].tool.function: Field required",
        ),
        (
            {"messages": [{"role": "robot", "content": ""}]},
            "samples[0].messages[0].function-wrap[_wrap()].role",
        ),
        ({"started_at": "soon"}, "samples[0].started_at: Invalid"),
        ({"scores": [1]}, "samples[0].scores: Input should be"),
    ],
)
def test_what_cannot_be_read_is_named(changes: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        read(tmp_path, **changes)
    assert raised.value.message.startswith(f"{tmp_path / 'x.json'}: {told}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("epoch",), 0),
        (("config", "temperature"), -0.1),
        (("config", "top_p"), 0),
        (("config", "top_p"), 1.1),
        (("config", "max_tokens"), 0),
        (("output", "usage", "input_tokens"), -1),
        (("output", "usage", "output_tokens"), -1),
        (("output", "usage", "input_tokens_cache_write"), -1),
        (("output", "usage", "input_tokens_cache_read"), -1),
        (("output", "usage", "total_cost"), -0.5),
    ],
)
def test_numbers_out_of_range(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    sample = copy.deepcopy(SAMPLE)
    index = next(i for i, one in enumerate(sample["events"]) if one["event"] == "model")
    at: Any = sample if path == ("epoch",) else sample["events"][index]
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    field = ".".join(path if path == ("epoch",) else (f"events[{index}]", *path))
    with pytest.raises(StoreError) as raised:
        read(tmp_path, **sample)
    assert raised.value.message.startswith(
        f"{tmp_path / 'x.json'}: samples[0].{field}: Input should be"
    )


@pytest.mark.parametrize(
    ("limit", "value", "told"),
    [
        ("MOST_BYTES", 2**20, "header.json: it unpacks to more than 1 MiB"),
        ("_MOST_TOTAL", 2**20, "header.json: with it, the archive unpacks to more than 0 GiB"),
        ("_MOST_MEMBERS", 0, "the archive has more than 0 members"),
    ],
)
@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, 93])
def test_bombs_are_refused(
    limit: str, value: int, told: str, method: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, limit, value)
    content = b" " * 2**22
    with zipfile.ZipFile(tmp_path / "x.eval", "w", method) as archive:
        archive.writestr("header.json", content)
    whole = (tmp_path / "x.eval").read_bytes()
    # a directory that declares 100 bytes
    start = whole.rindex(b"PK\x01\x02") + 24
    (tmp_path / "y.eval").write_bytes(
        whole[:start] + (100).to_bytes(4, "little") + whole[start + 4 :]
    )
    for name in ("x.eval", "y.eval"):
        with pytest.raises(StoreError, match=told):
            list(import_from(tmp_path / name, "inspect"))


def test_a_large_json_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 2**10)
    with pytest.raises(StoreError, match=r"x\.json: it is larger than 0 MiB"):
        read(tmp_path)


def test_a_newer_log(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({**WHOLE, "version": 3}))
    with pytest.raises(StoreError, match="version 3"):
        list(import_from(tmp_path / "x.json"))


def test_a_log_of_a_killed_run_and_a_plain_archive(tmp_path: Path) -> None:
    start = {"version": 2, "eval": WHOLE["eval"], "plan": WHOLE["plan"]}
    with zipfile.ZipFile(tmp_path / "x.eval", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", json.dumps(start))
        archive.writestr("samples/sum_epoch_1.json", json.dumps(SAMPLE))
    assert len(list(import_from(tmp_path / "x.eval"))) == 1


def test_a_damaged_archive(tmp_path: Path) -> None:
    (tmp_path / "z.eval").write_bytes(LOG.read_bytes()[:5000])
    with pytest.raises(StoreError, match=r"z\.eval cannot be read"):
        list(import_from(tmp_path / "z.eval", "inspect"))


def test_names_do_not_reach_the_terminal_as_they_are(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.eval", "w") as archive:
        archive.writestr("header.json", json.dumps({"version": 2, "eval": WHOLE["eval"]}))
        archive.writestr("samples/\x1b[31m.json", "{}")
    with pytest.raises(StoreError) as raised:
        list(import_from(tmp_path / "x.eval"))
    assert "\x1b" not in raised.value.message


def test_without_the_package_inspect_ai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    with pytest.raises(ConfigError, match=r"inspect_ai\. Run `pip install .*\[inspect\]"):
        list(import_from(LOG))
