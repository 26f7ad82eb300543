"""Words as FTS5 takes them: a question as a query, and a text as it is indexed.

A question is full of what FTS5's query language reserves, so each of its words is quoted, and FTS5's own tokenizer
splits what is inside the quotes (`don't` and `end-to-end` are phrases). One word is enough for a hit, and BM25 decides.

FTS5 splits at white space and punctuation, which Chinese and Japanese text hardly has. There each character is indexed
as a word, and a question asks for its pairs of neighbours.
"""

from __future__ import annotations

import re
from itertools import pairwise

from hrm_agent.retrieval.tokenizers.base import mended

__all__ = ["query_of", "searchable"]

_MOST_WORDS = 256
"""Different words of one question that count; FTS5 bounds the depth of a query."""
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTER = re.compile(f"([{_UNSPACED}])")
_RUN = re.compile(f"[{_UNSPACED}]+")
_APART = re.compile(r"[\s\0:/|,;=()\[\]{}<>+*&^~!?\"“”„]+")
_WORD = re.compile(r"[^\W_]")


def searchable(text: str) -> str:
    """The form in which FTS5 is given a text, to index it and to take it out again."""
    return _CHARACTER.sub(r" \1 ", text.replace("\0", " "))


def query_of(question: str) -> str:
    """A MATCH expression; empty where the question has no word."""
    words: dict[str, None] = {}
    for word in _APART.split(mended(question)):
        words |= dict.fromkeys(_phrases(word))
        if len(words) >= _MOST_WORDS:
            break
    return " OR ".join(f'"{word}"' for word in list(words)[:_MOST_WORDS])


def _phrases(word: str) -> list[str]:
    runs = _RUN.findall(word)
    pairs = [" ".join(pair) for run in runs for pair in pairwise(run)] + [run for run in runs if len(run) == 1]
    rest = [part for part in _RUN.sub(" ", word).casefold().split() if _WORD.search(part)]
    return rest + pairs
