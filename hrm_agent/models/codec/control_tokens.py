"""Guard that keeps text inside a message from becoming a control token.

A chat template joins the texts of messages with control tokens into one string, and a tokenizer
finds the control tokens by their spelling. Without a guard, a tool that prints `<|im_end|>` would
end a turn, and a prompt that contains `<tool_response>` would forge a tool's result. Before the
template runs, `ControlTokenGuard` replaces each such spelling by one private-use character.
Afterwards, it splits the rendered string at these characters, and the original spellings are
encoded as plain text.

Private-use characters that were in the text already are escaped, so text cannot contain a
placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from hrm_agent.basics.unicode import without_surrogates

__all__ = ["ControlTokenGuard"]

_FIRST = 0xF0000
_LIMIT = 0xFFFD - 1


class ControlTokenGuard:
    """Guard that replaces spellings by placeholders, and splits a rendered string at the
    placeholders.
    """

    def __init__(
        self, spellings: Iterable[str], normalize: Callable[[str], str] | None = None
    ) -> None:
        """`normalize`: function that the tokenizer applies to text before it searches added tokens
        (None: no change).
        """
        self._spellings = sorted(set(spellings), key=lambda spelling: (-len(spelling), spelling))
        if len(self._spellings) > _LIMIT:
            raise ValueError(
                f"{len(self._spellings)} added tokens were given, but at most {_LIMIT} can be"
                " guarded"
            )
        self._normalize = normalize
        self._placeholder = {
            spelling: chr(_FIRST + i) for i, spelling in enumerate(self._spellings)
        }
        self._escape = chr(_FIRST + len(self._spellings))
        reserved = f"[{chr(_FIRST)}-{self._escape}]"
        self._reserved = re.compile(reserved)
        self._split = re.compile(f"({self._escape}{reserved}|{reserved})")

    def pattern(self, spellings: Iterable[str]) -> re.Pattern[str]:
        """Pattern of all text to replace for these spellings. Spellings that the guard does not
        have are ignored.
        """
        known = set(spellings)
        longest_first = [re.escape(spelling) for spelling in self._spellings if spelling in known]
        return re.compile("|".join([*longest_first, self._reserved.pattern]))

    def text(self, text: str, pattern: re.Pattern[str]) -> str:
        """Replace each match of `pattern` in `text` by its placeholder."""
        text = without_surrogates(text)
        if self._normalize is not None and not text.isascii():
            normalized = self._normalize(text)
            # normalising may create a spelling, as U+212A becomes K
            if len(pattern.findall(text)) != len(pattern.findall(normalized)):
                text = normalized
        return pattern.sub(self._swap, text)

    def tree(self, value: Any, pattern: re.Pattern[str]) -> Any:
        """Guard every string in `value`, including keys."""
        if isinstance(value, str):
            return self.text(value, pattern)
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {self.tree(key, pattern): self.tree(item, pattern) for key, item in items}
        if isinstance(value, (list, tuple)):
            return [self.tree(item, pattern) for item in cast("list[Any]", value)]
        return value

    def split(self, rendered: str) -> Iterator[tuple[str, bool]]:
        """Pieces of a rendered string as (text, True if it was guarded). Empty pieces are
        omitted.
        """
        for index, piece in enumerate(self._split.split(rendered)):
            if index % 2:
                escaped = len(piece) == 2
                yield piece[1] if escaped else self._spellings[ord(piece) - _FIRST], True
            elif piece:
                yield piece, False

    def _swap(self, match: re.Match[str]) -> str:
        found = match.group()
        return self._placeholder.get(found) or self._escape + found
