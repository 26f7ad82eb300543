"""Swaps of single roles: they equal whole runs from the same seeds, and repeat nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent.basics.intervals import Estimate
from hrm_agent.environment import LocalEnvironment
from hrm_agent.models import ActivePolicy, load_policy
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.settings import RolloutSettings
from hrm_agent.store import open_store
from hrm_agent.training.analysis.role_swaps import ALL, RoleSwap, SwappedRun, best_role, role_swaps
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.evaluation.budget import Meter
from hrm_agent.training.evaluation.prices import Prices
from hrm_agent.training.rollout.rollout import group_episodes, recorded_seed
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.tasks import load_tasks
from hrm_agent.trajectory import TaskRef, Trajectory

pytestmark = pytest.mark.whole

SAMPLING = RolloutSettings(temperature=1.0).sampling()
ROLES = ("plan", "solve", "critique", "synthesize")


@asynccontextmanager
async def running(
    file: Path, policy: Any, environment: LocalEnvironment
) -> AsyncGenerator[EpisodeRunner]:
    with open_store(file) as store:
        yield EpisodeRunner(store, policy, policy.name, environment, SAMPLING)


def episodes(run_id: str, count: int) -> list[Episode]:
    tasks = load_tasks("word_problems", split="eval", seed=3, count=count)
    return group_episodes(tasks, 1, run_id=run_id, stage="base", seed=3, graph="reasoning")


def sampled(each: Trajectory) -> list[tuple[str, list[int]]]:
    """Sampled tokens of each call, by its place."""
    return sorted(
        (
            call.identity.path,
            [token for token, free in zip(call.token_ids, call.mask, strict=True) if free],
        )
        for call in each.calls
    )


async def swaps(
    folder: Path,
    runs: list[SwappedRun],
    runner: EpisodeRunner,
    tried: Any,
    roles: tuple[str, ...] = ROLES,
    **options: Any,
) -> tuple[list[RoleSwap], Meter]:
    meter = Meter(folder / "asked.jsonl", Prices({}), None, runner.store.journal.calls_among)
    with open_store(folder / "base.db", read_only=True) as source:
        async with scoring_by(CollectConfig(), runner.store) as score:
            found = await role_swaps(
                runner,
                source,
                runs,
                roles,
                ActivePolicy(tried, SAMPLING),
                score,
                meter,
                run_id="swaps",
                **options,
            )
    return found, meter


async def test_a_swap_is_the_whole_run_from_its_seed_without_what_is_on_record(
    tmp_path: Path, environment: LocalEnvironment
) -> None:
    cold: Any = load_policy("builtin:roles-cold-start")
    trained: Any = load_policy("builtin:trained")
    begun = episodes("base", 3)
    async with running(tmp_path / "base.db", cold, environment) as runner:
        base = await runner.run_all(begun)
        headers = runner.store.journal.headers("run_id = ?", ("base",))
        by_thread = {header.thread_id: header for header in headers}
    runs = [
        SwappedRun(
            by_thread[each.thread_id],
            frozenset(call.identity.role for call in each.calls),
            {},
            recorded_seed(each, 3) or 0,
            episode.verify,
        )
        for each, episode in zip(base, begun, strict=True)
    ]
    assert [run.seed for run in runs] == [episode.seed for episode in begun]
    assert recorded_seed(base[0], 4) is None

    async with running(tmp_path / "whole.db", cold, environment) as runner:
        expected = {
            role: await replace(runner, by_role={role: ActivePolicy(trained, SAMPLING)}).run_all(
                episodes(role, 3)
            )
            for role in ROLES
        }
    async with running(tmp_path / "swaps.db", cold, environment) as runner:
        found, meter = await swaps(tmp_path, runs, runner, trained)
        journal = runner.store.journal
        for role in ROLES:
            for origin, each in zip(base, expected[role], strict=True):
                swapped = journal.trajectory(f"swaps/{role}/{origin.thread_id}")
                assert sampled(swapped) == sampled(each)
                assert (swapped.answer, swapped.outcome) == (each.answer, each.outcome)
                first = min(
                    call.identity.path for call in swapped.calls if call.identity.role == role
                )
                asked = [call for call in swapped.calls if meter.was_asked(call.id)]
                assert {call.model for call in asked if call.identity.role == role} == {
                    trained.name
                }
                earlier = [call for call in swapped.calls if call.identity.path < first]
                assert not any(meter.was_asked(call.id) for call in earlier)
                tools = {tool.started_at for tool in origin.tool_calls}
                if role in ("critique", "synthesize"):  # the solvers come before them
                    assert tools <= {tool.started_at for tool in swapped.tool_calls}
        gains = {each.role: each.comparison.b.pass_at_1.value for each in found}
        assert gains == {role: sum(each.outcome for each in expected[role]) / 3 for role in ROLES}
        recorded = sum(each.sampled_tokens for each in base)
        whole = sum(each.sampled_tokens for ended in expected.values() for each in ended)
        assert recorded + meter.total.sampled < 0.6 * (recorded + whole)

        lines = (tmp_path / "asked.jsonl").read_text()
        again, _ = await swaps(tmp_path, runs, runner, trained)
        assert again == found and (tmp_path / "asked.jsonl").read_text() == lines

    verified = list[str]()

    def fails_once(answer: str) -> float:
        verified.append(answer)
        if len(verified) == 1:
            raise OSError("the machine failed")
        return 1.0

    async with running(tmp_path / "twice.db", cold, environment) as runner:
        folder = tmp_path / "twice"
        folder.mkdir()
        (tmp_path / "base.db").rename(folder / "base.db")
        one = replace(runs[0], verify=fails_once)
        (swap,), meter = await swaps(folder, [one], runner, trained, ("solve",))
        assert len(verified) == 2 and swap.comparison.b.pass_at_1.value == 1
        # the row has the requests of both attempts
        assert swap.tokens == meter.total.tokens > 0


def ask(role: str) -> Any:
    model = FakeListChatModel(responses=[f"{role} of its own"])
    return lambda state: {"messages": [model.invoke(state["messages"])]}


builder = StateGraph(MessagesState).add_node("first", ask("first")).add_node("last", ask("last"))
graph = builder.add_edge(START, "first").add_edge("first", "last").compile()


async def test_a_policy_stands_in_for_the_model_of_its_role_alone(
    tmp_path: Path, environment: LocalEnvironment
) -> None:
    engine = ScriptedEngine(["of the policy"] * 4)
    async with running(tmp_path / "base.db", engine, environment) as runner:
        task = TaskRef(id="t", family="f", prompt="Say it.")
        for role, said in (("first", "last of its own"), ("last", "of the policy")):
            swapped = replace(runner, by_role={role: ActivePolicy(engine, SAMPLING)})
            ended = await swapped.run(Episode(task, role, graph=graph))
            assert ended.answer == said
            models = {call.identity.role: call.model for call in ended.calls}
            assert models[role] == engine.name
            assert set(models.values()) == {engine.name, "FakeListChatModel"}


def test_the_best_role_is_the_one_whose_interval_lies_above_0() -> None:
    class Known:
        def __init__(self, role: str, gain: float, low: float) -> None:
            self.role = role
            self.gain = gain
            self.clear = Estimate(gain, low, 1.0).low > 0

    rows: Any = [Known("a", 0.3, -0.1), Known("b", 0.1, 0.05), Known(ALL, 0.5, 0.4)]
    assert best_role(rows) == "b"
    assert best_role(rows[:1]) == ""
