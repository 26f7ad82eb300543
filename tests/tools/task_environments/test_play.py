"""Acts in a task's environment: recorded, repeated after a crash, and faults that are never the
policy's. The server speaks OpenEnv's protocol.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ModelError, RunError, TaskError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.tools.task_environments import play as task_play
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.tasks import load_tasks
from hrm_agent.trajectory import DropReason, RunStatus, StopReason, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.tools.openenv_server import GuessServer, serving


def number_of(episode: Episode) -> int:
    """Number to be guessed in an episode."""
    given = episode.task.metadata["inputs"]["environment"]["arguments"]
    return random.Random(given["seed"]).randint(1, 100)


def episodes(server: GuessServer, query: str = "", count: int = 1) -> list[Episode]:
    tasks = load_tasks(f"openenv:{server.url}{query}", split="eval", seed=0, count=count)
    return group_episodes(
        tasks, 1, run_id="run", stage="eval", seed=0, graph="tool_loop", context={"max_turns": 12}
    )


def guess(number: Any, name: str = "guess") -> str:
    asked = json.dumps({"name": name, "arguments": {"number": number}})
    return f"<tool_call>{asked}</tool_call>"


def bisecting(name: str) -> Any:
    """Script that finds the number by halving the range."""

    def script(messages: Sequence[BaseMessage]) -> str:
        low, high = 1, 100
        asked = [m for m in messages if isinstance(m, AIMessage)]
        heard = [m.text for m in messages if isinstance(m, ToolMessage)]
        for answer, said in zip(asked, heard, strict=True):
            number = answer.tool_calls[0]["args"]["number"]
            low, high = (number + 1, high) if "higher" in said else (low, number - 1)
        return guess((low + high) // 2, name)

    return script


async def run(
    store: RunStore, environment: LocalEnvironment, script: Any, episode: Episode
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        return await EpisodeRunner(store, engine, "scripted", environment).run(episode)


@pytest.mark.parametrize("mcp", [False, True])
async def test_an_episode_is_played_by_tools_and_replayed_without_a_server(
    store: RunStore, environment: LocalEnvironment, mcp: bool
) -> None:
    with serving(GuessServer(mcp=mcp)) as server:
        (episode,) = episodes(server)
        begun = server.opened
        done = await run(store, environment, bisecting("guess" if mcp else "step"), episode)
        while server.open_now:  # closed at the end
            await asyncio.sleep(0.01)
        assert server.opened - begun == 1
        sent = list(server.acts)
    assert (done.status, done.stop_reason) == (RunStatus.COMPLETED, StopReason.ANSWER)
    assert done.rewards == {"correct": 1.0, "environment_return": 1.0}
    assert sent[-1] == number_of(episode)
    assert [each.arguments["number"] for each in done.tool_calls] == sent  # pyright: ignore[reportArgumentType]
    assert done.tool_calls[-1].content == "right"
    assert lint(done) == []
    assert (await replay_async(store, done.thread_id)).equal  # the server is gone


async def test_answers_are_acts_where_the_environment_takes_a_text(
    store: RunStore, environment: LocalEnvironment
) -> None:
    seen: list[Sequence[BaseMessage]] = []

    def script(messages: Sequence[BaseMessage]) -> str:
        seen.append(messages)
        return "101" if len(seen) < 3 else str(number_of(episode))

    with serving(GuessServer(text=True)) as server:
        (episode,) = episodes(server, "?reply=text")
        done = await run(store, environment, script, episode)
        two = episodes(server, "?reply=text&steps=2&high=2")[0]
        seen.clear()
        cut = await run(store, environment, script, replace(two, thread_id="cut"))
    assert done.rewards["correct"] == 1.0
    assert [m.text for m in seen[1] if isinstance(m, HumanMessage)][-1] == "lower"
    assert [each.name for each in done.tool_calls] == ["reply"] * 3
    assert done.answer == str(number_of(episode))
    assert (cut.rewards["correct"], cut.stop_reason, len(cut.tool_calls)) == (
        0.0,
        StopReason.ANSWER,
        2,
    )


async def test_a_killed_run_repeats_its_acts_and_goes_on(
    store: RunStore, environment: LocalEnvironment
) -> None:
    script = bisecting("step")

    def killed(messages: Sequence[BaseMessage]) -> str:
        if sum(isinstance(m, AIMessage) for m in messages) == 2:
            raise ModelError("The model is gone.")
        return script(messages)

    with serving(GuessServer()) as server:
        (episode,) = episodes(server)
        with pytest.raises(ModelError, match="gone"):
            await run(store, environment, killed, episode)
        first = list(server.acts)
        done = await run(store, environment, script, episode)
    assert len(first) == 2 and server.acts[2:4] == first  # sent again, in a session of its own
    assert done.rewards["correct"] == 1.0
    assert len(done.tool_calls) == len(server.acts) - 2


async def test_a_record_alone_starts_no_environment(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(GuessServer()) as server:
        (episode,) = episodes(server)
        begun = server.opened
        monkeypatch.setattr(task_play, "_allowed", set[str]())
        with pytest.raises(RunError, match="its record names"):
            await run(store, environment, bisecting("step"), episode)
        assert server.opened == begun
        monkeypatch.setenv("HRM_AGENT_TASK_ENVIRONMENT", f"openenv:{server.url}")
        done = await run(store, environment, bisecting("step"), episode)
    assert done.rewards["correct"] == 1.0


async def test_an_environment_that_does_not_repeat_itself_is_a_fault(
    store: RunStore, environment: LocalEnvironment
) -> None:
    script = bisecting("step")

    def killed(messages: Sequence[BaseMessage]) -> str:
        if any(isinstance(m, AIMessage) for m in messages):
            raise ModelError("The model is gone.")
        return script(messages)

    def other(act: int) -> str | None:
        seen = {"observation": {"said": "neither"}, "reward": 0.0, "done": False}
        return json.dumps({"type": "observation", "data": seen}) if act == 1 else None

    with serving(GuessServer()) as server:
        (episode,) = episodes(server)
        with pytest.raises(ModelError, match="gone"):
            await run(store, environment, killed, episode)
        server.fault = other
        done = await run(store, environment, script, episode)
    assert done.tool_calls[-1].status is ToolStatus.INFRASTRUCTURE
    assert "act 1 came out differently" in done.tool_calls[-1].stderr
    assert done.rewards == {}


NAN = '{"type":"observation","data":{"observation":{},"reward":NaN,"done":true}}'
MISSING = '{"type":"observation","data":{"observation":{"said":"x"},"reward":null,"done":true}}'
RAISED = '{"type":"error","data":{"message":"disk full","code":"EXECUTION_ERROR"}}'
NO_TEXT = '{"type":"observation","data":{"observation":[1],"reward":0.0,"done":false}}'
TRUE = '{"type":"observation","data":{"observation":{},"reward":0.0,"done":"yes"}}'


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("die", "closed the connection"),
        ("hang", "did not answer within 0.3 s"),
        ("{", "invalid JSON"),
        (NAN, "invalid JSON"),
        (RAISED, "disk full"),
        (NO_TEXT, "no JSON object"),
        (TRUE, "for `done`"),
        ("x" * (5 << 20), "closed the connection"),
    ],
    ids=["die", "hang", "no json", "nan", "raised", "schema", "done", "size"],
)
async def test_a_fault_of_the_environment_ends_the_run_and_is_not_the_policys(
    store: RunStore, environment: LocalEnvironment, fault: str, told: str
) -> None:
    with serving(GuessServer(fault=lambda act: fault if act == 2 else None)) as server:
        (episode,) = episodes(server, "?seconds=0.3")
        done = await run(store, environment, lambda _: guess(0, "step"), episode)
    assert [each.status for each in done.tool_calls] == [ToolStatus.OK, ToolStatus.INFRASTRUCTURE]
    assert told in done.tool_calls[-1].stderr
    assert (done.status, done.rewards) == (RunStatus.COMPLETED, {})  # neither right nor wrong
    why = fault_of(done)
    assert why is not None and why[0] is DropReason.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (MISSING, "ended the episode without a reward"),
        (MISSING.replace("true", "false"), "gave no reward in the 2 acts of `steps`"),
        (MISSING.replace("true", "false").replace("null", "1e308"), "is not a finite number"),
    ],
    ids=["ended", "steps", "sum"],
)
async def test_an_episode_without_a_reward_is_a_fault(
    store: RunStore, environment: LocalEnvironment, answer: str, told: str
) -> None:
    with serving(GuessServer(text=True, fault=lambda act: answer)) as server:
        (episode,) = episodes(server, "?reply=text&steps=2")
        done = await run(store, environment, lambda _: "1", episode)
    assert told in done.tool_calls[-1].stderr
    assert told in done.tool_calls[-1].content  # as `show` prints it
    assert done.rewards == {}


async def test_giving_up_is_not_better_than_losing(
    store: RunStore, environment: LocalEnvironment
) -> None:
    answers = iter([guess(0, "step"), "I give up."])
    with serving(GuessServer()) as server:
        (episode,) = episodes(server, "?low=-1&high=1")
        done = await run(store, environment, lambda _: next(answers), episode)
    assert (done.status, done.rewards) == (RunStatus.COMPLETED, {"correct": 0.0})


async def test_an_invalid_action_is_the_policys_and_changes_nothing(
    store: RunStore, environment: LocalEnvironment
) -> None:
    answers = iter([guess("x", "step"), guess(1, "jump"), "I give up."])
    with serving(GuessServer()) as server:
        (episode,) = episodes(server)
        done = await run(store, environment, lambda _: next(answers), episode)
    assert [each.status for each in done.tool_calls] == [ToolStatus.INVALID_CALL] * 2
    assert "valid integer" in done.tool_calls[0].content and server.acts == []
    assert (done.rewards["correct"], done.answer) == (0.0, "I give up.")


async def test_sessions_wait_for_a_place_of_the_server(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with serving(GuessServer(most=1)) as server:
        several = episodes(server, count=3)
        with ScriptedEngine(bisecting("step")) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            done = await runner.run_all(several, concurrency=3)
    assert [each.rewards.get("correct") for each in done] == [1.0] * 3


def test_tasks_that_cannot_be_played_are_refused() -> None:
    def load(text: str, count: int | None = 1) -> None:
        load_tasks(text, split="eval", seed=0, count=count)

    with serving(GuessServer(seeded=False)) as server:
        with pytest.raises(TaskError, match="begins differently each time"):
            load(f"openenv:{server.url}")
        with pytest.raises(TaskError, match="no list of tasks"):
            load(f"openenv:{server.url}", None)
        with pytest.raises(TaskError, match="reply=word is not the one field"):
            load(f"openenv:{server.url}?reply=word")
        server.redirect = f"{server.url}/elsewhere"
        with pytest.raises(TaskError, match="elsewhere"):
            load(f"openenv:{server.url}")
    with pytest.raises(TaskError, match="does not answer"):
        load(f"openenv:{server.url}")
    for text, told in (
        ("openenv:http://user:secret@host/", "password"),
        ("openenv:ftp://host/", "not HTTP"),
        ("openenv:", "names no environment"),
        ("openenv:http://127.0.0.1:1?steps=0", "steps is 0"),
        ("openenv:http://127.0.0.1:1?seed=5", "a seed of its own"),
        ("openenv:http://127.0.0.1:1?api_key=abc", "named like a secret"),
        ("verifiers:some?api_key=abc", "named like a secret"),
        ("openenv:http://127.0.0.1:1?low=2", "high must be above low"),
        ("openenv:http://127.0.0.1:1?python=x", "runs already"),
        ("openenv:./nowhere", "neither a folder nor a package"),
        ("openenv:some_env?python=/no/python", "interpreter .* does not exist"),
        ("verifiers:some?python=/no/python", "interpreter .* does not exist"),
    ):
        with pytest.raises(TaskError, match=told):
            load(text)
