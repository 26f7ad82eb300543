"""The hierarchical graph: roles, order, rounds, and which tokens belong to which solver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graphs.episode import Episode, EpisodeRunner
from graphs.planning import read_plan
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.graphs.scripts import Roles

TASK = TaskRef(id="1", family="test", prompt="Apples and pears. Return exactly: 'Answer: <fruit>'.")


async def run(roles: Any, store: RunStore, environment: LocalEnvironment, delay: Any = 0, **context: Any) -> Trajectory:
    with ScriptedEngine(roles, delay=delay) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(Episode(TASK, "thread", graph="reasoning", context=context, seed=1))


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
    """The first solver is the slowest: its answer is recorded last, under its own call, with its own tokens."""

    def delay(messages: Any) -> float:
        return 0.3 if any("Subgoal: 3 * 4" in message.text for message in messages) else 0.0

    trajectory = await run(Roles(), store, environment, delay)
    finished = [c for c in trajectory.calls if role(c) == "solve"]
    firsts = [c for c in finished if c.parent is None]
    assert [f.identity.path.rpartition("/")[0] != "" for f in firsts] and len(firsts) == 3
    codec = ScriptedEngine([]).codec
    answers: dict[str, str] = {}
    for call in finished:
        sampled = _split(call)[1]
        if call.parent is not None:  # the answer turn hangs on the turn that asked for the tool, of the same task
            (asked,) = [c for c in finished if c.id == call.parent]
            assert asked.identity.checkpoint_ns.partition("|")[0] == call.identity.checkpoint_ns.partition("|")[0]
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
    assert order.index(fast.id) < order.index(slow.id), "the contrast needs answers that overtake each other"
    assert lint(trajectory) == []


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
    assert roles.plans == 2 and roles.seen_by_critic == ["answer = failed"] * 2, "each is asked once more"
    assert trajectory.status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("subgoals", "names", "needs"),
    [
        ([{"name": "a", "goal": "x", "needs": ["b"]}, {"name": "b", "goal": "y", "needs": ["a"]}], "ab", [[], ["a"]]),
        (
            [{"name": "a", "goal": "x"}, {"name": "a", "goal": "y"}, "words", {"goal": 3}],
            ["a", "a_2", "part_3"],
            [[]] * 3,
        ),
        ([{"name": "two words", "goal": "x", "needs": None}], ["two_words"], [[]]),
    ],
)
def test_plans_that_cannot_be_followed_are_put_right(subgoals: Any, names: Any, needs: Any) -> None:
    plan = read_plan("text before " + json.dumps({"subgoals": subgoals}) + " and after", "problem")
    assert [s["name"] for s in plan] == list(names) and [s["needs"] for s in plan] == needs
