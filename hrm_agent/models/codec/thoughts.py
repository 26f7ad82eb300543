"""Thoughts of an answer: their place in the answer's text, and the message key from which a
template reads them.

Thoughts are recorded separately from the content (in `additional_kwargs["reasoning_content"]`, as
in LangChain). Their text is never read as a call or an answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from langchain_core.messages import AIMessage

from hrm_agent.trajectory.words import REASONING, thoughts_of

__all__ = ["REASONING", "Thoughts", "reasoning_of"]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Place of thoughts in an answer."""

    open: str
    """Spelling before thoughts, without white space around it."""
    close: str
    """Spelling after thoughts, without white space around it."""
    field: str | None
    """Message key from which the template reads thoughts (None if it has no such key, even if it
    reads thoughts from the content).
    """
    opened: bool = False
    """True if the prompt ends with the opening, so that an answer begins with thoughts."""
    closed: bool = False
    """True if the prompt ends with empty thoughts, so that an answer has none."""
    in_content: bool = False
    """True if the template has no message key for thoughts, but writes thoughts that are in the
    content.
    """

    def __post_init__(self) -> None:
        assert self.open, "thoughts begin with a mark"
        assert self.close, "thoughts end with a mark"

    def split(self, text: str) -> tuple[str | None, str]:
        """Split an answer into thoughts (None without any) and the rest. Unclosed thoughts take the
        whole answer.
        """
        thoughts, end = self._apart(text)
        if not thoughts:
            return None, text
        return "\n\n".join(filter(None, thoughts)), text[end:].lstrip("\n")

    def end(self, text: str) -> int:
        """Number of characters of the thoughts, closing mark included (0 without thoughts)."""
        return self._apart(text)[1]

    def _apart(self, text: str) -> tuple[list[str], int]:
        """Thoughts at the beginning, and the position where they end."""
        thoughts: list[str] = []
        opening = re.compile(rf"\s*{re.escape(self.open)}")
        end = 0
        found = opening.match(text)
        inside = found is not None or self.opened
        while inside:
            begin = found.end() if found is not None else 0
            close = text.find(self.close, begin)
            if close < 0:
                return [*thoughts, text[begin:].strip("\n")], len(text)
            thoughts.append(text[begin:close].strip("\n"))
            end = close + len(self.close)
            found = opening.match(text, end)
            inside = found is not None
        return thoughts, end

    def written(self, reasoning: str, content: str) -> str:
        """Content with the thoughts before it."""
        return f"{self.open}\n{reasoning}\n{self.close}\n\n{content}"


def reasoning_of(message: AIMessage) -> str | None:
    """Thoughts that a message has separately from its content: recorded thoughts, or thoughts in a
    provider's form if they are text.
    """
    return thoughts_of(vars(message))
