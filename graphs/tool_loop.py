"""Tool loop: reason, call the Python tool, read the result, answer.

    START -> reason -> tools -> reason -> ... -> END
                          |       ^
                          +> compact     when the conversation has become long (`Budget.compact_at`)

The loop ends when the policy answers without a tool call, or when a budget is used up;
`stop_reason` names the cause. If a program reads the answer (as that of a solver), an unreadable
answer is sent back once (`remind`). The system turn is not part of the state, since it belongs to
the role and not to the conversation. In a conversation each turn has the whole budget. A model that
cannot call tools writes its code in fenced blocks (`Budget.tool_format`), and gets the results as a
human message.

A task may have an environment of its own (`hrm_agent.tools.task_environments`). Its tools are then
offered in place of the Python tool, without a system turn of ours, and the loop ends when the
episode is over. In an environment that takes answers, an answer without a tool call is an act, too.

No node reads a clock: the durations of model and tool calls are in their messages, so that a replay
decides as the run did. Functions that take no time are async, too, since LangGraph would run a
plain function in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
from typing_extensions import TypedDict

from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.budget import Prices, refuse_limits, sampled_tokens
from hrm_agent.graphs.parts.compaction import (
    SUMMARY,
    as_summary,
    compacted,
    is_due,
    summary_request,
    with_request,
)
from hrm_agent.graphs.parts.loop import (
    ToolFormat,
    calls_tools,
    last_answer,
    loop_stop,
    refuse_tool_format,
)
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT, loop_system_turn
from hrm_agent.models import policy
from hrm_agent.tools import python, run_tool_calls
from hrm_agent.tools.fenced import RESULTS, fenced_calls, run_fenced_blocks
from hrm_agent.tools.task_environments.play import OBSERVED, TaskEnvironment, play, takes_replies
from hrm_agent.trajectory import StopReason

__all__ = ["Budget", "LoopState", "build_tool_loop", "graph"]


_SENT_BACK = "-unread"
"""Suffix of the id of the human message by which the loop sends an answer back."""
_OWN = (_SENT_BACK, RESULTS, SUMMARY, OBSERVED)
"""Suffixes of the ids of human messages that the loop or an environment writes, not a person."""


@dataclass(frozen=True)
class Budget:
    """Limits and options of the loop for one turn, passed as LangGraph's run context."""

    max_turns: int = 8
    """Maximum number of answers of the policy, including the last."""
    max_tokens: int = 4096
    """Maximum number of sampled tokens of all answers."""
    max_seconds: float = 600.0
    """Maximum time during which models and tools are running for this turn, in seconds. Only time
    in this run counts. It is checked between answers.
    """
    max_cost: float | None = None
    """Maximum cost of all answers, in the currency of `prices` (None: no limit)."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Model name as in the model's answers (`*` for all others) -> prices of a million prompt
    tokens and of a million completion tokens.
    """
    model: str | None = None
    """Model string (None: the current policy)."""
    temperature: float | None = None
    """Sampling temperature (None: that of the policy)."""
    tool_format: ToolFormat = "native"
    """Form in which the model calls the Python tool: `native`, or `fenced` for a model that cannot
    call tools.
    """
    session_variables: bool = False
    """Begin the session with the state's `variables`, and name them in the system turn."""
    compact_at: int | None = None
    """Tokens that an answer has read and written from which on the model summarises the conversation
    and goes on from the summary (None: never). The summary counts as an answer.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid limit or tool format."""
        refuse_limits(self, max_turns=1, max_tokens=1, max_seconds=0.0, max_cost=0.0, compact_at=1)
        refuse_tool_format(self.tool_format)


class LoopState(TypedDict):
    """State of the loop: the conversation, and the reason for its end."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Conversation: the task, the policy's replies, and the tool's results."""
    stop_reason: NotRequired[str | None]
    """`StopReason` as plain text (None while the loop continues)."""
    variables: NotRequired[dict[str, Any]]
    """JSON values by name with which the session can begin: `data`, if the task has data."""
    environment: NotRequired[TaskEnvironment | None]
    """Environment that the task is played in (None: the tool is Python)."""


