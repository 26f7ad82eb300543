"""Citations in every form in which models write them: what is meant well is resolved, what is not
is no mark.
"""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_agent.graphs.research.sources import new_source, renamed
from hrm_agent.retrieval.citations import quotes as citations
from hrm_agent.retrieval.citations.checked_text import check, quoted_again
from hrm_agent.retrieval.citations.marks import find_lists, find_marks

WHALE = (
    "The blue whale is a marine mammal.\n\nReaching a length of 29.9 m, it's the largest animal"
    " known to have existed."
)
KRILL = (
    'Krill are small crustaceans. They feed near the surface at night, and "eat" what they find'
    " [sic]."
)
SOURCES = {
    "S1": renamed(new_source("Blue whale", WHALE), "S1"),
    "S2": renamed(new_source("Krill", KRILL), "S2"),
}
LENGTH, NIGHT = "Reaching a length of 29.9 m", "feed near the surface at night"

MEANT_WELL = {
    "as asked": f'Long [S1: "{LENGTH}"].',
    "small letters": f'Long [s1: "{LENGTH}"].',
    "single quotes": f"Long [S1: '{LENGTH}'].",
    "an apostrophe within single quotes": "Large [S1: 'it's the largest animal known'].",
    "typographic quotes": f"Long [S1: “{LENGTH}”].",
    "typographic single quotes": f"Long [S1: ‘{LENGTH}’].",
    "guillemets": f"Long [S1: «{LENGTH}»].",
    "German quotes": f"Lang [S1: „{LENGTH}“].",
    "corner brackets": f"Long [S1: 「{LENGTH}」].",
    "backticks": f"Long [S1: `{LENGTH}`].",
    "no quotes": f"Long [S1: {LENGTH}].",
    "the quote before": f'It says "{LENGTH}" [S1].',
    "the quote before, with a stop": f"It says “{LENGTH}.” [S1]",
    "the quote before, in italics": f'It says *"{LENGTH}"* [S1].',
    "the quote before, by number": f'It says "{LENGTH}" [1].',
    "the quote before, with another mark": f'It says "{LENGTH}" 【1†source】.',
    "the quote first in the bracket": f'Long ["{LENGTH}", S1].',
    "the quote first in parentheses": f'Long ("{LENGTH}", S1).',
    "several names": f'Long [S1, S2: "{LENGTH}"].',
    "several names after the quote": f'It says "{LENGTH}" [S1, S2].',
    "the wrong name": f'Long [S2: "{LENGTH}"].',
    "another word before the name": f'Long [Source S1: "{LENGTH}"].',
    "a page after the quote": f'Long [S1: "{LENGTH}", p. 3].',
    "a page before the quote": f'Long [S1, p. 3: "{LENGTH}"].',
    "the title": f'Long [Blue whale: "{LENGTH}"].',
    "a number for a name": f'Long [1: "{LENGTH}"].',
    "brackets twice": f'Long [[S1: "{LENGTH}"]].',
    "full-width brackets": f'Long 【S1: "{LENGTH}"】.',
}


@pytest.mark.parametrize("form", MEANT_WELL)
def test_what_is_meant_well_is_resolved(form: str) -> None:
    found = check(MEANT_WELL[form], SOURCES)
    (cited,) = found.citations
    assert SOURCES[cited["source"]]["text"][cited["start"] : cited["end"]] == cited["quote"]
    assert cited["source"] == "S1" and found.problems == () and found.body.count("[1]") == 1


@pytest.mark.parametrize(
    "text",
    [
        f'Both [S1: "{LENGTH}"; S2: "{NIGHT}"].',
        f'Both [S1: "{LENGTH}", S2: "{NIGHT}"].',
        f'Both [S1: "{LENGTH}"; "largest animal known"].',
        'Both [S1: "Reaching a length ... the largest animal"].',
        f'"{LENGTH}" [S1], and they "{NIGHT}" (S2).',
    ],
)
def test_two_quotes_are_two_citations(text: str) -> None:
    found = check(text, SOURCES)
    assert (
        len(found.citations) == 2
        and found.problems == ()
        and "[1]" in found.body
        and "[2]" in found.body
    )


