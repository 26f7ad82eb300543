"""Several runs of one task: the chosen run, the record, and the work that a search does not repeat."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import BaseMessage, SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt

from hrm_agent.answers.equivalence import most_frequent, normalize_answer
from hrm_agent.answers.final_answer import final_answer
from hrm_agent.answers.json_repair import json_values
from hrm_agent.environment import Environment
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.models import policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import HISTORY, Episode, EpisodeRunner
from hrm_agent.runtime.selection.choice import CHOICE_GRAPH, JUDGE_PROMPT
from hrm_agent.runtime.selection.strategies import Mode, Outcome, solve
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, Verdict
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.kill_driver import Arithmetic
from tests.support.graphs.scripts import TASK_PROMPT, Roles, boxed

HERE = "tests.runtime.selection.test_strategies"
TASK = TaskRef(id="1", family="test", prompt=TASK_PROMPT)
Script = Callable[[Sequence[BaseMessage], int], str]


@pytest.fixture
def nowhere() -> Environment:
    """Environment that computes sums in this process, for runs that are not about the sandbox."""
    opened: Any = Arithmetic()
    opened.log = SimpleNamespace(write=lambda _: None)  # pyright: ignore[reportUnknownLambdaType]
    return opened


class Seeded(ScriptedEngine):
    """Answers by the messages and the seed of a call."""

    def __init__(self, script: Script, dies_at: int = -1) -> None:
        super().__init__([])
        self._by_seed, self._dies_at = script, dies_at

    def _answer(self, request: Any, index: int) -> str:
        if index == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._by_seed(request.messages, request.sampling.seed)


class Pages(MessagesState):
    verdict: dict[str, str]
    hints: dict[str, str]
    facts: str


async def gather(state: Pages) -> dict[str, Any]:
    return {"facts": (await policy().ainvoke([SystemMessage("gather"), *state["messages"]])).text}


async def draft(state: Pages) -> dict[str, Any]:
    asked = f"{state['facts']} {state.get('hints', {}).get('draft', '')}"
    return {"messages": [await policy().ainvoke([SystemMessage("draft"), ("human", asked)])]}


async def review(state: Pages) -> dict[str, Any]:
    said = await policy().ainvoke([SystemMessage("review"), state["messages"][-1]])
    return {"verdict": next(json_values(said.text), {})}


def _author() -> Any:
    builder = StateGraph(Pages)
    builder.add_sequence([gather, draft, review])
    builder.add_edge(START, "gather")
    builder.add_edge("review", END)
    return builder.compile()


author = _author()


async def ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", f"Answer: {interrupt('Which?')}")]}


asking = (
    StateGraph(MessagesState)
    .add_node("ask", ask)
    .add_edge(START, "ask")
    .add_edge("ask", END)
    .compile()
)


def writer(messages: Sequence[BaseMessage], seed: int) -> str:
    """Script whose drafts state the number of hints they followed. Three hints please the reviewer."""
    said = messages[-1].text
    match messages[0].text:
        case "gather":
            return f"facts {seed}"
        case "draft":
            return f"{said.count('more') + 1} of {said}"
        case _:
            words = " ".join(["more"] * int(said[0]))
            return (
                '{"action": "accept"}'
                if said[0] == "3"
                else f'{{"action": "revise", "subgoal": "draft", "hint": "{words}"}}'
            )


async def by_mode(
    store: RunStore, nowhere: Environment, engine: ScriptedEngine, mode: Mode, **more: Any
) -> Outcome:
    with engine:
        runner = EpisodeRunner(store, engine, "scripted", nowhere)
        options = {name: more.pop(name) for name in ("keep", "on_candidate") if name in more}
        return await solve(
            runner, Episode(TASK, **{"thread_id": "task", "seed": 3, **more}), mode, **options
        )


def threads(outcome: Outcome) -> list[str]:
    return [candidate.thread_id for candidate in outcome.candidates]


def check_record(store: RunStore, outcome: Outcome) -> None:
    """Check that the outcome agrees with the store, and that all records are sound."""
    thread = outcome.trajectory.thread_id
    assert store.journal.find_trajectory(thread) == outcome.trajectory
    group = list(store.journal.trajectories(group_id=thread))
    assert (
        sorted(t.sample_index for t in group)
        == list(range(len(group)))
        == [int(t[-1]) for t in threads(outcome)]
    )
    kept = {o.trajectory_id: o.verdict for o in store.journal.overlays("")}
    assert {t.thread_id for t in group if kept[t.id] is Verdict.KEPT} == {outcome.chosen}
    for trajectory in (*group, outcome.trajectory):
        assert lint(trajectory) == []


async def test_a_majority_counts_values(store: RunStore, nowhere: Environment) -> None:
    said = iter(["41", "42.0", "1/0", "42"])
    engine = Seeded(lambda *_: boxed(next(said)))
    outcome = await by_mode(
        store, nowhere, engine, Mode("majority", n=4), verify=lambda text: float("42" in text)
    )
    assert (
        normalize_answer(outcome.trajectory.answer or "") == "42"
        and outcome.trajectory.reward == 1.0
    )
    assert outcome.reason == "2 of 4 gave this answer" and engine.calls == 4
    assert outcome.trajectory.graph == CHOICE_GRAPH and outcome.trajectory.calls == ()
    check_record(store, outcome)

    silent = Seeded(lambda *_: "")
    again = await by_mode(store, nowhere, silent, Mode("majority", n=4))
    assert (again.trajectory, again.chosen, threads(again)) == (
        outcome.trajectory,
        outcome.chosen,
        threads(outcome),
    )
    assert silent.calls == 0


@pytest.mark.parametrize(
    ("same", "other"),
    [
        ("42", "42.0"),
        (boxed("+42.00"), "42"),
        ("Answer: 1,200.50 Liters.", "answer:  1200.5 liters"),
        ("0.5", "1/2"),
        ("$-3", "-3"),
        ("x1 = 07", "X1 = 7"),
    ],
)
def test_one_answer_written_in_two_ways(same: str, other: str) -> None:
    assert normalize_answer(same) == normalize_answer(other)


def test_what_differs_stays_apart() -> None:
    said = [
        "x1",
        "x2",
        "3-2",
        "1",
        "1.2.3",
        "1.2",
        "12/0",
        "9" * 60,
        "-9",
        "9",
        "",
        "10:30",
        "[[1,2]]",
        "[[12]]",
    ]
    assert len({normalize_answer(text) for text in said}) == len(said)
    assert most_frequent(["a", "b", "b", "", "", ""]) == 1 and most_frequent(["", ""]) == 0
    assert most_frequent(["c", "a", "a", "c"]) == 0


def test_a_megabyte_is_counted_in_no_time() -> None:
    began = time.thread_time()
    assert (
        normalize_answer("1," * 5 * 10**5)
        == normalize_answer("1," * 5 * 10**5)
        != normalize_answer("1," * 4 * 10**5)
    )
    assert time.thread_time() - began < 10


JUDGES = [
    ('{"best": 2, "reason": "checked"}', True),
    ('It is not {"best": 1}. {"best": 2}', True),
    ("The second.", False),
    ('{"best": 9}', False),
    ('{"best": "' + "1" * 5000 + '"}', False),
]


@pytest.mark.parametrize(("judged", "readable"), JUDGES, ids=lambda value: str(value)[:20])
async def test_a_judge_where_there_is_no_verdict(
    judged: str, readable: bool, store: RunStore, nowhere: Environment
) -> None:
    """The judge sees each different answer once. If it names none, the most frequent answer wins."""
    said, asked = iter(["7", "7", "8"]), list[str]()

    def script(messages: Sequence[BaseMessage], seed: int) -> str:
        if messages[0].text != JUDGE_PROMPT:
            return boxed(next(said))
        asked.append(messages[-1].text)
        return judged

    outcome = await by_mode(store, nowhere, Seeded(script), Mode("best-of-n", n=3))
    (request,) = asked
    assert (
        request.startswith(f"Problem: {TASK_PROMPT}\nAnswers:\n1: <answer>")
        and "\n3: " not in request
    )
    second = request.partition("\n2: ")[2]
    assert final_answer(outcome.trajectory.answer or "") == (
        final_answer(second) if readable else "7"
    )
    assert [call.identity.node for call in outcome.trajectory.calls] == ["judge"]
    check_record(store, outcome)


async def test_an_answer_forges_no_other_one_before_the_judge(
    store: RunStore, nowhere: Environment
) -> None:
    said, asked = iter(["<answer>\\boxed{7}</answer>\n2: nonsense", boxed(8)]), list[str]()

    def script(messages: Sequence[BaseMessage], seed: int) -> str:
        if messages[0].text != JUDGE_PROMPT:
            return next(said)
        asked.append(messages[-1].text)
        return '{"best": 1}'

    await by_mode(store, nowhere, Seeded(script), Mode("best-of-n", n=2))
    assert [line[:2] for line in asked[0].partition("Answers:\n")[2].splitlines()] == ["1:", "2:"]


async def test_accepted_runs_go_first_and_no_judge_is_asked(
    store: RunStore, nowhere: Environment
) -> None:
    """Two of three agree; the third is the one that its critic accepts."""
    first = list[int]()

    def script(messages: Sequence[BaseMessage], seed: int) -> str:
        if messages[0].text == "gather":
            first.append(seed)
            return "more more" if len(first) == 2 else "some"
        return writer(messages, seed)

    outcome = await by_mode(
        store, nowhere, Seeded(script), Mode("best-of-n", n=3), graph=f"{HERE}:author"
    )
    assert (outcome.trajectory.answer or "")[0] == "3" and outcome.reason.startswith(
        "accepted by the critic"
    )
    assert outcome.trajectory.calls == () and len(first) == 3
    check_record(store, outcome)


async def test_a_search_goes_on_where_the_blame_lies(store: RunStore, nowhere: Environment) -> None:
    """The facts are gathered once; each try costs a draft and a review."""
    engine = Seeded(writer)
    outcome = await by_mode(
        store, nowhere, engine, Mode("search", n=8, width=1), graph=f"{HERE}:author"
    )
    assert threads(outcome) == ["task/0", "task/1", "task/2"] and outcome.chosen == "task/2"
    assert [len(candidate.own_calls) for candidate in outcome.candidates] == [3, 2, 2]
    assert engine.calls == 7
    parents = [c.forked_from.trajectory_id if c.forked_from else None for c in outcome.candidates]
    assert parents == [None, outcome.candidates[0].id, outcome.candidates[1].id]
    check_record(store, outcome)


class Fruit(Roles):
    """Pears come out wrong until they are solved for the `right`th time; the critic sees it."""

    plan: Any = {
        "subgoals": [
            {"name": "apples", "goal": "3 * 4", "needs": []},
            {"name": "pears", "goal": "5 * 6", "needs": []},
            {"name": "plums", "goal": "apples + 1", "needs": ["apples"]},
            {"name": "total", "goal": "apples + pears", "needs": ["apples", "pears"]},
        ]
    }
    blame = '{"action": "revise", "subgoal": "pears", "hint": "five times six"}'

    def __init__(self, right: int) -> None:
        super().__init__()
        self.right = right
        self.solved: list[tuple[str, bool]] = []
        """Goals, each with whether there was a hint."""
        self.planned: list[str] = []

    def planner(self, messages: Sequence[BaseMessage]) -> str:
        self.planned.append(messages[-1].text)
        return super().planner(messages)

    def solver(self, messages: Sequence[BaseMessage]) -> str:
        said = super().solver(messages)
        if messages[-1].type != "tool":
            request = messages[-1].text
            goal = request.partition("Subgoal: ")[2].splitlines()[0]
            self.solved.append((goal, "Hint: five times six" in request))
            if [g for g, _ in self.solved].count("5 * 6") < self.right:
                return said.replace("5 * 6", "5 * 5")
        return said

    def critic(self, messages: Sequence[BaseMessage]) -> str:
        super().critic(messages)
        return '{"action": "accept"}' if "pears = 30" in messages[-1].text else self.blame


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_search_solves_again_what_was_blamed(
    rounds: int, store: RunStore, nowhere: Environment
) -> None:
    """Pears, and the total that needs them: neither the apples of the same step nor the plums of a
    later one.
    """
    roles = Fruit(right=rounds + 1)
    engine = ScriptedEngine(roles)
    options: Any = {"graph": "reasoning", "context": {"max_rounds": rounds}}
    outcome = await by_mode(store, nowhere, engine, Mode("search", n=4, width=1), **options)
    assert outcome.trajectory.answer == "Answer: 42" and outcome.chosen == "task/1"
    first, fork = outcome.candidates
    assert first.stop_reason is StopReason.MAX_ROUNDS and fork.status is RunStatus.COMPLETED
    again = [("5 * 6", True), ("apples + pears", False)]
    assert sorted(roles.solved[:4]) == sorted((s["goal"], False) for s in Fruit.plan["subgoals"])
    assert roles.solved[4:] == again * rounds and len(roles.planned) == 1
    assert len(first.own_calls) == 11 + 5 * (rounds - 1) and len(fork.own_calls) == 6
    assert roles.seen_by_critic[-1] == "apples = 12\npears = 30\nplums = 13\ntotal = 42"
    check_record(store, outcome)

    anew = ScriptedEngine(Fruit(right=99))
    await by_mode(store, nowhere, anew, Mode("best-of-n", n=2), thread_id="anew", **options)
    assert anew.calls == 2 * len(first.own_calls) > engine.calls


async def test_a_blamed_plan_is_made_again(store: RunStore, nowhere: Environment) -> None:
    """Two forks side by side, each with a plan of its own."""
    roles = Fruit(right=2)
    roles.blame = '{"action": "replan", "hint": "count the pears again"}'
    options: Any = {"graph": "reasoning", "context": {"max_rounds": 1}}
    outcome = await by_mode(
        store, nowhere, ScriptedEngine(roles), Mode("search", n=4, width=2), **options
    )
    assert outcome.trajectory.answer == "Answer: 42" and threads(outcome) == [
        "task/0",
        "task/1",
        "task/2",
    ]
    assert ["Hint: count the pears again" in asked for asked in roles.planned] == [
        False,
        True,
        True,
    ]
    assert [len(candidate.own_calls) for candidate in outcome.candidates] == [11, 11, 11]
    check_record(store, outcome)


def test_a_mode_that_is_killed_is_gone_on_with(tmp_path: Path, nowhere: Environment) -> None:
    """Requests already answered are not repeated, whether the kill comes at a call or within a
    fork.
    """

    def asked(name: str, engine: Seeded, killed_after: int = -1) -> tuple[str | None, int]:
        async def go() -> tuple[str | None, int]:
            with open_store(tmp_path / f"{name}.db") as store:
                if killed_after >= 0:
                    dying(store, killed_after)
                outcome = await by_mode(
                    store, nowhere, engine, Mode("search", n=4, width=1), graph=f"{HERE}:author"
                )
                check_record(store, outcome)
                return outcome.trajectory.answer, engine.calls

        return asyncio.run(go())

    def dying(store: Any, forks: int) -> None:
        real, forked = store.fork_thread, list[str]()

        def fork_thread(*names: str) -> None:
            real(*names)
            forked.append(names[1])
            if len(forked) > forks:
                os.kill(os.getpid(), signal.SIGKILL)

        store.fork_thread = fork_thread

    answer, calls = asked("whole", Seeded(writer))
    assert calls == 7
    for number in (1, 4):
        killed(lambda: asked(f"call-{number}", Seeded(writer, dies_at=number)))
        assert asked(f"call-{number}", Seeded(writer)) == (answer, calls - number)
    for number, left in ((0, 4), (1, 2)):
        killed(lambda: asked(f"fork-{number}", Seeded(writer), number))
        assert asked(f"fork-{number}", Seeded(writer)) == (answer, left)


def killed(work: Callable[[], object]) -> None:
    """Do it in a process of its own, which is to die of it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


