"""Words of questions and texts, for all that ranks by them: engines of an index, and passages ranked in memory.

A question is full of what query languages reserve, so it is taken apart into words first, at apostrophes and hyphens
too: who asks for "the president's plan" wants the president. A word that the engine's own tokenizer splits further
(`3.14`, `U.S.`) is a phrase. One phrase is enough for a hit, and BM25 decides. Words that only ask ("which", "did") are
left out where there are others: texts seldom have them, so BM25 would take them for what the question is about. Other
stop words are left to BM25 in an index, which knows how common they are; a single text is too short to tell.

Tokenizers split at white space and punctuation, which Chinese and Japanese text hardly has. There each character is
indexed as a word, and a question asks an engine for its pairs of neighbours.
"""

from __future__ import annotations

import re
from itertools import pairwise

from hrm_agent.unicode import replace_surrogates

__all__ = ["phrases_of", "searchable", "terms_of"]

_MOST_PHRASES = 256
"""Different phrases of one question that count; FTS5 bounds the depth of a query."""
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CHARACTER = re.compile(f"([{_UNSPACED}])")
_RUN = re.compile(f"[{_UNSPACED}]+")
_APART = re.compile(r"[\s\0:/|,;=()\[\]{}<>+*&^~!?\"“”„'’‘ʼ‐‑–—-]+")
_ASKING = frozenset(("did", "do", "does", "how", "what", "when", "where", "which", "who", "whom", "whose", "why"))
_LETTER = re.compile(r"[^\W_]")
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_]+")
# fmt: off
_COMMON = _ASKING | {
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "its", "of", "on", "or", "that",
    "the", "this", "to", "was", "with",
}
# fmt: on


def searchable(text: str) -> str:
    """The form in which an engine is given a text, to index it and to take it out again."""
    return _CHARACTER.sub(r" \1 ", text.replace("\0", " "))


def phrases_of(question: str) -> list[str]:
    """What a question asks for, none twice; nothing where it has no word."""
    found: dict[str, None] = {}
    for word in _APART.split(replace_surrogates(question)):
        found |= dict.fromkeys(_phrases(word))
        if len(found) >= _MOST_PHRASES:
            break
    return [phrase for phrase in found if phrase not in _ASKING][:_MOST_PHRASES] or list(found)


def _phrases(word: str) -> list[str]:
    runs = _RUN.findall(word)
    pairs = [" ".join(pair) for run in runs for pair in pairwise(run)] + [run for run in runs if len(run) == 1]
    rest = [part for part in _RUN.sub(" ", word).casefold().split() if _LETTER.search(part)]
    return rest + pairs


def terms_of(text: str) -> list[str]:
    """Words for comparison without an engine, in their order. A plural and its singular count as one."""
    words = (word.casefold() for word in _WORD.findall(text))
    return [word.removesuffix("s") if len(word) > 3 else word for word in words if word not in _COMMON]
