"""Research agent: a conversation over a wiki and the user's documents, with citations of exact
spans.

    START -> plan -> search (one per question, side by side) -> gather -> write -> (support) -> check -> END
              |  |                                                ^         ^                      |
              |  +--- what was read before is enough -------------+         +----------------------+
              +-> reply -> END                                                once, if a citation does not stand

The planner lists the questions to look up, asks the person a question, or only returns a courtesy.
Each searcher is a separate tool loop. `gather` gives the sources that were read names that last for
the conversation, and keeps only those quotes of the findings that occur in the sources. The writer
answers from these findings and sources. With `check_support`, a model judges whether each quote
supports its sentence (`support`). `check` compares each quote with the text of its source. If a
citation is fabricated, or does not support its sentence, the draft is sent back once with the
reason. If the next draft still has such a citation, the citation is removed, and the answer reports
this. If no citation is left, `answered` is false and the state's `stop_reason` is `no_answer` (the
recorded run is completed).

No output of a model, a tool or a wiki raises an error: every turn ends with a `stop_reason`. All
roles share one budget (`hrm_agent.graphs.parts.budget`). When it is used up, the turn ends with the
best answer so far. If there is no draft, this is the findings, whose quotes are already checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from hrm_agent.errors import ContextLengthError
from hrm_agent.graphs.parts.budget import LoopBudget, reset_usage, spent_on
from hrm_agent.graphs.parts.loop import run_loop
from hrm_agent.graphs.parts.prompts import (
    RESEARCH_PLANNER_PROMPT,
    WRITER_PROMPT,
    research_request,
    searcher_request,
    writer_request,
)
from hrm_agent.graphs.parts.roles import CallOptions, Role, ask_role, chat_model
from hrm_agent.graphs.parts.support import SUPPORT
from hrm_agent.graphs.research.planner import ResearchPlan, earlier_lines, reading, whole_question
from hrm_agent.graphs.research.searcher import SearchContext, build_search
from hrm_agent.graphs.research.sources import Source, evidence, renamed, same_source
from hrm_agent.graphs.research.state import (
    BuiltinContext,
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
)
from hrm_agent.graphs.research.support import (
    new_statements,
    reasons_against,
    support_checks,
    support_text,
)
from hrm_agent.graphs.research.tools import Toolbox
from hrm_agent.models import was_cut
from hrm_agent.retrieval.citations.checked_text import CheckedText, check, quoted_again
from hrm_agent.tools.load_tools import as_tools
from hrm_agent.trajectory import StopReason

__all__ = ["ResearchContext", "ResearchState", "build_research", "graph"]

PLANNER = Role("planner", RESEARCH_PLANNER_PROMPT, ResearchPlan)
NO_ANSWER = "The sources do not answer this."
UNSUPPORTED = "No source was cited for this."
REMOVED = "Removed: {} that no source has."
NO_SUPPORT = "Removed: {} that does not support its sentence."
MAX_LISTED, MAX_LISTED_TITLE = 50, 100
"""Maximum number of remembered sources that are shown to the planner, and maximum number of
characters of their titles.
"""
QUESTION, REPLY, UNANSWERED = "question", "reply", "no_answer"
"""Further stop reasons of a turn, in addition to those of `StopReason`."""


def build_research(
    model: BaseChatModel | None = None, tools: Sequence[BaseTool | BaseRetriever] = ()
) -> Any:
    """Return the compiled graph.

    `model`: chat model in place of the current policy. `tools`: your tools for the searchers, in
    addition to the tools that the context names.
    """
    nodes = _Research(model, as_tools(tools))
    builder = StateGraph(ResearchState, context_schema=ResearchContext if tools else BuiltinContext)
    builder.add_node("plan", nodes.plan)
    builder.add_node("reply", reply)
    builder.add_node("search", nodes.search, input_schema=SearchTask)
    builder.add_node("gather", gather)
    builder.add_node("write", nodes.write)
    builder.add_node("support", nodes.support)
    builder.add_node("check", check_draft)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", after_plan, ["reply", "search", "gather"])
    builder.add_edge("reply", END)
    builder.add_edge("search", "gather")
    builder.add_edge("gather", "write")
    builder.add_conditional_edges("write", after_write, ["support", "check"])
    builder.add_edge("support", "check")
    builder.add_conditional_edges("check", after_check, ["write", END])
    return builder.compile()


class _Research:
    """Nodes that ask a model."""

    def __init__(self, model: BaseChatModel | None, tools: Sequence[BaseTool]) -> None:
        self._model = model
        self._tools = tools
        self._searcher = build_search(model, tools)

    async def plan(self, state: ResearchState, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
        """Planner: the newest message -> questions, or a message to the person instead."""
        context = _context(runtime)
        sources = state.get("sources", {})
        Toolbox(context, self._tools)  # raises `ConfigError` before any model call
        gone = forgotten(sources, context.max_remembered_chars)
        at_hand = {name: source for name, source in sources.items() if name not in gone}
        fresh = ResearchState(messages=state["messages"])  # each turn begins with the whole budget
        listed = [
            f"{name} {source['title'][:MAX_LISTED_TITLE]}"
            for name, source in [*at_hand.items()][-MAX_LISTED:]
        ]
        request = research_request(newest_request(state), earlier_lines(state["messages"]), listed)
        options = self._options(fresh, context, kept_back=1)
        may_ask = not state.get("asked_back")
        said = await ask_role(
            PLANNER, request, options, read=reading(may_ask=may_ask, has_sources=bool(at_hand))
        )
        plan = said.value
        remarks = list[str]()
        if plan is None:
            questions = whole_question(newest_request(state))
            remarks.append(
                f"plan: {said.complaint or 'there was none'}; the message itself is the one"
                " question"
            )
        else:
            questions = _different([question.as_question() for question in plan.questions])
        if len(questions) > context.max_questions:
            remarks.append(
                f"plan: {len(questions)} questions, of which the first {context.max_questions}"
                " count"
            )
        return new_turn() | {
            "sources": gone,
            "questions": questions[: context.max_questions],
            "say": plan.say if plan else "",
            "asked_back": bool(plan and plan.say and plan.ask),
            "spent": reset_usage(spent_on(said.messages, context.prices)),
            "remarks": [None, *remarks] if remarks else None,
            **({"support": None} if state.get("support") else {}),
        }

    async def search(self, state: SearchTask, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
        """Searcher: one question -> a finding, and the sources read for it."""
        context = _context(runtime)
        question = state["question"]["question"]
        request = searcher_request(question, state["question"]["queries"], state["known"])
        search = SearchContext(
            research=context,
            about=_about(state["question"]),
            first_id=state["first_id"],
            has_sources=bool(state["known"]),
            budget=LoopBudget.of(state, context.max_turns, context.prices),
        )
        end, full = await run_loop(self._searcher, [HumanMessage(request)], search)
        remarks = [f"search: {full}"] if full else []
        stop = end.get("stop_reason") or StopReason.MAX_TURNS.value
        text = next((message.text for message in end["messages"][-1:] if message.type == "ai"), "")
        found = SearcherReport(
            question=question, text=text, stop=stop, sources=end.get("sources", [])
        )
        return {
            "found": [found],
            "spent": spent_on(end["messages"], context.prices),
            "remarks": remarks,
        }

    async def write(
        self, state: ResearchState, runtime: Runtime[ResearchContext]
    ) -> dict[str, Any]:
        """Writer: findings and passages -> an answer with quotes. If the budget is used up, returns
        an empty update.
        """
        context = _context(runtime)
        drafts = state.get("drafts", [])
        left = budget_left(state, context)
        if left.used_up():
            return {}
        # in a thread, since long sources take a moment
        request = await asyncio.to_thread(_writer_request, state, context)
        turns: list[AnyMessage] = [SystemMessage(WRITER_PROMPT), HumanMessage(request), *drafts]
        if drafts:
            turns.append(HumanMessage(state.get("complaint", "")))
        limit = min(context.max_answer_tokens, left.tokens)
        chat = chat_model(
            context.model or self._model, temperature=context.temperature, budget=limit
        )
        try:
            answer = await chat.ainvoke(turns)
        except ContextLengthError as error:
            return {"remarks": [f"write: {error}"]}
        return {"drafts": [*drafts, answer], "spent": spent_on([answer], context.prices)}

    async def support(
        self, state: ResearchState, runtime: Runtime[ResearchContext]
    ) -> dict[str, Any]:
        """Judge whether the quotes of the newest draft support the sentences that cite them."""
        context = _context(runtime)
        sources = state.get("sources", {})
        draft = await asyncio.to_thread(check, state.get("drafts", [])[-1].text, sources)
        asked = new_statements(draft.statements, state.get("support", []))
        if not asked:
            return {}
        request, shown = support_text(asked, sources, context.max_context_chars)
        said = await ask_role(SUPPORT, request, self._options(state, context))
        return {
            "support": support_checks(asked[:shown], said.value),
            "spent": spent_on(said.messages, context.prices),
            "remarks": (
                [f"support: {said.complaint or 'there was no verdict'}"]
                if said.value is None
                else []
            ),
        }

    def _options(
        self, state: ResearchState, context: ResearchContext, kept_back: int = 0
    ) -> CallOptions:
        """Call options of a role: its share of the budget, and two calls, since the first answer
        may not be parsable.
        """
        left = budget_left(state, context)
        calls = min(2, left.calls - kept_back)
        limit = min(context.max_answer_tokens, left.tokens)
        return CallOptions(
            context.model or self._model, context.temperature, limit, 0 if left.used_up() else calls
        )


async def after_plan(
    state: ResearchState, runtime: Runtime[ResearchContext]
) -> Sequence[Send] | str:
    """Next nodes: a searcher for every question, as far as the budget allows, `gather` if there is
    none, or `reply` if the planner has a message for the person.
    """
    if state.get("say"):
        return "reply"
    context = _context(runtime)
    questions = state.get("questions", [])
    sources = state.get("sources", {})
    kept = {"calls": 2 if context.check_support else 1, "answer_tokens": context.max_answer_tokens}
    shares = budget_left(state, context).shares(len(questions), **kept)
    first_id = state.get("named", 0) + 1
    return [
        Send("search", SearchTask(question=question, known=known, first_id=first_id, **share))
        for question, share in zip(questions, shares, strict=False)
        for known in [evidence(sources, _about(question), {}, context.max_source_chars)]
    ] or "gather"


def reply(state: ResearchState) -> dict[str, Any]:
    """Return the planner's message to the person as the answer."""
    asked = bool(state.get("asked_back"))
    return {
        "messages": [AIMessage(state.get("say", ""), id=_final_id(state))],
        "stop_reason": QUESTION if asked else REPLY,
        "reason": "The message was not clear." if asked else "There was nothing to look up.",
    }


