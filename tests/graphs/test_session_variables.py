"""Data of a task and results of other solvers, as session variables in the built-in graphs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from hrm_agent.cli.records.request_hints import known_from, states_of
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.graphs.parts.prompts import SOLVER_PROMPT
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.tools.session_variables import MAX_DATA_BYTES
from hrm_agent.training.select.penalties import count_calls
from hrm_agent.trajectory import SessionState, TaskRef, ToolStatus, Trajectory
from hrm_agent.trajectory.formats import export_to
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.scripts import Roles, boxed, call

GRID = [[1, 2], [3, 4]]
TASK = TaskRef(
    id="1",
    family="f",
    prompt="Flip it, and add. Return 'Answer: <grid>'.",
    metadata={"data": {"grid": GRID}},
)


class UsesVariables(Roles):
    """Solvers that copy nothing from their prompt into their code."""

    plan: Any = {
        "subgoals": [
            {"name": "flipped", "goal": "the grid upside down", "needs": []},
            {"name": "total", "goal": "the sum of its first row", "needs": ["flipped"]},
        ]
    }
    codes = {
        "the grid upside down": "data['grid'][::-1]",
        "the sum of its first row": "sum(results['flipped'][0])",
    }

    def __init__(self) -> None:
        super().__init__()
        self.system: list[str] = []
        self.gone = False

    def __call__(self, messages: Sequence[BaseMessage]) -> str:
        if not messages[0].text.startswith(SOLVER_PROMPT):
            return super().__call__(messages)
        self.system.append(messages[0].text)
        return self.solver(messages)

    def solver(self, messages: Sequence[BaseMessage]) -> str:
        goal = messages[1].text.partition("Subgoal: ")[2].splitlines()[0]
        if messages[-1].type != "tool":
            return call(self.codes[goal])
        if self.gone and goal == "the sum of its first row":
            raise HrmError("The server is gone.", "Start it.")
        return boxed(messages[-1].text)


async def run(
    script: Any,
    store: RunStore,
    environment: LocalEnvironment,
    graph: str = "reasoning",
    task: TaskRef = TASK,
) -> Trajectory:
    with ScriptedEngine(script) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        return await runner.run(
            Episode(task, "thread", graph=graph, context={"session_variables": True}, seed=1)
        )


async def test_solvers_compute_on_data_and_results(
    store: RunStore, environment: LocalEnvironment
) -> None:
    roles = UsesVariables()
    trajectory = await run(roles, store, environment)
    assert [(c.value, c.session) for c in trajectory.tool_calls] == [
        ("[[3, 4], [1, 2]]", SessionState.NEW),
        ("7", SessionState.NEW),
    ]
    told = (
        "task (the problem's text), data (what the problem comes with), results (dict of the known"
        " values by name)"
    )
    assert set(roles.system) == {f"{SOLVER_PROMPT}\nVariables of the python session: {told}."}
    assert trajectory.answer == "Answer: 7" and lint(trajectory) == []
    assert count_calls(trajectory.tool_calls).effective == 2, (
        "nothing is counted but what the policy asked for"
    )
    assert (await replay_async(store, "thread")).equal


async def test_a_resumed_run_has_them_again(store: RunStore, environment: LocalEnvironment) -> None:
    roles = UsesVariables()
    roles.codes = roles.codes | {"the sum of its first row": "results['flipped'].pop()"}
    roles.gone = True
    with pytest.raises(HrmError):
        await run(roles, store, environment)
    roles.gone = False
    roles.solver = lambda messages: (  # pyright: ignore[reportAttributeAccessIssue]
        call("task[:4], results") if len(messages) == 4 else boxed(7)
    )
    trajectory = await run(roles, store, environment)
    assert [c.value for c in trajectory.tool_calls][1:] == [
        "[1, 2]",
        "('Flip', {'flipped': [[3, 4]]})",
    ]
    assert trajectory.tool_calls[-1].session is SessionState.REPLAYED and lint(trajectory) == []


async def test_the_tool_loop_has_the_tasks_data(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path
) -> None:
    trajectory = await run([call("data['grid'][0]"), boxed(1)], store, environment, "tool_loop")
    assert [(c.status, c.value) for c in trajectory.tool_calls] == [(ToolStatus.OK, "[1, 2]")]
    known = known_from(None, None, states_of(store.checkpointer))
    assert export_to(tmp_path / "x.jsonl", store.journal.trajectories(), "chat", known).rows == 1
    system = json.loads((tmp_path / "x.jsonl").read_text())["messages"][0]["content"]
    assert system.endswith("\nVariables of the python session: data (what the problem comes with).")


@pytest.mark.parametrize("graph", ["tool_loop", "reasoning"])
async def test_without_data_nothing_is_said_of_any(
    graph: str, store: RunStore, environment: LocalEnvironment
) -> None:
    plain = TASK.model_copy(update={"metadata": {}})
    roles = UsesVariables()
    roles.codes = dict.fromkeys(roles.codes, "'data' in globals()")
    script: Any = roles if graph == "reasoning" else [call("'data' in globals()"), boxed(1)]
    trajectory = await run(script, store, environment, graph, plain)
    assert {c.value for c in trajectory.tool_calls} == {"False"}
    assert all("data" not in text for text in roles.system)


async def test_too_much_data_is_refused_at_once(
    store: RunStore, environment: LocalEnvironment
) -> None:
    large = TASK.model_copy(update={"metadata": {"data": "x" * MAX_DATA_BYTES}})
    with pytest.raises(ConfigError, match="variables take 262,1"):
        await run([], store, environment, "tool_loop", large)
