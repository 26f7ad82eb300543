"""Thoughts on record, as commands, pages and the viewer show them: beside the answer and never as
part of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import open_store
from hrm_agent.training.evaluation.step_metrics import rollout_metrics
from hrm_agent.training.sft import read_chats, tokenize
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.forest import paths
from hrm_agent.viewer.json_text import SHOWN
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from hrm_agent.viewer.projections.blobs import whole_text
from tests.cli.conftest import Command
from tests.support.graphs.thinking import THOUGHTS, thinking_codec, thinking_run
from tests.support.trajectory.samples import make_call, make_trajectory

BLOCKS = [
    {"type": "thinking", "thinking": "I <i>think</i>.", "signature": "s"},
    {"type": "text", "text": "It is 4."},
]
DROPPED = "the chat template drops earlier thoughts (?thoughts=keep keeps them)"


@pytest.fixture
def run(tmp_path: Path, environment: LocalEnvironment) -> Trajectory:
    with open_store(tmp_path / "s.db") as store:
        return thinking_run(store, environment)


@pytest.fixture
def hosted(tmp_path: Path) -> Trajectory:
    """A provider's answer with blocks of thoughts."""
    call = make_call("task-a", response={"type": "ai", "content": BLOCKS})
    found = make_trajectory(calls=(call,), tool_calls=(), answer="It is 4.")
    with open_store(tmp_path / "s.db") as store:
        store.journal.write_trajectory(found)
        store.journal.write_call(call)
    return found


def test_show_marks_each_line_of_them(run: Trajectory, hosted: Trajectory, hrm: Command) -> None:
    shown = hrm("show", run.id, "--store", "s.db").out
    first = shown.index("    thoughts:\n    | Six sevens.\n    | I compute.\n    > python: 6 * 7\n")
    assert first < shown.index("    thoughts:\n    | The tool <b>says</b> so.\n    It is 42.\n")
    counted = [call.used.reasoning_tokens or 0 for call in run.calls if call.used is not None]
    assert all(counted) and f"completion tokens ({sum(counted)} of reasoning)" in shown
    assert f"{run.calls[0].sampled_tokens} completion tokens ({counted[0]} of reasoning)" in shown
    told = hrm("show", run.id, "--store", "s.db", "--json").json["calls"]
    assert [call["response"]["additional_kwargs"]["reasoning_content"] for call in told] == list(
        THOUGHTS
    )
    assert "    | I <i>think</i>.\n    It is 4.\n" in hrm("show", hosted.id, "--store", "s.db").out


def test_a_difference_tells_them_from_the_text(run: Trajectory, hrm: Command) -> None:
    changed = hrm("diff", f"{run.thread_id}@2", run.thread_id, "--store", "s.db").out
    assert "+| The tool <b>says</b> so.\n+It is 42.\n" in changed


def test_lint_names_what_breaks_a_rollout_apart(
    run: Trajectory, hrm: Command, tmp_path: Path, environment: LocalEnvironment
) -> None:
    done = hrm("lint", "s.db")
    assert done.code == 0 and "0 findings" in done.out
    assert f"1 of 1 rollouts broke into several training sequences, because {DROPPED}." in done.out
    assert rollout_metrics([run], [])["rollout/sequences"] == len(paths(run.calls)) == 2
    with open_store(tmp_path / "kept.db") as store:
        kept = thinking_run(store, environment, keep=True)
    assert rollout_metrics([kept, run], [])["rollout/sequences"] == 1.5
    assert "training sequences" not in hrm("lint", "kept.db").out


def test_what_is_exported_teaches_them(run: Trajectory, hrm: Command) -> None:
    assert hrm("export", "s.db", "--format", "chat", "--out", "x.jsonl").code == 0
    (row,) = map(json.loads, Path("x.jsonl").read_text().splitlines())
    answers = [message for message in row["messages"] if message["role"] == "assistant"]
    assert [each["reasoning_content"] for each in answers] == list(THOUGHTS)
    assert not any(thought in each["content"] for each in answers for thought in THOUGHTS)
    codec = thinking_codec()
    (conversation,) = read_chats(Path("x.jsonl"))
    taught = tokenize(conversation, codec)
    # what a rollout of it would sample
    for example, path in zip(taught, paths(run.calls), strict=True):
        learned = [token for token, own in zip(example.token_ids, example.mask, strict=True) if own]
        sampled = [
            token
            for call in path
            for token, own in zip(call.token_ids, call.mask, strict=True)
            if own
        ]
        assert codec.decode(learned) == codec.decode(sampled)


def test_the_viewer_has_them_apart(run: Trajectory, tmp_path: Path) -> None:
    place = Place("one", str(tmp_path / "s.db"), None)

    def ask(name: str, **query: str) -> Any:
        endpoint = ENDPOINTS[name]
        with place.moment():
            return endpoint.function(place, **endpoint.read(query))

    calls = [item for item in ask("items", id=run.id)["items"] if item["kind"] == "call"]
    assert [item["reasoning"]["text"] for item in calls] == list(THOUGHTS)
    assert [item["text"]["text"] for item in calls] == ["", "It is 42.", "Sure."]
    used = [call.used.reasoning_tokens for call in run.calls if call.used is not None]
    assert [item["reasoning_tokens"] for item in calls] == used
    assert ask("trajectory", id=run.id)["counts"]["reasoning_tokens"] == sum(filter(None, used))
    newest = ask("moments", thread=run.thread_id)["moments"][-1]["checkpoint"]
    (messages,) = (
        channel["messages"]
        for channel in ask("moment", thread=run.thread_id, checkpoint=newest)["channels"]
        if channel["name"] == "messages"
    )
    assert [each["reasoning"]["text"] for each in messages if each["reasoning"]] == list(THOUGHTS)
    at = next(number for number, each in enumerate(messages) if each["reasoning"])
    assert (
        whole_text(place, f"state:{newest}:{run.thread_id}", f"messages/{at}/reasoning")
        == THOUGHTS[0]
    )
    assert whole_text(place, f"state:{newest}:{run.thread_id}", f"messages/{at}") == ""
    place.close()


def test_long_thoughts_of_a_message_that_was_sent_are_had_in_pieces(tmp_path: Path) -> None:
    long = "long " * SHOWN
    sent = {"type": "ai", "content": "4", "additional_kwargs": {"reasoning_content": long}}
    call = make_call("task-a", request=({"type": "human", "content": "2 + 2?"}, sent))
    with open_store(tmp_path / "s.db") as store:
        store.journal.write_trajectory(make_trajectory(calls=(), tool_calls=()))
        store.journal.write_call(call)
    place = Place("one", str(tmp_path / "s.db"), None)
    with place.moment():
        (item,) = ENDPOINTS["items"].function(place, "trajectory-1")["items"]
        answer = item["prompt_messages"][-1]
        assert answer["text"]["text"] == "4" and answer["reasoning"]["cut"]
        assert whole_text(place, **answer["reasoning"]["blob"]) == long
    place.close()
