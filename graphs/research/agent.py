"""The research agent: a conversation over a wiki and one's own documents, with citations of exact spans.

    START -> plan -> search (one per question, side by side) -> gather -> write -> check -> END
              |  |                                                ^         ^        |
              |  +--- what was read before is enough -------------+         +--------+ once, if a quote is not true
              +-> reply -> END

The planner says what has to be looked up, asks the person back, or returns a courtesy. Each searcher is a tool loop of
its own. `gather` gives what they have read names that last for the conversation, and keeps of their findings the quotes
that stand in the sources. The writer answers from those; `check` holds each quote against the sources' text. One that
is fabricated is sent back once with the reason, then removed, and the answer says so. An answer with no citation left
is no answer: `answered` is false, and the state's `stop_reason` is `no_answer` (on record the run is completed).

No output of a model or a wiki raises: every turn ends with a `stop_reason`. All roles share one budget; where it
is used up, the turn ends with the best answer so far: the findings, whose quotes are checked already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from hrm_agent.errors import ContextLengthError
from hrm_agent.graphs.parts.budget import reset_usage, spent_on
from hrm_agent.graphs.parts.prompts import (
    RESEARCH_PLANNER_PROMPT,
    WRITER_PROMPT,
    research_request,
    searcher_request,
    writer_request,
)
from hrm_agent.graphs.parts.roles import CallOptions, Role, ask_role, chat_model
from hrm_agent.graphs.research.citations import CheckedText, check, quoted_again
from hrm_agent.graphs.research.planner import ResearchPlan, earlier_lines, reading, whole_question
from hrm_agent.graphs.research.searcher import SearchContext, SearchState, build_search
from hrm_agent.graphs.research.sources import Source, evidence, renamed, same_source
from hrm_agent.graphs.research.state import (
    ResearchContext,
    ResearchFinding,
    ResearchQuestion,
    ResearchState,
    SearcherReport,
    SearchTask,
    budget_left,
    forgotten,
    new_turn,
    newest_request,
    search_tasks,
)
from hrm_agent.models import was_cut
from hrm_agent.trajectory import StopReason

__all__ = ["ResearchContext", "ResearchState", "build_research", "graph"]

PLANNER = Role("planner", RESEARCH_PLANNER_PROMPT, ResearchPlan)
NO_ANSWER = "The sources do not answer this."
UNSUPPORTED = "No source was cited for this."
REMOVED = "Removed: {} that no source has."
MAX_LISTED, MAX_LISTED_TITLE = 50, 100
"""Sources at hand that the planner is told of, and characters of their titles."""
QUESTION, REPLY, UNANSWERED = "question", "reply", "no_answer"
"""Ends of a turn beside `StopReason`'s."""


def build_research(model: BaseChatModel | None = None) -> Any:
    """The graph, compiled. `model`: a chat model of one's own in the place of the current policy."""
    nodes = _Research(model)
    builder = StateGraph(ResearchState, context_schema=ResearchContext)
    builder.add_node("plan", nodes.plan)
    builder.add_node("reply", reply)
    builder.add_node("search", nodes.search, input_schema=SearchTask)
    builder.add_node("gather", gather)
    builder.add_node("write", nodes.write)
    builder.add_node("check", check_draft)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", after_plan, ["reply", "search", "gather"])
    builder.add_edge("reply", END)
    builder.add_edge("search", "gather")
    builder.add_edge("gather", "write")
    builder.add_edge("write", "check")
    builder.add_conditional_edges("check", after_check, ["write", END])
    return builder.compile()


