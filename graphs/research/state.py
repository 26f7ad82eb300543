"""State and run context of the research agent.

There are two kinds of channels. `messages` (the person's messages and the final answers) and
`sources` (the sources that were read so far) belong to the conversation. All others belong to one
turn, and `new_turn` empties them. So a thread may have any number of turns, each with the whole
budget. Thoughts, requests and drafts are not in `messages`, so that later turns see only what the
person has seen of earlier turns.

A source keeps its name (`S1`, `S2`, ...) for the lifetime of the thread. When there are too many,
the sources that were read or cited longest ago are forgotten. This happens at the beginning of a
turn, so that the citations of the newest answer can be looked up until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, cast

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph.message import add_messages

# before Python 3.12, LangGraph's JSON schemas need the TypedDict of typing_extensions
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
    """Sources, limits and options of one run, passed as LangGraph's run context."""

    wiki: str | None = None
    """URL of a MediaWiki's `api.php`, or the language of a Wikipedia, such as `en` (None: no
    wiki).
    """
    user_agent: str = ""
    """User agent for the wiki, which contains a contact: `whales/1.0 (ann@example.org)`."""
    cache: str | None = None
    """Folder in which the wiki's answers are cached (None: no cache)."""
    index: str | None = None
    """File made by `hrm-agent index` of your documents (None: no documents are searched)."""
    index_mode: str = "words"
    """Search mode for documents: `words`, or `vectors` or `hybrid` if the index has vectors."""
    tools: str | Sequence[str] = ()
    """Your tools, as `package.module:attribute` or a list of such names. They may be used with or
    without wiki and documents.
    """
    check_support: bool = False
    """Ask a model, once for each draft, whether the quotes support the sentences that cite them."""
    model: str | None = None
    """Model string (None: the current policy)."""
    temperature: float | None = None
    """Sampling temperature (None: that of the policy)."""
    max_questions: int = 4
    """Maximum number of questions in a turn, which are searched in parallel."""
    max_turns: int = 8
    """Maximum number of answers of one searcher, including its findings."""
    max_searches: int = 4
    """Maximum number of searches of one searcher."""
    max_pages: int = 4
    """Maximum number of pages or documents that one searcher reads."""
    max_tool_calls: int = 8
    """Maximum number of calls of your tools by one searcher."""
    max_tool_seconds: float = 60.0
    """Maximum wall-clock time of one call of your tools, in seconds."""
    max_source_chars: int = 8000
    """Maximum number of characters that one read shows to a searcher."""
    max_context_chars: int = 24_000
    """Maximum number of characters of all sources together that are shown to the writer."""
    max_remembered_chars: int = 400_000
    """Maximum number of characters of sources with which a new turn begins."""
    max_answer_tokens: int = 2048
    """Maximum number of sampled tokens of one answer of a role."""
    max_calls: int = 40
    """Maximum number of answers of all roles in one turn. One answer is reserved for the writer,
    and another for `check_support`.
    """
    max_tokens: int = 32_768
    """Maximum number of sampled tokens of all roles in one turn."""
    max_seconds: float = 600.0
    """Maximum time during which models and tools are running for one turn, in seconds. Only time in
    this run counts. It is checked between answers.
    """
    max_cost: float | None = None
    """Maximum cost of one turn, in the currency of `prices` (None: no limit)."""
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    """Model name (`*` for all others) -> prices of a million prompt tokens and of a million
    completion tokens. They are used if the provider reports no cost.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for an invalid limit or choice, a user agent without a contact, or an
        invalid tool.
        """
        refuse_limits(
            self, max_questions=1, max_turns=1, max_searches=0, max_pages=0, max_source_chars=200,
            max_context_chars=200, max_remembered_chars=0, max_answer_tokens=1, max_calls=0, max_tokens=0,
            max_seconds=0.0, max_cost=0.0, max_tool_calls=0, max_tool_seconds=0.0,
        )  # fmt: skip
        if cast("object", self.check_support) not in (True, False):  # a text would count as true
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
    """Run context of the graph that was built without tools, so that the context must name a wiki,
    an index or tools.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` if there is nothing to search, or as the base class does."""
        if not self.wiki and not self.index and not self.tools:
            raise ConfigError(
                "The research agent has nothing to search: neither a wiki nor an index of"
                " documents, nor tools.",
                "Give `--context wiki=en user_agent='NAME/1.0 (you@example.org)'`, `index=FILE` or"
                " `tools=FILE:NAME`.",
            )
        super().__post_init__()


class ResearchQuestion(TypedDict):
    """Part of the request that can be looked up by itself."""

    question: str
    """Question in one line."""
    queries: list[str]
    """Search queries that the planner suggests."""


