"""Text of an answer while it is being sampled, for a terminal or a browser.

Incomplete characters, thoughts, and everything from the first call on are held back. A call is
shown once it can be read. The record is made from the tokens and does not depend on this decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hrm_agent.models.codec.calls.hermes import TOOL_CALL_OPEN

__all__ = ["Hidden", "PieceDecoder", "StreamDecoder"]

_UNFINISHED = "\ufffd"


@dataclass(frozen=True, slots=True)
class Hidden:
    """Spellings that mark the hidden parts of an answer."""

    marks: tuple[str, ...] = (TOOL_CALL_OPEN,)
    """Spellings that hide the answer from there on to its end."""
    opening: tuple[str, ...] = ()
    """Spellings that hide the whole answer if it begins with one of them."""
    thoughts: tuple[str, str] | None = None
    """Spellings before and after thoughts at the beginning."""
    opened: bool = False
    """True if an answer begins inside thoughts."""
    header: str = ""
    """Beginning of each message of an answer, in forms with channels. The prompt ends with it."""
    shown_after: tuple[str, ...] = ()
    """Spellings after a header from which on an answer is shown. If any are given, all other text
    is hidden.
    """


_PLAIN = Hidden()


class PieceDecoder:
    """Decoder that returns the text that each token adds. A character of several tokens comes with
    its last token.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], most_waiting: int | None = None
    ) -> None:
        """`decode`: function of a codec. `most_waiting`: maximum number of tokens that wait for the
        rest of a character (None: no limit).
        """
        self._decode = decode
        self._most_waiting = most_waiting
        self._ids: list[int] = []
        self._context = 0
        """Start of the tokens that are decoded again as context for new tokens."""
        self._read = 0
        """Start of the tokens whose text has not been returned yet."""

    def push(self, token_id: int) -> str:
        """New text up to this token."""
        self._ids.append(token_id)
        return self._take(
            final=self._most_waiting is not None
            and len(self._ids) - self._read > self._most_waiting
        )

    def finish(self) -> str:
        """Text of the tokens that are still held back."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._context : self._read])
        after = self._decode(self._ids[self._context :])
        if not final and after.endswith(_UNFINISHED):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return after[len(before) :]


class StreamDecoder:
    """Decoder of an answer's tokens into text, piece by piece. Joined, the pieces are the answer's
    text up to its first tool call.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], hidden: Hidden = _PLAIN) -> None:
        """`decode`: function of a codec."""
        self._pieces = PieceDecoder(decode)
        self._pending = hidden.header
        self._closed = False
        self._hidden = hidden
        self._thinking = hidden.opened
        self._begun = not (hidden.thoughts or hidden.opening or hidden.shown_after)
        """True once the beginning of the answer is known."""
        self._after_thoughts = False
        """True if line ends at the beginning are not part of the answer."""

    def push(self, token_id: int) -> str:
        """Text that can be shown now that this token is known, often empty."""
        if self._closed:
            return ""
        self._pending += self._pieces.push(token_id)
        return self._release(final=False)

    def finish(self) -> str:
        """Text that was held back although nothing hidden followed."""
        if self._closed:
            return ""
        self._pending += self._pieces.finish()
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        if not self._begin(final=final):
            self._closed = final
            return ""
        if self._closed:
            return ""
        if self._after_thoughts:
            self._pending = self._pending.lstrip("\n")
            self._after_thoughts = not self._pending
        found = [at for mark in self._hidden.marks if (at := self._pending.find(mark)) >= 0]
        self._closed = final or bool(found)
        if found:
            cut = min(found)
        else:
            cut = len(self._pending) - (
                0 if final else _held_back(self._pending, self._hidden.marks)
            )
        text = self._pending[:cut]
        self._pending = self._pending[cut:]
        return text

    def _begin(self, *, final: bool) -> bool:
        """Skip text before the answer. Returns False while the beginning is not known."""
        while not self._begun or self._thinking:
            if self._hidden.shown_after:
                self._begun = self._go_past(
                    [self._hidden.header + mark for mark in self._hidden.shown_after]
                )
                return self._begun
            if self._thinking:
                assert self._hidden.thoughts is not None
                if not self._go_past(self._hidden.thoughts[1:]):
                    return False
                self._thinking = False
                self._begun = False
                self._after_thoughts = True
            stripped = self._pending.lstrip()
            openings = [self._hidden.thoughts[0]] if self._hidden.thoughts else []
            if any(stripped.startswith(each) for each in self._hidden.opening):
                self._closed = self._begun = True
            elif openings and stripped.startswith(openings[0]):
                self._pending = stripped[len(openings[0]) :]
                self._thinking = True
            elif not final and any(
                each.startswith(stripped) for each in (*openings, *self._hidden.opening)
            ):
                return False
            else:
                self._begun = True
        return True

    def _go_past(self, marks: Sequence[str]) -> bool:
        """Drop pending text up to and including the first mark. Returns False if no mark has come
        yet.
        """
        found = [(at, len(mark)) for mark in marks if (at := self._pending.find(mark)) >= 0]
        if not found:
            kept = max(map(len, marks)) - 1
            self._pending = self._pending[max(len(self._pending) - kept, 0) :]
            return False
        self._pending = self._pending[sum(min(found)) :]
        return True


def _held_back(text: str, marks: Sequence[str]) -> int:
    """Length of the end of `text` that may be the beginning of a mark."""
    for length in range(min(max(map(len, marks), default=1) - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0
