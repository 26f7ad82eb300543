"""Replays of a stored run: no model or tool runs, and the bytes are the same or the difference is
reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.types import Command

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ContextLengthError
from hrm_agent.graphs.parts.prompts import SOLVER_PROMPT
from hrm_agent.models import Completion, GenerationRequest, using_policy
from hrm_agent.models.external.recorded import record_external_models
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.replay.player import Replay, ReplayVerdict, replay_async
from hrm_agent.runtime.replay.request_diff import request_diff
from hrm_agent.store import RunStore
from hrm_agent.tools.external_tools import record_external_tools
from hrm_agent.trajectory import Recording, StopReason, TaskRef, Trajectory, recording
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.replayed_agents import effects
from tests.support.graphs.scripts import TASK_PROMPT, Roles, call, multiplier

TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT, answer="42")


async def record(
    store: RunStore,
    environment: LocalEnvironment,
    script: Any,
    thread: str = "thread",
    **options: Any,
) -> Trajectory:
    with ScriptedEngine(script, delay=options.pop("delay", 0)) as engine:
        runner = EpisodeRunner(
            store, engine, "scripted", environment, stand_in=options.pop("stand_in", False)
        )
        return await runner.run(Episode(TASK, thread, seed=1, **options))


async def check(store: RunStore, thread: str = "thread", **options: Any) -> Replay:
    before = len(list(store.checkpointer.list(None)))
    found = await replay_async(store, thread, **options)
    assert len(list(store.checkpointer.list(None))) == before, "a replay writes nothing"
    return found


async def test_the_tool_loop_byte_for_byte(store: RunStore, environment: LocalEnvironment) -> None:
    await record(store, environment, multiplier)
    found = await check(store)
    assert (found.verdict, found.renamed_ids, found.unused) == (ReplayVerdict.EQUAL, 0, 0)
    assert found.checkpoints > 3


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"max_turns": 2}, StopReason.MAX_TURNS),
        ({"max_tokens": 100}, StopReason.MAX_TOKENS),
        ({"max_seconds": 0.0}, StopReason.MAX_SECONDS),
    ],
)
async def test_budgets_end_it_as_they_did(
    context: dict[str, Any], reason: StopReason, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await record(store, environment, lambda _: call("1"), context=context)
    assert trajectory.stop_reason is reason
    assert (await check(store)).equal


async def test_parallel_solvers(store: RunStore, environment: LocalEnvironment) -> None:
    await record(store, environment, Roles(), graph="reasoning")
    found = await check(store)
    assert (found.verdict, found.renamed_ids, found.unused) == (ReplayVerdict.EQUAL, 0, 0)


class Twins(Roles):
    """Two solvers that ask exactly the same, and are answered differently."""

    plan: Any = {
        "subgoals": [
            {"name": "a", "goal": "guess", "needs": []},
            {"name": "b", "goal": "guess", "needs": []},
        ]
    }

    def __init__(self) -> None:
        super().__init__()
        self.guesses = 0

    def solver(self, messages: Any) -> str:
        self.guesses += 1
        return f"<answer>\\boxed{{{self.guesses}}}</answer>"


async def test_parallel_subgraphs_that_ask_the_same(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """The order of the answers does not matter: the record lists calls in the order in which they
    ended.
    """
    for number, delays in enumerate(([0.0, 0.2], [0.2, 0.0])):
        solvers = iter(delays)

        def delay(messages: Any, solvers: Iterator[float] = solvers) -> float:
            return next(solvers) if messages[0].text == SOLVER_PROMPT else 0.0

        await record(
            store, environment, Twins(), f"thread {number}", graph="reasoning", delay=delay
        )
        found = await check(store, f"thread {number}")
        assert found.equal and found.unused == 0


@pytest.mark.parametrize("stand_in", [False, True])
async def test_a_graph_with_a_model_and_tools_of_its_own(
    stand_in: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    asks = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'
    own = "tests.support.graphs.own_agent:graph"
    await record(store, environment, [asks, "It is 42."], graph=own, stand_in=stand_in)
    found = await check(store)
    assert found.equal and found.unused == 0
    assert found.renamed_ids == 1, "ToolNode gives its message no id"


# graphs of users: several turns, questions to a person, edits, failures


def named(name: str) -> str:
    return f"tests.support.graphs.replayed_agents:{name}"


async def go_on(store: RunStore, name: str, given: Any, thread: str = "thread") -> Any:
    """A further turn on a thread, as a user's own program makes it."""
    graph = load_graph(named(name))
    graph = graph.copy(update={"checkpointer": store.checkpointer.allowing(graph)})
    record_external_models()
    record_external_tools()
    engine = ScriptedEngine(lambda messages: f"{len(messages)} messages")
    with engine, using_policy(engine), recording(Recording(store.journal, 2)):
        return await graph.ainvoke(
            given, {"configurable": {"thread_id": thread}}, durability="sync"
        )