def gather(state: ResearchState) -> dict[str, Any]:
    """Join: name the new sources, and keep the quotes of findings that occur in them."""
    sources = dict(state.get("sources", {}))
    findings = list[ResearchFinding]()
    remarks = list[str]()
    new = dict[str, Source]()
    named = state.get("named", 0)
    for found in state.get("found", []):
        names: dict[str, str] = {}
        for source in found["sources"]:
            known = next(
                (name for name, one in (sources | new).items() if same_source(one, source)), None
            )
            named += known is None
            names[source["id"]] = name = known or f"S{named}"
            new[name] = renamed(source, name)
        shown = sources | {source["id"]: source for source in found["sources"]}
        text = quoted_again(found["text"], shown, names)
        read = list(dict.fromkeys(names.values()))
        findings.append(
            ResearchFinding(question=found["question"], text=text, stop=found["stop"], sources=read)
        )
        if found["stop"] != StopReason.ANSWER:
            remarks.append(f"search: {found['question']}: ended by {found['stop']}")
    return {"sources": new, "named": named, "findings": findings, "found": None, "remarks": remarks}


async def after_write(state: ResearchState, runtime: Runtime[ResearchContext]) -> str:
    """Next node: `support` if the check is enabled, a draft exists and the budget is not used up,
    else `check`.
    """
    context = _context(runtime)
    wanted = (
        context.check_support and state.get("drafts") and not budget_left(state, context).used_up()
    )
    return "support" if wanted else "check"