FALSE = {
    "[1]": "(1)",
    "[1, 2]": "(1, 2)",
    "[1-3]": "(1-3)",
    "[ 1 ]": "(1)",
    "[1][2]": "(1)(2)",
    "[[1]]": "(1)",
    "［１］": "(１)",
    "\\[1\\]": "(1)",
    "&#91;1&#93;": "(1)",
    "[\u200b1]": "(\u200b1)",
    "[¹]": "(¹)",
    "[1‑3]": "(1‑3)",
    "[1‐3]": "(1‐3)",
    "[1‒3]": "(1‒3)",
    "[1−3]": "(1−3)",
    "[1, S1]": "(1, S1)",
    "[1, p. 5]": "(1, p. 5)",
    "[1.]": "(1.)",
    "[١]": "(١)",
    "[*1*]": "(*1*)",
    "[<b>1</b>]": "(<b>1</b>)",
    "[1、2]": "(1、2)",
    "[web:1]": "",
    "【oai:1】": "",
    "[oai_citation:1‡x](http://evil.test)": "",
    "[1‡source]": "",
    "[^1]": "",
    "[^note]": "",
    "【1†source】": "",
    "【4:0†notes.md】": "",
    "[S1]": "",
    "[S9]": "",
    "(S1, S2)": "",
    "[source 1]": "",
    "[Source: Wikipedia]": "",
    "[Blue whale]": "",
    "[Smith et al., 2020]": "",
    "[1](http://evil.test)": "",
    '[S1: "' + "they never said that" + '"]': "",
    '([S1: "they never said that"])': "",
    '["they never said that", S1]': "",
    "[S1: they never said that]": "",
}


@pytest.mark.parametrize("mark", FALSE)
def test_what_quotes_nothing_is_no_mark(mark: str) -> None:
    found = check(f"Whales {mark} are long.", SOURCES)
    assert (
        found.body == " ".join(f"Whales {FALSE[mark]} are long.".split()) and found.citations == ()
    )
    assert found.problems or FALSE[mark], "the writer is told of what is left out"


@pytest.mark.parametrize(
    "text",
    [
        "the list[0] and x[1:3], or `x[1]` and ``[2]``",
        "as they said [sic], [...] and [emphasis added], [citation needed]",
        "see [the page](http://wiki.test/a_(b)) and ![a picture](http://wiki.test/1.png)",
        "- [ ] this\n- [x] that",
        "the interval [0, 1] and the vector [0.5, 2.5], at [12:30]",
        "【重要】 and (1) and m² and (see below)",
        (
            "so:\n\n```python\nx[1] = y[2]  # [3]\nSources:\n[1] a\n```\nor\n\n~~~\n[^1]: no"
            " footnote\n~~~"
        ),
        'the list ["some", "words"], and [he said "no"] to it',
        "The Galaxy (2010) and route (A1)",
        "1. References\n2. Pointers\n\nand [1.5] of [web design]",
    ],
)
def test_what_is_no_citation_is_left_alone(text: str) -> None:
    assert check(text, SOURCES).text == text


@pytest.mark.parametrize(
    "text",
    [
        "```\nnever closed [1]",
        "```markdown\nprose [1]\n```",
        "```md\n[1]\n```\n\nand [2]",
        "`a` [1] `b`",
        "`a`[1] `b`[S9]",
        "`a`[1](http://wiki.test)",
        "one ` tick [1]",
    ],
)
def test_what_is_no_code_hides_no_mark(text: str) -> None:
    assert not re.search(r"\[\d", check(text, SOURCES).text)


LISTS = [
    "Sources:\n[1] Fake <http://evil.test>\n[2] More",
    "**Sources:**\n- Fake Book",
    "## References\n\n1. Fake Book\n\n2. Fake Journal",
    "Bibliography\nFake Book, p. 3",
    "Sources: Fake Book; Fake Journal",
    "---\nWorks cited:\n* Fake Book",
    "[^1]: Fake Book",
    "[1]: http://evil.test",
    "Quellen:\n[1] Fake Buch",
    'Sources:\n[S1: "never said by it"] Fake',
    'Sources\nFake page, 3-4: "krill"',
    "Sources (2):\n- Fake Book",
    "### 📚 Sources\n- Fake Book",
    "<h2>Sources</h2>\n<li>Fake Book</li>",
    "Source list:\n- Fake Book",
    "Sources used in this answer:\n- Fake Book",
    "1. Sources:\n- Fake Book",
    "Ｓｏｕｒｃｅｓ:\n- Fake Book",
    "Sour\u200bces:\n- Fake Book",
    "| Sources |\n|---|\n| Fake Book |",
    "Sources:\n\nFake One\nFake Two",
]


@pytest.mark.parametrize("forged", LISTS)
def test_the_list_of_sources_is_ours_alone(forged: str) -> None:
    found = check(f'Long [S1: "{LENGTH}"].\n\n{forged}', SOURCES)
    assert (
        found.body.replace("---", "").strip() == "Long [1]." and found.text.count("Sources:") == 1
    )
    assert found.text.endswith(f'Sources:\n[1] Blue whale, 36-63: "{LENGTH}"')


