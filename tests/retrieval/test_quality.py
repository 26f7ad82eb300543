"""Measures of retrieval compared with hand counts, reading, chunking and ranking, and citations of
results.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.retrieval_quality.configurations import Configuration
from benchmarks.retrieval_quality.evaluate import ALL, MEASURES, Settings, evaluate
from benchmarks.retrieval_quality.questions import QuestionSet, read_questions
from benchmarks.retrieval_quality.ranking import RankedPiece, rank, within
from benchmarks.retrieval_quality.spans import Piece, merged, overlap, reciprocal_rank
from hrm_agent.basics.intervals import bootstrapped
from hrm_agent.errors import ConfigError, RetrievalError
from hrm_agent.retrieval.citations.quotes import CitationVerdict, resolve
from hrm_agent.retrieval.index import DocumentIndex, files_in, index_folder
from hrm_agent.retrieval.index.fusion import MODES
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

WORDS = load_tokenizer("word")
spans = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 15)).map(lambda s: (s[0], s[0] + s[1])), max_size=8
)


def pieces(*ends: tuple[int, int], corpus: str | None = "a") -> list[Piece]:
    return [Piece(corpus, start, end, end - start) for start, end in ends]


def test_measures_by_hand() -> None:
    """References are 10-20 and 30-40. The pieces have 25 characters, 5 of them twice, and cover
    15-20 and 30-35.
    """
    found = overlap(pieces((15, 25), (20, 35)), "a", [(10, 20), (30, 40)])
    assert (found.wanted, found.shown, found.held) == (20, 20, 10)
    assert (found.recall, found.precision, found.iou) == (0.5, 0.5, 10 / 30)
    touching = overlap(pieces((0, 10), (10, 20)), "a", [(5, 15), (12, 18)])
    assert (touching.wanted, touching.shown, touching.held) == (
        13,
        20,
        13,
    ), "references overlap, chunks touch"
    assert touching.recall == 1 and touching.iou == touching.precision == 13 / 20
    beside = overlap(pieces((0, 10)), "a", [(10, 20)])
    assert (beside.recall, beside.precision, beside.iou) == (0, 0, 0), "an end is no character"
    nothing = overlap([], "a", [(0, 4)])
    assert (nothing.recall, nothing.precision, nothing.iou) == (0, 0, 0)


def test_other_texts_and_wrong_spans_are_read_and_answer_nothing() -> None:
    shown = [*pieces((0, 10)), *pieces((0, 10), corpus="b"), *pieces((0, 10), (0, 10), corpus=None)]
    found = overlap(shown, "a", [(0, 10)])
    assert (found.wanted, found.shown, found.held) == (10, 40, 10)
    assert overlap(pieces((0, 10), corpus=None), "a", [(0, 10)]).recall == 0


def test_the_rank_of_the_answer() -> None:
    reference = [(100, 120)]
    assert reciprocal_rank(pieces((100, 120)), "a", reference) == 1
    assert reciprocal_rank(pieces((0, 109), (111, 300), (0, 300)), "a", reference) == 1 / 3, (
        "9 of 20 are no answer"
    )
    assert reciprocal_rank(pieces((0, 110)), "a", reference) == 1, "half of the reference"
    assert reciprocal_rank(pieces((100, 104)), "a", [(0, 1000)]) == 1, "all of a small chunk"
    assert reciprocal_rank(pieces((100, 120), corpus="b"), "a", reference) == 0
    assert reciprocal_rank(pieces(*[(0, 5)] * 10, (100, 120)), "a", reference) == 0, "not among ten"


@given(spans, spans.filter(bool), st.randoms())
@settings(max_examples=50, derandomize=True, database=None, deadline=None)
def test_measures_are_those_of_sets_of_characters(
    found: list, references: list, chance: random.Random
) -> None:
    shown, wanted = ({i for span in side for i in range(*span)} for side in (found, references))
    assert {i for span in merged(found) for i in range(*span)} == shown
    assert all(a[1] < b[0] for a, b in zip(merged(found), merged(found)[1:], strict=False))
    one = overlap(pieces(*found), "a", references)
    assert (one.wanted, one.shown, one.held) == (len(wanted), len(shown), len(wanted & shown))
    assert (
        one.iou == len(wanted & shown) / len(wanted | shown) <= min(one.recall, one.precision) <= 1
    )
    chance.shuffle(found)
    chance.shuffle(references)
    assert overlap(pieces(*found, *found), "a", references) == one, (
        "order and repetition are nothing to a set"
    )


def test_a_budget_cuts_the_last_chunk() -> None:
    text = "one two three four"
    hits = [
        RankedPiece(Piece("a", 0, 18, 4), text),
        RankedPiece(Piece("a", 50, 68, 4), text),
        RankedPiece(Piece("a", 90, 108, 4), text),
    ]
    assert [p.end - p.start for p in within(hits, 100, WORDS)] == [18, 18, 18]
    assert [(p.start, p.end, p.tokens) for p in within(hits, 6, WORDS)] == [(0, 18, 4), (50, 57, 2)]
    assert len(list(within(hits, 4, WORDS))) == 1
    assert next(within(hits, 1, WORDS)).end == 3


def test_the_interval_of_a_paired_difference_holds_the_truth() -> None:
    """Questions of different difficulty; one side finds a tenth more of each, give or take."""
    rng, held = np.random.default_rng(0), 0
    for seed in range(200):
        easy = rng.beta(1, 1, size=50)
        one, other = (
            np.clip(easy * 0.8 + rng.normal(0, 0.05, 50) + shift, -1, 2) for shift in (0.1, 0.0)
        )
        (found,) = bootstrapped([(one - other).tolist()], seed=seed, resamples=500, shares=False)
        held += found.low <= 0.1 <= found.high
        assert found.high - found.low < 0.1, "though the questions themselves are spread over 0.8"
    assert 0.9 <= held / 200 <= 0.99


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two texts of 60 short paragraphs, and a question on every fifth of them."""
    chance, rows = random.Random(3), []
    for name, ending in (("pumps", "md"), ("ships", "txt")):
        text = ""
        for number in range(60):
            common = " ".join(
                chance.choices(["valve", "water", "pressure", "hull", "deck", "captain"], k=30)
            )
            start, fact = (
                len(text),
                f"The {name} number {number} is called {name[0]}marker{number * 37}.",
            )
            text += f"{fact} {common.capitalize()}.\n\n"
            if number % 5 == 0:
                question = f"What is called {name[0]}marker{number * 37}?"
                rows.append(
                    {
                        "corpus": name,
                        "question": question,
                        "references": [{"start": start, "end": start + len(fact)}],
                    }
                )
        (tmp_path / f"{name}.{ending}").write_text(text)
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def questions(folder: Path) -> QuestionSet:
    return read_questions(folder)


