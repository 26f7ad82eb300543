"""Runs that are scored by a rubric of the user's: collected, trained on, killed between scoring and
record.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hrm_agent.errors import HrmError, StoreFullError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.rewards import Rollout, opened_scorer
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.evaluation.evaluate import evaluate
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.records.rescoring import rescore
from hrm_agent.training.rollout.collect import collect
from hrm_agent.trajectory import DropReason, RewardFault, Trajectory
from hrm_agent.trajectory.lint import lint

RUBRIC = '''
import os
from pathlib import Path
from hrm_agent.rewards import Reward, Rubric, answer_is

HERE = Path(__file__).parent

def tidy(tool_calls, text):
    """Fewer failed calls, and a fault for one rollout in eight."""
    with open(HERE / "calls", "a") as file:
        file.write("x")
    if len(text) % 8 == 0:
        raise RuntimeError("of no use")
    return -0.5 * sum(call.status.is_policy_failure for call in tool_calls)

def wordy(state):
    return min(1.0, len(state["messages"]) / 10)

def brief(calls):
    return -sum(call.sampled_tokens for call in calls) / 1000

tidy_rubric = Rubric([answer_is("boxed"), Reward(tidy), Reward(wordy, weight=0), Reward(brief, weight=0.5)])
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(RUBRIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def collected(
    folder: Path, rewards: str, engine: ScriptedEngine, samples: int = 1
) -> list[Trajectory]:
    config = CollectConfig(
        policy="scripted", count=3, samples=samples, context={"max_turns": 1}, rewards=rewards
    )
    return asyncio.run(collect(config, folder, backend=engine))


def test_an_answer_in_words_is_right_by_a_reader(here: Path) -> None:
    def reply(prompt: str) -> str:
        return "Final answer: 12"

    with ScriptedEngine(reply) as engine:
        plain = CollectConfig(policy="scripted", count=3, context={"max_turns": 1})
        first, *_ = asyncio.run(collect(plain, here / "plain", backend=engine))
    assert evaluate([first]).pass_at_1 == 0, "without a rubric only <answer> counts"
    said = f"The sum is 3, so the final answer: {first.task.answer}"
    with ScriptedEngine(lambda _: said) as engine:
        first, *_ = collected(here / "run", "answer:last_number", engine)
    assert first.rewards == {"correct": 1.0, "reward": 1.0}
    assert evaluate([first]).pass_at_1 == 1
    assert lint(first) == []


def test_what_was_scored_is_not_scored_again(here: Path) -> None:
    with ScriptedEngine(lambda _: "<answer>\\boxed{1}</answer>") as engine:
        found = collected(here / "run", "./mine.py:tidy_rubric", engine)
        calls = (here / "calls").read_text()
        assert collected(here / "run", "./mine.py:tidy_rubric", engine) == found
    assert (here / "calls").read_text() == calls
    assert {*found[0].rewards} == {"correct", "tidy", "wordy", "brief", "reward"}
    assert found[0].rewards["wordy"] == 0.2, "the task and the answer"


def test_another_rubric_is_written_beside_and_takes_the_place_of_nothing(here: Path) -> None:
    with ScriptedEngine(lambda _: "<answer>\\boxed{1}</answer>") as engine:
        found = collected(here / "run", "./mine.py:tidy_rubric", engine)

    async def again() -> None:
        with open_store(here / "run" / "store.db") as store:
            async with opened_scorer("answer:text") as scorer:
                given = [scoring for t in found for scoring in await scorer.score([Rollout(t)])]
            store.scorings.write(given, as_rewards=True)
            assert list(store.journal.trajectories()) == found
            assert store.scorings.rubrics() == ["./mine.py:tidy_rubric", "answer:text"]
            assert [s.rubric for s in store.scorings.of(found[0].id)] == [
                "./mine.py:tidy_rubric",
                "answer:text",
            ]

    asyncio.run(again())


def test_a_rubric_that_returns_no_number_stops_the_run_which_goes_on_when_it_is_mended(
    here: Path,
) -> None:
    (here / "odd.py").write_text("def grade(text):\n    return 'good'\n")
    with ScriptedEngine(lambda _: "x") as engine:
        with pytest.raises(HrmError, match="'grade' returned 'good', a str"):
            collected(here / "run", "./odd.py:grade", engine)
        (here / "odd.py").write_text("def grade(text):\n    return 1\n")
        __import__("sys").modules.pop(
            next(m for m in __import__("sys").modules if m.startswith("user_graph_odd"))
        )
        assert [t.rewards["reward"] for t in collected(here / "run", "./odd.py:grade", engine)] == [
            1.0
        ] * 3
        assert engine.calls == 3, "no rollout was lost"


@pytest.mark.whole
def test_training_maximises_the_weighted_sum_and_drops_what_has_no_reward(here: Path) -> None:
    config = GrpoConfig.of(
        steps=1, prompts_per_step=4, group_size=4, seed=5, context={"max_turns": 4, "max_tokens": 96}, min_group=0.25,
        rewards="./mine.py:tidy_rubric",
    )  # fmt: skip
    asyncio.run(train(config, here / "run"))
    with open_store(here / "run" / "store.db") as store:
        trajectories = {t.id: t for t in store.journal.trajectories()}
        overlays = {o.trajectory_id: o for o in store.journal.overlays("run")}
        scorings = store.scorings.by_rubric("./mine.py:tidy_rubric")
    assert set(trajectories) == set(overlays) == set(scorings)
    faulty = {id_ for id_, scoring in scorings.items() if not scoring.rewards}
    assert faulty == {id_ for id_, t in trajectories.items() if not t.rewards}
    assert {overlays[id_].drop_reason for id_ in faulty} <= {DropReason.NOT_SCORED}
    assert {s.fault for id_ in faulty for s in scorings[id_].scores if s.fault} <= {
        RewardFault.RAISED
    }
    assert all(
        overlays[id_].reward == t.rewards["reward"] for id_, t in trajectories.items() if t.rewards
    )
    (row,) = read_metrics(here / "run" / "metrics.jsonl")
    assert {
        "reward/tidy",
        "reward/brief",
        "reward/wordy",
        "reward/reward",
        "reward_seconds",
    } <= row.keys()
    assert row["stepped"]


OWN_GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

class Notes(BaseModel):
    pages: int

class State(TypedDict, total=False):
    question: str
    notes: Notes
    answer: str

def solve(state):
    return {"answer": "12", "notes": Notes(pages=3)}

graph = StateGraph(State).add_node("solve", solve).add_edge(START, "solve").compile()

def noted(state):
    return state["notes"].pages / 4
"""


def test_a_reward_reads_a_state_of_the_users_own_types(here: Path) -> None:
    (here / "own.py").write_text(OWN_GRAPH)
    config = CollectConfig(
        policy="scripted", count=2, graph="./own.py:graph", rewards="./own.py:noted"
    )
    with ScriptedEngine(lambda _: "x") as engine:
        found = asyncio.run(collect(config, here / "run", backend=engine))
    assert [t.rewards["noted"] for t in found] == [0.75, 0.75]


def test_a_write_that_fails_ends_the_rescoring(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedEngine(lambda _: "<answer>\\boxed{1}</answer>") as engine:
        collected(here / "run", "answer:boxed", engine)

    def full(*_: object, **__: object) -> None:
        raise StoreFullError("The disk is full.", "Free some space.")

    async def again() -> None:
        with open_store(here / "run" / "store.db") as store:
            monkeypatch.setattr(store.scorings, "write", full)
            async with opened_scorer("answer:text") as scorer:
                await rescore(store, scorer, store.journal.headers())

    with pytest.raises(StoreFullError):
        asyncio.run(again())