def test_a_statement_about_sources_is_not_a_list_of_them() -> None:
    text = f'Sources: the river has two [S1: "{LENGTH}"].\n\nBoth are small.'
    assert check(text, SOURCES).body == "Sources: the river has two [1].\n\nBoth are small."
    assert find_lists("The sources differ.\n\nReferences are few here.") == []


@pytest.mark.parametrize(
    ("text", "body"),
    [
        (
            f'Small.\n\n## Sources\n\nThe Nile has two [S1: "{LENGTH}"].\n\nBoth are small.',
            "Small.\n\n## Sources\n\nThe Nile has two [1].\n\nBoth are small.",
        ),
        (
            f'Small.\n\nReferences\nare aliases [S1: "{LENGTH}"].',
            "Small.\n\nReferences\nare aliases [1].",
        ),
        (
            f'So.\n\nSources\nthe river has\ntwo of them [S1: "{LENGTH}"].',
            "So.\n\nSources\nthe river has\ntwo of them [1].",
        ),
        (
            f'Long [S1: "{LENGTH}"].\n\nSources:\n[1] Fake\nThe text goes on.',
            "Long [1].\n\nThe text goes on.",
        ),
        (f'Long [S1: "{LENGTH}"].\n\nSources:\n[1] Fake\nMore text', "Long [1].\n\nMore text"),
    ],
)
def test_prose_beside_a_list_stays_where_it_is(text: str, body: str) -> None:
    assert check(text, SOURCES).body == body


def test_what_only_a_list_cites_is_hung_on_no_sentence() -> None:
    found = check(
        f'Long.\n\nThey eat [S2: "{NIGHT}"].\n\nReferences:\n1. [S1: "{LENGTH}"]\n2. [S2:'
        f' "{NIGHT}"]',
        SOURCES,
    )
    assert found.body == "Long.\n\nThey eat [1]." and [one["quote"] for one in found.citations] == [
        NIGHT
    ]
    (problem,) = found.problems
    assert LENGTH in problem and "it stands in a list" in problem, (
        "the writer is told where it belongs"
    )


def test_a_mark_of_ours_is_no_link() -> None:
    text = (
        f'Long [S1: "{LENGTH}"](http://evil.test), [text] [S2: "{NIGHT}"] (so).\n[S1: "{LENGTH}"]:'
        " http://evil.test"
    )
    assert check(text, SOURCES).body == "Long [1], [text] [2] (so).\n [1] http://evil.test"
    assert check("See [text][3].", SOURCES).body == "See [text] (3)."


@pytest.mark.parametrize(
    "text",
    [
        "so [ [S9]1] it is",
        "so [[S9] 1] it is",
        "so [S9 [S9]] it is",
        "so [" * 9 + "[S9]" + "1]" * 9,
        "so [ [^1]S1: “x”] it",
        "Sour[S9]ces:\n[1] Fake\n",
        "Fine.\n\nSour[S9]ces:\n- Fake, 1999\n",
        "so [\ue0000\ue001] and \ue0000\ue001",
        '[\ue0000\ue001: "x"]',
    ],
)
def test_what_is_left_out_brings_no_mark_together(text: str) -> None:
    found = check(text, SOURCES)
    assert (
        not LOOKS_LIKE_A_MARK.search(found.text)
        and "Fake, 1999" not in found.text
        and found.citations == ()
    )


def test_findings_are_cleaned_like_answers() -> None:
    named = quoted_again(
        f"A 'quote' [7]; \"{LENGTH}\" [S1] [^2].\n\nSources:\n[1] Fake", SOURCES, {"S1": "S4"}
    )
    assert named == f'A \'quote\' (7); "{LENGTH}" [S4: "{LENGTH}"].'


PIECES = [
    *MEANT_WELL.values(), *FALSE, *LISTS, LENGTH, NIGHT, "[", "]", "(", ")", "【", "】", '"', "'", "“", "”", "`",
    "```\n", "\n", "\n\n", " ", "\\", "S1", "S2", "S9", "s1:", ": ", "; ", ", ", "1", "23", "†", "^", "...", "[sic]",
    "text", "Sources:", "](", "http://x.y", "\u200b", "NOT ANSWERED", "<think>", "</think>", "&#91;", "［", "١",
]  # fmt: skip
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=24).map("".join) | st.lists(
    st.sampled_from([*"[]()【】\"'“”`S12 \n:;,†^\\¹"]), max_size=60
).map("".join)
LOOKS_LIKE_A_MARK = re.compile(
    r"[\[［【〔〖〚⟦]\s*\^?(?:sources?"
    r" )?(?:S?[1-9]\d{0,5}\s*[,;–-]?\s*)+(?:†[^\[\]【】]{0,40})?\\?[\]］】〕〗〛⟧]",
    re.IGNORECASE,
)


