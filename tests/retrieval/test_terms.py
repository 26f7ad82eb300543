"""Terms by which a text is indexed, and terms for which a question searches."""

from __future__ import annotations

import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from snowballstemmer.english_stemmer import EnglishStemmer

from hrm_agent.errors import ConfigError
from hrm_agent.retrieval.languages import NO_LANGUAGE, STEMMERS, check_language, guess_language
from hrm_agent.retrieval.terms import _Terms, phrases_of, term_spans, terms_of


@pytest.mark.parametrize(
    ("question", "phrases"),
    [
        (
            "What is the president's end-to-end plan?",
            ["is", "the", "president", "s", "end", "to", "plan"],
        ),
        ("Which U.S. value is 3.14’s?", ["u s", "value", "is", "3 14", "s"]),
        ("Who? What, and WHEN?", ["and"]),
        ("How", ["how"]),
        ("鯨は眠る", ["鯨 は", "は 眠", "眠 る"]),
        ("か\u3099っこう", ["が っ", "っ こ", "こ う"]),
        ("ﾊﾟｿｺﾝ", ["パ ソ", "ソ コ", "コ ン"]),
        ("\uf900見 ㍿", ["豈 見", "株 式", "式 会", "会 社"]),
        ("鯨whale眠る", ["whale", "眠 る", "鯨"]),
        ("' - ?", []),
    ],
)
def test_words_are_taken_apart_and_those_that_only_ask_are_left_out(
    question: str, phrases: list[str]
) -> None:
    assert [" ".join(phrase) for phrase in phrases_of(question)] == phrases


@pytest.mark.parametrize(
    ("language", "words"),
    [
        ("de", "Größe GRÖSSE größe grösse grosse Großen"),
        ("de", "Straße STRASSE strasse Straßen STRAẞE"),
        ("de", "Häuser Häusern Haus HAUS"),
        ("el", "Ὀδυσσεύς οδυσσεύς ΟΔΥΣΣΕΥΣ Οδυσσέα"),
        ("el", "λόγος ΛΌΓΟΣ λόγοσ λογος λόγου"),
        ("tr", "İstanbul istanbul ISTANBUL İSTANBUL"),
        ("tr", "ISPANAK ıspanak ispanak"),
        ("tr", "kitap KİTAPLAR kitapları"),
        ("ru", "книга Книги КНИГАМИ книгу"),
        ("ru", "ёлка ЕЛКИ"),
        ("en", "İstanbul istanbul ISTANBUL I\u0307stanbul"),
        ("en", "whale Whales WHALE ｗｈａｌｅ wh\u00adale"),
        ("fr", "Écoles école ÉCOLE e\u0301cole"),
        (NO_LANGUAGE, "Ærø ærø aero"),
        (NO_LANGUAGE, "ﬁsh FISH"),
    ],
)
def test_forms_of_a_word_are_one_term(language: str, words: str) -> None:
    assert len(set(terms_of(words, language))) == 1


@pytest.mark.parametrize(
    ("language", "words"),
    [("ru", "мой мои моль"), ("de", "schon Schuhe"), ("tr", "ad at"), (NO_LANGUAGE, "bee bees")],
)
def test_other_words_are_other_terms(language: str, words: str) -> None:
    terms = terms_of(words, language)
    assert len(set(terms)) == len(terms) if language != "ru" else len(set(terms)) > 1


def test_a_question_is_asked_in_each_language() -> None:
    assert phrases_of("houses", ["de", "en"]) == [("hous",)]
    assert phrases_of("Bücher", ["de", "en"]) == [("buch",), ("bucher",)]
    assert phrases_of("Größe", [NO_LANGUAGE]) == [("grosse",)]


def test_words_are_found_where_they_stand() -> None:
    text = "Die STRASSEN ½ İzmir"
    found = [(text[start:end], terms) for start, end, terms in term_spans(text, ["de"])]
    assert found == [
        ("Die", {"die"}),
        ("STRASSEN", {"strass"}),
        ("½", {"1 2"}),
        ("İzmir", {"izmir"}),
    ]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The blue whale is the largest animal. It isn't a fish.", "en"),
        ("Die Größe der Straße wird in Metern gemessen.", "de"),
        ("Ο Οδυσσέας γύρισε στην Ιθάκη μετά από είκοσι χρόνια.", "el"),
        ("İstanbul, Türkiye'nin en kalabalık şehridir.", "tr"),
        ("Мы читали книги в городской библиотеке.", "ru"),
        ("東京は日本の首都です。", NO_LANGUAGE),
        ("x1 = 3", NO_LANGUAGE),
        ("", NO_LANGUAGE),
        ("Bu kitap. " + "İstanbul, Türkiye'nin en kalabalık şehridir. " * 200, "tr"),
    ],
)
def test_languages_are_guessed_or_left_open(text: str, language: str) -> None:
    assert guess_language(text) == language


def test_every_language_has_its_stemmer() -> None:
    for code in STEMMERS:
        assert terms_of("Word слово λέξη", code), code
        assert check_language(code) == code
    assert check_language("none") == NO_LANGUAGE
    with pytest.raises(ConfigError, match="'german'"):
        check_language("german")


def test_threads_share_a_stemmer_that_keeps_its_word_in_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stemmers in pure Python keep the word at hand in themselves. They are used if PyStemmer is
    not installed.
    """
    endings = ("ing", "ational", "ness", "ization", "edly", "s", "fully", "ement")
    words = [
        f"{a}{b}{c}{end}"
        for a in "bdfghklm"
        for b in "aeiou"
        for c in ("rt", "ll", "nd")
        for end in endings
    ]
    alone = EnglishStemmer().stemWord
    wanted = {word: alone(word) for word in words}
    monkeypatch.setattr("hrm_agent.retrieval.terms.stemmer_of", lambda _: EnglishStemmer().stemWord)
    shared, interval = _Terms("en"), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            orders = [random.Random(seed).sample(words, len(words)) for seed in range(4)]
            list(threads.map(lambda order: [shared[word] for word in order], orders))
    finally:
        sys.setswitchinterval(interval)
    assert shared == wanted
