"""Feedback on runs, sent to the real server: stored beside the run and read by rubric."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from hrm_agent.runtime.serving.feedback import MAX_FEEDBACKS, add_feedback
from hrm_agent.runtime.serving.requests import RefusedError
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus
from tests.runtime.serving.conftest import TOKEN, Serve, Served
from tests.support.trajectory.samples import make_trajectory

ASK = [{"role": "user", "content": "What is 6 * 7?"}]


async def post(served: Served, path: str, body: Any, token: str = TOKEN) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{served.url}/v1/{path}", json=body, headers=headers) as answer,
    ):
        return answer.status, await answer.json()


async def test_feedback_is_kept_with_its_time_and_the_newest_counts(serve: Serve) -> None:
    async with serve() as served:
        await post(served, "chat/completions", {"model": "tool_loop", "messages": ASK})
        record = served.only()
        first = {"thread": record.thread_id, "score": "up", "words": "right", "id": "f-1"}
        for _ in range(2):  # the second as if the first had got no answer
            status, said = await post(served, "feedback", first)
            assert (status, said["trajectory"], said["of"]) == (200, record.id, 1)
        assert (
            await post(
                served,
                "feedback",
                {**first, "id": "f-2", "score": 0.25, "words": "on second thought"},
            )
        )[0] == 200
        assert (await post(served, "feedback", {**first, "score": 0}))[0] == 409, (
            "another under an id that is taken"
        )
        found = served.store.scorings.by_rubric("feedback")[record.id]
        assert [(f.id, f.score, f.words) for f in found.feedback] == [
            ("f-1", 1.0, "right"),
            ("f-2", 0.25, "on second thought"),
        ]
        assert found.feedback[0].given_at < found.feedback[1].given_at == found.scored_at
        assert (found.outcome, found.total, found.scores[0].reason) == (
            0.25,
            0.25,
            "on second thought",
        )
        assert served.only() == record, "the record itself is as it was"
        assert served.store.scorings.trajectory_ids("feedback", 0.25) == [record.id]
        assert served.store.scorings.trajectory_ids("feedback", 0.5) == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"thread": "nowhere", "score": 1}, 404, "No thread of that name"),
        ({"thread": "a", "score": 2}, 400, "score has to be a number from 0 to 1"),
        ({"thread": "a", "score": True}, 400, "score has to be a number from 0 to 1"),
        ({"thread": "a", "score": "good"}, 400, "score has to be a number from 0 to 1"),
        ({"thread": "a"}, 400, "score"),
        ({"thread": "a\u0000b", "score": 1}, 400, "thread"),
        (
            {"thread": "a", "score": 1, "words": "x" * 4001},
            400,
            "words: String should have at most 4000",
        ),
        ({"thread": "a", "score": 1, "id": "a b"}, 400, "id"),
        ({"thread": "a", "score": 1, "colour": "red"}, 400, "colour"),
        ([], 400, "JSON object"),
    ],
)
async def test_what_is_no_feedback_is_refused_with_a_sentence(
    body: Any, status: int, said: str, serve: Serve
) -> None:
    async with serve() as served:
        code, answer = await post(served, "feedback", body)
        assert (code, said in answer["error"]["message"]) == (status, True), answer
        assert served.store.scorings.rubrics() == []


async def test_feedback_needs_the_token_and_an_ended_run(serve: Serve) -> None:
    async with serve() as served:
        running = make_trajectory(status=RunStatus.RUNNING, stop_reason=None, ended_at=None)
        served.store.journal.write_trajectory(running)
        body = {"thread": running.thread_id, "score": 1}
        assert (await post(served, "feedback", body, token="another"))[0] == 401
        assert (await post(served, "feedback", body))[0] == 409


async def test_feedbacks_at_the_same_moment_are_all_kept_up_to_the_bound(store: RunStore) -> None:
    store.journal.write_trajectory(make_trajectory())
    bodies = [
        {"thread": "thread-1", "score": i / 200, "id": f"f-{i}"} for i in range(MAX_FEEDBACKS)
    ]
    await asyncio.gather(*(asyncio.to_thread(add_feedback, store, body) for body in bodies))
    assert len(store.scorings.by_rubric("feedback")["trajectory-1"].feedback) == MAX_FEEDBACKS
    with pytest.raises(RefusedError, match="may have no more"):
        add_feedback(store, {"thread": "thread-1", "score": 1})
