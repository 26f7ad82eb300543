"""Vectors of texts, by any LangChain `Embeddings` that a string names, or by static embeddings,
which need no download.

Static embeddings have one vector for each token of a vocabulary. The vector of a text is the mean
over its tokens. No model runs, so a chunk costs about as much as its tokenization, but the order of
the words is lost. Unlike words alone, static embeddings find a passage that paraphrases the
question, but a sentence model is better.

The vectors and their vocabulary are two files in the wheel of wordllama (extra `vectors`). The
files are read without importing the package, since the import takes most of a second and sets up
logging for the whole process. The wheel is under the MIT licence. The vectors were trained from the
token embeddings of models whose tokenizer is Llama 2's (Llama 2 70B and Phi-3 Medium, according to
the model card). Whether the Llama 2 Community License extends to the vectors is not settled. So
they are not the default, and each user has to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import ConfigError, RetrievalError, to_install

__all__ = [
    "DIMENSIONS",
    "StaticEmbeddings",
    "Vectors",
    "load_embeddings",
    "name_of",
    "unit",
    "vectors_of",
]

Vectors = NDArray[np.float32]
"""Vectors, one row per text."""

DIMENSIONS = (64, 128, 256)
"""Possible dimensions of static vectors. In training, their first 64 and 128 numbers were made
usable alone.
"""
_FILES = ("weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json")
_BATCH = 256
"""Number of texts that are tokenized at once."""


class StaticEmbeddings(Embeddings):
    """Embeddings by the mean of the tokens' vectors, scaled to unit length (zeros for a text
    without a token). Threads may share an object.
    """

    def __init__(self, dimension: int = 256) -> None:
        if dimension not in DIMENSIONS:
            raise ConfigError(
                f"Static vectors cannot have {dimension} dimensions.",
                f"Choose one of {DIMENSIONS}.",
            )
        spec = find_spec("wordllama")
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError("Static vectors need wordllama.", f"Run `{to_install('vectors')}`.")
        files = [Path(spec.submodule_search_locations[0]) / file for file in _FILES]
        if missing := [str(path) for path in files if not path.is_file()]:
            raise ConfigError(
                f"This version of wordllama has no {missing[0]}.",
                "Run `pip install 'wordllama~=0.4.0'`.",
            )
        weights, vocabulary = files
        self.name = f"static:{dimension}"
        self.dimension = dimension
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self._tokenizer: Any = Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # `</s>` inside a text is encoded as text
        self._table: Vectors = load_file(weights)["embedding.weight"][:, :dimension].astype(
            np.float32
        )

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Vectors of texts, one row each."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for first in range(0, len(texts), _BATCH):
            batch = [replace_surrogates(text) for text in texts[first : first + _BATCH]]
            if len(batch) == 1:
                # The text may be a question. Starting the library's threads would take longer than
                # encoding it.
                encoded = [self._tokenizer.encode(batch[0], add_special_tokens=False)]
            else:
                encoded = self._tokenizer.encode_batch_fast(batch, add_special_tokens=False)
            for row, found in enumerate(encoded, first):
                if (ids := found.ids) and texts[row]:
                    rows[row] = self._table[ids].mean(axis=0)
        return unit(rows)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.vectors(texts).tolist()

    def embed_query(self, text: str) -> list[float]:
        return self.vectors([text])[0].tolist()


# Static embeddings are loaded once per process, however often an index is opened.
_static = lru_cache(maxsize=len(DIMENSIONS))(StaticEmbeddings)


def load_embeddings(name: str) -> Embeddings:
    """Load embeddings: `static`, `static:64`, or `package.module:attribute` for an `Embeddings` or
    a function that returns one.
    """
    kind, _, rest = name.partition(":")
    if kind == "static":
        if rest and not rest.isdigit():
            raise ConfigError(
                f"{rest!r} is not a number of dimensions.", f"`static:64`; known: {DIMENSIONS}."
            )
        return _static(int(rest)) if rest else _static(max(DIMENSIONS))
    if not (kind and rest):
        raise ConfigError(
            f"There are no embeddings {name!r}.",
            "Known: static, static:64, package.module:attribute.",
        )
    try:
        found: Any = getattr(import_module(kind), rest)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"The embeddings {name!r} cannot be loaded: {error}.", "Write package.module:attribute."
        ) from error
    made = found() if callable(found) and not isinstance(found, Embeddings) else found
    if not isinstance(made, Embeddings):
        raise ConfigError(
            f"{name!r} is a {type(made).__name__}, not an Embeddings of LangChain.",
            "Name an instance of langchain_core.embeddings.Embeddings.",
        )
    return made


def name_of(embeddings: Embeddings) -> str:
    """Name under which vectors are recorded. Embeddings with the same name count as equal."""
    kind = type(embeddings)
    model = next(
        (
            value
            for key in ("name", "model", "model_name")
            if (value := getattr(embeddings, key, None))
        ),
        "",
    )
    return (
        str(model)
        if isinstance(embeddings, StaticEmbeddings)
        else f"{kind.__module__}.{kind.__qualname__}:{model}"
    )


def vectors_of(embeddings: Embeddings, texts: Sequence[str]) -> Vectors:
    """Vectors of unit length from any embeddings, one row per text."""
    if isinstance(embeddings, StaticEmbeddings):
        return embeddings.vectors(texts)
    try:
        rows = np.asarray(embeddings.embed_documents(list(texts)), dtype=np.float32)
    except Exception as error:  # the embeddings, or the service behind them, may raise anything
        raise RetrievalError(
            f"{name_of(embeddings)} failed: {type(error).__name__}: {error}.",
            "Documents indexed before are kept. Fix the embeddings, then index again.",
        ) from error
    if rows.ndim != 2 or len(rows) != len(texts) or not np.isfinite(rows).all():
        raise RetrievalError(
            f"{name_of(embeddings)} returned an array of shape {rows.shape} for {len(texts)}"
            " texts, or numbers that are not finite.",
            "Check that `embed_documents` returns one vector for each text, all of the same"
            " length.",
        )
    return unit(rows)


def unit(rows: Vectors) -> Vectors:
    """Divide each row by its length. A row of zeros is unchanged."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
