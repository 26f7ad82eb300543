"""What the research agent knows of a conversation, and what it may use: the state and the run
context.

Two kinds of channels. `messages` and `sources` are the conversation's: the person's turns with the
final answers, and what was read so far. All others belong to one turn; `new_turn` empties them, and
so a thread may have any number of turns, each with the whole budget. Nobody's thoughts, requests or
drafts are in `messages`: what a later turn is shown of an earlier one is what the person was shown.

A source is named `S1`, `S2`, ... for as long as the thread lives. The ones that were read or cited
longest ago are forgotten when a turn begins, so that the spans of the newest answer can be looked
up until the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, cast

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph.message import add_messages

# typing's has too little for LangGraph's JSON schemas before Python 3.12
from typing_extensions import TypedDict

from hrm_agent.errors import ConfigError
from hrm_agent.graphs.parts.budget import (
    BudgetShare,
    Prices,
    Remaining,
    Usage,
    merge_usage,
    refuse_limits,
    remaining,
)
from hrm_agent.graphs.research.sources import Source
from hrm_agent.retrieval.citations.quotes import Citation
from hrm_agent.retrieval.index.fusion import MODES
from hrm_agent.tools.load_tools import load_tools

__all__ = [
    "BuiltinContext",
    "ResearchContext",
    "ResearchFinding",
    "ResearchQuestion",
    "ResearchState",
    "SearchTask",
    "SearcherReport",
    "SupportCheck",
    "budget_left",
    "forgotten",
    "new_turn",
    "newest_request",
]


@dataclass(frozen=True)
class ResearchContext:
    """Where one run may look, and what it may use. Passed as LangGraph's run context."""

    wiki: str | None = None
    """URL of a MediaWiki's `api.php`, or the language of a Wikipedia: `en`. None: no wiki."""
    user_agent: str = ""
    """Who asks the wiki, with a contact: `whales/1.0 (ann@example.org)`."""
    cache: str | None = None
    """Folder that keeps the wiki's answers; None: none is kept."""
    index: str | None = None
    """File of `hrm-agent index`: documents of one's own. None: only the wiki is searched."""
    index_mode: str = "words"
    """How documents are found: by `words`; or, where the index has them, by `vectors`,
    or `hybrid`.
    """
    tools: str | Sequence[str] = ()
    """Tools of one's own, beside wiki and documents or in their place: `package.module:attribute`,
    or a list.
    """
    check_support: bool = False
    """A model is asked, once for each draft, whether the quotes support the sentences that cite
    them.
    """
    model: str | None = None
    """Another model than the current policy, by its string."""
    temperature: float | None = None
    """None: the policy's own."""
    max_questions: int = 4
    """Of one turn, searched side by side."""
    max_turns: int = 8
    """Answers of one searcher, its findings included."""
    max_searches: int = 4
    """Of one searcher."""
    max_pages: int = 4
    """Pages or documents that one searcher reads."""
    max_tool_calls: int = 8
    """Calls of tools of one's own by one searcher."""
    max_tool_seconds: float = 60.0
    """Wall-clock time of one such call."""
    max_source_chars: int = 8000
    """Characters of a source that a searcher is shown for one read."""
    max_context_chars: int = 24_000
    """Characters of all sources together that the writer is shown."""
    max_remembered_chars: int = 400_000
    """Characters of sources that a new turn begins with."""
    max_answer_tokens: int = 2048
    """Sampled tokens of one answer of a role."""
    max_calls: int = 40
    """Answers of all roles in one turn; one is kept back for the writer, another for
    `check_support`.
    """
    max_tokens: int = 32_768
    """Sampled tokens of all roles in one turn."""
    max_seconds: float = 600.0
    """Time in which models and tools were at work for one turn, in this run; checked between
    answers.
    """
    max_cost: float | None = None
    """Of one turn, in the currency of `prices`; None: no limit."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Of a million tokens, read and sampled, by the model's name or `*`; unless its provider says
    what it took.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid limit or choice, a user agent without a contact, or
        what is not a tool.
        """
        refuse_limits(
            self, max_questions=1, max_turns=1, max_searches=0, max_pages=0, max_source_chars=200,
            max_context_chars=200, max_remembered_chars=0, max_answer_tokens=1, max_calls=0, max_tokens=0,
            max_seconds=0.0, max_cost=0.0, max_tool_calls=0, max_tool_seconds=0.0,
        )  # fmt: skip
        if cast("object", self.check_support) not in (True, False):  # a word would count as yes
            raise ConfigError(f"check_support is {self.check_support!r}.", "It is true or false.")
        if self.index_mode not in MODES:
            raise ConfigError(
                f"index_mode is {self.index_mode!r}.", f"It is one of {', '.join(MODES)}."
            )
        load_tools(self.tools)
        if self.wiki and not any(mark in self.user_agent for mark in ("@", "://")):
            raise ConfigError(
                f"The user agent {self.user_agent!r} names no contact.",
                "Wikis ask for a contact: `--context user_agent='NAME/1.0 (you@example.org)'`.",
            )


@dataclass(frozen=True)
class BuiltinContext(ResearchContext):
    """Of the graph that holds no tools of its own: a place to search, or tools,
    have to be named.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` where there is nothing to search, too."""
        if not self.wiki and not self.index and not self.tools:
            raise ConfigError(
                "The research agent has nothing to search: neither a wiki nor an index of"
                " documents, nor tools.",
                "Give `--context wiki=en user_agent='NAME/1.0 (you@example.org)'`, `index=FILE` or"
                " `tools=FILE:NAME`.",
            )
        super().__post_init__()


