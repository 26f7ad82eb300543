"""BFCL (Patil et al. 2025, ICML): `bfcl:FILE?answers=FILE`, the single-turn files for Python.

FILE has JSON lines with `id`, `question` (one list of messages) and `function` (descriptions). The
answers, with `id` and `ground_truth`, are in the file of the same name in the folder
`possible_answer` beside it, unless `answers` names another. The category of a row is in its id:

| category | right is |
|---|---|
| `simple`, `multiple`, `parallel`, `parallel_multiple`, each also `live_` | calls that match |
| `irrelevance`, `live_irrelevance` | no call |
| `live_relevance` | some call |

Rows of Java and JavaScript, of several turns, of memory and of web search are refused.

A task offers its functions as tools of the graph's input, in the types of JSON Schema, and with `_`
for `.` in their names, as for models that call tools. The graph must offer them and not run them
(`hrm_agent.graphs.single_call`). The verifier reads the tool calls of the run's first answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from hrm_agent.errors import TaskError
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.published.bfcl_match import TYPES, ExpectedCall, all_match
from hrm_agent.training.tasks.published.rows import field, options_of, published_rows, some, text
from hrm_agent.training.tasks.tables import TableRow, in_drawn_order, json_rows
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.formats.shared.messages import answer_of

__all__ = ["answers_file", "bfcl_run_verifier", "load_bfcl"]

_CATEGORY = re.compile(
    r"(?:live_)?(simple_python|simple|multiple|parallel_multiple|parallel|irrelevance|relevance)_[0-9]"
)
_WITHOUT_ANSWERS = ("irrelevance", "relevance")
_JSON_TYPES = {"any": "string", "dict": "object", "float": "number", "tuple": "array"}
"""Type in a description -> type in JSON Schema, if they differ."""
_CATEGORY_KEY, _EXPECTED_KEY = "category", "expected"
"""Keys in a task's metadata: category of the row, and its calls as `ExpectedCall`."""
_GIVE = "Give the published file."

RunVerifier = Callable[[Trajectory], float | Mapping[str, float] | None]