def test_what_can_be_found_is_found(questions: QuestionSet) -> None:
    base = Configuration.read("recursive:80/12:words")
    small, same = (
        Configuration.read("recursive:40/6:words"),
        Configuration.read("default:80/12:words"),
    )
    settings = Settings(k=1, budget=40, resamples=200)
    found = evaluate(questions, [small, base, same], base, settings)
    assert [str(result.configuration) for result in found.results] == [
        str(base),
        str(small),
        str(same),
    ]
    assert found.questions == {"pumps": 12, "ships": 12}
    first, second = found.results[0].scores[ALL], found.results[1].scores[ALL]
    assert first["recall"].value.value == first["mrr"].value.value == second["mrr"].value.value == 1
    assert first["recall"].less_base.low == first["recall"].less_base.high == 0
    assert second["iou"].less_base.low > 0, "half as much text with the same answer"
    assert second["precision"].value.value > first["precision"].value.value > 0.1
    of_corpora = [found.results[1].scores[name]["iou"].value.value for name in found.questions]
    assert np.mean(of_corpora) == pytest.approx(second["iou"].value.value)
    again = evaluate(questions, [small, base, same], base, settings)
    assert again == found, "seeded"


def test_modes_rank_differently_and_are_measured_alike(questions: QuestionSet) -> None:
    modes = [Configuration("fixed", 40, 0, mode) for mode in MODES]
    found = evaluate(questions, modes, modes[0], Settings(k=1, budget=40, resamples=200))
    by_words, by_vectors, by_both = (result.scores[ALL]["mrr"] for result in found.results)
    assert by_vectors.value.value < by_words.value.value and by_vectors.less_base.high < 0, (
        "markers are no words"
    )
    assert by_vectors.value.value < by_both.value.value <= by_words.value.value


def test_in_one_index_a_question_meets_the_other_corpora(questions: QuestionSet) -> None:
    base = Configuration.read("fixed:20/0:words")
    assert Configuration.read(str(base)) == base
    together = rank(questions, base, load_tokenizer("pieces"), 30, apart=False)
    apart = rank(questions, base, load_tokenizer("pieces"), 30, apart=True)
    assert together.tokens == apart.tokens and together.wrong == apart.wrong == 0

    def met(hits: list[RankedPiece]) -> set[str | None]:
        return {hit.piece.corpus for hit in hits}

    assert any(len(met(hits)) == 2 for hits in together.found)
    assert all(
        met(hits) == {q.corpus} for q, hits in zip(questions.questions, apart.found, strict=True)
    )
    for hits in together.found:
        for hit in hits:
            assert (
                questions.documents[hit.piece.corpus or ""].text[hit.piece.start : hit.piece.end]
                == hit.text
            )


def test_a_wrong_span_takes_its_place_and_answers_nothing(questions: QuestionSet) -> None:
    """LangChain counts an overlap in characters when it locates its chunks, but the overlap here is
    in tokens.
    """
    given, located = (
        Configuration.read(f"{name}:256/60:words") for name in ("langchain", "langchain-located")
    )
    found = evaluate(questions, [given], located, Settings(k=1, resamples=200))
    right, wrong = found.results
    assert (
        right.wrong_spans == 0
        and right.chunks == wrong.chunks
        and wrong.wrong_spans > right.chunks / 4
    )
    assert wrong.scores[ALL]["recall"].value.value < right.scores[ALL]["recall"].value.value == 1
    assert wrong.scores[ALL]["precision"].value.value < right.scores[ALL]["precision"].value.value