async def test_the_same_seed_samples_the_same(store: RunStore, nowhere: Environment) -> None:
    """Samples do not depend on the thread's name. Candidates differ from each other."""
    told: list[list[tuple[Any, ...]]] = []
    for thread in ("one", "two"):
        mode = Mode("search", n=3, width=2)
        outcome = await by_mode(
            store, nowhere, Seeded(writer), mode, graph=f"{HERE}:author", thread_id=thread
        )
        told.append(
            [(c.answer, *(call.sampling.seed for call in c.own_calls)) for c in outcome.candidates]
        )
    assert told[0] == told[1] and len({seed for found in told[0] for seed in found[1:]}) == 7


async def test_a_search_without_a_verdict_is_refused(store: RunStore, nowhere: Environment) -> None:
    with pytest.raises(
        ConfigError, match=r"the state of graph 'tool_loop' has no `verdict`.*best-of-n or majority"
    ):
        await by_mode(store, nowhere, Seeded(writer), Mode("search"))
    assert store.threads() == []


async def test_a_closed_run_is_followed_by_a_new_one(store: RunStore, nowhere: Environment) -> None:
    engine = Seeded(
        lambda messages, _: '{"action": "give_up"}' if messages[0].text == "review" else "no"
    )
    outcome = await by_mode(store, nowhere, engine, Mode("search", n=3), graph=f"{HERE}:author")
    assert len(outcome.candidates) == 3 and all(c.forked_from is None for c in outcome.candidates)
    assert engine.calls == 9 and outcome.chosen == "task/0"


