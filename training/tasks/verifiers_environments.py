"""Environments of the library `verifiers`: `verifiers:NAME?argument=value`, with the arguments of
`verifiers.load_environment`.

The rows of an environment's data set become tasks, and its rubric gives their rewards. The graph
does what the environment itself would do during a run. Supported are environments of one turn, and
environments whose tools a graph can use (`environment_tools`). Environments that need several
turns, a state or a group of environments are refused, with the reason.

This module uses the library's v0 interface, which exists up to version 0.3. Tasksets of its v1
interface are played in the library itself (`hrm_agent.training.tasks.environments`): with
`python=PATH` in the interpreter that has the library, or in this one if version 0.4 is installed.

If a function of the
rubric raises an error, the library scores 0, but this module raises the error: a fault of a judge
must not count as a wrong answer.
"""

from __future__ import annotations

import inspect
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import convert_to_openai_messages

from hrm_agent.basics.async_bridge import run_sync
from hrm_agent.errors import HrmError, TaskError
from hrm_agent.import_by_name import search_in
from hrm_agent.training.tasks.base import Task
from hrm_agent.training.tasks.environments import load_episodes, placed_interpreter
from hrm_agent.training.tasks.items import tasks_of_items
from hrm_agent.training.tasks.spec import one_line, read_parameters
from hrm_agent.trajectory import Trajectory, derive_seed
from hrm_agent.trajectory.formats.shared.messages import RequestHints, messages_of

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

__all__ = ["EnvironmentRubric", "completion_of", "environment_tools", "load_verifiers"]

Message = Mapping[str, Any]
"""Chat message in OpenAI's format: role, content, tool_calls."""

_OWN_RUN = ("rollout", "setup_state", "env_response", "call_tool")
"""Methods with which an environment takes part in a run."""


_STEP = {
    "response": None,
    "tokens": None,
    "reward": None,
    "advantage": None,
    "is_truncated": False,
    "extras": {},
}
"""Fields of the library's record of a model call, except for the messages."""


@dataclass(frozen=True, slots=True)
class EnvironmentRubric:
    """Rewards of an environment, for one row of its data set."""

    rubric: Any
    """Rubric of the library, a `Rubric` or `RubricGroup`."""
    row: Mapping[str, Any]
    """Row of the data set: prompt, answer, info, example_id."""

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the functions by name (0 for a function that is only monitored)."""
        return {name: weight for name, weight, _, _ in _functions(self.rubric)}

    async def score(
        self, completion: Sequence[Message], state: Mapping[str, Any] | None = None
    ) -> dict[str, float]:
        """Score the messages that answer the prompt. Returns values by function name.

        `state`: further entries of the library's `State`, which the functions read. Raises the
        errors of functions, and `ValueError` for a value that is not a finite number.
        """
        full: Any = _library().State(input=dict(self.row))
        prompt = _messages(self.row["prompt"])
        said = _messages(list(completion))
        full["task"], full["prompt"], full["completion"] = dict(self.row), prompt, said
        full["trajectory"] = [
            {**_STEP, "prompt": [*prompt, *said[:place]], "completion": [message]}
            for place, message in enumerate(said)
            if message["role"] == "assistant"
        ]
        full.update({"reward": None, "metrics": None, **(state or {})})
        return {
            name: await _value(part, function, full)
            for name, _, part, function in _functions(self.rubric)
        }

    def verify(self, text: str) -> float:
        """Score of a final text alone, as a share of full marks (at least 0): the weighted sum of
        values, divided by the sum of the positive weights.
        """
        return self._share([{"role": "assistant", "content": text}])

    def verify_run(self, trajectory: Trajectory) -> float:
        """Score of a whole run (answers with tool calls, and tool outputs), as a share of full
        marks.
        """
        return self._share(completion_of(trajectory))

    def _share(self, completion: Sequence[Message]) -> float:
        values = run_sync(self.score(completion))
        weights = self.weights
        full = math.fsum(weight for weight in weights.values() if weight > 0)
        return max(0.0, math.fsum(weights[name] * value for name, value in values.items()) / full)


def completion_of(trajectory: Trajectory) -> list[Message]:
    """Messages that a run has added to its first prompt, in OpenAI's format.

    If the last model call does not continue the messages of the first call (in a graph with several
    roles, or if messages were rewritten), it is only the final text.
    """
    calls = trajectory.own_calls
    seen = [messages_of(call, trajectory, RequestHints()) for call in (*calls[:1], *calls[-1:])]
    first, last = (
        (convert_to_openai_messages(list(messages or ())) for messages in seen)
        if calls
        else ([], [])
    )
    begun = len(first) - 1  # the last message is the answer
    if begun < 0 or last[:begun] != first[:begun]:
        return [{"role": "assistant", "content": trajectory.answer or ""}]
    return cast("list[Message]", last[begun:])


def load_verifiers(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` rows (None: all) of the environment `NAME?argument=value` as tasks.

    Training takes the environment's data set. Evaluation takes the environment's data set for
    evaluation (the same one if there is no other). A taskset of the v1 interface is loaded if the
    query names an interpreter (`python`), or if the installed library has no other interface.
    """
    if "python" in read_parameters(spec.partition("?")[2]) or _has_only_v1():
        text = f"verifiers:{placed_interpreter(spec, folder)}"
        return load_episodes(text, split=split, seed=seed, count=count, shown=spec)
    environment = _environment(spec, str(Path(folder or "").resolve()))
    try:
        rows: Any = environment.get_eval_dataset() if split == "eval" else environment.get_dataset()
        order = random.Random(derive_seed(seed, "verifiers", split)).sample(
            range(len(rows)), len(rows)
        )[:count]
        tools = bool(getattr(environment, "tools", ()))
        tasks = [_task(rows[index], environment.rubric, tools=tools) for index in order]
    except Exception as error:  # raised by foreign code
        message = f"The data set of verifiers:{spec} cannot be read: {one_line(error)}."
        raise TaskError(message, "--debug shows the traceback.") from error
    return tasks_of_items(f"verifiers:{spec}", tasks, {"split": split, "seed": seed})