def test_quotes_of_what_was_found_resolve_and_others_do_not(folder: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    questions = read_questions(folder)
    with DocumentIndex(tmp_path / "index.db", create=True) as index:
        index_folder(index, folder, ["pumps.md", "ships.txt"])
        for question in questions.questions:
            text = questions.documents[question.corpus].text
            for hit in index.search(question.text):
                start = chance.randrange(len(hit.text) - 12)
                quote = hit.text[start : start + 12 + chance.randrange(20)]
                exact = resolve(index, quote, hit.file, hit.start, hit.end, hit.revision)
                assert exact.accepted == bool(quote.strip())
                assert exact.citation is not None and exact.citation["quote"] == quote
                for made_up in (quote[:5] + "#" + quote[6:], quote[::-1] + "?", f"{quote} indeed"):
                    rejected = resolve(index, made_up, hit.file, hit.start, hit.end, hit.revision)
                    assert not rejected.accepted and rejected.verdict is CitationVerdict.FABRICATED
            reference = question.references[0]
            file = next(file for file in files_in(folder) if file.startswith(question.corpus))
            assert resolve(index, text[slice(*reference)], file, *reference).accepted


ROW = {"corpus": "a", "question": "What?", "references": [{"start": 0, "end": 4}]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a JSON list"),
        ({**ROW, "corpus": "b"}, "line 2: there is no corpus 'b'. Did you mean|Corpora: a"),
        ({**ROW, "corpus": 3}, "'corpus' is no str"),
        ({key: ROW[key] for key in ("corpus", "references")}, "'question' is missing"),
        ({**ROW, "question": " "}, "the question is empty"),
        ({**ROW, "references": []}, "has no reference"),
        ({**ROW, "references": [[0, 4]]}, r"\[0, 4\] is not a reference"),
        ({**ROW, "references": [{"start": "0", "end": 4}]}, "is not a reference"),
        ({**ROW, "references": [{"start": True, "end": 4}]}, "is not a reference"),
        (
            {**ROW, "references": [{"start": 0, "end": 12}]},
            "0 to 12 does not lie in 'a', which has 11 characters",
        ),
        ({**ROW, "references": [{"start": 4, "end": 4}]}, "4 to 4 does not lie"),
        ({**ROW, "references": [{"start": -1, "end": 4}]}, "-1 to 4 does not lie"),
    ],
)
def test_a_row_that_means_nothing_is_named(row: object, said: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Größe\r\nText", encoding="utf-8", newline="")
    line = row if isinstance(row, str) else json.dumps(row)
    (tmp_path / "questions.jsonl").write_text(f"{json.dumps(ROW)}\n{line}\n")
    with pytest.raises(RetrievalError, match=said):
        read_questions(tmp_path)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    for said, name, data in (
        ("There is no corpus in", "notes.rst", b"x"),
        ("There is no file", "a.md", b"Text"),
        ("has no questions", "questions.jsonl", b"\n"),
        ("two corpora of the name 'a'", "a.txt", b"Text"),
        ("is not UTF-8: byte 2", "a.txt", b"ab\xff"),
    ):
        (tmp_path / "a.md").unlink(missing_ok=True) if name == "a.txt" and b"\xff" in data else None
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RetrievalError, match=said):
            read_questions(tmp_path)
    with pytest.raises(RetrievalError, match="There is no folder"):
        read_questions(tmp_path / "none")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("semantic", "is not a configuration"),
        ("semantik:512/77:words", "no chunking strategy 'semantik'. Did you mean 'semantic'"),
        ("semantic:512/77:letters", "no mode 'letters'"),
        ("semantic:512/300:words", "half of the size"),
    ],
)
def test_a_configuration_that_is_none_is_named(written: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Configuration.read(written)


@pytest.mark.shared_data
def test_the_default_on_a_shared_corpus(shared_data: Path) -> None:
    """The default is on par with a splitter whose spans were corrected, and far better than that
    splitter's own spans.
    """
    whole = read_questions(shared_data / "retrieval")
    assert len(whole.questions) == 276 and len(whole.documents) == 3
    asked = tuple(question for question in whole.questions if question.corpus == "chatlogs")
    questions = QuestionSet({"chatlogs": whole.documents["chatlogs"]}, asked)
    ours, theirs, mended = map(
        Configuration.read,
        ("default:512/77:words", "langchain:512/64:words", "langchain-located:512/64:words"),
    )
    found = evaluate(questions, [ours, theirs], mended, Settings(resamples=1000))
    base, default, given = (result.scores[ALL] for result in found.results)
    assert [result.wrong_spans > 0 for result in found.results] == [False, False, True]
    assert default["recall"].value.value > 0.95 and default["recall"].less_base.high > 0
    assert default["budget_iou"].less_base.high > 0
    assert given["recall"].less_base.high < -0.2
    assert all(
        0 <= side[name].value.low <= side[name].value.high <= 1
        for side in (base, default)
        for name in MEASURES
    )
