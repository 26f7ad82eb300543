"""Words of questions and texts as terms, for all that ranks by them: engines of an index, passages
ranked in memory.

A text and a question are taken apart here, and by nothing else: an engine is handed terms with a
space between them and looks up terms, so that FTS5 and tantivy find the same, and what a text was
indexed by is what a question asks for. A word becomes a term in three steps. It is folded:
compatibility forms and case as Unicode has them (`Straße` is `strasse`, a final sigma is a sigma),
with the dotted and dotless i of Turkish as Turkish text means them. It is stemmed in the language
of the text. And accents are taken off, since who asks often leaves them out; that comes last, as
stemmers need them.

A question may meet documents of several languages, and is asked in each of them: a phrase has one
form for each language in which it comes out otherwise.

A question is full of what query languages reserve, so it is taken apart into words first, at
apostrophes and hyphens too: who asks for "the president's plan" wants the president. A word that
has several terms (`3.14`, `U.S.`) is a phrase. One phrase is enough for a hit, and BM25 decides.
Words that only ask ("which", "did") are left out where there are others: texts seldom have them, so
BM25 would take them for what the question is about. Other stop words are left to BM25 in an index,
which knows how common they are; a single text is too short to tell.

Chinese and Japanese text has hardly any white space. There each character is indexed as a word, and
a question asks an engine for its pairs of neighbours.
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
"""Terms that follow each other; mostly one."""

_RULES = 1
"""Raised when texts are taken apart in another way: what was indexed before is indexed anew."""
_MOST_PHRASES = 256
"""Different phrases of one question that count; FTS5 bounds the depth of a query."""
_LONGEST = 64
"""Characters of a word; of a longer one the rest is no part of the term."""
_MOST_KEPT = 200_000
"""Words of a language whose terms are kept in memory."""
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = regex.compile(rf"[{_UNSPACED}]|[\p{{L}}\p{{N}}\p{{M}}--[{_UNSPACED}]]+", regex.V1)
_APART = re.compile(r"[\s\0:/|,;=()\[\]{}<>+*&^~!?\"“”„'’‘ʼ‐‑–—-]+")
_ACCENTS = re.compile("(?<!и)\u0306|[\u0300-\u0305\u0307-\u036f\u0591-\u05c7\u064b-\u0652]")
"""Combining accents, and the vowel points of Hebrew and Arabic. The breve of й makes it another
letter.
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
    """Terms of one version and of another have nothing to do with each other."""
    return f"{_RULES}, {stemmer_version()}"


def terms_of(text: str, language: str = NO_LANGUAGE) -> list[str]:
    """The terms of a text in their order, each without white space."""
    term = _terms_in(language).__getitem__
    return [term(word) for word in _WORD.findall(_folded(text, language))]


def term_spans(text: str, languages: Iterable[str]) -> Iterator[tuple[int, int, set[str]]]:
    """Each word of a text: its first character, one past its last, and its terms in any of the
    languages.
    """
    terms = {language: _terms_in(language) for language in languages}
    for word in _WORD.finditer(text):
        yield *word.span(), {_joined(word[0], language, terms[language]) for language in terms}


def is_common(term: str) -> bool:
    """An English word that tells nothing about what a short text is about."""
    return term in _COMMON


def phrases_of(question: str, languages: Sequence[str] = (NO_LANGUAGE,)) -> list[Phrase]:
    """What a question asks for in these languages, none twice; nothing where it has no word."""
    found, asking = dict[Phrase, None](), dict[Phrase, None]()
    for word in _APART.split(question):
        into = asking if word.casefold() in _ASKING else found
        for language in languages or (NO_LANGUAGE,):
            into |= dict.fromkeys(_phrases(word, language))
        if len(found) >= _MOST_PHRASES:
            break
    return list(found)[:_MOST_PHRASES] or list(asking)


def _phrases(word: str, language: str) -> list[Phrase]:
    folded, term = _folded(word, language), _terms_in(language).__getitem__
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


def _joined(word: str, language: str, terms: _Terms) -> str:
    """The term of one word, whatever it is folded to."""
    return " ".join(terms[part] for part in _WORD.findall(_folded(word, language)))


class _Terms(dict[str, str]):
    """Folded word -> term, for one language. Texts repeat their words, so each is stemmed once."""

    def __init__(self, language: str) -> None:
        super().__init__()
        self._stem = stemmer_of(language)
        self._stemming = Lock()
        """A stemmer keeps the word that it is at in itself; threads would get each other's."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _MOST_KEPT:
            self.clear()
        term = word[:_LONGEST]
        if self._stem is not None:
            with self._stemming:
                term = self._stem(term) or term
        if not term.isascii():
            term = _without_accents(term)
        self[word] = term
        return term


def _without_accents(word: str) -> str:
    stripped = _ACCENTS.sub("", unicodedata.normalize("NFD", word))
    return unicodedata.normalize("NFC", stripped).translate(_PLAIN) or word


@cache
def _terms_in(language: str) -> _Terms:
    return _Terms(language)
