"""Characters that some programs cannot handle.

Lone surrogates are halves of characters. Python strings and JSON can contain them, but files,
tokenizers and URLs cannot. Control characters are commands to a terminal: by them, the text of a
model or a page could clear the screen or write to the clipboard.
"""

from __future__ import annotations

import re

__all__ = ["find_surrogate", "for_terminal", "replace_surrogates", "text_of", "without_surrogates"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_COMMAND = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the direction of writing, and
surrogates.
"""


def find_surrogate(text: str) -> int | None:
    """Index of the first surrogate, paired or lone (None if there is none)."""
    found = None if text.isascii() else _SURROGATE.search(text)
    return found.start() if found else None


def without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if find_surrogate(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def text_of(value: object) -> str:
    """Return `str(value)` without lone surrogates. Never raises, even if `__str__` does."""
    try:
        return without_surrogates(str(value))
    except Exception:
        return f"<{type(value).__qualname__} without a text>"


def replace_surrogates(text: str) -> str:
    """`text` with each surrogate replaced by U+FFFD. The length is unchanged."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def for_terminal(text: str) -> str:
    """`text` with U+FFFD in place of each character that a terminal would obey instead of show."""
    return _COMMAND.sub("\ufffd", text.replace("\r\n", "\n"))
