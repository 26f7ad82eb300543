"""The choice among several runs of one task: a graph of its own, so that it is on record like any
run.

    START -> judge (where a judge is asked) -> choose -> END

The candidates are in its run context; its answer is the chosen run's, and its last state says which
run was chosen and why. Failed runs are left out. The others are ranked in this order:

1. runs with an answer before runs without;
2. runs that their critic accepted, if the graph has a `verdict` (a majority ignores the critic);
3. runs that ended by themselves before runs that ended at a limit;
4. `best-of-n` asks a judge if there is no verdict and answers differ: the critic's own model, else
   the policy, in one call that shows each different answer once;
5. the most frequent answer (`hrm_agent.answers.equivalence`), then the first run; also if the judge
   names none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from pydantic import BaseModel
from typing_extensions import TypedDict

from hrm_agent.answers.equivalence import most_frequent, normalize_answer
from hrm_agent.answers.final_answer import own_text
from hrm_agent.answers.typed_reply import UnparsableAnswer, read_as
from hrm_agent.models import policy
from hrm_agent.trajectory import StopReason

__all__ = [
    "CHOICE_GRAPH",
    "JUDGE_PROMPT",
    "Candidate",
    "ChoiceContext",
    "ChoiceState",
    "NoCandidateError",
    "graph",
    "is_choice",
]

CHOICE_GRAPH = "hrm_agent.runtime.selection.choice:graph"
"""Value of `Trajectory.graph` for choice runs."""
_FORMER_NAME = "graphs.choice:graph"
"""The same in older records."""

JUDGE_PROMPT = (
    "You are the critic. Several answers to one problem are shown. Which one is right? Answer with"
    ' JSON only: {"best": its number, "reason": ...}'
)
"""System turn of the judge."""

MAX_SHOWN = 4000
"""Characters of one answer that the judge sees."""


def is_choice(graph: str) -> bool:
    """Whether a trajectory of this graph is that of a choice among runs."""
    return graph in {CHOICE_GRAPH, _FORMER_NAME}


class NoCandidateError(Exception):
    """Every run failed; the message has the first error."""


class Candidate(TypedDict):
    """One run, as far as the choice looks at it."""

    thread: str
    """Id of the candidate's thread."""
    answer: str | None
    """Its final answer; None if it has none."""
    stop_reason: str
    """A `StopReason` as plain text: `answer` for a run that ended by itself."""
    accepted: bool | None
    """By the graph's own critic; None where the graph leaves no verdict."""
    error: str | None
    """Of a run that failed, else None."""


@dataclass(frozen=True)
class ChoiceContext:
    """What is chosen from, and how."""

    mode: str = "majority"
    """`best-of-n`, `majority` or `search`."""
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    """In their order."""
    judge: str | None = None
    """Model string of the judge; None: the current policy."""


class Judgement(BaseModel):
    """What a judge is to answer."""

    best: int
    """Number of the right answer in the list shown, from 1."""
    reason: str = ""
    """Why, in the judge's words."""


class ChoiceState(TypedDict):
    """One choice."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The task; then the chosen run's answer."""
    judged: NotRequired[str]
    """What the judge said, as it said it."""
    chosen: NotRequired[str]
    """Thread of the chosen run."""
    reason: NotRequired[str]
    """Why this one, in words."""
    stop_reason: NotRequired[str]
    """The chosen run's `StopReason` as plain text."""


def needs_judge(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> str:
    """Only if answers differ and no critic has given a verdict."""
    pool = _pool(runtime.context)
    asked = runtime.context.mode == "best-of-n" and all(
        candidate["accepted"] is None for candidate in pool
    )
    return "judge" if asked and len(_different(pool)) > 1 else "choose"


async def judge(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> dict[str, Any]:
    """The policy in the critic's place: which of the different answers is right."""
    shown = [
        own_text(candidate["answer"] or "").strip()[:MAX_SHOWN]
        for candidate in _different(_pool(runtime.context))
    ]
    # In one line each: an answer of several could forge its neighbours.
    lines = [json.dumps(text) if len(text.splitlines()) > 1 else text for text in shown]
    listed = "".join(f"\n{number}: {line}" for number, line in enumerate(lines, 1))
    request = f"Problem: {state['messages'][0].text}\nAnswers:{listed}"
    answer = await policy(model=runtime.context.judge, schema=Judgement, temperature=0).ainvoke(
        [SystemMessage(JUDGE_PROMPT), HumanMessage(request)]
    )
    return {"judged": answer.text}


def choose(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> dict[str, Any]:
    """The chosen run's answer as this run's own."""
    pool = _pool(runtime.context)
    chosen, reason = _named(state.get("judged", ""), pool) or _voted(pool)
    said = [] if chosen["answer"] is None else [AIMessage(chosen["answer"])]
    return {
        "messages": said,
        "chosen": chosen["thread"],
        "reason": reason,
        "stop_reason": chosen["stop_reason"],
    }


def _pool(context: ChoiceContext) -> list[Candidate]:
    """The candidates of the best rank."""
    alive = [candidate for candidate in context.candidates if candidate["error"] is None]
    if not alive:
        first = next((candidate["error"] for candidate in context.candidates), "none was run")
        raise NoCandidateError(f"all {len(context.candidates)} runs failed, the first by: {first}")
    best = max(_rank(candidate, context.mode) for candidate in alive)
    return [candidate for candidate in alive if _rank(candidate, context.mode) == best]


def _rank(candidate: Candidate, mode: str) -> tuple[bool, bool, bool]:
    accepted = mode != "majority" and candidate["accepted"] is True
    return candidate["answer"] is not None, accepted, candidate["stop_reason"] == StopReason.ANSWER


def _different(pool: Sequence[Candidate]) -> list[Candidate]:
    """The first candidate of each answer."""
    return list({_vote(candidate): candidate for candidate in reversed(pool)}.values())[::-1]


def _vote(candidate: Candidate) -> str:
    return normalize_answer(candidate["answer"] or "")


def _named(judged: str, pool: Sequence[Candidate]) -> tuple[Candidate, str] | None:
    """The one that the judge named; None where it named none."""
    different = _different(pool)
    try:
        best = read_as(Judgement, judged).best
    except UnparsableAnswer:
        return None
    if not 1 <= best <= len(different):
        return None
    return different[best - 1], f"named by the judge among {len(different)} different answers"


def _voted(pool: Sequence[Candidate]) -> tuple[Candidate, str]:
    votes = [_vote(candidate) for candidate in pool]
    chosen = most_frequent(votes)
    reason = f"{votes.count(votes[chosen])} of {len(votes)} gave this answer"
    return pool[chosen], ("accepted by the critic, " if pool[chosen]["accepted"] else "") + reason


def _build() -> Any:
    builder = StateGraph(ChoiceState, context_schema=ChoiceContext)
    builder.add_node("judge", judge)
    builder.add_node("choose", choose)
    builder.add_conditional_edges(START, needs_judge, ["judge", "choose"])
    builder.add_edge("judge", "choose")
    builder.add_edge("choose", END)
    return builder.compile()


graph = _build()
