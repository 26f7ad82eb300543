"""An episode's variables live on between its calls, a fork has its own copy of them, and they end
with the episode.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.base import ExecutionResult, Limits, Submission
from hrm_agent.errors import HrmError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import siblings
from hrm_agent.store import RunStore
from hrm_agent.tools import python
from hrm_agent.trajectory import RunStatus, SessionState, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import Roles, boxed, call

TASK = TaskRef(id="1", family="test", prompt="What is 6 * 7?", answer="42")
SCRIPT = [call("x = 6"), call("y = x * 7"), call("y"), boxed(42)]


class Watched(LocalEnvironment):
    """Environment that keeps its submissions."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Submission] = []
        self.ended: list[str] = []

    async def run(self, submission: Submission) -> ExecutionResult:
        self.asked.append(submission)
        return await super().run(submission)

    async def end_session(self, session: str, *, run: str = "") -> None:
        self.ended.append(session)
        await super().end_session(session, run=run)


@pytest.fixture
async def environment() -> Any:
    opened = Watched()
    yield opened
    await opened.close()


def runner(store: RunStore, environment: LocalEnvironment, script: Any) -> EpisodeRunner:
    return EpisodeRunner(store, ScriptedEngine(script), "scripted", environment)


async def run(
    store: RunStore, environment: LocalEnvironment, script: Any = SCRIPT, **options: Any
) -> Trajectory:
    return await runner(store, environment, script).run(Episode(TASK, "thread", seed=1, **options))


async def test_variables_live_on_until_the_episode_ends(
    store: RunStore, environment: Watched
) -> None:
    trajectory = await run(store, environment, run_id="a-run")
    assert trajectory.answer == boxed(42) and lint(trajectory) == []
    assert [t.status for t in trajectory.tool_calls] == [ToolStatus.OK] * 3
    assert [t.value for t in trajectory.tool_calls] == [None, None, "42"]
    assert [t.session for t in trajectory.tool_calls] == [
        SessionState.NEW,
        SessionState.KEPT,
        SessionState.KEPT,
    ]
    for record in trajectory.tool_calls:
        assert record.isolation == environment.isolation
        assert record.cpu_seconds is not None and 0 < record.cpu_seconds < 5
        assert record.peak_memory_bytes is not None and record.peak_memory_bytes > 10**6
    assert {s.run for s in environment.asked} == {"a-run"}
    assert environment.ended == [environment.asked[0].session]


async def test_solvers_side_by_side_do_not_see_each_others_variables(
    store: RunStore, environment: Watched
) -> None:
    roles = Roles()
    roles.plan = {
        "subgoals": [{"name": f"part_{i}", "goal": "1 + 1", "needs": []} for i in range(3)]
    }
    roles.solver = lambda messages: (  # pyright: ignore[reportAttributeAccessIssue]
        call("seen = globals().get('seen', 0) + 1\nseen")
        if len(messages) < 6
        else boxed(messages[-1].text)
    )
    trajectory = await run(store, environment, roles, graph="reasoning")
    assert sorted(t.value or "" for t in trajectory.tool_calls) == ["1"] * 3 + ["2"] * 3
    assert len({s.session for s in environment.asked}) == 3 == len(environment.ended)


async def test_forks_have_copies_of_their_own(store: RunStore, environment: Watched) -> None:
    await run(
        store,
        environment,
        [call("import random\nx = [random.random()]"), call("x.append(2)\nx"), boxed(1)],
    )
    (drawn,) = [t.value for t in (await run(store, environment)).tool_calls if t.value]
    environment.asked.clear()
    script = [call("x.append(3)"), call("x"), boxed(42)]
    forks = await siblings(
        runner(
            store, environment, lambda messages: script[sum(m.type == "tool" for m in messages) - 2]
        ),
        "thread",
        "after:tools#2",
        count=3,
    )
    assert [fork.tool_calls[-1].value for fork in forks] == [drawn.replace("2]", "2, 3]")] * 3
    assert [[t.session for t in fork.own_tool_calls] for fork in forks] == [
        [SessionState.REPLAYED, SessionState.KEPT]
    ] * 3
    assert len({s.session for s in environment.asked}) == 3
    assert all(lint(fork) == [] for fork in forks)


async def test_a_replay_runs_nothing(store: RunStore, environment: Watched) -> None:
    await run(store, environment)
    environment.asked.clear()
    assert (await replay_async(store, "thread")).equal
    assert environment.asked == []


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is stopped"])
async def test_sessions_end_however_the_episode_does(
    how: str, store: RunStore, environment: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python, "limits", Limits(wall_seconds=600.0))

    def script(messages: Any) -> str:
        if messages[-1].type != "tool":
            return call("x = 1")
        if how == "is cancelled":
            return call("import time\ntime.sleep(60)")
        raise (
            HrmError("a person can mend it")
            if how == "is stopped"
            else ValueError("the policy breaks")
        )

    running = asyncio.create_task(run(store, environment, script))
    if how == "is cancelled":
        while len(environment.asked) < 2:
            await asyncio.sleep(0.01)
        running.cancel()
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    if isinstance(ended, Trajectory):
        assert ended.status is RunStatus.FAILED
    assert environment.ended == [environment.asked[0].session]


async def test_an_environment_that_is_gone_at_the_end_does_no_harm(
    store: RunStore, environment: Watched
) -> None:
    class Gone(Watched):
        async def end_session(self, session: str, *, run: str = "") -> None:
            raise HrmError("The server is gone.")

    gone = Gone()
    try:
        assert (await run(store, gone)).status is RunStatus.COMPLETED
    finally:
        await gone.close()
