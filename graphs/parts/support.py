"""Role that judges whether cited words support the sentences of a text, and the parser of its
answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import BaseModel, Field, field_validator, model_validator

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.graphs.parts.prompts import SUPPORT_PROMPT
from hrm_agent.graphs.parts.roles import Role

__all__ = ["SUPPORT", "SupportReply", "SupportVerdict"]

MAX_REASON = 300
"""Maximum characters of a reason."""
Word = Literal["supported", "unsupported", "unclear"]
_MEANT: dict[str, Word] = {
    **dict.fromkeys(
        ("supported", "supports", "support", "yes", "true", "entailed", "entails", "ok"),
        "supported",
    ),
    **dict.fromkeys(
        (
            "unsupported",
            "not_supported",
            "does_not_support",
            "no",
            "false",
            "contradicted",
            "contradicts",
            "refuted",
        ),
        "unsupported",
    ),
}


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class SupportVerdict(BaseModel):
    """The verdict on one statement."""

    statement: int
    """Number of the statement in the request, from 1."""
    verdict: Word
    """Verdict with synonyms replaced. Any other word counts as unclear."""
    reason: str = ""
    """Reason in one line."""

    @field_validator("verdict", mode="before")
    @classmethod
    def _meant(cls, given: Any) -> Any:
        if isinstance(given, bool):
            return "supported" if given else "unsupported"
        return _MEANT.get(str(given).strip().lower().replace(" ", "_").replace("-", "_"), "unclear")

    @field_validator("reason", mode="before")
    @classmethod
    def _in_one_line(cls, given: Any) -> str:
        """Shorten the reason to one line: it is written into the writer's request, where several
        lines could forge the text after it.
        """
        return one_line(str(given or ""), MAX_REASON)


# The class docstring is part of the JSON schema, which is hashed into each request: keep it.
class SupportReply(BaseModel):
    """What the check answers with."""

    verdicts: list[SupportVerdict] = Field(default_factory=list[SupportVerdict])
    """Verdicts in any order."""

    @model_validator(mode="before")
    @classmethod
    def _as_a_list(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            fields = cast("Mapping[str, Any]", given)
            given = fields.get("verdicts", [fields] if "verdict" in fields else None)
        return {"verdicts": given}


SUPPORT = Role("support", SUPPORT_PROMPT, SupportReply)
