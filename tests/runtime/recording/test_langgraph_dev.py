"""`langgraph dev`, which has checkpointers of its own and refuses code that blocks its event loop,
under a record.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from langgraph_sdk import get_sync_client

from hrm_agent.store import open_store
from hrm_agent.trajectory.lint import lint
from tests.support.postgres import free_port

PROJECT = Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:9"
ASKED = {"messages": [{"role": "user", "content": "What is 6 * 7?"}]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_runs_of_the_development_server_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = "from tests.runtime.recording.test_record import echoing_async as graph\n"
    Path("agent.py").write_text(agent)
    Path("langgraph.json").write_text(
        json.dumps({"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}})
    )
    port = free_port()
    serving = [
        sys.executable,
        "-c",
        "from langgraph_cli.cli import cli; cli()",
        "dev",
        "--no-browser",
        "--no-reload",
    ]
    words = [
        sys.executable,
        "-m",
        "hrm_agent",
        "record",
        "--store",
        "x.db",
        "--",
        *serving,
        "--port",
        str(port),
    ]
    given = {
        "PYTHONPATH": str(PROJECT),
        "LANGSMITH_TRACING": "false",
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    }
    given |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), NOWHERE)
    with Path("log").open("wb") as log:
        process = subprocess.Popen(
            words, env=os.environ | given | {"no_proxy": "127.0.0.1"}, stdout=log, stderr=log
        )
    client = get_sync_client(url=f"http://127.0.0.1:{port}", api_key=None)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                thread = client.threads.create()["thread_id"]
                break
            except Exception:
                assert process.poll() is None and time.monotonic() < end, Path("log").read_text()[
                    -3000:
                ]
                time.sleep(0.2)
        for _ in range(2):
            client.runs.wait(thread, "agent", input=ASKED)
        assert list(client.runs.stream(None, "agent", input=ASKED, stream_mode="messages"))
    finally:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    with open_store("x.db", create=False) as store:
        found = list(store.journal.trajectories())
    assert [len(t.calls) for t in found] == [2, 1] and found[0].thread_id == thread
    assert found[0].prompts == ("What is 6 * 7?",) * 2 and found[1].answer == "echo What is 6 * 7?"
    assert [problem for t in found for problem in lint(t)] == []
    assert "Not everything is recorded" not in Path("log").read_text()
