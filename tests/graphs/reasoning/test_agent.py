"""The hierarchical graph: roles, order, rounds, and which tokens belong to which solver."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from hrm_agent.answers.typed_reply import read_as
from hrm_agent.environment import LocalEnvironment, using_environment
from hrm_agent.errors import ConfigError, ContextLengthError
from hrm_agent.graphs.reasoning.agent import ReasoningContext, graph
from hrm_agent.graphs.reasoning.plan import PlannerAnswer, arranged
from hrm_agent.models import call_recording as turns
from hrm_agent.models import using_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import NO_ANSWER, Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import Roles, boxed, call

TASK = TaskRef(id="1", family="test", prompt="Apples and pears. Return exactly: 'Answer: <fruit>'.")


async def run(
    roles: Any,
    store: RunStore,
    environment: LocalEnvironment,
    delay: Any = 0,
    answer: Any = NO_ANSWER,
    **context: Any,
) -> Trajectory:
    with ScriptedEngine(roles, delay=delay) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(
            Episode(TASK, "thread", graph="reasoning", context=context, seed=1), answer=answer
        )


def role(call: Any) -> str:
    return call.identity.checkpoint_ns.partition(":")[0]


async def test_the_roles_in_their_order(store: RunStore, environment: LocalEnvironment) -> None:
    roles = Roles()
    trajectory = await run(roles, store, environment)
    assert trajectory.status is RunStatus.COMPLETED and trajectory.answer == "Answer: 42"
    assert [role(c) for c in trajectory.calls] == ["plan", *["solve"] * 6, "critique", "synthesize"]
    assert roles.seen_by_critic == ["apples = 12\npears = 30\ntotal = 42"]
    assert [c.value for c in trajectory.tool_calls][2] == "42"
    assert lint(trajectory) == []


async def test_solvers_that_finish_out_of_order_keep_their_own_tokens(
    store: RunStore, environment: LocalEnvironment
) -> None:
    """The first solver is the slowest: its answer is recorded last, under its own call, with its
    own tokens.
    """

    overtaken = threading.Event()

    class Slow(Roles):
        def solver(self, messages: Any) -> str:
            if "Subgoal: 5 * 6" in messages[1].text and messages[-1].type == "tool":
                overtaken.set()
            if "Subgoal: 3 * 4" in messages[1].text:
                assert overtaken.wait(60)
            return super().solver(messages)

    trajectory = await run(Slow(), store, environment)
    finished = [c for c in trajectory.calls if role(c) == "solve"]
    firsts = [c for c in finished if c.parent is None]
    assert [f.identity.path.rpartition("/")[0] != "" for f in firsts] and len(firsts) == 3
    codec = ScriptedEngine([]).codec
    answers: dict[str, str] = {}
    for each in finished:
        sampled = _split(each)[1]
        # the answer turn hangs on the turn that asked for the tool, of the same task
        if each.parent is not None:
            (asked,) = [c for c in finished if c.id == each.parent]
            assert (
                asked.identity.checkpoint_ns.partition("|")[0]
                == each.identity.checkpoint_ns.partition("|")[0]
            )
            goal = codec.decode(_split(asked)[0]).partition("Subgoal: ")[2].splitlines()[0]
            answers[goal.partition("<")[0]] = codec.decode(sampled)
    assert {goal: text[text.find("{") + 1 : text.find("}")] for goal, text in answers.items()} == {
        "3 * 4": "12",
        "5 * 6": "30",
        "apples + pears": "42",
    }
    order = [c.id for c in finished]
    slow = next(c for c in firsts if "3 * 4" in codec.decode(_split(c)[0]))
    fast = next(c for c in firsts if "5 * 6" in codec.decode(_split(c)[0]))
    assert order.index(fast.id) < order.index(slow.id), (
        "the contrast needs answers that overtake each other"
    )
    assert lint(trajectory) == []


def text(call: Any) -> str:
    """Prompt of a call, without its answer."""
    return ScriptedEngine([]).codec.decode(_split(call)[0])


def _split(call: Any) -> tuple[list[int], list[int]]:
    pairs = list(zip(call.token_ids, call.mask, strict=True))
    return [t for t, sampled in pairs if not sampled], [t for t, sampled in pairs if sampled]


async def test_the_critic_sends_the_plan_back_within_the_round_budget(
    store: RunStore, environment: LocalEnvironment
) -> None:
    class Strict(Roles):
        critiques = ('{"action": "revise", "hint": "check the pears"}',)

    roles = Strict()
    trajectory = await run(roles, store, environment, max_rounds=3)
    assert roles.plans == 3 and len(roles.seen_by_critic) == 3
    planners = [c for c in trajectory.calls if role(c) == "plan"]
    texts = [ScriptedEngine([]).codec.decode(_split(c)[0]) for c in planners]
    assert ["check the pears" in text for text in texts] == [False, True, True]
    assert trajectory.answer == "Answer: 42" and lint(trajectory) == []


class Slips(Roles):
    """Roles whose pears are wrong at first, which the critic notices."""

    def solver(self, messages: Any) -> str:
        if "Subgoal: 5 * 6" in messages[1].text and "Hint:" not in messages[1].text:
            return boxed(31)
        return super().solver(messages)

    def critic(self, messages: Any) -> str:
        super().critic(messages)
        wrong = "pears = 31" in messages[-1].text
        return json.dumps(
            {"action": "revise", "subgoal": "pears", "hint": "count again"}
            if wrong
            else {"action": "accept"}
        )


async def test_a_revision_solves_the_subgoal_again_and_what_depends_on_it(
    store: RunStore, environment: LocalEnvironment
) -> None:
    roles = Slips()
    trajectory = await run(roles, store, environment)
    assert roles.plans == 1
    assert roles.seen_by_critic == [
        f"apples = 12\npears = {pears}\ntotal = {12 + pears}" for pears in (31, 30)
    ]
    asked = [text(c) for c in trajectory.calls if role(c) == "solve" and c.parent is None]
    goals = [t.partition("Subgoal: ")[2].splitlines()[0].partition("<")[0] for t in asked]
    assert goals == ["3 * 4", "5 * 6", "apples + pears", "5 * 6", "apples + pears"]
    assert ["Hint: count again" in t for t in asked] == [False, False, False, True, False]
    assert (trajectory.stop_reason, trajectory.answer) == (
        StopReason.ANSWER,
        "Answer: 42",
    ) and lint(trajectory) == []


async def test_a_check_overrules_consent_and_is_on_record(
    store: RunStore, environment: LocalEnvironment
) -> None:
    class Checks(Slips):
        def critic(self, messages: Any) -> str:
            Roles.critic(self, messages)
            return json.dumps(
                {"action": "accept", "check": "assert pears % 5 == 0, 'pears come in fives'"}
            )

    trajectory = await run(Checks(), store, environment)
    checks = [c for c in trajectory.tool_calls if c.identity.node == "critique"]
    assert [c.status for c in checks] == [ToolStatus.ERROR, ToolStatus.OK]
    assert trajectory.answer == "Answer: 42" and lint(trajectory) == []
    assert "The check failed: AssertionError: pears come in fives" in "".join(
        map(text, trajectory.calls)
    )
    assert (await replay_async(store, "thread")).equal


@pytest.mark.parametrize(("said", "works_on"), [({"subgoal": "pears"}, "solve"), ({}, "plan")])
async def test_a_person_is_asked(
    said: Any, works_on: str, store: RunStore, environment: LocalEnvironment
) -> None:
    class Asks(Roles):
        critiques = (
            json.dumps({"action": "ask", "hint": "Are bananas pears?", **said}),
            '{"action": "accept"}',
        )

    roles = Asks()
    stopped = await run(roles, store, environment, ask_person=True)
    assert (stopped.status, stopped.stop_reason) == (RunStatus.TRUNCATED, StopReason.INTERRUPT)
    ended = await run(roles, store, environment, ask_person=True, answer="No,\nthey are not.")
    assert (ended.status, ended.answer) == (RunStatus.COMPLETED, "Answer: 42") and lint(ended) == []
    told = [c for c in ended.calls if "Hint: No, they are not." in text(c)]
    assert told and {role(c) for c in told if c.parent is None} == {works_on}
    assert (await replay_async(store, "thread")).equal


async def test_the_wait_for_a_person_costs_no_time(
    store: RunStore, environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asks(Roles):
        critiques = ('{"action": "ask", "hint": "Are bananas pears?"}', '{"action": "accept"}')

    roles, times = Asks(), turns._times  # pyright: ignore[reportPrivateUsage]
    stopped = await run(roles, store, environment, ask_person=True)
    assert stopped.stop_reason is StopReason.INTERRUPT
    monkeypatch.setattr(
        turns, "_times", lambda turn: {name: at + 86400 for name, at in times(turn).items()}
    )
    ended = await run(roles, store, environment, ask_person=True, answer="No.")
    assert ended.stop_reason is StopReason.ANSWER and roles.plans == 2
    assert (await replay_async(store, "thread")).equal


class Full(ScriptedEngine):
    """Engine whose context window holds one turn of a solver."""

    def submit(self, request: Any) -> Any:
        if request.messages[-1].type == "tool":
            raise ContextLengthError("The conversation is too long.")
        return super().submit(request)


async def test_what_a_solver_spent_counts_where_its_context_is_full(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with Full(Roles()) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        trajectory = await runner.run(Episode(TASK, "thread", graph="reasoning", seed=1))
    found = store.checkpointer.get_tuple(
        {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}}
    )
    assert found is not None
    state = found.checkpoint["channel_values"]
    assert state["results"] == dict.fromkeys(("apples", "pears", "total"), "failed")
    assert state["spent"]["calls"] == len(trajectory.calls)
    assert state["spent"]["tokens"] == trajectory.sampled_tokens


async def test_what_was_accepted_is_answered_and_not_a_fuller_plan_that_was_not(
    store: RunStore, environment: LocalEnvironment
) -> None:
    class Replans(Roles):
        critiques = ('{"action": "replan", "hint": "Bananas count."}', '{"action": "accept"}')

        def solver(self, messages: Any) -> str:
            return (
                "I do not know."
                if self.plans == 2 and "3 * 4" in messages[1].text
                else super().solver(messages)
            )

        def planner(self, messages: Any) -> str:
            super().planner(messages)
            more = {"name": "bananas", "goal": "7 * 8", "needs": []}
            return json.dumps(
                {"subgoals": [*self.plan["subgoals"][:2], *([more] if self.plans == 2 else [])]}
            )

    trajectory = await run(Replans(), store, environment)
    assert (trajectory.stop_reason, trajectory.answer) == (StopReason.ANSWER, "Answer: 56")


@pytest.mark.parametrize(
    ("graph_name", "context", "message"),
    [
        (
            "reasoning",
            {"max_rounds": "three"},
            "max_rounds is 'three'. Give a whole number of 1 or more",
        ),
        ("reasoning", {"max_parallel": 0}, "max_parallel is 0"),
        ("reasoning", {"max_subgoals": -1}, "max_subgoals is -1"),
        ("reasoning", {"max_seconds": "x"}, "Give a number of 0 or more"),
        ("reasoning", {"max_cost": True}, "max_cost is True"),
        ("reasoning", {"prices": {"*": [1]}}, "The price of '*' is [1]. Give two numbers"),
        ("tool_loop", {"max_tokens": 0}, "max_tokens is 0"),
    ],
)
async def test_a_limit_that_is_none_is_refused(
    graph_name: str, context: Any, message: str, store: RunStore, environment: LocalEnvironment
) -> None:
    with ScriptedEngine(Roles()) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        with pytest.raises(ConfigError) as caught:
            await runner.run(Episode(TASK, "thread", graph=graph_name, context=context))
    assert message in str(caught.value) and store.journal.find_trajectory("thread") is None


async def test_each_role_has_its_own_model_and_temperature(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "critic.jsonl").write_text(
        json.dumps('{"action": "give_up", "hint": "too hard"}') + "\n"
    )
    models = {"critic": f"scripted:{tmp_path / 'critic.jsonl'}"}
    trajectory = await run(
        Roles(), store, environment, models=models, temperatures={"solver": 0.5, "planner": 0.0}
    )
    assert trajectory.stop_reason is StopReason.GAVE_UP and trajectory.answer == "Answer: 42"
    assert {role(c): c.model for c in trajectory.calls}["critique"] == models["critic"]
    assert {role(c): c.sampling.temperature for c in trajectory.calls} == {
        "plan": 0.0, "solve": 0.5, "critique": 1.0, "synthesize": 1.0,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"no role 'critc'\. Did you mean 'critic'"):
        await run(Roles(), store, environment, models={"critc": "x"})


class Pair(Roles):
    """Roles with two independent subgoals."""

    plan: Any = {
        "subgoals": [{"name": name, "goal": f"wait for {name}", "needs": []} for name in "ab"]
    }


@pytest.mark.parametrize("max_parallel", [1, 2])
async def test_solvers_run_side_by_side(
    max_parallel: int, store: RunStore, environment: LocalEnvironment
) -> None:
    """Two parallel solvers are answered after both have asked. With one at a time, the first ends
    before the other starts.
    """
    asked: list[str] = []
    both = threading.Barrier(max_parallel, timeout=60)

    class Meeting(Pair):
        def solver(self, messages: Any) -> str:
            asked.append(messages[1].text)
            both.wait()
            return boxed(1) if messages[-1].type == "tool" else call("6 * 7")

    await run(Meeting(), store, environment, max_parallel=max_parallel)
    assert len(asked) == 4
    assert (asked[0] == asked[1]) is (max_parallel == 1)


@pytest.mark.slow
async def test_solvers_side_by_side_save_time(
    store: RunStore, environment: LocalEnvironment
) -> None:
    class Sleeps(Pair):
        def solver(self, messages: Any) -> str:
            return boxed(1) if messages[-1].type == "tool" else call("import time\ntime.sleep(3)")

    async def seconds(max_parallel: int) -> float:
        with ScriptedEngine(Sleeps()) as engine:
            runner = EpisodeRunner(store, engine, "scripted", environment)
            context = {"max_parallel": max_parallel}
            trajectory = await runner.run(
                Episode(TASK, f"{max_parallel}", graph="reasoning", context=context)
            )
        solvers = [c for c in trajectory.calls if role(c) == "solve"]
        return max(c.ended_at for c in solvers) - min(c.started_at for c in solvers)

    assert await seconds(1) > 6 and await seconds(2) < 6


async def test_a_second_problem_on_the_thread_begins_anew(environment: LocalEnvironment) -> None:
    saver, roles = InMemorySaver(), Roles()
    compiled = graph.copy(update={"checkpointer": saver})
    context = ReasoningContext(max_calls=12, max_rounds=1)
    with ScriptedEngine(roles) as engine, using_policy(engine), using_environment(environment):
        for _ in range(2):
            given = {"messages": [HumanMessage("Apples and pears.")]}
            state = await compiled.ainvoke(
                given, {"configurable": {"thread_id": "t"}}, context=context
            )
            assert (state["stop_reason"], state["rounds"], state["spent"]["calls"]) == (
                "answer",
                1,
                9,
            )
    assert len(state["messages"]) == 4


async def test_an_unreadable_critique_submits_and_an_unreadable_plan_is_one_subgoal(
    store: RunStore, environment: LocalEnvironment
) -> None:
    class Vague(Roles):
        plan = "no plan"
        critiques = ("no idea",)

        def solver(self, messages: Any) -> str:
            return "I do not know."

    roles = Vague()
    trajectory = await run(roles, store, environment)
    assert roles.plans == 2 and roles.seen_by_critic == [
        "answer = failed",
        "",
    ], "each is asked once more"
    assert trajectory.status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("subgoals", "names", "needs"),
    [
        (
            [
                {"name": "a", "goal": "x", "needs": ["b"]},
                {"name": "b", "goal": "y", "needs": ["a"]},
            ],
            "ab",
            [[], ["a"]],
        ),
        (
            [{"name": "a", "goal": "x"}, {"name": "a", "goal": "y"}, "words", {"goal": 3}],
            ["a", "a_2", "part_3"],
            [[]] * 3,
        ),
        ([{"name": "two words", "goal": "x", "needs": None}], ["two_words"], [[]]),
    ],
)
def test_plans_that_cannot_be_followed_are_put_right(subgoals: Any, names: Any, needs: Any) -> None:
    answer = read_as(
        PlannerAnswer, "text before " + json.dumps({"subgoals": subgoals}) + " and after"
    )
    plan, _ = arranged(answer.subgoals, 8)
    assert [s["name"] for s in plan] == list(names) and [s["needs"] for s in plan] == needs
