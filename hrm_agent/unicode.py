"""Lone surrogates: halves of characters that Python's strings and JSON can hold, and no file, tokenizer or URL."""

from __future__ import annotations

import re

__all__ = ["find_surrogate", "replace_surrogates", "without_surrogates"]

_SURROGATE = re.compile("[\ud800-\udfff]")


def find_surrogate(text: str) -> int | None:
    """Index of the first surrogate, lone or not."""
    found = None if text.isascii() else _SURROGATE.search(text)
    return found.start() if found else None


def without_surrogates(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates as U+FFFD."""
    if find_surrogate(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def replace_surrogates(text: str) -> str:
    """`text` with U+FFFD for each surrogate, so of the same length."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
