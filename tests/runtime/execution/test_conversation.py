"""Several turns on one thread. Another turn can follow any outcome, and all are recorded and
replayed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from hrm_agent.environment import Environment, LocalEnvironment
from hrm_agent.environment.base import Limits
from hrm_agent.errors import ConfigError, ModelError, RunError
from hrm_agent.graphs.parts.prompts import WRITER_PROMPT
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution import graph_run as drive
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.runtime.time_travel.fork import fork, history
from hrm_agent.store import RunStore, open_store
from hrm_agent.tools import python, python_stateless
from hrm_agent.tools.local_wiki import LocalWiki
from hrm_agent.tools.mediawiki import transport as asking
from hrm_agent.trajectory import RunStatus, Sampling, StopReason, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.kill_driver import Arithmetic
from tests.support.graphs.killed_team import Log
from tests.support.graphs.research_scripts import AGENT, Researcher
from tests.support.graphs.scripts import boxed, call

ASKED = TaskRef(id="1", family="test", prompt="What is 6 * 7?")


def numbers(messages: Sequence[BaseMessage]) -> str:
    """Computes what was asked last; knows what was asked before."""
    if messages[-1].type == "tool":
        return boxed(messages[-1].text.strip())
    if "before" in messages[-1].text:
        return boxed(sum(message.type == "human" for message in messages) - 1)
    return call(messages[-1].text.removeprefix("What is ").removesuffix("?"))


class OneTask(TypedDict):
    problem: str
    answer: str


one_task = (
    StateGraph(OneTask)
    .add_node("answer", lambda _: {"answer": "42"})
    .add_edge(START, "answer")
    .compile()
)


class Talk:
    """Conversation on one thread."""

    def __init__(self, store: RunStore, environment: Environment, script: Any = numbers) -> None:
        self.engine = ScriptedEngine(script)
        self.runner = EpisodeRunner(store, self.engine, "scripted", environment)
        self.store = store

    async def __call__(
        self, text: str | None = None, thread: str = "t", **options: Any
    ) -> Trajectory:
        known = self.store.journal.find_trajectory(thread)
        if known is None:
            task = ASKED if text is None else ASKED.model_copy(update={"prompt": text})
            return await self.runner.run(Episode(task, thread, seed=1, **options))
        episode = Episode(known.task, thread, graph=known.graph, seed=1, **options)
        return await self.runner.run(episode, say=text)


async def checked(store: RunStore, thread: str = "t") -> Trajectory:
    trajectory = store.journal.trajectory(thread)
    assert lint(trajectory) == []
    found = await replay_async(store, thread)
    assert found.equal and found.unused == 0, found
    return trajectory


def said(store: RunStore, thread: str = "t") -> list[tuple[str, str]]:
    messages = history(store, thread).last.values["messages"]
    return [
        (message.type, message.text) for message in messages if message.type in ("human", "tool")
    ]


async def test_each_turn_follows_on_the_one_before(
    store: RunStore, environment: LocalEnvironment
) -> None:
    talk = Talk(store, environment)
    first = await talk()
    second = await talk("What is 2 + 3?")
    third = await talk("How often did I ask before?")
    assert [one.answer for one in (first, second, third)] == [boxed(42), boxed(5), boxed(2)]
    trajectory = await checked(store)
    assert trajectory.prompts == (ASKED.prompt, "What is 2 + 3?", "How often did I ask before?")
    assert [turn.before.answer for turn in trajectory.turns] == [boxed(42), boxed(5)]
    assert len(trajectory.calls) == 5 and trajectory.calls[:2] == first.calls
    assert all(
        call.parent == before.id
        for before, call in zip(trajectory.calls, trajectory.calls[1:], strict=False)
    )
    assert (trajectory.status, trajectory.stop_reason) == (RunStatus.COMPLETED, StopReason.ANSWER)
    inputs = [moment for moment in history(store, "t").lineage() if moment.source == "input"]
    assert len(inputs) == 3
    read_back = talk.engine.calls
    assert await talk() == trajectory and talk.engine.calls == read_back


async def test_each_turn_has_the_whole_budget(
    store: RunStore, environment: LocalEnvironment
) -> None:
    talk = Talk(store, environment)
    for _ in range(3):
        assert (
            await talk("What is 6 * 7?", context={"max_turns": 2})
        ).stop_reason is StopReason.ANSWER
    await checked(store)


async def test_what_the_tool_knows_lives_on_over_turns(
    store: RunStore, environment: LocalEnvironment
) -> None:
    talk = Talk(store, environment)
    await talk("What is (x := 6) * 7?")
    assert (await talk("What is x + 1?")).answer == boxed(7)
    await checked(store)


async def test_a_turn_that_reached_a_limit_is_followed(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """Tool calls left open by the stopped turn are answered in the state. A provider would
    otherwise refuse the conversation.
    """
    talk = Talk(store, environment)
    assert (await talk(context={"max_turns": 1})).stop_reason is StopReason.MAX_TURNS
    assert (await talk("What is 2 + 3?")).answer == boxed(5)
    trajectory = await checked(store)
    assert trajectory.turns[0].before.stop_reason is StopReason.MAX_TURNS
    assert said(store)[:3] == [
        ("human", ASKED.prompt),
        ("tool", "Not run: the turn was stopped before."),
        ("human", "What is 2 + 3?"),
    ]


async def test_a_turn_that_failed_is_followed(
    store: RunStore, environment: LocalEnvironment
) -> None:
    def fails_once(messages: Sequence[BaseMessage]) -> str:
        if messages[-1].text == ASKED.prompt:
            raise ValueError("no luck")
        return numbers(messages)

    talk = Talk(store, environment, fails_once)
    failed = await talk()
    assert failed.status is RunStatus.FAILED and failed.error == "ValueError: no luck"
    assert (await talk("What is 2 + 3?")).answer == boxed(5)
    trajectory = await checked(store)
    assert (trajectory.error, trajectory.turns[0].before.error) == (None, "ValueError: no luck")


async def test_a_turn_that_was_stopped_is_given_up_or_gone_on_with(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in (python, python_stateless):
        monkeypatch.setattr(tool, "limits", Limits(wall_seconds=600.0))
    talk = Talk(store, environment)
    await talk()
    stopped = asyncio.ensure_future(talk("What is __import__('time').sleep(60)?"))
    while not any(call.status is None for call in store.journal.trajectory("t").tool_calls):
        await asyncio.sleep(0.02)
    stopped.cancel()
    await asyncio.gather(stopped, return_exceptions=True)
    asked = talk.engine.calls
    assert store.journal.trajectory("t").status is RunStatus.RUNNING
    (copy,) = fork(store, "t", name="copy")
    assert [turn.prompt for turn in store.journal.trajectory("copy").turns] == [
        "What is __import__('time').sleep(60)?"
    ], copy

    assert (await talk("What is 2 + 3?")).answer == boxed(5)
    assert talk.engine.calls == asked + 2, "nothing is sampled for the turn that is given up"
    trajectory = await checked(store)
    assert trajectory.turns[1].before.status is RunStatus.ABORTED
    assert [call.status for call in trajectory.tool_calls] == [
        ToolStatus.OK,
        ToolStatus.INFRASTRUCTURE,
        ToolStatus.OK,
    ]


async def test_a_fork_between_turns_is_talked_on(
    store: RunStore, environment: LocalEnvironment
) -> None:
    talk = Talk(store, environment)
    await talk()
    await talk("What is 2 + 3?")
    original = store.journal.trajectory("t")
    found = history(store, "t")
    turn = [moment for moment in found.lineage() if moment.source == "input"][1]
    fork(store, "t", str(turn.parent), name="other")
    other = await talk("What is 4 + 4?", thread="other")
    assert other.answer == boxed(8) and other.prompts == (ASKED.prompt, "What is 4 + 4?")
    assert other.turns[0].before.answer == boxed(42), "it stood at the end of the first turn"
    assert len(other.own_calls) == 2 and other.own_calls[0].parent == original.calls[1].id
    fork(store, "t", "before:tools", name="middle")
    middle = await talk("What is 9 + 1?", thread="middle")
    assert middle.answer == boxed(10) and middle.turns[0].before.status is RunStatus.ABORTED
    fork(store, "t", "before:tools#2", name="later")
    assert (await talk(None, thread="later")).answer == boxed(5), "it is in its second turn"
    assert store.journal.trajectory("t") == original
    for thread in ("t", "other", "middle", "later"):
        await checked(store, thread)


async def test_what_cannot_be_said(store: RunStore, environment: LocalEnvironment) -> None:
    talk = Talk(store, environment)
    with pytest.raises(RunError, match="has no turns"):
        await talk.runner.run(Episode(ASKED, "t"), say="And then?")
    waiting = Talk(store, environment, lambda _: "42")
    await waiting(thread="asks", graph="tests.support.graphs.replayed_agents:asks_twice")
    with pytest.raises(RunError, match="is waiting for an answer"):
        await waiting("And then?", thread="asks")
    await talk(thread="plan", graph="tests.runtime.execution.test_conversation:one_task")
    with pytest.raises(ConfigError, match="one task a thread"):
        await talk("And then?", thread="plan")


async def test_a_provider_that_is_away_stops_a_turn_and_loses_nothing(
    store: RunStore, environment: LocalEnvironment
) -> None:
    away = [True]

    def answers(messages: Sequence[BaseMessage]) -> str:
        if away[0] and "2 + 3" in messages[-1].text:
            raise ModelError("Nobody answers.")
        return numbers(messages)

    talk = Talk(store, environment, answers)
    await talk()
    with pytest.raises(ModelError):
        await talk("What is 2 + 3?")
    away[0] = False
    assert (await talk()).answer == boxed(5), "it is resumed: what was said is on record"
    assert (await checked(store)).prompts == (ASKED.prompt, "What is 2 + 3?")


def in_a_child(where: str, text: str | None, moment: str = "") -> int:
    """Send a message in a process that kills itself at a given moment, and return how the process
    ended.
    """
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_said_and_killed(where, text, moment))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def _said_and_killed(where: str, text: str | None, moment: str) -> None:
    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def answers(messages: Sequence[BaseMessage]) -> str:
        with Path(f"{where}.log").open("a") as log:
            log.write(f"{messages[-1].text}\n")
        return die() if (moment, messages[-1].text) == ("model", "5") else numbers(messages)

    if moment == "input":  # it is on record, and not given to the graph yet
        drive.turn_input = die
    (arithmetic := Arithmetic()).log = Log(Path(f"{where}.tools"))
    with open_store(where) as store:
        await Talk(store, arithmetic, answers)(text)


@pytest.mark.parametrize("moment", ["input", "model"])
def test_a_killed_turn_is_gone_on_with(moment: str, tmp_path: Path) -> None:
    """kill -9 between a message and its processing, and in the middle of it: no message or sample
    is repeated.
    """
    where = str(tmp_path / "store.db")
    assert in_a_child(where, ASKED.prompt) == 0
    assert in_a_child(where, "What is 2 + 3?", moment) == -signal.SIGKILL
    assert in_a_child(where, None) == 0
    again = ["5"] if moment == "model" else []
    assert Path(f"{where}.log").read_text().splitlines() == [
        ASKED.prompt,
        "42",
        "What is 2 + 3?",
        "5",
        *again,
    ]
    with open_store(where) as store:
        trajectory = asyncio.run(checked(store))
        assert trajectory.answer == boxed(5) and len(trajectory.calls) == 4
        assert [text for kind, text in said(store) if kind == "human"] == [
            ASKED.prompt,
            "What is 2 + 3?",
        ]


def researched_in_a_child(where: str, wiki: str, dies_at: str) -> int:
    """A research in a process of its own, which kills itself when both searches have found, or when
    it writes.
    """
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_researched(where, wiki, dies_at))
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


async def _researched(where: str, wiki: str, dies_at: str) -> None:
    both = threading.Barrier(2, timeout=60)
    asking._LONGEST_WAIT = 0.0

    def answers(messages: Sequence[BaseMessage]) -> str:
        written = messages[0].text == WRITER_PROMPT
        if dies_at == ("write" if written else "read") and (written or messages[-1].type == "tool"):
            if not written:
                both.wait()  # what the other one has found is on record too
            os.kill(os.getpid(), signal.SIGKILL)
        return (
            "NOT ANSWERED It is away."
            if written and not dies_at and "<source" not in messages[-1].text
            else (Researcher()(messages))
        )

    with open_store(where) as store, ScriptedEngine(answers) as engine:
        runner = EpisodeRunner(store, engine, "scripted", Arithmetic(), Sampling(max_tokens=2**14))
        context = {"wiki": wiki, "user_agent": AGENT}
        await runner.run(Episode(ASKED, "t", graph="research", seed=1, context=context))


@pytest.mark.parametrize("dies_at", ["read", "write"])
def test_a_research_is_gone_on_with_when_its_wiki_is_gone(dies_at: str, tmp_path: Path) -> None:
    """Pages already read come from the record. Requests for other pages fail, which is an outcome
    of the call.
    """
    (pages := tmp_path / "pages").mkdir()
    (pages / "Blue whale.txt").write_text(
        "The largest animal. Reaching a length of 29.9 m, it is heavy."
    )
    (pages / "Krill.txt").write_text("Small and many. They feed near the surface at night.")
    where = str(tmp_path / "store.db")
    with LocalWiki(pages) as wiki:
        assert researched_in_a_child(where, wiki.url, dies_at) == -signal.SIGKILL
    assert researched_in_a_child(where, wiki.url, "") == 0
    with open_store(where) as store:
        trajectory = asyncio.run(checked(store))
        outcomes = {call.name: call.status for call in trajectory.tool_calls}
        away = ToolStatus.INFRASTRUCTURE if dies_at == "read" else ToolStatus.OK
        assert outcomes == {"wiki_search": ToolStatus.OK, "wiki_page": away}
        said = (
            "The sources do not answer this. It is away."
            if dies_at == "read"
            else "It is 29.9 m long [1]."
        )
        assert trajectory.answer is not None and trajectory.answer.startswith(said)
        reached = [
            c.content for c in trajectory.tool_calls if c.status is ToolStatus.INFRASTRUCTURE
        ]
        assert all(f"{wiki.url} cannot be reached" in content for content in reached)
