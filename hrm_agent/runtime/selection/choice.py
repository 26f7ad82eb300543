"""Choice among several runs of one task: a graph of its own, so that it is recorded like any run.

    START -> judge (where a judge is asked) -> choose -> END

The candidates are in its run context. Its answer is the chosen run's, and its last state holds the
chosen run and the reason. Failed runs are left out. The others are ranked in this order:

1. runs with an answer before runs without;
2. runs that their critic accepted, if the graph has a `verdict` (a majority ignores the critic);
3. runs that ended by themselves before runs that ended at a limit;
4. `best-of-n` asks a judge if there is no verdict and answers differ: the critic's own model, else
   the policy, in one call that shows each different answer once;
5. the most frequent answer (`hrm_agent.answers.equivalence`), then the first run. This also decides
if the judge names no run.
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
"""Graph name of choice runs in older records."""

JUDGE_PROMPT = (
    "You are the critic. Several answers to one problem are shown. Which one is right? Answer with"
    ' JSON only: {"best": its number, "reason": ...}'
)
"""System turn of the judge."""

MAX_SHOWN = 4000
"""Maximum characters of one answer that the judge sees."""


def is_choice(graph: str) -> bool:
    """True if a trajectory of this graph is a choice among runs."""
    return graph in {CHOICE_GRAPH, _FORMER_NAME}


class NoCandidateError(Exception):
    """Raised if every run failed. The message has the first error."""


class Candidate(TypedDict):
    """Candidate of a choice."""

    thread: str
    """Id of the candidate's thread."""
    answer: str | None
    """Final answer of the run (None if it has none)."""
    stop_reason: str
    """`StopReason` as plain text: `answer` for a run that ended by itself."""
    accepted: bool | None
    """Verdict of the graph's own critic (None if the graph leaves none)."""
    error: str | None
    """Error of a failed run (None for any other)."""


@dataclass(frozen=True)
class ChoiceContext:
    """Candidates of a choice, and its mode."""

    mode: str = "majority"
    """Mode: `best-of-n`, `majority` or `search`."""
    candidates: list[Candidate] = field(default_factory=list[Candidate])
    """Candidates in their order."""
    judge: str | None = None
    """Model string of the judge (None: the current policy)."""


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class Judgement(BaseModel):
    """What a judge is to answer."""

    best: int
    """Number of the right answer in the list shown, from 1."""
    reason: str = ""
    """Reason in the judge's words."""


class ChoiceState(TypedDict):
    """State of one choice."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Task, then the chosen run's answer."""
    judged: NotRequired[str]
    """Judge's answer, as sampled."""
    chosen: NotRequired[str]
    """Thread of the chosen run."""
    reason: NotRequired[str]
    """Reason for the choice, in words."""
    stop_reason: NotRequired[str]
    """The chosen run's `StopReason` as plain text."""


def needs_judge(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> str:
    """Return `judge` in the mode `best-of-n` if answers differ and no critic has given a verdict,
    else `choose`.
    """
    pool = _pool(runtime.context)
    asked = runtime.context.mode == "best-of-n" and all(
        candidate["accepted"] is None for candidate in pool
    )
    return "judge" if asked and len(_different(pool)) > 1 else "choose"


async def judge(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> dict[str, Any]:
    """Judge: the policy, in the critic's place, names the right one of the different answers."""
    shown = [
        own_text(candidate["answer"] or "").strip()[:MAX_SHOWN]
        for candidate in _different(_pool(runtime.context))
    ]
    # Each answer is one line, since an answer of several lines could imitate other answers of the
    # list.
    lines = [json.dumps(text) if len(text.splitlines()) > 1 else text for text in shown]
    listed = "".join(f"\n{number}: {line}" for number, line in enumerate(lines, 1))
    request = f"Problem: {state['messages'][0].text}\nAnswers:{listed}"
    answer = await policy(model=runtime.context.judge, schema=Judgement, temperature=0).ainvoke(
        [SystemMessage(JUDGE_PROMPT), HumanMessage(request)]
    )
    return {"judged": answer.text}


def choose(state: ChoiceState, runtime: Runtime[ChoiceContext]) -> dict[str, Any]:
    """Return the chosen run's answer as this run's own."""
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
    """Candidates of the best rank."""
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
    """First candidate of each answer."""
    return list({_vote(candidate): candidate for candidate in reversed(pool)}.values())[::-1]


def _vote(candidate: Candidate) -> str:
    return normalize_answer(candidate["answer"] or "")


def _named(judged: str, pool: Sequence[Candidate]) -> tuple[Candidate, str] | None:
    """Candidate that the judge named, and the reason (None if it named none)."""
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
