"""`langgraph dev` on loopback, with nothing outside in reach, driven by its SDK client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.support.postgres import free_port

PROJECT = Path(__file__).parents[3]
CALL = (
    '<reason>compute</reason><tool_call>{"name": "python", "arguments": {"code": "6 *'
    ' 7"}}</tool_call>'
)
ANSWER = r"<reason>done</reason><answer>\boxed{42}</answer>"
TASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 6 times 7?"}]}
NOWHERE = "http://127.0.0.1:9"
START_SECONDS = 120
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncLangGraphClient]:
    """A server of the repository's own langgraph.json whose policy calls the tool, then answers,
    again and again.
    """
    folder = tmp_path_factory.mktemp("studio")
    (folder / "script.jsonl").write_text(f"{json.dumps(CALL)}\n{json.dumps(ANSWER)}\n" * 20)
    port = free_port()
    words = [
        "dev",
        "--no-browser",
        "--no-reload",
        "--port",
        str(port),
        "--config",
        str(PROJECT / "langgraph.json"),
    ]
    program = [sys.executable, "-c", "from langgraph_cli.cli import cli; cli()", *words]
    given = {
        "HRM_AGENT_POLICY": f"scripted:{folder / 'script.jsonl'}",
        "LANGSMITH_TRACING": "false",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        **dict.fromkeys(
            ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"),
            NOWHERE,
        ),
        "no_proxy": "127.0.0.1",
    }
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            program, stdout=out, stderr=out, env=os.environ | given, cwd=folder
        )
    client = get_sync_client(url=f"http://127.0.0.1:{port}", api_key=None)
    try:
        _until_it_answers(client, process, log)
        yield client
    finally:
        client.close()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder / ".langgraph_api", ignore_errors=True)


def _until_it_answers(
    client: SyncLangGraphClient, process: subprocess.Popen[bytes], log: Path
) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            client.assistants.search()
            return
        except Exception:
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)


def _texts(values: Any) -> list[str]:
    return [message["content"] for message in values["messages"]]


def test_every_built_in_graph_is_served(studio: SyncLangGraphClient) -> None:
    served = {
        assistant["graph_id"]: assistant["assistant_id"] for assistant in studio.assistants.search()
    }
    listed: dict[str, str] = json.loads((PROJECT / "langgraph.json").read_text())["graphs"]
    from hrm_agent.runtime.execution.loading import BUILTIN_GRAPHS

    assert served.keys() == listed.keys()
    assert listed.items() <= BUILTIN_GRAPHS.items()
    for assistant in served.values():
        assert studio.assistants.get_graph(assistant)["nodes"]


def test_a_run_its_history_a_fork_and_its_end(studio: SyncLangGraphClient) -> None:
    thread = studio.threads.create()["thread_id"]
    end = studio.runs.wait(thread, "tool_loop", input=TASK)
    assert _texts(end) == ["What is 6 times 7?", CALL.partition("<tool_call>")[0], "42", ANSWER]
    state = studio.threads.get_state(thread)
    assert state["next"] == [] and state["values"] == end

    history = studio.threads.get_history(thread)  # newest first
    assert [moment["next"] for moment in history] == [
        [],
        ["reason"],
        ["tools"],
        ["reason"],
        ["__start__"],
    ]
    before = next(
        moment
        for moment in history
        if moment["next"] == ["reason"] and len(_texts(moment["values"])) == 1
    )
    again = studio.runs.wait(
        thread, "tool_loop", input=None, checkpoint_id=before["checkpoint"]["checkpoint_id"]
    )
    assert _texts(again) == _texts(end)
    ids = [[message["id"] for message in values["messages"]] for values in (end, again)]
    assert ids[0][0] == ids[1][0] and not set(ids[0][1:]) & set(ids[1][1:]), (
        "sampled anew, from the same question"
    )
    tree = studio.threads.get_history(thread, limit=100)
    forked = [m for m in tree if (m["parent_checkpoint"] or {}).get("checkpoint_id") == _id(before)]
    assert len(forked) == 2, "two lines lead on from the moment that was forked at"

    edited = studio.threads.update_state(
        thread,
        {"messages": [{"role": "user", "content": "What is 7 times 6?", "id": ids[0][0]}]},
        checkpoint_id=_id(before),
    )
    other = studio.runs.wait(
        thread, "tool_loop", input=None, checkpoint_id=edited["checkpoint"]["checkpoint_id"]
    )
    assert _texts(other)[0] == "What is 7 times 6?" and _texts(other)[-1] == ANSWER


def _id(moment: Any) -> str:
    return moment["checkpoint"]["checkpoint_id"]


def test_a_run_that_was_stopped_is_gone_on_with(studio: SyncLangGraphClient) -> None:
    thread = studio.threads.create()["thread_id"]
    stopped = studio.runs.wait(thread, "tool_loop", input=TASK, interrupt_before=["tools"])
    assert len(_texts(stopped)) == 2
    assert studio.threads.get_state(thread)["next"] == ["tools"]
    assert studio.threads.get(thread)["status"] == "interrupted"
    end = studio.runs.wait(thread, "tool_loop", input=None)
    assert _texts(end)[2:] == ["42", ANSWER] and studio.threads.get(thread)["status"] == "idle"


def test_four_modes_stream(studio: SyncLangGraphClient) -> None:
    seen: dict[str, list[Any]] = defaultdict(list)
    modes: Any = ["values", "updates", "messages-tuple", "custom"]
    for part in studio.runs.stream(None, "tool_loop", input=TASK, stream_mode=modes):
        seen[part.event].append(part.data)
    assert [list(update) for update in seen["updates"]] == [["reason"], ["tools"], ["reason"]]
    assert _texts(seen["values"][-1])[-1] == ANSWER and len(seen["values"]) == 4
    assert [(event["event"], event["args"]) for event in seen["custom"]] == [
        ("tool", {"code": "6 * 7"})
    ]
    pieces = [
        chunk["content"] for chunk, _ in seen["messages"] if chunk["type"] == "AIMessageChunk"
    ]
    assert "".join(pieces).endswith(ANSWER) and len(pieces) > 10, "token by token"
    assert "error" not in seen


def test_the_hierarchical_graph_ends_whatever_its_roles_say(studio: SyncLangGraphClient) -> None:
    end: Any = studio.runs.wait(None, "reasoning", input=TASK)
    assert end["stop_reason"] and end["messages"][-1]["type"] == "ai"