def build_tool_loop(
    prompt: str, complaint: Callable[[str], str] | None = None
) -> CompiledStateGraph[LoopState, Budget, LoopState, LoopState]:
    """Return the compiled loop with the system turn `prompt`. A solver is this loop with the
    solver's prompt.

    `complaint`: function (text of an answer) -> what is wrong with it (empty if nothing is).
    """

    def unread(messages: Sequence[AnyMessage]) -> str:
        """Complaint about the last answer (empty if an answer was sent back before, since this is
        done only once).
        """
        sent_back = any(
            isinstance(message, HumanMessage) and str(message.id).endswith(_SENT_BACK)
            for message in messages
        )
        return "" if complaint is None or sent_back else complaint(last_answer(messages).text)

    async def ask(
        state: LoopState, budget: Budget, request: HumanMessage | None = None
    ) -> AIMessage:
        left = budget.max_tokens - sampled_tokens(_newest_turn(state["messages"]))
        model = policy(model=budget.model, temperature=budget.temperature, budget=left)
        sent = compacted(state["messages"], _OWN)
        asked = sent if request is None else with_request(sent, request)
        return await _offering(model, state, budget).ainvoke(
            [*_system_turn(prompt, state, budget), *asked]
        )

    async def reason(state: LoopState, runtime: Runtime[Budget]) -> dict[str, Any]:
        budget = runtime.context or Budget()
        answer = await ask(state, budget)
        turn = [*_newest_turn(state["messages"]), answer]
        final = not _asks(answer, budget) and not unread(turn)
        stop = _stop_before_act(state, turn, budget, final=final)
        return {"messages": [answer], "stop_reason": stop and stop.value}

    async def tools(state: LoopState, runtime: Runtime[Budget]) -> dict[str, Any]:
        answer = last_answer(state["messages"])
        budget = runtime.context or Budget()
        if (environment := state.get("environment")) is not None:
            return await _played(state, environment, answer, budget)
        tool = python.model_copy(update={"variables": _variables(state, budget)})
        if budget.tool_format == "fenced":
            return {"messages": [await run_fenced_blocks(answer, tool, get_config())]}
        return {"messages": await run_tool_calls(answer, [tool], get_config())}

    async def compact(state: LoopState, runtime: Runtime[Budget]) -> dict[str, Any]:
        budget = runtime.context or Budget()
        request = summary_request(state["messages"])
        summary = as_summary(await ask(state, budget, request))
        stop = loop_stop([*_newest_turn(state["messages"]), summary], budget, final=False)
        return {"messages": [request, summary], "stop_reason": stop and stop.value}

    def remind(state: LoopState) -> dict[str, Any]:
        turn = _newest_turn(state["messages"])
        return {"messages": [HumanMessage(unread(turn), id=f"{turn[-1].id}{_SENT_BACK}")]}

    builder = StateGraph(LoopState, context_schema=Budget)
    builder.add_node("reason", reason)
    builder.add_node("tools", tools)
    if complaint is not None:
        builder.add_node("remind", remind)
        builder.add_edge("remind", "reason")
    builder.add_edge(START, "reason")
    builder.add_conditional_edges(
        "reason", _after_reason, ["tools", END, *(["remind"] if complaint else [])]
    )
    builder.add_node("compact", compact)
    builder.add_conditional_edges("tools", _after_tools, ["compact", "reason", END])
    builder.add_conditional_edges("compact", _after_compact, ["reason", END])
    return builder.compile()


async def _after_reason(state: LoopState, runtime: Runtime[Budget]) -> str:
    if state.get("stop_reason"):
        return END
    if takes_replies(state.get("environment")):
        return "tools"
    return (
        "tools" if _asks(last_answer(state["messages"]), runtime.context or Budget()) else "remind"
    )


async def _after_tools(state: LoopState, runtime: Runtime[Budget]) -> str:
    if state.get("stop_reason"):
        return END
    budget = runtime.context or Budget()
    answers = sum(isinstance(each, AIMessage) for each in _newest_turn(state["messages"]))
    # the budget needs room for the summary and for an answer after it
    goes_on = answers + 2 <= budget.max_turns
    return "compact" if goes_on and is_due(state["messages"], budget.compact_at) else "reason"


async def _after_compact(state: LoopState) -> str:
    return END if state.get("stop_reason") else "reason"


def _variables(state: LoopState, budget: Budget) -> dict[str, Any]:
    """Variables with which the session begins (empty unless the budget enables them)."""
    return state.get("variables", {}) if budget.session_variables else {}


def _asks(answer: AIMessage, budget: Budget) -> bool:
    """True if an answer calls the tool, in the tool format of the model."""
    return (
        bool(fenced_calls(answer, python.name))
        if budget.tool_format == "fenced"
        else calls_tools(answer)
    )


def _system_turn(prompt: str, state: LoopState, budget: Budget) -> list[SystemMessage]:
    """System turn with `prompt`. In an environment it is the environment's own, if any."""
    if state.get("environment") is not None:
        return []
    fenced = budget.tool_format == "fenced"
    variables = _variables(state, budget)
    return [SystemMessage(loop_system_turn(prompt, fenced=fenced, variables=variables))]


def _offering(
    model: Any, state: LoopState, budget: Budget
) -> Runnable[LanguageModelInput, AIMessage]:
    """Model with the tools that it is offered. Raises `ConfigError` for an environment and code in
    fenced blocks.
    """
    fenced = budget.tool_format == "fenced"
    environment = state.get("environment")
    if environment is None:
        return model if fenced else model.bind_tools([python])
    if fenced:
        raise ConfigError(
            "tool_format is fenced, and the task's environment is no Python tool.",
            "Leave tool_format out. An environment whose acts are answers needs no tool calls.",
        )
    return model.bind_tools(environment["tools"]) if environment["tools"] else model


def _stop_before_act(
    state: LoopState, turn: Sequence[AnyMessage], budget: Budget, *, final: bool
) -> StopReason | None:
    """Stop reason after an answer. If the answer is an act in an environment, other limits than
    that of tokens count after the act.
    """
    if not takes_replies(state.get("environment")):
        return loop_stop(turn, budget, final=final)
    stop = loop_stop(turn, budget, final=True)
    return None if stop is StopReason.ANSWER else stop


async def _played(
    state: LoopState, environment: TaskEnvironment, answer: AIMessage, budget: Budget
) -> dict[str, Any]:
    """Update by what an answer does in the environment."""
    played = await play(answer, environment, get_config())
    stop = StopReason.ANSWER if played.over else None
    if stop is None and takes_replies(environment):
        turn = [*_newest_turn(state["messages"]), *played.messages]
        stop = loop_stop(turn, budget, final=False)
    return {"messages": played.messages, "stop_reason": stop and stop.value}


def _newest_turn(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Messages from the person's newest message on."""
    said = (
        i
        for i, m in enumerate(messages)
        if isinstance(m, HumanMessage) and not str(m.id).endswith(_OWN)
    )
    return list(messages[max(said, default=0) :])


graph = build_tool_loop(TOOL_LOOP_PROMPT)