class _Research:
    """The nodes that ask a model."""

    def __init__(self, model: BaseChatModel | None) -> None:
        self._model = model
        self._searcher = build_search(model)

    async def plan(self, state: ResearchState, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
        """Planner: the newest message -> questions, or what is said to the person instead."""
        context = _context(runtime)
        sources = state.get("sources", {})
        gone = forgotten(sources, context.max_remembered_chars)
        at_hand = {name: source for name, source in sources.items() if name not in gone}
        fresh = ResearchState(messages=state["messages"])
        left = budget_left(fresh, context)
        request = research_request(newest_request(state), earlier_lines(state["messages"]), _listed(at_hand))
        options = self._options(context, left.tokens, 0 if left.used_up() else min(2, left.calls - 1))
        may_ask = not state.get("asked_back")
        said = await ask_role(PLANNER, request, options, read=reading(may_ask=may_ask, has_sources=bool(at_hand)))
        plan, remarks = said.value, list[str]()
        if plan is None:
            questions = whole_question(newest_request(state))
            remarks.append(f"plan: {said.complaint or 'there was none'}; the message itself is the one question")
        else:
            questions = _different([question.as_question() for question in plan.questions])
        if len(questions) > context.max_questions:
            remarks.append(f"plan: {len(questions)} questions, of which the first {context.max_questions} count")
        return new_turn() | {
            "sources": gone,
            "questions": questions[: context.max_questions],
            "say": plan.say if plan else "",
            "asked_back": bool(plan and plan.say and plan.ask),
            "spent": reset_usage(spent_on(said.messages, context.prices)),
            "remarks": [None, *remarks] if remarks else None,
        }

    async def search(self, state: SearchTask, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
        """Searcher: one question -> what was found, and what was read for it."""
        context, question = _context(runtime), state["question"]["question"]
        request = searcher_request(question, state["question"]["queries"], state["known"])
        search_context = _search_context(state, context)
        end: Any = {"messages": [], "sources": []}
        given = SearchState(messages=[HumanMessage(request)])
        remarks: list[str] = []
        try:
            async for values in self._searcher.astream(given, context=search_context, stream_mode="values"):
                end = values  # what it has read and spent counts, however it ends
        except ContextLengthError as error:
            end, remarks = {**end, "stop_reason": StopReason.MAX_TOKENS.value}, [f"search: {error}"]
        stop = end.get("stop_reason") or StopReason.MAX_TURNS.value
        text = next((message.text for message in end["messages"][-1:] if message.type == "ai"), "")
        found = SearcherReport(question=question, text=text, stop=stop, sources=end.get("sources", []))
        return {"found": [found], "spent": spent_on(end["messages"], context.prices), "remarks": remarks}

    async def write(self, state: ResearchState, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
        """Writer: findings and passages -> an answer with quotes; nothing where the budget is used up."""
        context, drafts = _context(runtime), state.get("drafts", [])
        left = budget_left(state, context)
        if left.used_up():
            return {}
        request = await asyncio.to_thread(_writer_request, state, context)  # long sources take a moment
        turns: list[AnyMessage] = [SystemMessage(WRITER_PROMPT), HumanMessage(request), *drafts]
        if drafts:
            turns.append(HumanMessage(state.get("complaint", "")))
        limit = min(context.max_answer_tokens, left.tokens)
        chat = chat_model(context.model or self._model, temperature=context.temperature, max_tokens=limit)
        try:
            answer = await chat.ainvoke(turns)
        except ContextLengthError as error:
            return {"remarks": [f"write: {error}"]}
        return {"drafts": [*drafts, answer], "spent": spent_on([answer], context.prices)}

    def _options(self, context: ResearchContext, tokens: int, calls: int) -> CallOptions:
        limit = min(context.max_answer_tokens, tokens)
        return CallOptions(context.model or self._model, context.temperature, limit, calls)


def after_plan(state: ResearchState, runtime: Runtime[ResearchContext]) -> Sequence[Send] | str:
    """A searcher for every question, as far as the budget allows it."""
    if state.get("say"):
        return "reply"
    context, questions, sources = _context(runtime), state.get("questions", []), state.get("sources", {})
    left = budget_left(state, context)
    if left.used_up(calls=1):
        return "gather"
    known = [evidence(sources, _about(question), {}, context.max_source_chars) for question in questions]
    tasks = search_tasks(questions, known, state.get("named", 0) + 1, left, context)
    return [Send("search", task) for task in tasks] or "gather"


def reply(state: ResearchState) -> dict[str, Any]:
    """What the planner says to the person itself."""
    asked = bool(state.get("asked_back"))
    return {
        "messages": [AIMessage(state.get("say", ""), id=_final_id(state))],
        "stop_reason": QUESTION if asked else REPLY,
        "reason": "The message was not clear." if asked else "There was nothing to look up.",
    }


def gather(state: ResearchState) -> dict[str, Any]:
    """A join: names for the new sources, and findings whose quotes stand in them."""
    sources, findings, remarks = dict(state.get("sources", {})), list[ResearchFinding](), list[str]()
    new, named = dict[str, Source](), state.get("named", 0)
    for found in state.get("found", []):
        names: dict[str, str] = {}
        for source in found["sources"]:
            known = next((name for name, one in (sources | new).items() if same_source(one, source)), None)
            named += known is None
            names[source["id"]] = name = known or f"S{named}"
            new[name] = renamed(source, name)
        shown = sources | {source["id"]: source for source in found["sources"]}
        text, read = quoted_again(found["text"], shown, names), list(dict.fromkeys(names.values()))
        findings.append(ResearchFinding(question=found["question"], text=text, stop=found["stop"], sources=read))
        if found["stop"] != StopReason.ANSWER:
            remarks.append(f"search: {found['question']}: ended by {found['stop']}")
    return {"sources": new, "named": named, "findings": findings, "found": None, "remarks": remarks}


def check_draft(state: ResearchState, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
    """Hold the newest draft against the sources: send it back with what is wrong, or end the turn with the best one."""
    context, drafts, sources = _context(runtime), state.get("drafts", []), state.get("sources", {})
    checked = [check(draft.text, sources) for draft in drafts]
    left = budget_left(state, context)
    complaint = _complaint(checked[-1], sources) if checked else ""
    if complaint and not state.get("complaint") and not was_cut(drafts[0]) and not left.used_up():
        return {"complaint": complaint}
    best = max(checked, key=lambda one: (len(one.citations), bool(one.body)), default=None)
    if best is None or not best.body:
        best = check(_findings_text(state), sources)
    remarks = [f"check: mended {mended}" for mended in best.mended]
    remarks += [f"check: removed {problem}" for problem in best.problems]
    stop, reason = _end(state, context, best)
    return {
        "messages": [AIMessage(_final_text(best), id=_final_id(state))],
        "citations": list(best.citations),
        "sources": {cited["source"]: sources[cited["source"]] for cited in best.citations},
        "answered": bool(best.citations) and not best.denies,
        "remarks": remarks,
        "stop_reason": stop,
        "reason": reason,
    }


def after_check(state: ResearchState) -> str:
    return END if state.get("stop_reason") else "write"


def _complaint(checked: CheckedText, sources: Mapping[str, Source]) -> str:
    """What the writer is told about a draft that cannot stand; empty for one that can."""
    if not checked.body:
        return "There is no text in it. Answer again."
    if checked.problems:
        wrong = "\n".join(checked.problems[:8])
        return f"These citations do not stand:\n{wrong}\nAnswer again; quote to the letter what the sources have."
    if not checked.citations and not checked.denies and sources:
        return "Nothing in it is cited. Cite the sources' exact words, or begin with NOT ANSWERED."
    return ""


def _final_text(best: CheckedText) -> str:
    """The answer as the person reads it, with what has to be said about it."""
    if not best.body:
        return NO_ANSWER
    body = f"{NO_ANSWER} {best.body}" if best.denies else best.body
    notes = []
    if not best.citations and not best.denies:
        notes.append(UNSUPPORTED)
    if count := len(best.problems):
        notes.append(REMOVED.format("1 citation" if count == 1 else f"{count} citations"))
    listed = best.text[len(best.body) :].strip()
    return "\n\n".join(part for part in (body, " ".join(notes), listed) if part)


def _end(state: ResearchState, context: ResearchContext, best: CheckedText) -> tuple[str, str]:
    """Why the turn ends, as a name and in words."""
    drafts = state.get("drafts", [])
    limit = budget_left(state, context).used_up()
    short = [finding for finding in state.get("findings", []) if finding["stop"] != StopReason.ANSWER]
    missing = len(state.get("findings", [])) < len(state.get("questions", []))
    if limit is not None and (not drafts or short or missing):
        return limit.value, f"The budget is used up ({limit.value}); this is the best answer so far."
    if not drafts or was_cut(drafts[-1]):
        why = "The answer was cut off." if drafts else "The sources are too long for the model."
        return StopReason.MAX_TOKENS.value, why
    if best.denies or not best.citations:
        return UNANSWERED, "The sources have no answer." if best.denies else "No source was cited."
    return StopReason.ANSWER.value, "The answer rests on sources."


def _writer_request(state: ResearchState, context: ResearchContext) -> str:
    sources, questions = state.get("sources", {}), state.get("questions", [])
    findings = state.get("findings", [])
    read: dict[str, list[int]] = {name: [] for finding in findings for name in finding["sources"]}
    for finding in findings:
        for cited in check(finding["text"], sources).citations:
            read.setdefault(cited["source"], []).append(cited["start"])
    about = " ".join([newest_request(state), *map(_about, questions)])
    shown = evidence(sources, about, read or dict.fromkeys(sources, ()), context.max_context_chars)
    told = {finding["question"]: finding["text"] for finding in findings if finding["text"]}
    return writer_request(newest_request(state), earlier_lines(state["messages"]), told, shown)


def _findings_text(state: ResearchState) -> str:
    return "\n\n".join(finding["text"] for finding in state.get("findings", []) if finding["text"])


def _search_context(task: SearchTask, context: ResearchContext) -> SearchContext:
    return SearchContext(
        research=context,
        about=_about(task["question"]),
        first_id=task["first_id"],
        has_sources=bool(task["known"]),
        max_turns=min(context.max_turns, task["turns"]),
        max_tokens=task["tokens"],
        max_seconds=task["seconds"],
        max_cost=task["cost"],
    )


def _different(questions: Sequence[ResearchQuestion]) -> list[ResearchQuestion]:
    return list({question["question"].casefold(): question for question in reversed(questions)}.values())[::-1]


def _about(question: ResearchQuestion) -> str:
    return " ".join([question["question"], *question["queries"]])


def _listed(sources: Mapping[str, Source]) -> list[str]:
    """The newest sources by name and title, as the planner is shown them."""
    return [f"{name} {source['title'][:MAX_LISTED_TITLE]}" for name, source in [*sources.items()][-MAX_LISTED:]]


def _final_id(state: ResearchState) -> str:
    """The answer to a message is named after it: the same in every replay."""
    newest = next((message for message in reversed(state["messages"]) if message.type == "human"), None)
    return f"{newest.id if newest else 'nothing'}-answered"


def _context(runtime: Runtime[ResearchContext]) -> ResearchContext:
    return runtime.context or ResearchContext()


graph = build_research()
