"""Check by a model whether quotes support the sentences that cite them. The context enables it.

Before this check it is certain that a quote occurs in its source, but not that the quote supports
the sentence before it: "The moon is made of cheese [1]" may cite a real quote about the moon. One
model call judges all new sentences of a draft. It is shown each sentence with the quoted words and
the text around them. Only the verdict `unsupported` has a consequence. A sentence without a verdict
counts as unclear. A verdict is an opinion, and a source may try to influence it. This can remove a
right citation, but never add a false one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hrm_agent.answers.typed_reply import one_line
from hrm_agent.graphs.parts.prompts import support_request
from hrm_agent.graphs.parts.support import SupportReply, SupportVerdict
from hrm_agent.graphs.research.sources import Source, around
from hrm_agent.graphs.research.state import SupportCheck
from hrm_agent.retrieval.citations.checked_text import Statement

__all__ = ["new_statements", "reasons_against", "support_checks", "support_text"]

AROUND = 400
"""Number of characters of a source that are shown on either side of a quote."""
MAX_CLAIM = 600
"""Maximum number of characters of a statement."""


def new_statements(
    statements: Iterable[Statement], known: Sequence[SupportCheck]
) -> list[Statement]:
    """Statements that have no verdict yet. `known`: existing verdicts."""
    judged = {_key(one) for one in known}
    return [statement for statement in statements if statement.key not in judged]


def support_text(
    statements: Sequence[Statement], sources: Mapping[str, Source], limit: int
) -> tuple[str, int]:
    """Request for verdicts on as many statements as fit into `limit` characters, and the number of
    these.
    """
    shown: list[tuple[str, str]] = []
    for claim, citations in statements:
        cited = "\n".join(
            around(sources[one["source"]], one["start"], one["end"], AROUND) for one in citations
        )
        limit -= len(cited)
        if limit < 0 and shown:
            break
        shown.append((one_line(claim, MAX_CLAIM), cited))
    return support_request(shown), len(shown)


def support_checks(
    statements: Sequence[Statement], reply: SupportReply | None
) -> list[SupportCheck]:
    """Verdicts of a reply, one for each statement (`unclear` if the reply has none)."""
    said = {one.statement: one for one in reversed(reply.verdicts if reply else [])}
    none = SupportVerdict(statement=0, verdict="unclear", reason="There was no verdict.")
    judged = [said.get(number, none) for number in range(1, len(statements) + 1)]
    return [
        SupportCheck(claim=claim, citations=[*citations], verdict=one.verdict, reason=one.reason)
        for (claim, citations), one in zip(statements, judged, strict=True)
    ]


def reasons_against(checks: Iterable[SupportCheck]) -> dict[Any, str]:
    """Key of each unsupported statement -> reason why it is unsupported."""
    return {_key(one): one["reason"] for one in checks if one["verdict"] == "unsupported"}


def _key(one: SupportCheck) -> tuple[Any, ...]:
    return Statement(one["claim"], tuple(one["citations"])).key
