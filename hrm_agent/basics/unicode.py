"""Characters that not everyone can take.

Lone surrogates are halves of characters that Python's strings and JSON can hold, and no file,
tokenizer or URL. Control characters are commands to a terminal: a text of a model or of a page
could clear the screen, or write to the clipboard.
"""

from __future__ import annotations

import re

__all__ = ["find_surrogate", "for_terminal", "replace_surrogates", "text_of", "without_surrogates"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_COMMAND = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""All control characters but tab and line feed, those that turn the direction of writing, and
surrogates.
"""


def find_surrogate(text: str) -> int | None:
    """Index of the first surrogate, lone or not."""
    found = None if text.isascii() else _SURROGATE.search(text)
    return found.start() if found else None


def without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates as U+FFFD."""
    if find_surrogate(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def text_of(value: object) -> str:
    """`str(value)`, without lone surrogates. Never raises, as a program's own objects may."""
    try:
        return without_surrogates(str(value))
    except Exception:
        return f"<{type(value).__qualname__} without a text>"


def replace_surrogates(text: str) -> str:
    """`text` with U+FFFD for each surrogate, so of the same length."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def for_terminal(text: str) -> str:
    """`text` with U+FFFD for what a terminal would obey instead of showing it."""
    return _COMMAND.sub("\ufffd", text.replace("\r\n", "\n"))
