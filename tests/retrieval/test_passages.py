"""Choice of the passages that are shown: the best of all hits together, each character once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hrm_agent.retrieval.passages import best_passages, scored_passages

PLAIN = "Nothing of any interest happens in this sentence, which is here to take room. " * 12
ANSWER = "The narwhal has a tusk that may be three metres long."


@dataclass(frozen=True)
class Part:
    """A part of a document."""

    file: str
    start: int
    text: str
    language: str = "en"


def shown(parts: list[Part], question: str, limit: int) -> list[str]:
    found = best_passages(parts, question, limit)
    assert sum(end - start for spans in found for start, end in spans) <= limit
    return [
        "".join(part.text[start:end] for start, end in spans)
        for part, spans in zip(parts, found, strict=True)
    ]


def test_hits_are_whole_where_there_is_room() -> None:
    parts = [Part("a", 0, PLAIN + ANSWER), Part("b", 40, PLAIN)]
    assert shown(parts, "narwhal", 10_000) == [PLAIN + ANSWER, PLAIN]
    assert best_passages([], "narwhal", 100) == []


def test_where_no_passage_fits_the_best_one_begins() -> None:
    parts = [Part("a", 0, PLAIN), Part("b", 0, ANSWER * 3)]
    assert any(shown(parts, "narwhal", 20))


@pytest.mark.parametrize("place", [0, 6, 12])
def test_the_answer_is_shown_wherever_in_a_hit_it_stands(place: int) -> None:
    """The beginning of a hit has no priority."""
    sentences = PLAIN.split(". ")
    text = ". ".join([*sentences[:place], ANSWER.removesuffix("."), *sentences[place:]])
    parts = [Part("a", 0, PLAIN * 2), Part("b", 0, text), Part("c", 0, PLAIN * 2)]
    found = shown(parts, "How long is the tusk of narwhals?", 1800)
    assert ANSWER.removesuffix(".") in found[1]
    assert all(found), "each hit has a share"


def test_what_two_hits_have_in_common_is_shown_once() -> None:
    text = f"{PLAIN}{ANSWER} {PLAIN}"
    middle = len(PLAIN) + len(ANSWER) + 1
    parts = [
        Part("a", 0, text[:middle]),
        Part("a", len(PLAIN), text[len(PLAIN) :]),
        Part("b", 0, ANSWER),
    ]
    first, second, third = shown(parts, "tusk", 100_000)
    assert first == text[:middle] and second == text[middle:] and third == ANSWER
    inside = [Part("a", 0, text), Part("a", 10, text[10:90])]
    assert shown(inside, "tusk", 100_000) == [text, ""]


def test_words_match_in_the_language_of_the_document() -> None:
    filler = "Hier steht etwas anderes, das niemand gesucht hat, und zwar recht ausführlich. " * 12
    part = Part("a", 0, f"{filler}Die Größe der Häuser ist bekannt. {filler}", "de")
    assert "Größe der Häuser" in shown([part], "ein GROSSES Haus", 700)[0]
    scores = dict(scored_passages(part.text, "HAUS"))
    assert "Häuser" in part.text[slice(*max(scores, key=scores.__getitem__))]
