"""Quotes compared with sources: each accepted quote is in its source to the character, and all
others are refused.
"""

from __future__ import annotations

import random

import pytest

from hrm_agent.graphs.research.sources import Source, new_source, renamed
from hrm_agent.retrieval.citations.checked_text import check, quoted_again

# fmt: off
WORDS = [
    "krill", "Größe", "ﬁnd", "“blau”", "it’s", "29.9", "–", "well-known", "é", "e\u0301", "鯨は大きい", "ß", "$5", "a",
    "👩\u200d👩\u200d👧", "’tis", "\u200bzero", "İstanbul", "[note]", "(so)",
]
# fmt: on
SPACES = (" ", "  ", "\n", "\n\n", "\t", "\u00a0", "\u2003", "\r\n", "\f")
PLAIN = str.maketrans("“”’–", '""\'-')


def source_of(text: str, name: str = "S1", title: str = "T") -> Source:
    return renamed(new_source(title, text), name)


@pytest.mark.parametrize("seed", range(4))
def test_a_respaced_quote_finds_its_own_characters(seed: int) -> None:
    """A quote with a word that the source lacks is not found."""
    draw = random.Random(seed)
    for _ in range(150):
        words = draw.choices(WORDS, k=draw.randint(8, 40))
        text = "".join(word + draw.choice(SPACES) for word in words)
        first = draw.randrange(len(words) - 5)
        said = words[first : first + draw.randint(5, 12)]
        quote = (
            "".join(word + draw.choice(SPACES) for word in said)
            .strip()
            .translate(draw.choice((PLAIN, {})))
        )
        sources = {"S1": source_of(text)}
        found = check(f'So [S1: "{quote}"].', sources)
        (cited,) = found.citations
        assert text[cited["start"] : cited["end"]] == cited["quote"]
        assert cited["quote"].translate(PLAIN).split() == quote.translate(PLAIN).split()
        assert (cited["quote"] == quote) is (found.mended == ())
        changed = quote.replace(said[2].translate(PLAIN), "never", 1).replace(said[2], "never", 1)
        assert check(f'So [S1: "{changed} never"].', sources).citations == ()


def test_what_is_said_again_is_accepted_again() -> None:
    """A searcher's citations are unchanged under the names that the conversation has for its
    sources.
    """
    text = 'He said "no" to it.\n\nThe end [sic] was – as told – near.'
    named = quoted_again(
        'First [S7: "said "no"  to it"], then [S7: "[sic] was - as"] and [S7: "made up by me"].',
        {"S7": source_of(text, "S7")},
        {"S7": "S2"},
    )
    assert named == 'First [S2: "said "no" to it"], then [S2: "[sic] was – as"] and.'
    found = check(named, {"S2": source_of(text, "S2")})
    assert [cited["quote"] for cited in found.citations] == ['said "no" to it', "[sic] was – as"]
    assert found.mended == found.problems == ()


def test_the_text_that_a_person_reads_is_stable() -> None:
    sources = {
        "S1": source_of("The first one is long enough.", title="One"),
        "S2": Source(
            id="S2",
            title="notes/two.md",
            url="",
            revision="ab",
            file="notes/two.md",
            text="It is here, too.",
            offset=100,
        ),
    }
    found = check(
        'B [S2: "It is here, too."], A [S1: "one is long"; S2: "It is here, too."] [9].', sources
    )
    assert (
        found.text
        == 'B [1], A [2][1] (9).\n\nSources:\n[1] notes/two.md, 100-116: "It is here, too."\n[2]'
        ' One, 10-21: "one is long"'
    )


def test_words_that_two_sources_have_are_moved_to_neither() -> None:
    sources = {
        "S1": source_of("It is the same in both.", "S1", "A"),
        "S2": source_of("It is the same in both.", "S2", "B"),
    }
    assert check('So [S9: "the same in both"].', sources).problems == (
        '[S9: "the same in both"]: there is no source S9, only S1, S2',
    )