def check_draft(state: ResearchState, runtime: Runtime[ResearchContext]) -> dict[str, Any]:
    """Compare the drafts with the sources. Either send the newest draft back with its errors, or
    end the turn with the best draft.
    """
    context = _context(runtime)
    drafts = state.get("drafts", [])
    sources = state.get("sources", {})
    unsupported = reasons_against(state.get("support", []))
    checked = [check(draft.text, sources, unsupported) for draft in drafts]
    complaint = _complaint(checked[-1], unsupported, sources) if checked else ""
    if (
        complaint
        and not state.get("complaint")
        and not was_cut(drafts[0])
        and not budget_left(state, context).used_up()
    ):
        return {"complaint": complaint}
    best = max(checked, key=lambda one: (len(one.citations), bool(one.body)), default=None)
    if best is None or not best.body:
        texts = (finding["text"] for finding in state.get("findings", []))
        best = check("\n\n".join(filter(None, texts)), sources, unsupported)
    remarks = [f"check: mended {mended}" for mended in best.mended]
    remarks += [f"check: removed {problem}" for problem in best.problems]
    remarks += [
        f"check: removed what {one.claim!r} cites: {unsupported[one.key]}" for one in best.refused
    ]
    if context.check_support and (
        unknown := new_statements(best.statements, state.get("support", []))
    ):
        remarks.append(f"support: {len(unknown)} sentences were not looked at")
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


