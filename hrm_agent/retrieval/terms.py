"""Terms of questions and texts, by which an index, and passages in memory, are ranked.

FTS5 does not analyse text. It gets the terms of this module, with a space between them, for texts
and for questions, so both use the same terms. A word becomes a term in three steps. First it is
folded: compatibility forms and case as in Unicode (`Straße` is `strasse`, a final sigma is a
sigma), with Turkish dotted and dotless i in Turkish text. Then it is stemmed in the language of the
text. Last, its accents are removed, since questions often omit them. This comes after stemming,
since stemmers need accents.

A question may match documents of several languages. So it is analysed in each of these languages: a
phrase has one form for each language in which its terms differ.

A question may have characters that query languages reserve. So it is first split into words, also
at apostrophes and hyphens: "the president's plan" asks for the president. A word that has several
terms (`3.14`, `U.S.`) is a phrase. One phrase is enough for a hit, and BM25 ranks the hits.
Question words ("which", "did") are dropped if the question has other words. Texts seldom have
question words, so BM25 would give them a high weight. In an index, other stop words get a low
weight by BM25, since they are frequent. A single text is too short for that, so stop words are
dropped there (`is_common`).

Chinese and Japanese text has hardly any white space. So each of its characters is indexed as a
word, and a question is searched as pairs of neighbouring characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from threading import Lock

import regex

from hrm_agent.retrieval.languages import NO_LANGUAGE, stemmer_of, stemmer_version

__all__ = ["Phrase", "analysis_version", "is_common", "phrases_of", "term_spans", "terms_of"]

Phrase = tuple[str, ...]
"""Consecutive terms, mostly a single one."""

_RULES = 1
"""Version of the rules of analysis, incremented when they change. Words that were indexed with
another version are indexed again.
"""
_MOST_PHRASES = 256
"""Maximum number of different phrases of a question, since FTS5 limits the depth of a query."""
_LONGEST = 64
"""Maximum characters of a word. The rest is not part of the term."""
_MOST_KEPT = 200_000
"""Maximum number of words of a language whose terms are cached."""
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = regex.compile(rf"[{_UNSPACED}]|[\p{{L}}\p{{N}}\p{{M}}--[{_UNSPACED}]]+", regex.V1)
_APART = re.compile(r"[\s\0:/|,;=()\[\]{}<>+*&^~!?\"“”„'’‘ʼ‐‑–—-]+")
_ACCENTS = re.compile("(?<!и)\u0306|[\u0300-\u0305\u0307-\u036f\u0591-\u05c7\u064b-\u0652]")
"""Combining accents, and the vowel points of Hebrew and Arabic. The breve of й is kept, since й is
a letter of its own.
"""
_PLAIN = str.maketrans(
    {
        "ı": "i",
        "ł": "l",
        "ø": "o",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "ħ": "h",
        "æ": "ae",
        "œ": "oe",
        "ς": "σ",
    }
)
_ASKING = frozenset(
    ("did", "do", "does", "how", "what", "when", "where", "which", "who", "whom", "whose", "why")
)
# fmt: off
_COMMON = _ASKING | {
    "a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "in", "is", "it", "its", "of", "on", "or", "that",
    "the", "this", "to", "was", "with",
}
# fmt: on


def analysis_version() -> str:
    """Version of rules and stemmers. Terms of different versions cannot be compared."""
    return f"{_RULES}, {stemmer_version()}"


def terms_of(text: str, language: str = NO_LANGUAGE) -> list[str]:
    """Terms of a text in order, each without white space."""
    term = _terms_in(language).__getitem__
    return [term(word) for word in _WORD.findall(_folded(text, language))]


def term_spans(text: str, languages: Iterable[str]) -> Iterator[tuple[int, int, set[str]]]:
    """Words of a text as (start, end, terms in any of the languages)."""
    terms = {language: _terms_in(language) for language in languages}
    for word in _WORD.finditer(text):
        # if a word folds to several words, their terms are joined
        folded = {
            " ".join(known[part] for part in _WORD.findall(_folded(word[0], language)))
            for language, known in terms.items()
        }
        yield *word.span(), folded


def is_common(term: str) -> bool:
    """True for an English word that does not help to identify the topic of a short text."""
    return term in _COMMON


def phrases_of(question: str, languages: Sequence[str] = (NO_LANGUAGE,)) -> list[Phrase]:
    """Phrases of a question in these languages, without duplicates (empty if the question has no
    word).
    """
    found = dict[Phrase, None]()
    asking = dict[Phrase, None]()
    for word in _APART.split(question):
        into = asking if word.casefold() in _ASKING else found
        for language in languages or (NO_LANGUAGE,):
            into |= dict.fromkeys(_phrases(word, language))
        if len(found) >= _MOST_PHRASES:
            break
    return list(found)[:_MOST_PHRASES] or list(asking)


def _phrases(word: str, language: str) -> list[Phrase]:
    folded = _folded(word, language)
    term = _terms_in(language).__getitem__
    runs = [tuple(map(term, run)) for run in _RUN.findall(folded)]
    pairs = [pair for run in runs for pair in pairwise(run)] + [
        run for run in runs if len(run) == 1
    ]
    rest = (tuple(map(term, _WORD.findall(part))) for part in _RUN.split(folded))
    return [phrase for phrase in rest if phrase] + pairs


def _folded(text: str, language: str) -> str:
    if text.isascii():
        return text.replace("I", "ı").lower() if language == "tr" else text.lower()
    text = unicodedata.normalize("NFKC", text).replace("\u00ad", "").replace("İ", "i")
    text = (text.replace("I", "ı") if language == "tr" else text).casefold()
    return unicodedata.normalize("NFKC", text)


class _Terms(dict[str, str]):
    """Terms by folded word, for one language. Each word is stemmed once, since texts repeat their
    words.
    """

    def __init__(self, language: str) -> None:
        super().__init__()
        self._stem = stemmer_of(language)
        self._stemming = Lock()
        """Lock for the stemmer, which holds the current word as its state."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _MOST_KEPT:
            self.clear()
        term = word[:_LONGEST]
        if self._stem is not None:
            with self._stemming:
                term = self._stem(term) or term
        if not term.isascii():
            plain = _ACCENTS.sub("", unicodedata.normalize("NFD", term))
            term = unicodedata.normalize("NFC", plain).translate(_PLAIN) or term
        self[word] = term
        return term


_terms_in = cache(_Terms)