def load_bfcl(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` rows (None: all) of a file of BFCL. Raises `TaskError`."""
    path = answers_file(spec, split, folder)
    rows = published_rows(spec, split, folder)
    categories = [_category(row) for row in rows]
    answers: dict[str, TableRow] = {}
    if not set(categories) <= {*_WITHOUT_ANSWERS}:
        answers = {text(row, "id"): row for row in some(json_rows(path), path)}
    tasks: list[Task] = []
    for row, category in zip(rows, categories, strict=True):
        functions = _functions(row)
        name = text(row, "id")
        expected: list[ExpectedCall] = []
        if category not in _WITHOUT_ANSWERS:
            if name not in answers:
                raise TaskError(
                    f"{row.where}: {path} has no answer with the id {name!r}.",
                    "Name the file with its answers: ?answers=FILE.",
                )
            expected = _expected(answers[name], functions)
        messages = _messages(row)
        metadata = {**row.metadata, _CATEGORY_KEY: category, _EXPECTED_KEY: expected}
        tasks.append(
            Task(
                id=name,
                family=f"bfcl:{spec}",
                prompt=str(messages[-1]["content"]),
                metadata=metadata,
                inputs={"messages": messages, "tools": [_tool(one) for one in functions.values()]},
                verify_run=bfcl_run_verifier(metadata),
            )
        )
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def answers_file(spec: str, split: str, folder: Path | None) -> Path:
    """Path of the file with the answers."""
    options = options_of("bfcl", spec, ("answers",))
    location = Path(unquote(spec.partition("?")[0]))
    name = options.get("answers") or str(location.parent / "possible_answer" / location.name)
    return Path(folder or "", Path(name.replace("{split}", split)).expanduser())


def bfcl_run_verifier(metadata: Mapping[str, Any]) -> RunVerifier | None:
    """Verifier of a row's runs, from the task's metadata (None if that has no category)."""
    category = metadata.get(_CATEGORY_KEY)
    if not isinstance(category, str):
        return None

    def verify(trajectory: Trajectory) -> float:
        if not trajectory.calls:  # the prompt was too long to ask the model
            return 0.0
        first = trajectory.calls[0]
        if first.tools == ():
            raise ValueError(
                "the graph did not offer the functions of the task; take --graph"
                " hrm_agent.graphs.single_call:graph"
            )
        answer = answer_of(first)
        calls = [(call["name"], call["args"]) for call in answer.tool_calls]
        if category in _WITHOUT_ANSWERS:
            return float(bool(calls) == (category == "relevance"))
        expected = cast("list[ExpectedCall]", metadata[_EXPECTED_KEY])
        return float(not answer.invalid_tool_calls and all_match(calls, expected))

    return verify


def _category(row: TableRow) -> str:
    name = text(row, "id")
    match = _CATEGORY.match(name)
    if match is None:
        raise TaskError(
            f"{row.where}: rows like {name!r} are not supported.",
            "Give a single-turn file for Python: simple, multiple, parallel, parallel_multiple,"
            " irrelevance, or a live one of these.",
        )
    return match[1]


def _messages(row: TableRow) -> list[dict[str, Any]]:
    match field(row, "question", list, "a list of turns"):
        case [[*messages, {"role": "user", "content": str()} as last]] if all(
            isinstance(each, dict) for each in messages
        ):
            return cast("list[dict[str, Any]]", [*messages, last])
        case _:
            raise TaskError(
                f"{row.where}: `question` is not one list of messages that a user's ends.", _GIVE
            )


def _functions(row: TableRow) -> dict[str, dict[str, Any]]:
    """Descriptions of the functions by name."""
    found: dict[str, dict[str, Any]] = {}
    for function in field(row, "function", list, "a list of functions"):
        match function:
            case {"name": str(name), "parameters": {"properties": dict()}}:
                found[name] = function
            case _:
                raise TaskError(f"{row.where}: a function has no name or parameters.", _GIVE)
    return found


def _expected(row: TableRow, functions: Mapping[str, dict[str, Any]]) -> list[ExpectedCall]:
    found: list[ExpectedCall] = []
    for call in field(row, "ground_truth", list, "a list of calls"):
        match call:
            case dict() if len(cast("dict[str, Any]", call)) == 1:
                ((name, right),) = cast("dict[str, Any]", call).items()
            case _:
                raise TaskError(f"{row.where}: a call is not one function's.", _GIVE)
        if name not in functions:
            raise TaskError(f"{row.where}: no function {name!r} is offered.", _GIVE)
        if not isinstance(right, dict) or not all(
            isinstance(each, list) for each in cast("dict[str, Any]", right).values()
        ):
            raise TaskError(f"{row.where}: right values are not lists, of {name!r}.", _GIVE)
        found.append(_expected_call(row, functions[name], cast("dict[str, list[Any]]", right)))
    if not found:
        raise TaskError(f"{row.where}: there is no call.", _GIVE)
    return found


def _expected_call(
    row: TableRow, function: Mapping[str, Any], right: Mapping[str, list[Any]]
) -> ExpectedCall:
    schema = function["parameters"]
    properties: dict[str, dict[str, Any]] = schema["properties"]
    expected: ExpectedCall = {
        "name": _offered(function["name"]),
        "needed": [
            *schema.get("required", ()),
            *(name for name, values in right.items() if "" not in values),
        ],
        "parameters": {},
    }
    for name in right.keys() & properties.keys():
        kind = properties[name].get("type")
        items = (
            properties[name].get("items", {}).get("type") if kind in ("array", "tuple") else None
        )
        for each in (kind, *([items] if kind in ("array", "tuple") else ())):
            if each not in TYPES:
                raise TaskError(
                    f"{row.where}: the parameter {name!r} of {function['name']!r} has the unknown"
                    f" type {each!r}.",
                    f"Types: {', '.join(TYPES)}.",
                )
        expected["parameters"][name] = {"type": str(kind), "items": items, "right": right[name]}
    return expected


def _offered(name: str) -> str:
    """Name under which a function is offered."""
    return name.replace(".", "_")


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    """Tool in OpenAI's form."""
    return {
        "type": "function",
        "function": {
            "name": _offered(function["name"]),
            "description": function.get("description", ""),
            "parameters": _json_schema(function["parameters"]),
        },
    }


def _json_schema(value: Any) -> Any:
    """Schema in the types of JSON Schema. A property that is called `type` is kept, since its value
    is a schema.
    """
    if isinstance(value, list):
        return [_json_schema(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        key: _JSON_TYPES.get(one, one)
        if key == "type" and isinstance(one, str)
        else _json_schema(one)
        for key, one in cast("dict[str, Any]", value).items()
    }
