"""Thoughts of an answer: where they stand in its text, and under which name a template takes them.

Thoughts are a part of the record beside the content (`additional_kwargs["reasoning_content"]`, as LangChain has it):
they are never taken for a call or an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from langchain_core.messages import AIMessage

from hrm_agent.trajectory.shown import REASONING, thoughts_of

__all__ = ["REASONING", "Thoughts", "reasoning_of"]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """How thoughts stand in an answer."""

    open: str
    """Spelling before them, without white space around it."""
    close: str
    """Spelling after them, without white space around it."""
    field: str | None
    """Key of a message under which the template takes them (None where it takes them at most in the content)."""
    opened: bool = False
    """The prompt ends with the opening, so that an answer begins with thoughts."""
    closed: bool = False
    """The prompt ends with empty thoughts, so that an answer has none."""
    in_content: bool = False
    """Without a field, the template writes thoughts that stand in the content."""

    def split(self, text: str) -> tuple[str | None, str]:
        """Split an answer into thoughts (None without any) and the rest. Unclosed thoughts take the whole answer."""
        thoughts, rest = self._apart(text)
        if not thoughts:
            return None, text
        return "\n\n".join(filter(None, thoughts)), rest.lstrip("\n")

    def end(self, text: str) -> int:
        """Number of characters of the thoughts, closing mark included (0 without thoughts)."""
        thoughts, rest = self._apart(text)
        return len(text) - len(rest) if thoughts else 0

    def _apart(self, text: str) -> tuple[list[str], str]:
        """The thoughts at the beginning, and the end of the text that is none of them."""
        thoughts: list[str] = []
        rest = text
        inside = self.opened and not text.lstrip().startswith(self.open)
        while inside or rest.lstrip().startswith(self.open):
            body = rest if inside else rest.lstrip()[len(self.open) :]
            thought, closed, rest = body.partition(self.close)
            thoughts.append(thought.strip("\n"))
            inside = False
            if not closed:
                break
        return thoughts, rest

    def written(self, reasoning: str, content: str) -> str:
        """The content with the thoughts before it."""
        return f"{self.open}\n{reasoning}\n{self.close}\n\n{content}"


def reasoning_of(message: AIMessage) -> str | None:
    """The thoughts beside an answer's content: ours, or those of a provider that are text."""
    return thoughts_of(vars(message))