def environment_tools(spec: str) -> list[BaseTool]:
    """Tools of the environment `NAME?argument=value`, for a graph that runs its tasks."""
    from langchain_core.tools import StructuredTool

    return [
        (
            StructuredTool.from_function(coroutine=tool)
            if inspect.iscoroutinefunction(tool)
            else StructuredTool.from_function(tool)
        )
        for tool in getattr(_environment(spec, str(Path.cwd())), "tools", ())
    ]


@lru_cache(maxsize=8)
def _environment(spec: str, folder: str) -> Any:
    """Load an environment (cached). Raises `TaskError` if a graph cannot run its tasks."""
    name, _, query = spec.partition("?")
    library = _library()
    search_in(folder)
    try:
        environment = library.load_environment(name, **read_parameters(query))
    except (Exception, SystemExit) as error:
        message = f"The environment verifiers:{spec} cannot be loaded: {one_line(error)}."
        raise TaskError(
            message, f"Try `python -c 'import {name.split('/')[-1].replace('-', '_')}'`."
        ) from error
    if reason := _why_not(environment):
        raise TaskError(
            f"The environment verifiers:{spec} is not supported: {reason}.", "See docs/tasks.md."
        )
    return environment


def _has_only_v1() -> bool:
    """True if the installed library has the v1 interface alone."""
    try:
        found = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        return False
    return tuple(int(part) for part in re.findall(r"\d+", found)[:2]) >= (0, 4)


def _library() -> Any:
    try:
        import verifiers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise HrmError(
            "The library verifiers is not installed.",
            "Run: pip install 'verifiers<0.4'. Or name the interpreter that has version 0.4, with"
            " verifiers:NAME?python=PATH.",
        ) from error
    if not hasattr(verifiers, "load_environment") or not hasattr(verifiers, "ToolEnv"):
        version = getattr(verifiers, "__version__", "of this version")
        message = f"verifiers {version} has no load_environment of its v0 interface."
        raise HrmError(message, "Run: pip install 'verifiers<0.4'")
    return verifiers


