"""Word boundaries of a text: `unable` is not cut after `un`, nor `12.5` after `12`.

Scripts without spaces between words may be cut anywhere but within a character. Words joined by a
hyphen are one, since the first part may reverse the meaning (`non-toxic`). Words joined by an
apostrophe are two, but for the English `n't`.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["is_within_word"]

_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)
"""Characters of Thai, Lao, Burmese, Khmer, Chinese and Japanese."""
_HYPHENS = "-\u2010\u2011\u00ad"
_MINUS = "-\u2212"
_IN_NUMBERS = ".,:/"
_APOSTROPHES = "'\u2019"
_JOINER = "\u200d"


def is_within_word(text: str, at: int) -> bool:
    """True if `text[:at]` and `text[at:]` share a word. False at both ends of the text."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if _JOINER in (before, after) or unicodedata.category(after).startswith("M"):
        return True
    if _is_of_word(before) and _is_of_word(after):
        return True
    return (
        _joins(text, at - 1) or _joins(text, at) or _is_sign(text, at - 1) or _is_negation(text, at)
    )


def _is_of_word(character: str) -> bool:
    known = (
        character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")
    )
    return known and not _UNSPACED.match(character)


def _joins(text: str, at: int) -> bool:
    """True if the character joins its two neighbours to one word."""
    if not 0 < at < len(text) - 1:
        return False
    around = text[at - 1], text[at + 1]
    if text[at] in _IN_NUMBERS:
        return all(map(str.isdigit, around))
    return text[at] in _HYPHENS and all(map(_is_of_word, around))


def _is_sign(text: str, at: int) -> bool:
    """True if the character is the minus sign of the number after it."""
    return text[at] in _MINUS and text[at + 1].isdigit() and not (at and text[at - 1].isalnum())


def _is_negation(text: str, at: int) -> bool:
    """True if `'t` begins here and ends a word."""
    found = (
        text[at] in _APOSTROPHES
        and text[at + 1 : at + 2] in ("t", "T")
        and _is_of_word(text[at - 1])
    )
    return found and not (at + 2 < len(text) and _is_of_word(text[at + 2]))