class ResearchQuestion(TypedDict):
    """A part of what is asked, that can be looked up by itself."""

    question: str
    """What is to be looked up, in one line."""
    queries: list[str]
    """What the planner would search for."""


class SearcherReport(TypedDict):
    """What one searcher hands in. Its sources are named as it knew them, not yet as the
    conversation does.
    """

    question: str
    """The question that it searched for."""
    text: str
    """What the searcher found, as it wrote it; quotes are not checked yet."""
    stop: str
    """A `StopReason` as plain text: why the search ended."""
    sources: list[Source]
    """What the searcher read, whole."""


class ResearchFinding(TypedDict):
    """What one searcher found, in the conversation's names."""

    question: str
    """The question that was searched for."""
    text: str
    """Its quotes have been held against the sources; those that stand in none are gone."""
    stop: str
    """A `StopReason` as plain text: why the search ended."""
    sources: list[str]
    """Ids of what it read."""


class SupportCheck(TypedDict):
    """Whether a sentence of a draft is supported by what it cites."""

    claim: str
    """The sentence, without its marks."""
    citations: list[Citation]
    """What it cites."""
    verdict: str
    """`supported`, `unsupported` or `unclear`; only citations of an unsupported sentence are left
    out.
    """
    reason: str
    """The model's reason, in one line."""


class SearchTask(BudgetShare):
    """What one searcher is sent."""

    question: ResearchQuestion
    """The question to search for."""
    known: str
    """What the remembered sources have on it, as a searcher is shown sources; empty: nothing."""
    first_id: int
    """New sources are numbered from here on."""


def _remembered(old: dict[str, Source], new: Mapping[str, Source | None]) -> dict[str, Source]:
    """What is named anew is the newest; None in the place of a source forgets it."""
    kept = {name: source for name, source in old.items() if name not in new}
    return kept | {name: source for name, source in new.items() if source is not None}


def _listed(old: list[Any], new: list[Any] | None) -> list[Any]:
    """Side by side; None, alone or in front, begins anew."""
    if new is None:
        return []
    return new[1:] if new[:1] == [None] else [*old, *new]


class ResearchState(TypedDict):
    """A conversation, and its newest turn on the way."""

    messages: Annotated[list[AnyMessage], add_messages]
    """The person's turns and the final answers, nothing else."""
    sources: NotRequired[Annotated[dict[str, Source], _remembered]]
    """By id, the one that was read or cited longest ago first."""
    named: NotRequired[int]
    """The highest number of a source so far: of one that is forgotten it is not given again."""
    citations: NotRequired[list[Citation]]
    """Of the newest answer, in the order of their marks: the first is `[1]`."""
    answered: NotRequired[bool]
    """The newest answer rests on sources, and does not say that they have none."""
    questions: NotRequired[list[ResearchQuestion]]
    """The planner's questions of this turn."""
    findings: NotRequired[list[ResearchFinding]]
    """In the order of the questions."""
    found: NotRequired[Annotated[list[SearcherReport], _listed]]
    """What the searchers of this turn have handed in; empty once it is among `findings` and
    `sources`.
    """
    say: NotRequired[str]
    """What the planner says to the person itself; empty where the writer does."""
    drafts: NotRequired[list[AIMessage]]
    """The writer's answers as they were sampled; two, if something was wrong with the first."""
    complaint: NotRequired[str]
    """What was wrong with the first draft, as the writer was told."""
    support: NotRequired[Annotated[list[SupportCheck], _listed]]
    """With `check_support`: the sentences of this turn's drafts that cite."""
    asked_back: NotRequired[bool]
    """The newest answer is a question."""
    spent: NotRequired[Annotated[Usage, merge_usage]]
    """By all roles in this turn."""
    remarks: NotRequired[Annotated[list[str], _listed]]
    """What could not be read or followed, and what was done instead."""
    stop_reason: NotRequired[str]
    """`answer`; `no_answer`: the sources have none; `question`: the person is asked; `reply`:
    nothing was to be looked up; or the limit that was reached. Empty while the turn goes on.
    """
    reason: NotRequired[str]
    """Why the turn stopped, in words."""


def new_turn() -> dict[str, Any]:
    """The channels of a turn, empty."""
    return {
        "citations": [],
        "answered": False,
        "questions": [],
        "findings": [],
        "found": None,
        "say": "",
        "drafts": [],
        "complaint": "",
        "remarks": None,
        "stop_reason": "",
        "reason": "",
    }


def newest_request(state: ResearchState) -> str:
    """What the person said last."""
    return next(
        (message.text for message in reversed(state["messages"]) if message.type == "human"), ""
    )


def forgotten(sources: Mapping[str, Source], limit: int) -> dict[str, None]:
    """The sources that go so that the rest has at most so many characters, oldest first."""
    over = sum(len(source["text"]) for source in sources.values()) - limit
    gone: dict[str, None] = {}
    for name, source in sources.items():
        if over <= 0:
            break
        gone[name], over = None, over - len(source["text"])
    return gone


def budget_left(state: ResearchState, context: ResearchContext) -> Remaining:
    return remaining(context, state.get("spent", Usage()))