async def after_check(state: ResearchState) -> str:
    return END if state.get("stop_reason") else "write"


def _complaint(
    checked: CheckedText, unsupported: Mapping[Any, str], sources: Mapping[str, Source]
) -> str:
    """Complaint to the writer about a draft (empty if the draft is acceptable)."""
    if not checked.body:
        return "There is no text in it. Answer again."
    wrong = [
        *checked.problems[:8],
        *(f"{one.claim}: not supported: {unsupported[one.key]}" for one in checked.refused[:8]),
    ]
    if wrong:
        listed = "\n".join(wrong)
        return (
            f"These citations do not stand:\n{listed}\nAnswer again; quote to the letter what the"
            " sources have."
        )
    if not checked.citations and not checked.denies and sources:
        return "Nothing in it is cited. Cite the sources' exact words, or begin with NOT ANSWERED."
    return ""


def _final_text(best: CheckedText) -> str:
    """Answer for the person, with notes on missing and removed citations."""
    if not best.body:
        return NO_ANSWER
    body = f"{NO_ANSWER} {best.body}" if best.denies else best.body
    notes = []
    if not best.citations and not best.denies:
        notes.append(UNSUPPORTED)
    for note, count in (
        (REMOVED, len(best.problems)),
        (NO_SUPPORT, sum(len(one.citations) for one in best.refused)),
    ):
        notes += (
            [note.format("1 citation" if count == 1 else f"{count} citations")] if count else []
        )
    listed = best.text[len(best.body) :].strip()
    return "\n\n".join(part for part in (body, " ".join(notes), listed) if part)


def _end(state: ResearchState, context: ResearchContext, best: CheckedText) -> tuple[str, str]:
    """Stop reason of the turn, and the reason as text for a person."""
    drafts = state.get("drafts", [])
    limit = budget_left(state, context).used_up()
    short = [
        finding for finding in state.get("findings", []) if finding["stop"] != StopReason.ANSWER
    ]
    missing = len(state.get("findings", [])) < len(state.get("questions", []))
    if limit is not None and (not drafts or short or missing):
        return (
            limit.value,
            f"The budget is used up ({limit.value}); this is the best answer so far.",
        )
    if not drafts or was_cut(drafts[-1]):
        why = "The answer was cut off." if drafts else "The sources are too long for the model."
        return StopReason.MAX_TOKENS.value, why
    if best.denies or not best.citations:
        return UNANSWERED, "The sources have no answer." if best.denies else "No source was cited."
    return StopReason.ANSWER.value, "The answer rests on sources."


def _writer_request(state: ResearchState, context: ResearchContext) -> str:
    sources = state.get("sources", {})
    questions = state.get("questions", [])
    findings = state.get("findings", [])
    read: dict[str, list[int]] = {name: [] for finding in findings for name in finding["sources"]}
    for finding in findings:
        for cited in check(finding["text"], sources).citations:
            read.setdefault(cited["source"], []).append(cited["start"])
    about = " ".join([newest_request(state), *map(_about, questions)])
    shown = evidence(sources, about, read or dict.fromkeys(sources, ()), context.max_context_chars)
    told = {finding["question"]: finding["text"] for finding in findings if finding["text"]}
    return writer_request(newest_request(state), earlier_lines(state["messages"]), told, shown)


def _different(questions: Sequence[ResearchQuestion]) -> list[ResearchQuestion]:
    return list(
        {question["question"].casefold(): question for question in reversed(questions)}.values()
    )[::-1]


def _about(question: ResearchQuestion) -> str:
    return " ".join([question["question"], *question["queries"]])


def _final_id(state: ResearchState) -> str:
    """Id of the answer, made from the id of the person's message, so that it is the same in every
    replay.
    """
    newest = next(
        (message for message in reversed(state["messages"]) if message.type == "human"), None
    )
    return f"{newest.id if newest else 'nothing'}-answered"


def _context(runtime: Runtime[ResearchContext]) -> ResearchContext:
    return runtime.context or ResearchContext()


graph = build_research()