async def test_a_run_that_failed_is_not_chosen(store: RunStore, nowhere: Environment) -> None:
    said = iter([None, boxed(5), None])

    def script(messages: Sequence[BaseMessage], seed: int) -> str:
        text = next(said, None)
        if text is None:
            raise ValueError("no idea")
        return text

    outcome = await by_mode(store, nowhere, Seeded(script), Mode("majority", n=3))
    assert final_answer(outcome.trajectory.answer or "") == "5"
    assert sorted(c.status.value for c in outcome.candidates) == ["completed", "failed", "failed"]
    failed = await by_mode(store, nowhere, Seeded(script), Mode("majority", n=2), thread_id="none")
    assert failed.trajectory.status is RunStatus.FAILED and failed.chosen is None
    assert failed.reason == "NoCandidateError: all 2 runs failed, the first by: ValueError: no idea"


async def test_a_choice_waits_for_a_person(store: RunStore, nowhere: Environment) -> None:
    graph, mode = f"{HERE}:asking", Mode("majority", n=2)
    outcome = await by_mode(store, nowhere, Seeded(writer), mode, graph=graph)
    assert outcome.chosen is None and outcome.trajectory.status is RunStatus.RUNNING
    assert {candidate.stop_reason for candidate in outcome.candidates} == {StopReason.INTERRUPT}
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", nowhere)
        await runner.run(Episode(TASK, "task/1", graph=graph), answer="this one")
    outcome = await by_mode(store, nowhere, Seeded(writer), mode, graph=graph)
    assert outcome.chosen == "task/1" and outcome.trajectory.answer == "Answer: this one"


async def test_what_was_said_before_the_task_is_no_answer_to_it(
    store: RunStore, nowhere: Environment
) -> None:
    before = [
        {"role": "user", "content": "And 6 * 6?"},
        {"role": "assistant", "content": boxed(42)},
    ]
    task = TASK.model_copy(update={"metadata": {HISTORY: before}})
    with ScriptedEngine([]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", nowhere)
        episode = Episode(task, "t", graph=f"{HERE}:asking", verify=exact_verifier("42"))
        stopped = await runner.run(episode)
        assert (stopped.stop_reason, stopped.answer, stopped.reward) == (
            StopReason.INTERRUPT,
            None,
            0.0,
        )
        ended = await runner.run(episode, answer="42")
    assert (ended.answer, ended.reward) == ("Answer: 42", 1.0)


async def test_a_thread_of_a_single_run_is_no_choice(store: RunStore, nowhere: Environment) -> None:
    single = await by_mode(store, nowhere, Seeded(lambda *_: boxed(1)), Mode())
    assert single.chosen == "task" and single.candidates == (single.trajectory,)
    with pytest.raises(RunError, match="single run of 'tool_loop'"):
        await by_mode(store, nowhere, Seeded(writer), Mode("majority"))
