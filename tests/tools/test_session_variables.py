"""Initial variables of sessions: in a new session and in a rebuilt one, but not in the record."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage

from hrm_agent.environment import Limits, LocalEnvironment, using_environment
from hrm_agent.environment.base import ExecutionResult
from hrm_agent.errors import ConfigError
from hrm_agent.store import RunStore
from hrm_agent.tools import python, run_tool_calls
from hrm_agent.tools.python_tool import PythonTool
from hrm_agent.tools.session_variables import MAX_BYTES, as_value, variables_cell, without_variables
from hrm_agent.trajectory import Recording, SessionState, ToolStatus, recording
from tests.support.tools.cells import Cells

THREAD: Any = {"configurable": {"thread_id": "t"}, "metadata": {"thread_id": "t"}}
GRIDS = {
    "data": {"grid": [[1, 2], [3, 4]], "note": "'''; raise SystemExit\n\u2028\\ é \ud83d"},
    "task": "Flip.",
}


def with_variables(values: dict[str, Any] | None = None) -> PythonTool:
    return python.model_copy(update={"variables": GRIDS if values is None else values})


async def run(tool: PythonTool, code: str, number: int = 0) -> str:
    asked = AIMessage(
        "", tool_calls=[{"name": "python", "args": {"code": code}, "id": f"c{number}"}]
    )
    (message,) = await run_tool_calls(asked, [tool], THREAD)
    return message.text


@pytest.mark.parametrize("recorded", [True, False])
async def test_code_finds_them(
    recorded: bool, store: RunStore, environment: LocalEnvironment
) -> None:
    active = Recording(store.journal) if recorded else None
    with (
        recording(active) if active else using_environment(environment),
        using_environment(environment),
    ):
        assert await run(with_variables(), "data['grid'][::-1]", 1) == "[[3, 4], [1, 2]]"
        assert (
            await run(
                with_variables(),
                "data['note'] == \"'''; raise SystemExit\\n\\u2028\\\\ é \\ud83d\"",
                2,
            )
            == "True"
        )
        assert await run(with_variables(), "task, data['grid'].pop()", 3) == "('Flip.', [3, 4])"
        assert await run(with_variables(), "data['grid']", 4) == "[[1, 2]]", (
            "set once, then the session's own"
        )
    if recorded:
        first, *others = store.journal.tool_calls()
        assert first.arguments == {"code": "data['grid'][::-1]"} and len(others) == 3
        assert [call.session for call in (first, *others)] == [SessionState.NEW] + [
            SessionState.KEPT
        ] * 3


async def test_a_session_that_died_is_built_again_with_them(
    store: RunStore, environment: LocalEnvironment
) -> None:
    with recording(Recording(store.journal)), using_environment(environment):
        await run(with_variables(), "data['grid'].pop()", 1)
        hasty = with_variables().model_copy(update={"limits": Limits(wall_seconds=0.5)})
        await run(hasty, "import time\ntime.sleep(60)", 2)
        assert await run(with_variables(), "data['grid']", 3) == "[[1, 2]]"
    calls = store.journal.tool_calls()
    assert [call.session for call in calls] == [
        SessionState.NEW,
        SessionState.KEPT,
        SessionState.REPLAYED,
    ]


async def test_numbers_of_calls_do_not_count_them(store: RunStore) -> None:
    with recording(Recording(store.journal)), using_environment(Cells()) as environment:
        await run(with_variables(), "import random\nrandom.SystemRandom().random()", 1)
        environment.living.clear()
        shown = await run(with_variables(), "1", 2)
    assert shown.splitlines()[0].endswith("call 1 came out differently this time.")
    assert store.journal.tool_calls()[1].changed_cells == (1,)


def test_a_session_without_them_is_told_to_be_lost() -> None:
    failed = ExecutionResult(ToolStatus.OK, session=SessionState.DIFFERS, changed_cells=(1,))
    assert without_variables(failed, first=True).session is SessionState.LOST


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"data": "x" * MAX_BYTES}, "take 524,3"),
        ({"data": object()}, "'data' are not JSON"),
    ],
)
def test_what_does_not_fit_is_refused(variables: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        variables_cell(variables)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("[[1, 0]]", [[1, 0]]),
        ("12 hens", "12 hens"),
        ("NaN", "NaN"),
        ("9" * 5000, "9" * 5000),
        ("[" * 2000, "[" * 2000),
        ("[" * 100_000 + "]" * 100_000, "[" * 100_000 + "]" * 100_000),
    ],
    ids=["number", "grid", "text", "NaN", "long number", "open", "deep"],
)
def test_a_result_is_a_value_where_it_is_json(text: str, value: Any) -> None:
    assert as_value(text) == value
