"""Moments of real runs: shown as a tree, continued in another way, answered, compared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError, ModelError, RunError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.execution.loading import load_graph
from hrm_agent.runtime.time_travel.fork import Edit, History, fork, history, siblings
from hrm_agent.runtime.time_travel.thread_diff import thread_diff
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Trajectory, content_hash
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.replayed_agents import Draft
from tests.support.graphs.scripts import TASK_PROMPT, Roles, boxed, multiplier

TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT)


class Keyed(MessagesState):
    table: dict[Any, Any]
    tags: set[str]


HERE = "tests.runtime.time_travel.test_time_travel"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunStore]:
    """Store of either backend. If a test asks for `both`, the server runs by default, otherwise
    with the slow tests.
    """
    monkeypatch.chdir(tmp_path)
    where = (
        request.getfixturevalue("fresh_database")
        if request.param == "postgresql"
        else tmp_path / "store.db"
    )
    with open_store(where) as opened:
        yield opened


both = pytest.mark.parametrize("store", ["sqlite", "postgresql"], indirect=True)


async def run(
    store: RunStore,
    environment: LocalEnvironment,
    script: Any,
    graph: str = "tool_loop",
    **more: Any,
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        answer = {"answer": more.pop("answer")} if "answer" in more else {}
        return await runner.run(Episode(TASK, "thread", graph=graph, seed=1, **more), **answer)


async def travel(
    store: RunStore, environment: LocalEnvironment, script: Any, at: Any, **options: Any
) -> list[Trajectory]:
    with ScriptedEngine(script) as engine:
        return await siblings(
            EpisodeRunner(store, engine, "scripted", environment), "thread", at, seed=7, **options
        )


def told(found: History) -> list[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return [(m.index, m.source, m.ran.nodes, m.next) for m in found.moments]


async def test_a_history_says_what_ran_and_what_comes_next(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, multiplier)
    found = history(store, "thread")
    assert told(found) == [
        ("0", "input", (), ("__start__",)),
        ("1", "loop", ("__start__",), ("reason",)),
        ("2", "loop", ("reason",), ("tools",)),
        ("3", "loop", ("tools",), ("reason",)),
        ("4", "loop", ("reason",), ()),
    ]
    assert [(len(m.ran.calls), len(m.ran.tool_calls)) for m in found.moments] == [
        (0, 0),
        (0, 0),
        (1, 0),
        (0, 1),
        (1, 0),
    ]
    assert found.moments[4].ran.sampled_tokens > 0 and (found.moments[3].ran.seconds or 0) > 0
    assert {"messages", "stop_reason"} <= found.moments[4].values.keys()
    assert not any(name.startswith(("branch:", "__")) for name in found.moments[4].values)


@both
async def test_sent_tasks_and_subgraphs_lie_beneath_their_step(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, Roles(), "reasoning")
    found = history(store, "thread")
    solved = found.select("after:solve")
    assert solved.ran.nodes == ("solve", "solve") and solved.ran.roles == (
        "solve/reason",
        "solve/tools",
    )
    assert [(part.node, len(part.moments)) for part in solved.ran.inside] == [
        ("solve", 5),
        ("solve", 5),
    ]
    assert [m.index for m in solved.ran.inside[1].moments] == [
        "3.1.0",
        "3.1.1",
        "3.1.2",
        "3.1.3",
        "3.1.4",
    ]
    assert len(solved.ran.calls) == 4
    assert [len(m.ran.calls) for m in solved.ran.inside[0].moments] == [0, 0, 1, 0, 1]
    total = sum(len(m.ran.calls) for m in found.moments)
    assert found.trajectory is not None and total == len(found.trajectory.calls)


@pytest.mark.parametrize("graph", ["tool_loop", "reasoning"])
async def test_a_history_reads_the_same_without_the_code(
    graph: str, store: RunStore, environment: LocalEnvironment
) -> None:
    known = await run(store, environment, Roles() if graph == "reasoning" else multiplier, graph)
    with_code = history(store, "thread")
    store.journal.write_trajectory(known.model_copy(update={"graph": "gone.since:graph"}))
    assert told(history(store, "thread")) == told(with_code)


async def test_a_moment_is_named_in_many_ways(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, Roles(), "reasoning")
    found = history(store, "thread")
    fourth = found.moments[4]
    selectors = (
        "4",
        4,
        fourth.checkpoint_id,
        fourth.checkpoint_id[:-2],
        "after:solve",
        "before:schedule#2",
        fourth,
    )
    assert {found.select(selector).index for selector in selectors} == {"4"}
    assert found.select("before:solve#2").index == "5" and found.select("last") is found.moments[-1]
    assert found.select(lambda moment: "critique" in moment.values).index == "8"
    assert found.select("before:solve/tools").index == "3.0.2"


MISSING: list[tuple[Any, str]] = [
    ("before:slove", "Did you mean 'before:solve'?"),
    ("99", "It has 0 to 9, before:__start__, before:plan"),
    ("before:solve#3", "'before:solve' is there 2 times. Write before:solve#1 to before:solve#2"),
    ("before:solve#x", "'before:solve' is there 2 times"),
    ("1f", "have an id that begins with '1f'"),
    (lambda _: False, "has no moment that the predicate holds for"),
]


async def test_a_moment_that_is_not_there(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, Roles(), "reasoning")
    for selector, message in MISSING:
        with pytest.raises(RunError) as caught:
            history(store, "thread").select(selector)
        assert message in str(caught.value)


async def test_no_such_thread(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, multiplier)
    with pytest.raises(RunError, match="Did you mean 'thread'"):
        history(store, "tread")


@both
async def test_siblings_are_one_group_with_seeds_of_their_own(
    store: RunStore, environment: LocalEnvironment
) -> None:
    original = await run(store, environment, multiplier)
    group = await travel(
        store,
        environment,
        multiplier,
        "before:tools",
        count=3,
        verify=lambda text: float("42" in text),
    )
    assert [(t.group_id, t.sample_index, t.thread_id) for t in group] == [
        ("thread/fork-1", i, f"thread/fork-1/{i}") for i in range(3)
    ]
    at = history(store, "thread").select("before:tools").checkpoint_id
    for sibling in group:
        assert sibling.forked_from is not None
        assert (sibling.forked_from.trajectory_id, sibling.forked_from.checkpoint_id) == (
            original.id,
            at,
        )
        assert (sibling.status, sibling.reward) == (RunStatus.COMPLETED, 1.0)
    own = [[call for call in t.calls if call.identity.thread_id == t.thread_id] for t in group]
    assert [len(calls) for calls in own] == [1, 1, 1]
    assert len({calls[0].sampling.seed for calls in own}) == 3
    assert {calls[0].parent for calls in own} == {original.calls[0].id}, (
        "the shared prefix goes on token by token"
    )
    assert [t.sampled_tokens for t in group] == [calls[0].sampled_tokens for calls in own]
    assert [lint(t) for t in (original, *group)] == [[], [], [], []]
    assert store.journal.trajectory("thread") == original, "the original is as it was"
    (again,) = await travel(store, environment, multiplier, "before:tools")
    assert again.thread_id == again.group_id == "thread/fork-2"


async def test_forks_hang_on_the_moment_they_left(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, multiplier)
    await travel(store, environment, multiplier, "before:tools", count=2)
    found = history(store, "thread")
    assert [branch.history.thread_id for branch in found.branches] == [
        "thread/fork-1/0",
        "thread/fork-1/1",
    ]
    assert {branch.at for branch in found.branches} == {found.moments[2].checkpoint_id}
    inherited = found.branches[0].history.moments[:3]
    assert [m.checkpoint_id for m in inherited] == [m.checkpoint_id for m in found.moments[:3]]
    assert told(found.branches[0].history) == told(found)


@both
async def test_a_fork_of_a_fork_hangs_on_whoever_made_the_moment(
    store: RunStore, environment: LocalEnvironment
) -> None:
    original = await run(store, environment, multiplier)
    (first,) = await travel(store, environment, multiplier, "before:tools")
    with ScriptedEngine(multiplier) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        (early,) = await siblings(runner, first.thread_id, "before:tools", name="early")
        (late,) = await siblings(runner, first.thread_id, "after:tools", name="late")
    origins = [t.forked_from.trajectory_id for t in (early, late) if t.forked_from]
    assert origins == [original.id, first.id]
    assert [len(t.calls) for t in (early, late)] == [2, 2] and [lint(early), lint(late)] == [[], []]
    found = history(store, "thread")
    assert [branch.history.thread_id for branch in found.branches] == [first.thread_id, "early"]
    assert [branch.history.thread_id for branch in found.branches[0].history.branches] == ["late"]
    parted = thread_diff(store, "early", "late")
    assert parted.common is not None and parted.common.index == "2"


async def test_a_message_is_edited(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, multiplier)
    edit = Edit(messages={0: "What is 6 * 8?"})
    (trajectory,) = await travel(store, environment, multiplier, "before:reason", edit=edit)
    assert trajectory.answer is not None and "48" in trajectory.answer
    assert lint(trajectory) == []
    found = history(store, trajectory.thread_id)
    assert told(found)[1:4] == [
        ("1", "loop", ("__start__",), ("reason",)),
        ("2", "update", (), ("reason",)),
        ("3", "loop", ("reason",), ("tools",)),
    ]


async def test_a_tool_result_is_edited(store: RunStore, environment: LocalEnvironment) -> None:
    original = await run(store, environment, multiplier)
    edit = Edit(tools={original.tool_calls[0].tool_call_id: "41"})
    (trajectory,) = await travel(store, environment, multiplier, "after:tools", edit=edit)
    assert trajectory.answer == boxed(41)
    found = thread_diff(store, "thread", trajectory.thread_id)
    assert found.common is not None and found.common.index == "3"
    assert [(change.channel, change.part) for change in found.changes] == [
        ("messages", "[2] tool"),
        ("messages", "[3] ai"),
    ]
    assert found.changes[0].lines[-2:] == ("-42", "+41")
    assert [len(side.calls) for side in (found.a, found.b)] == [1, 1]
    assert lint(trajectory) == []


@both
async def test_an_edit_that_cannot_be_made_leaves_nothing(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, multiplier)
    cases: list[tuple[Any, Any, str]] = [
        ("after:reason", {"mesages": []}, "Did you mean 'messages'?"),
        ("after:reason", Edit(messages={9: "x"}), "There is no message 9 at moment 2"),
        ("after:reason", Edit(tools={"x": "y"}), "There are results of no call"),
        ("after:reason", Edit({"stop_reason": "x"}, as_node="raeson"), "Did you mean 'reason'?"),
        ("0", {"stop_reason": "x"}, "has not read its input"),
    ]
    for at, edit, message in cases:
        with pytest.raises(ConfigError) as caught:
            fork(store, "thread", at, edit=edit)
        assert message in str(caught.value)
    with pytest.raises(RunError, match="exists already"):
        fork(store, "thread", name="thread")
    assert [t.thread_id for t in store.journal.trajectories()] == ["thread"]


async def test_a_state_of_classes_is_edited(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, ["one"], "tests.support.graphs.replayed_agents:drafts")
    for title, then in (("second", ("write",)), ("done", ())):
        (episode,) = fork(store, "thread", "before:write", edit={"draft": {"title": title}})
        found = history(store, episode.thread_id).last
        assert (found.source, found.next, found.values["draft"]) == (
            "update",
            then,
            Draft(title=title),
        )
    with pytest.raises(ConfigError, match=r"draft.title: Input should be a valid string"):
        fork(store, "thread", "before:write", edit={"draft": {"title": 3}})


async def test_a_writer_of_no_edit(store: RunStore, environment: LocalEnvironment) -> None:
    await run(store, environment, multiplier)
    with pytest.raises(ConfigError, match="as_node 'reason' is given without an edit"):
        fork(store, "thread", "before:tools", edit=Edit(as_node="reason"))


@both
def test_what_looks_like_a_header_of_a_difference(store: RunStore) -> None:
    def begin(thread: str, *messages: str) -> None:
        builder = StateGraph(Keyed).add_node(
            "n", lambda state: {"table": {("a", 1): len(thread), 3: "x"}, "tags": {*thread}}
        )
        graph = builder.add_edge(START, "n").compile(checkpointer=store.checkpointer)
        texts = [AIMessage(text, id=str(i)) for i, text in enumerate(messages)]
        graph.invoke({"messages": texts}, {"configurable": {"thread_id": thread}})

    begin("ab", "one\n---\n-- two", "")
    begin("ba", "one\n++ two")
    changes = {
        change.channel + change.part: change.lines
        for change in thread_diff(store, "ab", "ba").changes
    }
    assert changes == {
        "messages[0] ai": (" one", "----", "--- two", "+++ two"),
        "messages[1] ai": ("-",),
    }


async def test_an_edited_plan_is_what_the_solvers_are_sent(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, Roles(), "reasoning")
    plan = [{"name": "only", "goal": "100 + 1", "needs": []}]
    (trajectory,) = await travel(store, environment, Roles(), "before:solve", edit={"plan": plan})
    assert trajectory.answer == "Answer: 101"
    edited = history(store, trajectory.thread_id).select(lambda moment: moment.source == "update")
    assert edited.next == ("solve",), "one subgoal now"
    with pytest.raises(RunError, match="Fork at the moment that this step started from: 3"):
        fork(store, "thread", "before:solve/tools")


async def test_an_edge_that_looks_at_the_context_is_asked_again(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, Roles(), "reasoning")
    verdict = {"action": "replan", "subgoal": "", "hint": "again", "check": ""}
    for calls, expected in ((1, ("synthesize",)), (100, ("plan",))):
        (episode,) = fork(
            store,
            "thread",
            "after:critique",
            edit={"verdict": verdict},
            context={"max_calls": calls},
        )
        assert history(store, episode.thread_id).last.next == expected


class Walk(TypedDict):
    question: str
    seen: Annotated[list[str], lambda old, new: [*old, *new]]


def hop(state: Walk) -> Command[Any]:
    return Command(
        update={"seen": ["hop"]}, goto=[Send("land", {**state, "seen": [place]}) for place in "ab"]
    )


def land(state: Walk) -> dict[str, Any]:
    return {"seen": [f"land {state['seen'][0]}"]}


walk_builder = StateGraph(Walk).add_node("hop", hop, destinations=("land",)).add_node("land", land)
walk_graph = walk_builder.add_edge(START, "hop").compile()


async def test_a_node_that_says_itself_where_to_go_is_not_asked_again(
    store: RunStore, environment: LocalEnvironment
) -> None:
    await run(store, environment, [], f"{HERE}:walk_graph")
    before = history(store, "thread").select("before:land")
    (trajectory,) = await travel(store, environment, [], "before:land", edit={"seen": ["edited"]})
    found = history(store, trajectory.thread_id)
    assert found.select(lambda m: m.source == "update").next == before.next == ("land", "land")
    assert found.last.values["seen"] == ["edited", "land a", "land b"]


def left(state: Walk) -> dict[str, Any]:
    return {"seen": ["left"]}


def right(state: Walk) -> dict[str, Any]:
    return {"seen": ["right"]}


async def join(state: Walk) -> dict[str, Any]:
    return {"seen": ["join"]}


side_builder = (
    StateGraph(Walk).add_node("left", left).add_node("right", right).add_node("join", join)
)
side_builder.add_edge(START, "left").add_edge(START, "right").add_edge(["left", "right"], "join")
side_graph = side_builder.compile()


async def test_nodes_that_ran_side_by_side_lead_on_together(
    store: RunStore, environment: LocalEnvironment
) -> None:
    known = await run(store, environment, [], f"{HERE}:side_graph")
    assert history(store, "thread").select("before:join").ran.nodes == ("left", "right")
    (trajectory,) = await travel(store, environment, [], "before:join", edit={"seen": ["edited"]})
    assert history(store, trajectory.thread_id).last.values["seen"] == ["edited", "join"]
    (trajectory,) = await travel(
        store, environment, [], "before:left", edit={"seen": ["no input has it"]}
    )
    assert history(store, trajectory.thread_id).last.values["seen"][:1] == ["no input has it"]
    store.journal.write_trajectory(known.model_copy(update={"graph": "gone:graph"}))
    assert history(store, "thread").select("before:join").ran.nodes == ("left", "right")


def twice(state: MessagesState) -> dict[str, Any]:
    first = interrupt("how many?")
    second = interrupt({"sure": first})
    return {"messages": [AIMessage(f"{first}, {second}")]}


twice_graph = StateGraph(MessagesState).add_node("ask", twice).add_edge(START, "ask").compile()


async def test_questions_are_answered_one_after_the_other(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = f"{HERE}:twice_graph"
    trajectory = await run(
        store, environment, [], graph, verify=lambda text: float(text == "6, {'yes': 1}")
    )
    assert trajectory.stop_reason is StopReason.INTERRUPT
    (question,) = history(store, "thread").last.questions
    assert (question.value, question.node) == ("how many?", "ask")
    assert await run(store, environment, [], graph) == trajectory, (
        "without an answer it stays as it is"
    )
    trajectory = await run(store, environment, [], graph, answer=6)
    assert trajectory.stop_reason is StopReason.INTERRUPT
    assert [q.value for q in history(store, "thread").last.questions] == [{"sure": 6}]
    trajectory = await run(
        store,
        environment,
        [],
        graph,
        answer={"yes": 1},
        verify=lambda text: float(text == "6, {'yes': 1}"),
    )
    assert (trajectory.status, trajectory.answer, trajectory.reward) == (
        RunStatus.COMPLETED,
        "6, {'yes': 1}",
        1.0,
    )
    assert all(moment.questions == () for moment in history(store, "thread").moments)
    with pytest.raises(RunError, match="is not waiting for an answer: it is completed"):
        await run(store, environment, [], graph, answer=6)


async def ask_then_think(state: MessagesState) -> dict[str, Any]:
    said = interrupt("what?")
    return {"messages": [await policy().ainvoke([*state["messages"], HumanMessage(said)])]}


think_graph = (
    StateGraph(MessagesState).add_node("think", ask_then_think).add_edge(START, "think").compile()
)


async def test_an_answer_is_kept_when_the_run_stops_after_it(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = f"{HERE}:think_graph"
    await run(store, environment, [], graph)
    with pytest.raises(ModelError, match="one more was requested"):
        await run(store, environment, [], graph, answer="a plum")
    assert store.journal.trajectory("thread").status is RunStatus.RUNNING
    assert history(store, "thread").last.next == ("think",)
    trajectory = await run(store, environment, lambda messages: f"{messages[-1].text}, then", graph)
    assert (trajectory.status, trajectory.answer) == (RunStatus.COMPLETED, "a plum, then")
    assert lint(trajectory) == []


def outer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage("after")]}


outer_builder = StateGraph(MessagesState).add_node("inner", twice_graph).add_node("outer", outer)
outer_graph = outer_builder.add_edge(START, "inner").add_edge("inner", "outer").compile()


@both
async def test_a_question_inside_a_subgraph(store: RunStore, environment: LocalEnvironment) -> None:
    graph = f"{HERE}:outer_graph"
    await run(store, environment, [], graph)
    waiting = history(store, "thread").last
    assert [(q.value, q.node) for q in waiting.questions] == [("how many?", "inner")]
    assert waiting.under_way is not None and [part.node for part in waiting.under_way.inside] == [
        "inner"
    ]
    await run(store, environment, [], graph, answer=1)
    assert (await run(store, environment, [], graph, answer=2)).answer == "after"
    (trajectory,) = await travel(
        store, environment, [], "before:inner", edit={"messages": [("user", "other")]}
    )
    assert trajectory.stop_reason is StopReason.INTERRUPT
    assert [m.text for m in history(store, trajectory.thread_id).last.values["messages"]] == [
        "other"
    ]


def ask_each(state: Walk) -> dict[str, Any]:
    return {"seen": [f"{state['seen'][0]}={interrupt(state['seen'][0])}"]}


each_builder = StateGraph(Walk).add_node("each", ask_each)
each_builder.add_conditional_edges(
    START, lambda state: [Send("each", {**state, "seen": [place]}) for place in "ab"], ["each"]
)
each_graph = each_builder.compile()


async def test_several_questions_are_answered_by_id(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = f"{HERE}:each_graph"
    await run(store, environment, [], graph)
    questions = {q.value: q.id for q in history(store, "thread").last.questions}
    assert questions.keys() == {"a", "b"}
    with pytest.raises(RunError, match="2 questions are pending"):
        await run(store, environment, [], graph, answer="x")
    assert (await run(store, environment, [], graph)).stop_reason is StopReason.INTERRUPT
    await run(store, environment, [], graph, answer={questions["b"]: 2})
    (left_over,) = history(store, "thread").last.questions
    assert left_over.value == "a"
    assert (await run(store, environment, [], graph, answer=1)).status is RunStatus.COMPLETED
    assert history(store, "thread").last.values["seen"] == ["a=1", "b=2"]


@both
async def test_another_answer_on_a_fork(store: RunStore, environment: LocalEnvironment) -> None:
    graph = f"{HERE}:twice_graph"
    await run(store, environment, [], graph)
    await run(store, environment, [], graph, answer=6)
    await run(store, environment, [], graph, answer=7)
    (episode,) = fork(store, "thread", "before:ask")
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        assert (await runner.run(episode, answer=8)).stop_reason is StopReason.INTERRUPT
        assert (await runner.run(episode, answer=9)).answer == "8, 9"
    assert store.journal.trajectory("thread").answer == "6, 7"


paused_graph = (
    StateGraph(MessagesState)
    .add_node("ask", lambda state: {"messages": [AIMessage("done")]})
    .add_edge(START, "ask")
    .compile(interrupt_before=["ask"])
)


async def test_a_breakpoint_is_passed(store: RunStore, environment: LocalEnvironment) -> None:
    graph = f"{HERE}:paused_graph"
    assert (await run(store, environment, [], graph)).stop_reason is StopReason.INTERRUPT
    assert (await run(store, environment, [], graph, answer=None)).answer == "done"


@both
async def test_branches_that_langgraph_made_in_place(store: RunStore) -> None:
    """A thread of the user's own program: no trajectory, and two ways in one thread."""
    graph = load_graph(f"{HERE}:side_graph").copy(update={"checkpointer": store.checkpointer})
    config: Any = {"configurable": {"thread_id": "own"}}
    graph.checkpointer, inputs = store.checkpointer, {"question": "?", "seen": []}
    await graph.ainvoke(inputs, config)
    before = next(s for s in graph.get_state_history(config) if s.next == ("join",))
    await graph.ainvoke(None, before.config)
    found = history(store, "own")
    assert found.trajectory is None
    branches = [[m.source for m in found.children(m)] for m in found.moments]
    assert branches.count(["loop", "fork"]) == 1
    assert [m.index for m in found.lineage()] != [m.index for m in found.moments]
    assert found.last.ran.nodes == ("join",)
    assert found.select("before:join#2").source == "fork"
    assert found.select("after:join") is found.last, "the way to the newest moment goes first"
    (episode,) = fork(
        store, "own", "before:join", graph=f"{HERE}:side_graph", edit={"seen": ["edited"]}
    )
    stored = store.journal.trajectory(episode.thread_id)
    assert stored.forked_from is not None
    assert stored.forked_from.trajectory_id == content_hash("trajectory", "own")[:16]
    assert [branch.history.thread_id for branch in history(store, "own").branches] == ["own/fork-1"]
    with pytest.raises(RunError, match="Name the graph"):
        fork(store, "own", edit={"seen": []})


@both
async def test_turns_of_a_conversation(store: RunStore) -> None:
    """One thread, several inputs: each begins where the last one ended."""

    def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"turn {len(state['messages'])}")]}

    graph = (
        StateGraph(MessagesState)
        .add_node("talk", talk)
        .add_edge(START, "talk")
        .compile(store.checkpointer)
    )
    config: Any = {"configurable": {"thread_id": "chat"}}
    for text in ("one", "two"):
        await graph.ainvoke({"messages": [HumanMessage(text)]}, config)
    found = history(store, "chat")
    assert [m.source for m in found.moments] == ["input", "loop", "loop"] * 2
    assert found.select("before:talk#2").index == "4"
    (episode,) = fork(store, "chat", "after:talk", name="other")
    assert episode.task.prompt == "one"
    parted = thread_diff(store, "chat", "other")
    assert parted.common is not None and parted.common.index == "2"
    assert [change.part for change in parted.changes] == ["[2] human", "[3] ai"]
    assert thread_diff(store, "chat@2", "other").changes == ()