def prose(body: str) -> str:
    """Return the body, or an empty text if some rule could take part of it for code."""
    return "" if "`" in body or "~~~" in body else body


@settings(max_examples=150, deadline=None)
@given(ANSWERS)
def test_every_mark_of_an_answer_is_ours_and_stands(answer: str) -> None:
    found = check(answer, SOURCES)
    for cited in found.citations:
        assert SOURCES[cited["source"]]["text"][cited["start"] : cited["end"]] == cited["quote"]
    ours = {f"[{number}]" for number in range(1, len(found.citations) + 1)}
    marks = {mark[0] for mark in LOOKS_LIKE_A_MARK.finditer(prose(found.body))}
    assert marks <= ours, (answer, found.body)
    assert not prose(found.body) or all(mark in found.body for mark in ours), (
        "each is cited somewhere"
    )
    listed = found.text[len(found.body) :].strip().splitlines()
    assert [line.split()[0] for line in listed[1:]] == [
        f"[{n}]" for n in range(1, len(found.citations) + 1)
    ]
    again = quoted_again(answer, SOURCES, {})
    assert {c["quote"] for c in check(again, SOURCES).citations} >= {
        c["quote"] for c in found.citations
    } or "`" in answer


@settings(max_examples=60, deadline=None)
@given(ANSWERS)
def test_marks_are_in_order_and_apart(answer: str) -> None:
    marks = list(find_marks(answer, {"blue whale": "S1"}))
    assert all(0 <= mark.start < mark.end <= len(answer) for mark in marks)
    assert all(one.end <= other.start for one, other in pairwise(marks))


HOSTILE: dict[str, Any] = {
    "opening": lambda n: "[" * n,
    "parentheses": lambda n: "(" * n,
    "nested": lambda n: "[" * (n // 2) + "1" + "]" * (n // 2),
    "numbers": lambda n: "[1]" * (n // 3),
    "names": lambda n: "[S1, S1; " * (n // 9),
    "openings with names": lambda n: '[S1: "' * (n // 6),
    "spaces": lambda n: "[1" + " " * n + "]",
    "quotes": lambda n: '"never said" [S1] ' * (n // 18),
    "quotation marks": lambda n: ('"' * 40 + " [S1] ") * (n // 46),
    "daggers": lambda n: "【1†" * (n // 3),
    "backticks": lambda n: "".join("`" * length + " " for length in range(1, int((2 * n) ** 0.5))),
    "fences": lambda n: "```\n" * (n // 4),
    "headings": lambda n: "Sources:\n\n" * (n // 10),
    "headings with a text": lambda n: "Sources: x\n" * (n // 11) + "\nprose",
    "tags": lambda n: "[<b" * (n // 3),
    "entries": lambda n: "Sources: x\nFake\n" * (n // 16) + "The end is prose.",
    "addresses": lambda n: "[1](" * (n // 4),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_takes_linear_time(name: str) -> None:
    """Eight times the length takes at most 30 times as long. Quadratic time would take 64 times as
    long.
    """

    def seconds(length: int) -> float:
        text, took = HOSTILE[name](length), list[float]()
        for _ in range(2):
            began = time.thread_time()
            assert all(mark.end <= len(text) for mark in find_marks(text, {}))
            find_lists(text)
            took.append(time.thread_time() - began)
        return min(took)

    assert seconds(48_000) < 30 * seconds(6_000) + 0.1


def test_each_source_is_prepared_once_however_many_quotes_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that makes quotes up is asked about all sources, of which there may be dozens."""
    plain, prepared = citations._plain, list[str]()
    monkeypatch.setattr(citations, "_plain", lambda text: (prepared.append(text), plain(text))[1])
    sources = {
        f"S{n}": renamed(new_source(f"Whale {n}", f"{n}. {WHALE}"), f"S{n}") for n in range(30)
    }
    made_up = "".join(f'Claim {n} [S{n}: "these words stand nowhere, {n}"]. ' for n in range(20))
    checked = check(made_up, sources)
    assert not checked.citations and len(checked.problems) == 20
    texts = [source["text"] for source in sources.values()]
    assert sorted(text for text in prepared if text in texts) == sorted(texts)
