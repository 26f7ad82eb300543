"""Stop strings, which end an answer because of its text.

A stop string may begin in the middle of one token and end in the middle of another. The answer ends
after the token that completes the stop string, and keeps all its tokens whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["StopStrings"]


class StopStrings:
    """Search for stop strings in one answer."""

    def __init__(self, stop: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decode = decode
        self._window = max((len(text.encode()) for text in self._stop), default=0) + _CONTEXT

    def reached(self, token_ids: Sequence[int]) -> bool:
        """True if the answer so far ends in a token that completes a stop string. Call it after
        each token.
        """
        if not self._stop:
            return False
        text = self._decode(token_ids[-self._window :])
        return any(stop in text for stop in self._stop)


_CONTEXT = 4
"""Number of extra tokens at the front of the decoded window, where a character may be cut. The rest
of the window has one token for each byte of the longest stop string.
"""
