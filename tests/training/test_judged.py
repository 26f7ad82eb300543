"""Training on a judge's scores: a server that ranks the siblings of a group."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.trajectory import DropReason, RewardFault

RUBRIC = """
from langchain_openai import ChatOpenAI
from hrm_agent.rewards import Rubric, ranked

judge = ChatOpenAI(model="judge-1", base_url="{url}", api_key="none", max_retries=0)
rubric = Rubric([ranked("The shortest answer that gives a number is best.", judge)])
"""
STEP = GrpoConfig.of(
    steps=1, prompts_per_step=4, group_size=4, seed=5, context={"max_turns": 4, "max_tokens": 96},
    rewards="./judge.py:rubric",
)  # fmt: skip


class JudgeServer(ThreadingHTTPServer):
    """Scores each answer by its length; the task of its first request never gets an answer that can
    be read.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.refused = ""


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = json.loads(body["messages"][1]["content"])
        self.server.asked.append(data)
        self.server.refused = self.server.refused or data["task"]
        scores = {
            label: {"score": 1 / (1 + len(text)), "reason": "length"}
            for label, text in data["answers"].items()
        }
        text = (
            "They are all nice."
            if data["task"] == self.server.refused
            else json.dumps({"scores": scores})
        )
        answer = {
            "id": "1", "object": "chat.completion", "created": 1, "model": "judge-1",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": 70, "completion_tokens": 9, "total_tokens": 79},
        }  # fmt: skip
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.whole
def test_a_ranking_of_siblings_is_learnt_from(
    judge: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judge.py").write_text(RUBRIC.format(url=f"http://127.0.0.1:{judge.server_port}"))
    monkeypatch.chdir(tmp_path)
    asyncio.run(train(STEP, tmp_path / "run"))
    asyncio.run(train(STEP, tmp_path / "run"))
    with open_store(tmp_path / "run" / "store.db") as store:
        groups: dict[str, list[str]] = {}
        for trajectory in store.journal.trajectories():
            groups.setdefault(trajectory.group_id, []).append(trajectory.id)
        scorings = store.scorings.by_rubric("./judge.py:rubric")
        overlays = {o.trajectory_id: o for o in store.journal.overlays("run")}
    assert len(judge.asked) == len(groups) + 1, (
        "one request a group, and one more where it could not be read"
    )
    lost = [ids for ids in groups.values() if not scorings[ids[0]].rewards]
    assert len(lost) == 1, "the group whose judge failed"
    assert {scorings[id_].scores[0].fault for id_ in lost[0]} == {RewardFault.JUDGE}
    assert {overlays[id_].drop_reason for id_ in lost[0]} == {DropReason.NOT_SCORED}
    for ids in groups.values():
        calls = [call for id_ in ids for call in scorings[id_].scores[0].judge_calls]
        assert [call.input_tokens for call in calls] == [70] * (2 if ids in lost else 1)
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert row["stepped"]
    assert 0 < row["reward/ranked"] < 1
