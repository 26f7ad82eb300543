"""Texts with known changes of topic: passages of different documents, one after the other.

The documents are the articles, the conversations and the speech of the shared corpora. This
project's pages count as one document, since they have one topic. A passage is a number of
consecutive sentences. A text is ten passages, each from another document than the previous one.
Passages are joined like sentences, so that only the words show the boundaries. Parameters were
tuned on every second document; the figures are from the other half.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.lib.stride_tricks import sliding_window_view

from hrm_agent.retrieval.chunking.semantic import topics
from hrm_agent.retrieval.chunking.sentences import Prose

__all__ = ["Segmented", "boundaries", "documents", "pk", "segmented"]

_NOTABLE, _AROUND = 0.25, 2
"""Minimum depth of a boundary, in deviations above the mean, and gaps on either side among which it
is the deepest.
"""
_LEAST = 30
"""Minimum sentences of a document."""
_PASSAGES = 10
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|$)", re.MULTILINE)


@dataclass(frozen=True)
class Segmented:
    """Text with the positions at which its topic changes."""

    text: str
    units: list[int]
    """Start of each sentence."""
    changes: list[int]
    """Start of each passage but the first."""


def documents(data: Path, pages: Path) -> list[list[str]]:
    """Sentences of each document, except sentences of a word or two."""
    wiki = re.split(r"(?m)^ = (?=[^=])", (data / "wikitexts.md").read_text(encoding="utf-8"))
    chats = [
        _said(line) for line in (data / "chatlogs.md").read_text(encoding="utf-8").splitlines()
    ]
    speech = (data / "state_of_the_union.md").read_text(encoding="utf-8")
    own = "\n".join(page.read_text(encoding="utf-8") for page in sorted(pages.glob("*.md")))
    found = [
        [s for s in _SENTENCE.findall(text) if s.count(" ") > 3]
        for text in (*wiki, *chats, speech, own)
    ]
    return [sentences for sentences in found if len(sentences) >= _LEAST]


def _said(line: str) -> str:
    turns = re.findall(r"'content': (\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')", line)
    return "\n".join(ast.literal_eval(turn) for turn in turns)


def segmented(
    documents: Sequence[Sequence[str]], seed: int, sizes: tuple[int, int] = (5, 20)
) -> Segmented:
    """Text of ten passages of `sizes[0]` to `sizes[1]` sentences."""
    rng = random.Random(seed)
    text, units, changes, last = "", list[int](), list[int](), -1
    for _ in range(_PASSAGES):
        last = rng.choice([number for number in range(len(documents)) if number != last])
        size = rng.randint(*sizes)
        first = rng.randrange(len(documents[last]) - size)
        changes.append(len(text))
        for sentence in documents[last][first : first + size]:
            units.append(len(text))
            text += sentence + " "
    return Segmented(text, units, changes[1:])


def boundaries(text: str, embeddings: Embeddings | None = None) -> list[int]:
    """Positions at which the topic changes, independent of chunk sizes: where the similarity of
    both sides has a valley deeper than most.
    """
    level = topics(Prose(text), embeddings)
    if level.strength is None:
        return []
    depths = level.strength
    deepest = sliding_window_view(
        np.pad(depths, _AROUND, constant_values=-np.inf), 2 * _AROUND + 1
    ).max(axis=1)
    return level.places[
        (depths == deepest) & (depths > depths.mean() + _NOTABLE * depths.std())
    ].tolist()


def pk(given: Segmented, found: Sequence[int]) -> float:
    """Pk: share of pairs of sentences, half a mean passage apart, that are wrongly put into one
    passage or into two.

    Beeferman, Berger and Lafferty 1999.
    """
    count = len(given.units)
    apart = max(round(count / (len(given.changes) + 1) / 2), 2)
    said, true = (_topic(given.units, places) for places in (found, given.changes))
    same_said, same_true = said[apart:] == said[:-apart], true[apart:] == true[:-apart]
    return float(np.mean(same_said != same_true))


def _topic(units: Sequence[int], changes: Sequence[int]) -> np.ndarray:
    """Topic number of each unit, increased after each change."""
    starts = np.zeros(len(units) + 1, dtype=np.int64)
    starts[np.searchsorted(units, sorted(changes))] = 1
    return starts[:-1].cumsum()
