"""BFCL in its published form, on rows made up for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ConfigError, TaskError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.tasks import Task, load_tasks, run_verifier_of
from hrm_agent.training.tasks.published.bfcl_match import ExpectedParameter, all_match
from hrm_agent.training.tasks.sources import changed_sources, keep_sources
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.lint import lint

SINGLE_CALL = "hrm_agent.graphs.single_call:graph"
AREA = {
    "name": "shape.area",
    "description": "Area of a rectangle.",
    "parameters": {
        "type": "dict",
        "properties": {
            "sides": {"type": "array", "items": {"type": "float"}, "description": "Both sides."},
            "unit": {"type": "string", "description": "Unit."},
            "style": {"type": "dict", "properties": {"type": {"type": "any"}}},
        },
        "required": ["sides"],
    },
}
RIGHT = {"shape.area": {"sides": [[2.5, 4.0]], "unit": ["sq. cm", ""]}}
OTHER = {"shape.area": {"sides": [[1.0, 1.5]], "unit": ["m"]}}


def row(name: str, **changes: Any) -> dict[str, Any]:
    said = [[{"role": "user", "content": "The area of 2.5 by 4?"}]]
    return {"id": name, "question": said, "function": [AREA], **changes}


def load(folder: Path, *rows: Mapping[str, Any], **answers: list[Any]) -> dict[str, Task]:
    (folder / "possible_answer").mkdir(exist_ok=True)
    given = [{"id": name, "ground_truth": truth} for name, truth in answers.items()]
    for path, found in (("B.json", rows), ("possible_answer/B.json", given)):
        (folder / path).write_text("".join(json.dumps(one) + "\n" for one in found))
    return {t.id: t for t in load_tasks("bfcl:B.json", split="eval", seed=0, folder=folder)}


def call(*sides: float, name: str = "shape_area", **more: Any) -> str:
    arguments = {"sides": sides, **more}
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def run(
    task: Task, said: str, store: RunStore, environment: LocalEnvironment, graph: str = SINGLE_CALL
) -> Trajectory:
    with ScriptedEngine([said]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        name = f"{task.id}-{len(store.journal.headers())}"
        return await runner.run(
            Episode(task.ref(), name, graph=graph, seed=1, verify_run=task.verify_run)
        )


async def test_calls_are_recorded_not_run_and_matched(
    tmp_path: Path, store: RunStore, environment: LocalEnvironment
) -> None:
    tasks = load(
        tmp_path,
        row("simple_python_0"),
        row("live_parallel_0-0-0"),
        simple_python_0=[RIGHT],
        **{"live_parallel_0-0-0": [RIGHT, OTHER]},
    )
    broken = call(2.5, 4.0).replace("}}</tool_call>", "")
    for name, said, expected in (
        ("simple_python_0", call(2.5, 4.0), 1),
        ("simple_python_0", call(2.5, 4.0, unit="Sq cm"), 1),
        ("simple_python_0", call(2.5, 4.0, unit="m"), 0),
        ("simple_python_0", call(2.5, 4.0, name="area"), 0),
        ("simple_python_0", call(2.5, 4.0) * 2, 0),
        ("simple_python_0", broken, 0),
        ("simple_python_0", "10", 0),
        ("live_parallel_0-0-0", call(1.0, 1.5, unit="m") + call(2.5, 4.0), 1),
        ("live_parallel_0-0-0", call(1.0, 1.5) + call(2.5, 4.0), 0),
        ("live_parallel_0-0-0", call(2.5, 4.0), 0),
    ):
        found = await run(tasks[name], said, store, environment)
        assert found.rewards == {"correct": expected}, (name, said, found.error)
        assert found.tool_calls == () and len(found.calls) == 1 and lint(found) == []
        again = run_verifier_of(found.task)
        assert again is not None and again(found) == expected
    assert found.calls[0].tools is not None
    offered = found.calls[0].tools[0]["function"]
    assert offered["name"] == "shape_area" and offered["parameters"]["type"] == "object"
    properties = offered["parameters"]["properties"]
    assert properties["sides"]["items"] == {"type": "number"}
    assert properties["style"]["properties"] == {"type": {"type": "string"}}


async def test_a_call_is_wrong_where_none_is_relevant(
    tmp_path: Path, store: RunStore, environment: LocalEnvironment
) -> None:
    tasks = load(tmp_path, row("irrelevance_0"), row("live_relevance_0-0-0"))
    for said, none, some in (("I cannot.", 1, 0), (call(1.0), 0, 1)):
        assert (await run(tasks["irrelevance_0"], said, store, environment)).outcome == none
        assert (await run(tasks["live_relevance_0-0-0"], said, store, environment)).outcome == some


async def test_a_graph_that_does_not_offer_the_functions_is_told(
    tmp_path: Path, store: RunStore, environment: LocalEnvironment
) -> None:
    (task,) = load(tmp_path, row("irrelevance_0")).values()
    with pytest.raises(ConfigError, match="input has no field 'tools'"):
        await run(task, "no", store, environment, "tool_loop")
    (tmp_path / "deaf.py").write_text(
        "from hrm_agent.graphs.single_call import CallState, ask\n"
        "from langgraph.graph import START, StateGraph\n"
        "async def deaf(state, runtime):\n"
        "    return await ask({**state, 'tools': []}, runtime)\n"
        "graph = StateGraph(CallState).add_node('deaf', deaf).add_edge(START, 'deaf').compile()\n"
    )
    found = await run(task, "no", store, environment, f"{tmp_path / 'deaf.py'}:graph")
    assert found.rewards == {} and found.error is not None
    assert "take --graph hrm_agent.graphs.single_call:graph" in found.error


@pytest.mark.parametrize(
    ("parameter", "right", "wrong"),
    [
        (("integer", None, [3]), [3], [3.0, True, "3", [3], None]),
        (("float", None, [3, 2.5]), [3, 3.0, 2.5], ["3", 2]),
        (("boolean", None, [True]), [True], [False, 1, "true"]),
        (("string", None, ["San José, CA", ""]), ["san josé,ca", "San José/CA", ""], ["San Jose"]),
        (("any", None, ["it's"]), ['IT"S'], ["its"]),
        (("integer", None, ["n"]), ["n"], ["N", 3]),
        (("array", "string", [["a b", "c"]]), [["AB", "c"]], [["c", "a b"], ["ab"], "ab", []]),
        (("array", "float", [[1.0, 2.0]]), [[1.0, 2.0]], [[1, 2]]),
        (("tuple", "integer", [[1, 2], [2, 1]]), [[1, 2], [2, 1]], [[1.0, 2.0], [1, 2, 3]]),
        (
            ("dict", None, [{"a": ["x"], "b": [1, ""]}]),
            [{"a": "X"}, {"a": "x", "b": 1}],
            [{"b": 1}, {"a": "x", "c": 1}, {"a": "x", "b": 2}, {}, []],
        ),
        (
            ("array", "dict", [[{"a": [1]}, {"a": [2]}]]),
            [[{"a": 1}, {"a": 2}]],
            [[{"a": 2}, {"a": 1}], [{"a": 1}], [1, 2]],
        ),
    ],
)
def test_values_match_by_the_type_of_their_parameter(
    parameter: tuple[str, str | None, list[Any]], right: list[Any], wrong: list[Any]
) -> None:
    kind, items, values = parameter
    known: ExpectedParameter = {"type": kind, "items": items, "right": values}
    for value in [*right, *wrong]:
        expected = {"name": "f", "needed": ["p"], "parameters": {"p": known}}
        assert all_match([("f", {"p": value})], [expected]) == any(value is one for one in right)


@pytest.mark.parametrize(
    ("changes", "truth", "said"),
    [
        ({"id": "simple_java_0"}, [RIGHT], "rows like 'simple_java_0' are not supported"),
        ({"id": "multi_turn_base_0"}, [RIGHT], "rows like 'multi_turn_base_0' are not supported"),
        ({"id": "simple_1"}, [RIGHT], "has no answer with the id 'simple_1'"),
        ({"question": ["a?"]}, [RIGHT], "`question` is not one list of messages"),
        ({"function": [{"name": "f"}]}, [RIGHT], "a function has no name or parameters"),
        ({}, [{"other": {}}], "no function 'other' is offered"),
        ({}, [{"shape.area": {"unit": "m"}}], "right values are not lists"),
        ({}, [], "there is no call"),
        (
            {"function": [{"name": "f", "parameters": {"properties": {"a": {"type": "set"}}}}]},
            [{"f": {"a": [1]}}],
            "the parameter 'a' of 'f' has the unknown type 'set'",
        ),
    ],
)
def test_what_cannot_be_matched_is_refused(
    changes: Mapping[str, Any], truth: list[Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError) as caught:
        load(tmp_path, row("simple_0", **changes), simple_0=truth)
    assert said in str(caught.value)


def test_a_change_of_the_answers_is_told(tmp_path: Path) -> None:
    load(tmp_path, row("simple_0"), simple_0=[RIGHT])
    spec = f"bfcl:{tmp_path}/B.json"
    keep_sources(spec, "eval", tmp_path)
    assert changed_sources(spec, "eval", tmp_path) == []
    load(tmp_path, row("simple_0"), simple_0=[OTHER])
    assert changed_sources(spec, "eval", tmp_path) == ["the answers B.json"]
    with pytest.raises(TaskError, match=r"Cannot read .*none\.json"):
        load_tasks(f"{spec}?answers=none.json", split="eval", seed=0)
