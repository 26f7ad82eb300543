"""Questions on texts, with the spans that answer them.

A set is a folder of corpora (`*.md`, `*.txt`, UTF-8) and `questions.jsonl`, with a row for each
question:

    {"corpus": "guide", "question": "How is the pump primed?", "references": [{"start": 1042, "end": 1187}]}

`corpus` is a file's name, with or without its suffix. A reference is `text[start:end]` in
characters, and all references together are the answer. Every row is checked before the evaluation:
a span outside of its text, or one in bytes, would give a meaningless score.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from benchmarks.retrieval_quality.spans import SpanOf
from hrm_agent.errors import RetrievalError, nearest
from hrm_agent.retrieval.index.reading import Document, DocumentKind

__all__ = ["QUESTIONS", "QuestionSet", "RetrievalQuestion", "read_questions"]

QUESTIONS = "questions.jsonl"
_ENDINGS = {".md": DocumentKind.MARKDOWN, ".txt": DocumentKind.TEXT}
_ROW = 'A row is {"corpus": "NAME", "question": "TEXT", "references": [{"start": 0, "end": 10}]}.'


@dataclass(frozen=True, slots=True)
class RetrievalQuestion:
    """Question with the spans of its answer."""

    corpus: str
    """Name of the corpus, without the file's suffix."""
    text: str
    """Question in plain words."""
    references: tuple[SpanOf, ...]
    """Spans of the answer: at least one, none empty, all inside the text. They may overlap."""


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """Corpora and questions of an evaluation."""

    documents: Mapping[str, Document]
    """Documents by corpus. A corpus without questions is searched, too."""
    questions: tuple[RetrievalQuestion, ...]
    """Questions in the order of the file, at least one."""


def read_questions(folder: Path) -> QuestionSet:
    """Read the corpora and questions of a folder. Raise `RetrievalError` with file, line and
    fault.
    """
    if not folder.is_dir():
        raise RetrievalError(
            f"There is no folder {folder}.", f"Name one with corpora (*.md, *.txt) and {QUESTIONS}."
        )
    documents, path = _documents(folder), folder / QUESTIONS
    questions = tuple(_question(row, documents, _Span(path, line)) for line, row in _rows(path))
    if not questions:
        raise RetrievalError(f"{path} has no questions.", _ROW)
    return QuestionSet(documents, questions)


def _documents(folder: Path) -> dict[str, Document]:
    files = sorted(
        file for file in folder.iterdir() if file.suffix.lower() in _ENDINGS and file.is_file()
    )
    files = [file for file in files if file.stem != "README" and not file.name.startswith(".")]
    if not files:
        raise RetrievalError(
            f"There is no corpus in {folder}.", "A corpus is a file *.md or *.txt."
        )
    twice = [stem for stem, times in Counter(file.stem for file in files).items() if times > 1]
    if twice:
        raise RetrievalError(
            f"{folder} has two corpora of the name {twice[0]!r}.", "Rename one of the files."
        )
    return {file.stem: Document(_read(file), _ENDINGS[file.suffix.lower()]) for file in files}


def _read(path: Path) -> str:
    """Text of a file without translation of line ends, since spans count them."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise RetrievalError(f"There is no file {path}.", _ROW) from error
    except OSError as error:
        raise RetrievalError(
            f"{path} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    except UnicodeDecodeError as error:
        hint = "Spans count characters of UTF-8 text: convert it, and count them there."
        raise RetrievalError(
            f"{path} is not UTF-8: byte {error.start} cannot be decoded.", hint
        ) from error


@dataclass(frozen=True, slots=True)
class _Span:
    path: Path
    line: int
    """Line of the file, from 1."""

    def wrong(self, fault: str, hint: str = _ROW) -> NoReturn:
        raise RetrievalError(f"{self.path}, line {self.line}: {fault}.", hint)


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(_read(path).split("\n"), 1):
        if text.strip():
            try:
                yield line, json.loads(text)
            except ValueError as error:
                _Span(path, line).wrong(f"not JSON ({error})")


def _question(row: Any, documents: Mapping[str, Document], place: _Span) -> RetrievalQuestion:
    if not isinstance(row, dict):
        place.wrong(f"a JSON {type(row).__name__}")
    values = cast("dict[str, Any]", row)
    for key, kind in (("corpus", str), ("question", str), ("references", list)):
        if not isinstance(values.get(key), kind):
            place.wrong(f"{key!r} is {'missing' if key not in values else f'no {kind.__name__}'}")
    corpus, question = _known(values["corpus"], documents, place), values["question"]
    if not question.strip():
        place.wrong("the question is empty")
    if not values["references"]:
        place.wrong(
            "the question has no reference",
            "A question that the texts do not answer measures nothing here.",
        )
    spans = tuple(
        _span(reference, documents[corpus].text, corpus, place)
        for reference in values["references"]
    )
    return RetrievalQuestion(corpus, question, spans)


def _known(name: str, documents: Mapping[str, Document], place: _Span) -> str:
    stem = Path(name).stem if Path(name).suffix in _ENDINGS else name
    if stem not in documents:
        place.wrong(
            f"there is no corpus {name!r}",
            nearest(stem, documents) or f"Corpora: {', '.join(documents)}.",
        )
    return stem


def _span(reference: Any, text: str, corpus: str, place: _Span) -> SpanOf:
    found = cast("dict[str, Any]", reference) if isinstance(reference, dict) else {}
    start, end = found.get("start"), found.get("end")
    if type(start) is not int or type(end) is not int:
        place.wrong(f"{json.dumps(reference)} is not a reference")
    if not 0 <= start < end <= len(text):
        hint = "Spans count characters, not bytes, from 0; `end` is one past the last."
        place.wrong(
            f"the span {start} to {end} does not lie in {corpus!r}, which has {len(text)}"
            " characters",
            hint,
        )
    return start, end
