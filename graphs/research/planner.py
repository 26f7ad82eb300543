"""Answer of a research planner, and its parser.

An answer has one of three forms: questions to look up, a question back to the person, or a
courtesy. The planner decides on the form in one answer, since a model that sees what is unclear in
a message also sees what is clear. A question back counts only if there is no question to look up.
It does not count twice in a row: a person who has just answered is not asked again, but gets the
best available answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from langchain_core.messages import AnyMessage
from pydantic import BaseModel, Field, field_validator, model_validator

from hrm_agent.answers.typed_reply import UnparsableAnswer, one_line, read_as
from hrm_agent.graphs.research.state import ResearchQuestion
from hrm_agent.retrieval.citations.quotes import CITATION_LIST

__all__ = ["PlannedQuestion", "ResearchPlan", "earlier_lines", "reading", "whole_question"]

MAX_QUESTION, MAX_QUERY, MAX_SAID = 500, 200, 1000
"""Maximum numbers of characters of a question, a query, and a message to the person."""
MAX_QUERIES = 4
MAX_EARLIER, MAX_LINE = 8, 800
"""Maximum number of earlier messages that are shown to a role, and maximum number of characters of
each.
"""
_LISTS = ("questions", "subquestions", "sub_questions", "plan", "steps")
_QUESTIONS = ("question", "goal", "task", "text")
_QUERIES = ("queries", "query", "search", "searches", "keywords")


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class PlannedQuestion(BaseModel):
    """A question as the planner gives it."""

    question: str = Field(min_length=1)
    """Question in one line."""
    queries: list[str] = Field(default_factory=list)
    """Search queries that the planner suggests."""

    @model_validator(mode="before")
    @classmethod
    def _by_other_names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return {"question": given}
        fields = cast("Mapping[str, Any]", given)
        queries = next((fields[name] for name in _QUERIES if fields.get(name)), [])
        listed = cast("list[Any]", queries) if isinstance(queries, list) else [queries]
        asked = next(
            (fields[name] for name in _QUESTIONS if fields.get(name)), next(iter(listed), None)
        )
        return {"question": asked, "queries": [query for query in listed if isinstance(query, str)]}

    @field_validator("question")
    @classmethod
    def _in_one_line(cls, question: str) -> str:
        """Shorten a question to one line. In a request, further lines could imitate the parts that
        follow.
        """
        return one_line(question, MAX_QUESTION)

    def as_question(self) -> ResearchQuestion:
        queries = (one_line(query, MAX_QUERY) for query in self.queries)
        return ResearchQuestion(
            question=self.question, queries=[query for query in queries if query][:MAX_QUERIES]
        )


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class ResearchPlan(BaseModel):
    """What the planner answers with."""

    questions: list[PlannedQuestion] = Field(default_factory=list[PlannedQuestion])
    """Questions to look up (empty if the planner asks back or replies)."""
    ask: str = ""
    """Question back to the person (empty if there is none)."""
    reply: str = ""
    """Reply that needs no sources, such as a courtesy (empty if there is none)."""

    @model_validator(mode="before")
    @classmethod
    def _what_can_be_used(cls, given: Any) -> Any:
        """Read the list under any of its accepted names, and leave out items that are not
        questions.
        """
        fields = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
        named = next((fields[name] for name in _LISTS if name in fields), given)
        listed = cast("list[Any]", named) if isinstance(named, list) else []
        questions = [item for item in listed if _is_question(item)]
        if not questions and not any(name in fields for name in (*_LISTS, "ask", "reply")):
            # a text that is not JSON with these fields is no question, even if it is short
            raise ValueError('it has none of "questions", "ask" and "reply"')
        said = {
            name: fields[name] for name in ("ask", "reply") if isinstance(fields.get(name), str)
        }
        return {"questions": questions, **said}

    @field_validator("ask", "reply")
    @classmethod
    def _short(cls, said: str) -> str:
        return one_line(said, MAX_SAID)

    @property
    def say(self) -> str:
        """Message to the person in place of an answer (empty if there are questions to look up)."""
        return "" if self.questions else self.ask or self.reply


def _is_question(item: Any) -> bool:
    if isinstance(item, str):
        return bool(item.strip())
    fields = cast("Mapping[str, Any]", item) if isinstance(item, Mapping) else {}
    return any(
        isinstance(asked := fields.get(name), str) and asked.strip()
        for name in (*_QUESTIONS, *_QUERIES)
    )


def reading(*, may_ask: bool, has_sources: bool) -> Callable[[str], ResearchPlan]:
    """Return the parser of a plan in this turn.

    `may_ask`: True if a question back is allowed. `has_sources`: True if there are remembered
    sources, so that a plan without questions is allowed.
    """

    def read(text: str) -> ResearchPlan:
        plan = read_as(ResearchPlan, text)
        asks = bool(plan.ask)
        if not may_ask:
            plan = plan.model_copy(update={"ask": ""})
        if plan.questions or plan.say:
            return plan
        if asks:
            raise UnparsableAnswer(
                "the person has just been asked, and has answered; plan with what you know"
            )
        if not has_sources:
            raise UnparsableAnswer("there is no question in it, and there are no sources at hand")
        return plan

    return read


def whole_question(message: str) -> list[ResearchQuestion]:
    """Plan without a planner, whose only question is the person's message."""
    return [ResearchQuestion(question=one_line(message, MAX_QUESTION), queries=[])]


def earlier_lines(messages: Sequence[AnyMessage]) -> list[str]:
    """Messages before the person's newest message, each in one line, since further lines of a
    message could imitate other messages.
    """
    newest = next((i for i in reversed(range(len(messages))) if messages[i].type == "human"), 0)
    who = {"human": "Person", "ai": "Agent"}
    said = [message for message in messages[:newest] if message.type in who][-MAX_EARLIER:]
    return [
        f"{who[m.type]}: {one_line(m.text.partition(CITATION_LIST)[0], MAX_LINE)}" for m in said
    ]
