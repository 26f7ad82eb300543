"""Texts, tokenizers and measurements of the chunking benchmark."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.chunking.check import shared_tokens, tally
from benchmarks.chunking.libraries import LIBRARIES, library_chunks, library_spans, placed
from hrm_agent.errors import HrmError
from hrm_agent.retrieval import STRATEGIES, Tokenizer, chunk_text, load_tokenizer
from hrm_agent.retrieval.chunking.chunk import Chunk
from hrm_agent.retrieval.tokenizers.encodings import encodings_on_disk
from hrm_agent.retrieval.tokenizers.training import train_tokenizer

__all__ = ["Row", "cpu", "cut", "documentation", "measured", "shared_data", "tokenizers"]

Row = dict[str, Any]

SIZE, OVERLAP = 512, 0.15
_DOCUMENTED = ("numpy", "langchain_core", "langgraph")
"""Dependencies of the base install with long docstrings."""
_DOCSTRING = re.compile(r'"""(.{200,}?)"""', re.DOTALL)


def documentation(characters: int) -> str:
    """English documentation: the docstrings of libraries that every install has, concatenated."""
    return "\n\n".join(_docstrings())[:characters]


def _docstrings() -> Iterator[str]:
    for package in _DOCUMENTED:
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            for file in sorted(Path(place).rglob("*.py")):
                if "tests" not in file.parts:
                    yield from _DOCSTRING.findall(
                        file.read_text(encoding="utf-8", errors="replace")
                    )


def shared_data() -> Path | None:
    """Folder of the shared corpora (None if it is missing)."""
    folder = (
        Path(os.environ.get("HRM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
        / "retrieval"
    )
    return folder if folder.is_dir() else None


def tokenizers(text: str, folder: Path) -> dict[str, Tokenizer]:
    """Tokenizers: `pieces`, two vocabularies that two libraries learn from the text, and those of
    tiktoken that are on disk.
    """
    found = {"pieces": load_tokenizer("pieces")}
    found["tokenizers, byte pairs"] = train_tokenizer("bpe", [text], folder / "pairs.json")
    found["sentencepiece, unigram"] = train_tokenizer(
        "unigram", [text[:300_000]], folder / "unigram.model"
    )
    names = [name for name in ("cl100k_base", "o200k_base") if name in encodings_on_disk()]
    return found | {f"tiktoken {name}": load_tokenizer(f"tiktoken:{name}") for name in names}


def cpu(work: Callable[[], Any], repeats: int = 2) -> tuple[float, Any]:
    """Minimum CPU seconds of a few runs, and the result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        begun = time.process_time()
        result = work()
        best = min(best, time.process_time() - begun)
    return best, result


def cut(
    text: str, name: str, tokenizer: Tokenizer, size: int = SIZE, overlap: float = OVERLAP
) -> list[Chunk]:
    way = chunk_text if name in STRATEGIES else library_chunks
    return way(text, name, tokenizer, size=size, overlap=overlap)


def measured(text: str, name: str, tokenizer: Tokenizer) -> Row:
    """Row of one way to cut. The floor is measured before and after, since the load of the machine
    changes.
    """
    try:
        cut(text[:2_000], name, tokenizer)
        before, _ = cpu(lambda: tokenizer.count(text))
        if name in STRATEGIES:
            seconds, chunks = cpu(lambda: cut(text, name, tokenizer))
        else:
            seconds, _ = cpu(
                lambda: library_spans(text, name, tokenizer, size=SIZE, overlap=OVERLAP), repeats=1
            )
            chunks = cut(text, name, tokenizer)
        after, _ = cpu(lambda: tokenizer.count(text))
    except HrmError as error:
        return {"way": name, "problem": error.message}
    found, mended = tally(text, chunks, tokenizer, SIZE), placed(text, chunks)
    overlaps = shared_tokens(text, mended, tokenizer)
    fitting = sum(0.1 * SIZE <= tokens <= 0.2 * SIZE for tokens in overlaps)
    return {
        "way": name,
        "MB/s": len(text.encode()) / 1e6 / seconds,
        "passes": seconds / min(before, after),
        "chunks": len(chunks),
        "wrong spans": found.wrong_spans,
        "over limit": found.over_limit,
        "pairs with 10-20 %": fitting / max(len(overlaps), 1),
        "library": name in LIBRARIES,
    }
