"""Candidates for system prompts and tools, with which an export reconstructs requests.

The built-in graphs put a system turn before the state's messages, and offer the tools of this
project. A user's graph may send and offer anything. `hrm_agent.trajectory.formats.shared.messages`
tries the candidates, and uses those that the record confirms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.base import BaseCheckpointSaver

from hrm_agent.cli.common.run_folder import existing_store, is_file, stored_trajectories
from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts import prompts
from hrm_agent.langgraph_format import namespace_around
from hrm_agent.runtime.selection.choice import JUDGE_PROMPT
from hrm_agent.runtime.state import StateReader, Unbuilt
from hrm_agent.tools import python, python_stateless
from hrm_agent.trajectory import Call, Trajectory
from hrm_agent.trajectory.formats import RequestHints

__all__ = ["described_runs", "known_from", "states_of"]

State = Callable[[Call], Sequence[BaseMessage]]


@contextmanager
def described_runs(
    where: str, run_id: str | None = None, *, system: Path | None = None, tools: Path | None = None
) -> Generator[tuple[Iterator[Trajectory], RequestHints]]:
    """Trajectories of a store or a file, with hints about the parts of requests that are not
    recorded.
    """
    with ExitStack() as stack:
        state = None
        if not is_file(where):
            state = states_of(stack.enter_context(existing_store(where)).checkpointer)
        yield stored_trajectories(where, run_id), known_from(system, tools, state)


def known_from(system: Path | None, tools: Path | None, state: State | None = None) -> RequestHints:
    """Hints with the built-in system turns and tools, and with those of two files. `system`: file
    with the text of one system turn. `tools`: file with a list of tools.
    """
    ours = [
        JUDGE_PROMPT,
        *(str(value) for name, value in vars(prompts).items() if name.endswith("_PROMPT")),
    ]
    systems = [*([_text(system)] if system else []), *ours, *_loops()]
    # The built-in tools include `python` as it was in older records, without state.
    offers = [
        *([_tools(tools)] if tools else []),
        *(
            (convert_to_openai_tool(tool),)
            for tool in [
                python,
                python_stateless,
                python.model_copy(update={"description": python_stateless.description}),
            ]
        ),
    ]
    return RequestHints(tuple(systems), tuple(offers), state)


def _loops() -> Iterator[str]:
    """System turns of the built-in tool loops, in each form."""
    solvers = (("task", "results"), ("task", "data", "results"))
    for prompt, begins in (
        (prompts.TOOL_LOOP_PROMPT, ((), ("data",))),
        (prompts.SOLVER_PROMPT, ((), *solvers)),
    ):
        for variables, fenced in product(begins, (False, True)):
            yield prompts.loop_system_turn(prompt, fenced=fenced, variables=variables)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Name a text file.") from error


def _tools(path: Path) -> tuple[dict[str, Any], ...]:
    form = 'Write a JSON list of tools: [{"type": "function", "function": {"name": ...}}, ...].'
    try:
        tools: Any = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}.", form) from error
    if not (
        isinstance(tools, list) and all(isinstance(tool, dict) for tool in cast("list[Any]", tools))
    ):
        raise ConfigError(f"{path} is not a list of tools.", form)
    return tuple(cast("list[dict[str, Any]]", tools))


def states_of(checkpointer: BaseCheckpointSaver[Any]) -> State:
    """Function that reads the `messages` channel of the checkpoint that a call's step started from,
    in the graph that made the call.
    """

    def state(call: Call) -> Sequence[BaseMessage]:
        identity = call.identity
        if not identity.checkpoint_id:
            return ()
        place = {
            "thread_id": identity.thread_id,
            "checkpoint_id": identity.checkpoint_id,
            "checkpoint_ns": namespace_around(identity.checkpoint_ns),
        }
        found = checkpointer.get_tuple({"configurable": place})
        messages: Any = (
            StateReader(checkpointer, None).values(found).get("messages") if found else ()
        )
        # the reducer is unknown without the graph, so use messages that no later message has
        # replaced
        if isinstance(messages, Unbuilt):
            lists = [
                each if isinstance(each, list) else [each]
                for each in (messages.snapshot or [], *messages.writes)
            ]
            messages = [message for each in lists for message in cast("list[Any]", each)]
        known = isinstance(messages, list) and all(
            isinstance(m, BaseMessage) for m in cast("list[Any]", messages)
        )
        return cast("list[BaseMessage]", messages) if known else ()

    return state