class SearcherReport(TypedDict):
    """Report of one searcher. Its sources still have the names that the searcher used, not those of
    the conversation.
    """

    question: str
    """Question of the search."""
    text: str
    """Findings as the searcher wrote them. Quotes are not checked yet."""
    stop: str
    """`StopReason` of the search as plain text."""
    sources: list[Source]
    """Whole sources that the searcher read."""


class ResearchFinding(TypedDict):
    """Finding of one searcher, in which sources have the conversation's names."""

    question: str
    """Question of the search."""
    text: str
    """Findings with checked quotes. Quotes that occur in no source are removed."""
    stop: str
    """`StopReason` of the search as plain text."""
    sources: list[str]
    """Ids of the sources that the searcher read."""


class SupportCheck(TypedDict):
    """Verdict on whether a sentence of a draft is supported by its citations."""

    claim: str
    """Sentence without citation marks."""
    citations: list[Citation]
    """Citations of the sentence."""
    verdict: str
    """Verdict: `supported`, `unsupported` or `unclear`. Only citations of an unsupported sentence
    are removed.
    """
    reason: str
    """The model's reason, in one line."""


class SearchTask(BudgetShare):
    """Input of one searcher."""

    question: ResearchQuestion
    """Question to search for."""
    known: str
    """Passages of the remembered sources about the question, as they are shown to a searcher (empty
    if there are none).
    """
    first_id: int
    """Number of the first new source."""


def _remembered(old: dict[str, Source], new: Mapping[str, Source | None]) -> dict[str, Source]:
    """Merge sources by name. The sources in `new` become the newest. The value None removes a
    source.
    """
    kept = {name: source for name, source in old.items() if name not in new}
    return kept | {name: source for name, source in new.items() if source is not None}


def _listed(old: list[Any], new: list[Any] | None) -> list[Any]:
    """Append `new` to `old`. If `new` is None, or begins with None, the list is emptied first."""
    if new is None:
        return []
    return new[1:] if new[:1] == [None] else [*old, *new]


class ResearchState(TypedDict):
    """State of a conversation and its newest turn."""

    messages: Annotated[list[AnyMessage], add_messages]
    """Messages of the person and final answers only."""
    sources: NotRequired[Annotated[dict[str, Source], _remembered]]
    """Sources by id, in the order in which they were last read or cited."""
    named: NotRequired[int]
    """Highest number of a source so far. The number of a forgotten source is not used again."""
    citations: NotRequired[list[Citation]]
    """Citations of the newest answer, in the order of their marks: the first is `[1]`."""
    answered: NotRequired[bool]
    """True if the newest answer has citations, and does not report that the sources have no
    answer.
    """
    questions: NotRequired[list[ResearchQuestion]]
    """Planner's questions of this turn."""
    findings: NotRequired[list[ResearchFinding]]
    """Findings in the order of the questions."""
    found: NotRequired[Annotated[list[SearcherReport], _listed]]
    """Reports of the searchers of this turn (empty once they are merged into `findings` and
    `sources`).
    """
    say: NotRequired[str]
    """Planner's message to the person (empty if the writer answers)."""
    drafts: NotRequired[list[AIMessage]]
    """Writer's answers as sampled. There are two if the first had an error."""
    complaint: NotRequired[str]
    """Complaint about the first draft that was shown to the writer."""
    support: NotRequired[Annotated[list[SupportCheck], _listed]]
    """Verdicts on the sentences with citations in this turn's drafts, with `check_support`."""
    asked_back: NotRequired[bool]
    """True if the newest answer is a question back to the person."""
    spent: NotRequired[Annotated[Usage, merge_usage]]
    """Usage of all roles in this turn."""
    remarks: NotRequired[Annotated[list[str], _listed]]
    """Remarks on outputs that could not be parsed or followed, and on how they were repaired."""
    stop_reason: NotRequired[str]
    """Reason for the end of the turn: `answer`; `no_answer` (the sources have none); `question`
    (the person is asked); `reply` (there was nothing to look up); or the limit that was reached
    (empty while the turn continues).
    """
    reason: NotRequired[str]
    """Reason for the end, as text for a person."""


def new_turn() -> dict[str, Any]:
    """State update that empties the channels of a turn."""
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
    """Newest message of the person."""
    return next(
        (message.text for message in reversed(state["messages"]) if message.type == "human"), ""
    )


def forgotten(sources: Mapping[str, Source], limit: int) -> dict[str, None]:
    """Sources to forget, oldest first, so that the others have at most `limit` characters."""
    over = sum(len(source["text"]) for source in sources.values()) - limit
    gone: dict[str, None] = {}
    for name, source in sources.items():
        if over <= 0:
            break
        gone[name], over = None, over - len(source["text"])
    return gone


def budget_left(state: ResearchState, context: ResearchContext) -> Remaining:
    return remaining(context, state.get("spent", Usage()))
