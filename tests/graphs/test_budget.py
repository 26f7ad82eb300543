"""Budgets of time: what models and tools took in this run counts, and no pause does."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from hrm_agent.environment import LocalEnvironment, using_environment
from hrm_agent.errors import ModelError
from hrm_agent.graphs.parts.budget import Usage, merge_usage, seconds_of, seconds_worked, spent_on
from hrm_agent.graphs.tool_loop import Budget, graph
from hrm_agent.models import call_recording, using_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import fork
from hrm_agent.store import RunStore
from hrm_agent.tools import record_call
from hrm_agent.trajectory import StopReason, TaskRef, Trajectory
from tests.support.graphs.scripts import TASK_PROMPT, Roles, boxed, call

TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT)
MONTH = 30 * 86400.0


def at(kind: type[Any], began: float, ended: float, thread: str = "t") -> BaseMessage:
    times = {"started_at": began, "ended_at": ended, "thread_id": thread}
    given = {"tool_call_id": "c"} if kind is ToolMessage else {}
    return kind("x", response_metadata=times, **given)


def test_only_work_counts_and_side_by_side_once() -> None:
    messages = [
        HumanMessage("go"),
        at(AIMessage, 0, 2),
        at(ToolMessage, 2, 5),
        at(ToolMessage, 3, 6),
        at(AIMessage, 90, 91),
    ]
    assert seconds_worked(messages) == 2 + 4 + 1
    assert seconds_worked([at(AIMessage, 0, 50, "another"), *messages]) == 7, (
        "a run that was left by a fork"
    )
    assert seconds_worked([HumanMessage("go"), AIMessage("from a record without times")]) == 0


def test_usage_of_an_earlier_version_goes_on() -> None:
    """The earlier version stored the first and the last moment, and no thread."""
    earlier: Any = {
        "calls": 2,
        "tokens": 5,
        "cost": 0.0,
        "began": 100.0,
        "ended": 130.0,
        "seconds": 4.0,
    }
    assert seconds_of(earlier) == 34
    usage = merge_usage(
        merge_usage(earlier, Usage(calls=1)), spent_on([at(AIMessage, 200, 201)], {})
    )
    assert (usage.get("calls"), seconds_of(usage)) == (4, 35)


def test_merged_in_any_number_of_steps_it_is_the_same() -> None:
    rng, spans, usage = random.Random(1), list[tuple[float, float]](), Usage()
    for step in range(300):
        step_spans = [(10.0 * step, 10.0 * step + rng.random() * 9) for _ in range(3)]
        for began, ended in step_spans:
            usage = merge_usage(usage, spent_on([at(AIMessage, began, ended)], {}))
        spans += [max(step_spans)]
    assert seconds_of(usage) == pytest.approx(sum(ended - began for began, ended in spans))
    assert len(usage.get("spans", ())) == 32, "a checkpoint does not grow with the run"
    fork = merge_usage(usage, spent_on([at(AIMessage, 9000, 9001, "fork")], {}))
    assert (seconds_of(fork), fork.get("calls")) == (1.0, 901)


class Clock:
    """Clock that advances only when a test advances it."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (call_recording, record_call):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=made.time, perf_counter=made.time))
    return made


class Slow:
    """Every answer takes 30 seconds; after so many the provider is gone, for a month."""

    def __init__(self, clock: Clock, answers: Any, fails_after: int = 1000) -> None:
        self._clock, self._answers, self._left = clock, answers, fails_after

    def __call__(self, messages: Any) -> str:
        if not self._left:
            self._clock.now += MONTH
            raise ModelError("The provider is gone.", "Resume.")
        self._left -= 1
        self._clock.now += 30
        return self._answers(messages)


def of_turns(count: int) -> Any:
    return lambda messages: (
        boxed(1) if sum(m.type == "ai" for m in messages) == count - 1 else call("1")
    )


async def run(
    store: RunStore, environment: LocalEnvironment, script: Any, episode: Episode
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        return await EpisodeRunner(store, engine, "scripted", environment).run(episode)


def episode(thread: str, seconds: float, graph: str = "tool_loop") -> Episode:
    context = {"max_seconds": seconds} | ({"max_turns": 20} if graph == "tool_loop" else {})
    return Episode(TASK, thread, graph=graph, context=context, seed=1)


async def test_a_pause_between_a_failure_and_the_resume(
    clock: Clock, store: RunStore, environment: LocalEnvironment
) -> None:
    asked = episode("t", 100)
    with pytest.raises(ModelError):
        await run(store, environment, Slow(clock, of_turns(3), fails_after=2), asked)
    done = await run(store, environment, Slow(clock, of_turns(3)), asked)
    assert clock.now > 1e9 + MONTH and done.stop_reason is StopReason.ANSWER
    assert (await replay_async(store, "t")).equal
    clock.now += MONTH
    late = await run(store, environment, Slow(clock, of_turns(5)), episode("late", 100))
    assert (late.stop_reason, len(late.calls)) == (
        StopReason.MAX_SECONDS,
        4,
    ), "work itself still counts"


@pytest.mark.parametrize("name", ["tool_loop", "reasoning"])
async def test_a_fork_of_an_old_run_has_the_whole_budget(
    name: str, clock: Clock, store: RunStore, environment: LocalEnvironment
) -> None:
    """Roles take nine answers, four of them before the last solver; a budget for six would not do
    for all.
    """
    answers = of_turns(5) if name == "tool_loop" else Roles()
    first = await run(store, environment, Slow(clock, answers), episode("t", 1000, name))
    assert first.stop_reason is StopReason.ANSWER
    clock.now += MONTH
    moment = "before:reason#4" if name == "tool_loop" else "before:schedule#2"
    seconds = 80 if name == "tool_loop" else 190
    (again,) = fork(
        store, "t", moment, name="fork", context=episode("", seconds, name).context, seed=2
    )
    done = await run(store, environment, Slow(clock, answers), again)
    assert done.stop_reason is StopReason.ANSWER, (done.stop_reason, len(done.own_calls))
    inherited = len(done.calls) - len(done.own_calls)
    assert 30 * inherited > 0 and 30 * len(done.calls) > seconds, (
        "with the time before it there had been too little"
    )
    assert (await replay_async(store, "fork")).equal


async def test_a_graph_on_no_thread_has_its_budget_too(
    clock: Clock, environment: LocalEnvironment
) -> None:
    with (
        ScriptedEngine(Slow(clock, of_turns(9))) as engine,
        using_policy(engine),
        using_environment(environment),
    ):
        given: Any = {"messages": [HumanMessage("go")]}
        end = await graph.ainvoke(given, context=Budget(max_turns=20, max_seconds=80))
    assert (
        end["stop_reason"] == StopReason.MAX_SECONDS
        and sum(m.type == "ai" for m in end["messages"]) == 3
    )