def _why_not(environment: Any) -> str:
    """Reason why a graph cannot run the tasks of an environment (empty if it can)."""
    kinds = {kind.__name__: kind for kind in type(environment).__mro__}
    base = kinds.get("SingleTurnEnv") or kinds.get("ToolEnv")
    if "EnvGroup" in kinds:
        return "it is a group of environments; name them one by one, in a mix:"
    if "StatefulToolEnv" in kinds:
        return "its tools have a state that only it can set up"
    if base is None:
        return "it answers the model in turns of its own"
    if own := [
        name
        for name in _OWN_RUN
        if getattr(type(environment), name, None) is not getattr(base, name, None)
    ]:
        return f"it takes part in a run by its own {', '.join(own)}"
    if not all(hasattr(part, "score_objects") for part in _parts(environment.rubric)):
        return "its rubric is of a version of the library before 0.3"
    if environment.rubric.has_group_rewards:
        return "its rubric compares the answers of a group"
    if not any(weight > 0 for _, weight, _, _ in _functions(environment.rubric)):
        return "its rubric has no function with a positive weight"
    return ""


def _task(row: Mapping[str, Any], rubric: Any, *, tools: bool) -> Task:
    """Task of a row. `tools`: True if the environment has tools, so that the whole run
    is scored.
    """
    info = row.get("info")
    row = {**row, "info": json.loads(info) if isinstance(info, str) and info else info or {}}
    scored = EnvironmentRubric(rubric, row)
    prompt, inputs = _asked(row["prompt"])
    return Task(
        prompt=prompt,
        id=str(row["example_id"]),
        verify=scored.verify,
        answer=str(row["answer"]) if row.get("answer") not in (None, "") else None,
        metadata={"info": row["info"]} if row["info"] else {},
        inputs=inputs,
        verify_run=scored.verify_run if tools else None,
    )


def _asked(prompt: Any) -> tuple[str, dict[str, Any] | None]:
    """Prompt as text, and as the graph's input with messages (None if it is a single message of a
    user).
    """
    if isinstance(prompt, str):
        return prompt, None
    messages = [
        {name: value for name, value in dict(said).items() if value is not None} for said in prompt
    ]
    asked = next(said["content"] for said in reversed(messages) if said["role"] == "user")
    if not isinstance(asked, str):  # parts: texts beside images
        asked = " ".join(
            str(part.get("text", "")) for part in cast("list[dict[str, Any]]", asked)
        ).strip()
    alone = len(messages) == 1 and messages[0]["content"] == asked
    return asked, None if alone else {"messages": messages}


def _functions(rubric: Any) -> Iterator[tuple[str, float, Any, Any]]:
    """Yield (name, weight, rubric, function) of each reward. Repeated names are numbered."""
    seen: dict[str, int] = {}
    for part in _parts(rubric):
        for function, weight in zip(part.funcs, part.weights, strict=True):
            name = getattr(function, "__name__", type(function).__name__)
            seen[name] = seen.get(name, 0) + 1
            yield (
                (name if seen[name] == 1 else f"{name}-{seen[name]}"),
                float(weight),
                part,
                function,
            )


def _parts(rubric: Any) -> Iterator[Any]:
    """Yield the rubric itself, or all rubrics of a group, at any depth."""
    if hasattr(rubric, "rubrics"):
        for part in rubric.rubrics:
            yield from _parts(part)
    else:
        yield rubric


def _messages(messages: Any) -> Any:
    """Messages as objects of the library's classes, since its functions use `message.role` as well
    as `message["role"]`.
    """
    return import_module("verifiers.utils.message_utils").normalize_messages(messages)


async def _value(rubric: Any, function: Any, state: Any) -> float:
    objects = rubric.score_objects(state)
    named = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in named.values())
    given = (
        objects if takes_all else {name: value for name, value in objects.items() if name in named}
    )
    found = function(**given)
    value = float(await found if inspect.isawaitable(found) else found)
    if not math.isfinite(value):
        raise ValueError(f"{getattr(function, '__name__', function)} gave {value}")
    return value