async def begin(
    store: RunStore, environment: LocalEnvironment, name: str, **options: Any
) -> Trajectory:
    return await record(
        store,
        environment,
        lambda messages: f"{len(messages)} messages",
        graph=named(name),
        **options,
    )


async def test_several_turns(store: RunStore, environment: LocalEnvironment) -> None:
    await begin(store, environment, "chat")
    for text in ("and then?", "and then?"):
        await go_on(store, "chat", {"messages": [("human", text)]})
    found = await check(store)
    assert found.equal and found.unused == 0
    assert found.checkpoints == 9, "three turns of an input, a start and an answer"


@pytest.mark.parametrize("name", ["asks_twice", "asks_inside", "asks_side_by_side"])
async def test_questions_are_answered_as_they_were(
    name: str, store: RunStore, environment: LocalEnvironment
) -> None:
    trajectory = await begin(store, environment, name)
    assert trajectory.stop_reason is StopReason.INTERRUPT
    assert (await check(store)).equal, "a question that nobody has answered yet"
    given: Any = {"__interrupt__": True}
    answers = iter(range(10, 20))
    while "__interrupt__" in given:
        graph = load_graph(named(name)).copy(update={"checkpointer": store.checkpointer})
        waiting = (await graph.aget_state({"configurable": {"thread_id": "thread"}})).interrupts
        given = await go_on(store, name, Command(resume={waiting[-1].id: next(answers)}))
    assert [int(x) for x in re.findall(r"1\d", given["messages"][-1].text)] != []
    found = await check(store)
    assert found.equal and found.unused == 0


async def test_an_edit(store: RunStore, environment: LocalEnvironment) -> None:
    await begin(store, environment, "chat")
    graph = load_graph(named("chat")).copy(update={"checkpointer": store.checkpointer})
    config: Any = {"configurable": {"thread_id": "thread"}}
    early = [s async for s in graph.aget_state_history(config) if s.next == ("answer",)][-1]
    edited = await graph.aupdate_state(
        early.config, {"messages": [("human", "no, this")]}, as_node="__start__"
    )
    assert edited
    await go_on(store, "chat", None)
    found = await check(store)
    assert found.equal and found.unused == 0


async def test_what_it_raised_it_raises(store: RunStore, environment: LocalEnvironment) -> None:
    trajectory = await begin(store, environment, "fails")
    assert trajectory.error == "ValueError: 1 messages"
    assert (await check(store)).equal
    found = await check(store, graph=named("chat"))
    assert found.verdict is ReplayVerdict.DIFFERS and "did not raise ValueError" in found.ended


async def test_a_tool_that_raises_and_one_that_steers(
    store: RunStore, environment: LocalEnvironment
) -> None:
    effects.clear()
    await begin(store, environment, "handy")
    assert effects == ["broken", "steers", "plain"]
    found = await check(store)
    assert found.equal and found.unused == 0
    assert effects == ["broken", "steers", "plain"], "a replay runs no tool"


# code that has changed


