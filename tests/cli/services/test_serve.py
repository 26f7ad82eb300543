"""`hrm-agent serve` as a process: its first output, its shutdown, and refusals at its start."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from hrm_agent.cli.main import main
from hrm_agent.store import open_store
from tests.support.environment.held import HOLD, held, let_go
from tests.support.graphs.scripts import boxed, call

ANSWERS = [call(HOLD + "6 * 7"), boxed(42)]
WORDS = [
    "serve",
    "--port",
    "0",
    "--policy",
    "scripted:script.jsonl",
    "--token-file",
    "token",
    "--store",
    "store.db",
]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in ANSWERS))
    command = [
        sys.executable,
        "-m",
        "hrm_agent.cli.main",
        *WORDS,
        "--json",
        "--graphs",
        "tool_loop",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        yield process
        process.kill()


def test_it_finishes_what_runs_before_it_goes(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    assert said["models"] == ["tool_loop"] and said["url"].startswith("http://127.0.0.1:")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert (tmp_path / "token").read_text().strip() == said["token"]
    with openai.OpenAI(base_url=said["url"], api_key=said["token"], max_retries=0) as client:
        events = client.chat.completions.create(
            model="tool_loop", messages=[{"role": "user", "content": "6 * 7?"}], stream=True
        )
        first = next(events)
        while not (held_calls := held(below=process.pid)):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        with suppress(openai.APIError):
            while client.models.list():  # until it takes nothing new
                time.sleep(0.01)
        let_go(held_calls)
        rest = [event.choices[0] for event in events]
        assert "".join(choice.delta.content or "" for choice in rest) == r"\boxed{42}"
        assert rest[-1].finish_reason == "stop" and first.choices[0].delta.role == "assistant"
        with pytest.raises(openai.APIError):
            client.models.list()
    assert process.wait(120) == 0
    with open_store(tmp_path / "store.db") as store:
        assert [trajectory.status for trajectory in store.journal.trajectories()] == ["completed"]


def test_what_a_killed_server_left_is_resumed_by_one_command(
    process: subprocess.Popen[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert process.stdout is not None
    said: dict[str, Any] = json.loads(process.stdout.readline())
    with openai.OpenAI(base_url=said["url"], api_key=said["token"], max_retries=0) as client:
        ask: Any = {
            "model": "tool_loop",
            "messages": [{"role": "user", "content": "6 * 7?"}],
            "stream": True,
        }
        events = client.chat.completions.create(
            **ask, temperature=0.5, extra_body={"context": {"max_turns": 3}}
        )
        while not held(below=process.pid):
            time.sleep(0.01)
        process.kill()
        with suppress(openai.APIError, httpx.HTTPError):
            list(events)
    process.wait(120)
    monkeypatch.chdir(tmp_path)
    over = threading.Event()

    def release() -> None:
        while not over.is_set():
            let_go(held(below=os.getpid()))
            time.sleep(0.01)

    releasing = threading.Thread(target=release)
    releasing.start()
    try:
        assert main(["resume", "--all", "--store", "store.db"]) == 0
    finally:
        over.set()
        releasing.join()
    assert r"completed (answer): <reason>done</reason><answer>\boxed{42}" in capsys.readouterr().out
    with open_store("store.db") as store:
        (trajectory,) = store.journal.trajectories()
        options = str(store.options.read(trajectory.thread_id))
        assert "temperature = 0.5" in options and "max_turns = 3" in options


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--port", "65536"], "is not a port"),
        (["--graphs", "tool_lop"], "tool_loop"),
        (["--concurrency", "0"], "concurrency"),
        (["--drain-seconds", "nan"], "not a time"),
    ],
)
def test_mistakes(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, *words]) == 2
    assert said in capsys.readouterr().err
