"""Thoughts of an answer: where they stand in its text, and under which name a template takes them.

Thoughts are a part of the record beside the content (`additional_kwargs["reasoning_content"]`, as LangChain has it):
they are never taken for a call or an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import AIMessage

__all__ = ["REASONING", "Thoughts", "reasoning_of"]

REASONING = "reasoning_content"
"""Key of `additional_kwargs`."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How thoughts stand in an answer."""

    open: str
    """Spelling before them, without white space around it."""
    close: str
    """Spelling after them, without white space around it."""
    field: str | None
    """Key of a message under which the template takes them; None where it takes them at most in the content."""
    opened: bool = False
    """The prompt ends with the opening, so that an answer begins with thoughts."""
    closed: bool = False
    """The prompt ends with empty thoughts, so that an answer has none."""
    in_content: bool = False
    """Without a field, the template writes thoughts that stand in the content."""

    def split(self, text: str) -> tuple[str | None, str]:
        """The thoughts (None: there are none) and the rest. Thoughts without an end are all of the answer."""
        thoughts: list[str] = []
        rest, inside = text, self.opened and not text.lstrip().startswith(self.open)
        while inside or rest.lstrip().startswith(self.open):
            body = rest if inside else rest.lstrip()[len(self.open) :]
            thought, closed, rest = body.partition(self.close)
            thoughts.append(thought.strip("\n"))
            inside = False
            if not closed:
                break
        if not thoughts:
            return None, text
        return "\n\n".join(filter(None, thoughts)), rest.lstrip("\n")

    def written(self, reasoning: str, content: str) -> str:
        """The content with the thoughts before it."""
        return f"{self.open}\n{reasoning}\n{self.close}\n\n{content}"


def reasoning_of(message: AIMessage) -> str | None:
    """The thoughts beside an answer's content: ours, or blocks of a provider that are text."""
    kept: Any = message.additional_kwargs.get(REASONING)
    if isinstance(kept, str):
        return kept
    content = cast("str | list[Any]", message.content)
    if isinstance(content, str):
        return None
    found = [text for block in content if (text := _thought(block))]
    return "\n\n".join(found) or None


def _thought(block: Any) -> str:
    if not isinstance(block, Mapping):
        return ""
    block = cast("Mapping[str, Any]", block)
    if block.get("type") not in ("thinking", "reasoning"):
        return ""
    text = block.get("thinking") or block.get("reasoning") or ""
    return text if isinstance(text, str) else ""