async def test_a_node_that_asks_nothing_changes_the_state_only(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await begin(store, environment, "chat")
    assert (await check(store, graph=named("chat_with_a_log"))).verdict is ReplayVerdict.DIFFERS
    found = await check(store, graph=named("chat_with_a_log"))
    assert [change.channel for change in found.changes] == ["log"]
    assert any("seen" in line for line in found.changes[0].lines)


async def test_another_prompt_is_shown_beside_the_recorded_one(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await begin(store, environment, "chat")
    found = await check(store, graph=named("chat_with_a_prompt"))
    assert found.verdict is ReplayVerdict.ASKS and found.divergence is not None
    assert (found.divergence.node, found.divergence.step) == ("answer", 1)
    lines = request_diff(store, found.divergence.asked, found.divergence.nearest)
    assert any(line.startswith("+") and "Be brief." in line for line in lines)
    assert not any(line.startswith("-") and TASK_PROMPT in line for line in lines)


async def test_it_goes_on_live_from_there(store: RunStore, environment: LocalEnvironment) -> None:
    recorded = await record(store, environment, multiplier)
    with ScriptedEngine(["<answer>\\boxed{7}</answer>"]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        graph = "tests.support.graphs.replayed_agents:hinted_loop"
        found = await replay_async(store, "thread", graph=graph, live_after=runner, thread="hinted")
        assert engine.calls == 1, "the first answer is the recorded one"
    assert found.verdict is ReplayVerdict.ASKS and found.live is not None
    assert (found.live.thread_id, found.live.answer) == ("hinted", "<answer>\\boxed{7}</answer>")
    assert (
        found.live.forked_from is not None and found.live.forked_from.trajectory_id == recorded.id
    )
    assert len(found.live.calls) == 2 and lint(found.live) == []
    assert (await check(store, "hinted", graph=graph)).equal
    assert store.journal.trajectory("thread") == recorded


async def test_within_a_step_it_asks_only_what_is_new(
    store: RunStore, environment: LocalEnvironment
) -> None:
    agents = "tests.support.graphs.replayed_agents"
    recorded = await record(store, environment, ["one", "yes"], graph=f"{agents}:checks")
    with ScriptedEngine(["no"]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        graph = f"{agents}:checks_otherwise"
        found = await replay_async(
            store, "thread", graph=graph, live_after=runner, thread="otherwise"
        )
        assert engine.calls == 1
    assert found.live is not None and found.live.answer == "no" and lint(found.live) == []
    first, second = found.live.own_calls
    assert (first.token_ids, first.logprobs) == (
        recorded.calls[0].token_ids,
        recorded.calls[0].logprobs,
    )
    assert second.parent == first.id and first.id != recorded.calls[0].id


async def test_a_state_that_the_graph_does_not_take_any_more(
    store: RunStore, environment: LocalEnvironment
) -> None:
    agents = "tests.support.graphs.replayed_agents"
    with ScriptedEngine(["one"]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment, recursion_limit=1)
        trajectory = await runner.run(Episode(TASK, "thread", graph=f"{agents}:drafts"))
    assert trajectory.stop_reason is StopReason.RECURSION_LIMIT
    assert (await replay_async(store, "thread")).equal
    found = await replay_async(store, "thread", graph=f"{agents}:drafts_of_another_form")
    assert (
        found.verdict is ReplayVerdict.DIFFERS
        and "does not accept the recorded state" in found.ended
    )


async def test_a_command_that_updates_and_goes_elsewhere(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await begin(store, environment, "chat")
    for given in (
        Command(update={"messages": [HumanMessage("by command", id="m")]}, goto="answer"),
        Command(goto="answer"),
    ):
        await go_on(store, "chat", given)
    found = await check(store)
    assert found.equal and found.unused == 0
    assert found.checkpoints == 5, "an input, its start and three answers"


class Narrow(ScriptedEngine):
    """Engine with room for one turn."""

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        if self.calls == 1:
            raise ContextLengthError("The prompt has 134 tokens; the model takes 110.")
        return super().submit(request)


@pytest.mark.parametrize("limit", [200, 2])
async def test_a_run_that_came_to_a_limit(
    limit: int, store: RunStore, environment: LocalEnvironment
) -> None:
    with Narrow(lambda _: call("1")) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment, recursion_limit=limit)
        trajectory = await runner.run(Episode(TASK, "thread"))
    assert trajectory.stop_reason is (
        StopReason.MAX_TOKENS if limit == 200 else StopReason.RECURSION_LIMIT
    )
    found = await check(store)
    assert found.equal and found.unused == 0
    changed = await check(store, graph=named("hinted_loop"))
    assert changed.verdict is (ReplayVerdict.ASKS if limit == 200 else ReplayVerdict.EQUAL)
