"""Text of an answer while it is being sampled: what a terminal or a browser shows.

Two things are held back: bytes that do not yet make a character, and everything from `<tool_call>` on, because a call
is shown as a call once it can be read. The record never depends on this: it is made of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hrm_agent.models.codec.tool_calls import TOOL_CALL_OPEN

__all__ = ["PieceDecoder", "StreamDecoder"]

_UNFINISHED = "\ufffd"


class PieceDecoder:
    """The text that each token adds: of a character made of several tokens, the last one has it."""

    def __init__(self, decode: Callable[[Sequence[int]], str], most_waiting: int | None = None) -> None:
        """`decode` is a codec's. `most_waiting`: tokens that wait for the rest of a character; None: all."""
        self._decode = decode
        self._most_waiting = most_waiting
        self._ids: list[int] = []
        self._context = 0
        """Where the tokens start that are decoded again, so that a decoder sees what stands before new ones."""
        self._read = 0
        """Where the tokens start whose text has not been taken yet."""

    def push(self, token_id: int) -> str:
        """The text up to this token that was not given before."""
        self._ids.append(token_id)
        return self._take(final=self._most_waiting is not None and len(self._ids) - self._read > self._most_waiting)

    def finish(self) -> str:
        """The text of tokens that still wait."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._context : self._read])
        after = self._decode(self._ids[self._context :])
        if not final and after.endswith(_UNFINISHED):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return after[len(before) :]


class StreamDecoder:
    """Turns tokens into text piece by piece. The pieces together are the answer's text up to its first tool call."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode` is a codec's."""
        self._pieces = PieceDecoder(decode)
        self._pending = ""
        self._closed = False

    def push(self, token_id: int) -> str:
        """The text that can be shown now that this token is known; often empty."""
        if self._closed:
            return ""
        self._pending += self._pieces.push(token_id)
        return self._release(final=False)

    def finish(self) -> str:
        """The text that was held back and turned out to be plain."""
        if self._closed:
            return ""
        self._pending += self._pieces.finish()
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        cut = self._pending.find(TOOL_CALL_OPEN)
        self._closed = final or cut >= 0
        if cut < 0:
            cut = len(self._pending) - (0 if final else _held_back(self._pending))
        text, self._pending = self._pending[:cut], self._pending[cut:]
        return text


def _held_back(text: str) -> int:
    """Length of the end of `text` that may be the beginning of a tool call."""
    for length in range(min(len(TOOL_CALL_OPEN) - 1, len(text)), 0, -1):
        if TOOL_CALL_OPEN.startswith(text[-length:]):
            return length
    return 0
