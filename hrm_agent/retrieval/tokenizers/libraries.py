"""Vocabularies of the libraries tokenizers and sentencepiece as `Tokenizer` objects.

They are opened from disk only, since a download must not start in the middle of indexing. Two
defaults of the libraries are changed. A tokenizer.json may ask for truncation or padding, which
would silently change counts, so both are switched off. The spelling of a control token in a text
would be parsed as this token or raise an error, so it is encoded as text. Counts and offsets come
from the same encoding, so they agree.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np

from hrm_agent.errors import ConfigError, to_install
from hrm_agent.retrieval.tokenizers.base import Encoded, Offsets, checked, spelling, tiled

__all__ = ["HuggingFace", "SentencePiece", "models_on_disk", "require"]

_SPLITTERS = {"BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit"}
_HARMLESS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}


def require(name: str) -> Any:
    """Import an optional library. Raise `ConfigError` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{name} is not installed.", f"Run `{to_install('tokenizers')}`."
        ) from error


class HuggingFace:
    """Tokenizer of a tokenizer.json: byte-pair, WordPiece, unigram or word level, with its
    normaliser.
    """

    def __init__(self, source: str) -> None:
        """Load a file, a folder with a tokenizer.json, or a model of this name in the local
        cache.
        """
        library = require("tokenizers")
        self.name = f"hf:{source}"
        path = _tokenizer_file(source)
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises `Exception` itself, not a subclass
            raise ConfigError(
                f"{path} is not a tokenizer.json: {error}.", "Name another file."
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        described = json.loads(self._tokenizer.to_str())
        self.local = _is_local(described)
        self._unknown = _unknown_id(self._tokenizer, described["model"])
        self._bytes = [
            i
            for byte in range(256)
            if (i := self._tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None
        ]

    @property
    def native(self) -> Any:
        """Tokenizer of the library, for splitters that accept one."""
        return self._tokenizer

    def count(self, text: str) -> int:
        return len(self._encode(text))

    def offsets(self, text: str) -> Offsets:
        return _tiled(self._encode(text).offsets, text)

    def encoded(self, text: str) -> Encoded:
        found = self._encode(text)
        ids = found.ids
        rows = _tiled(found.offsets, text)
        unknown = 0 if self._unknown is None else ids.count(self._unknown)
        return Encoded(
            ids, rows, unknown, spelling(rows, np.isin(ids, self._bytes) if self._bytes else None)
        )

    def decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(checked(text), add_special_tokens=False)


class SentencePiece:
    """Tokenizer of a sentencepiece model: unigram or byte-pair."""

    local = False

    def __init__(self, file: str) -> None:
        library = require("sentencepiece")
        self.name = f"sentencepiece:{file}"
        try:
            self._processor: Any = library.SentencePieceProcessor(model_file=file)
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{file} is not a sentencepiece model: {error}.", "Name another file."
            ) from error

        self._bytes = [
            i for i in range(self._processor.get_piece_size()) if self._processor.is_byte(i)
        ]

    def count(self, text: str) -> int:
        return len(self._processor.encode(checked(text)))

    def offsets(self, text: str) -> Offsets:
        return _tiled(self._encode(text)["offsets"], text)

    def encoded(self, text: str) -> Encoded:
        found = self._encode(text)
        ids = found["ids"]
        rows = _tiled(found["offsets"], text)
        return Encoded(
            ids,
            rows,
            ids.count(self._processor.unk_id()),
            spelling(rows, np.isin(ids, self._bytes)),
        )

    def decoded(self, ids: list[int]) -> str:
        return self._processor.decode(ids)

    def _encode(self, text: str) -> Any:
        return self._processor.encode(checked(text), return_type="offset_mapping")


def _tokenizer_file(source: str) -> Path:
    path = Path(source)
    if path.is_dir():
        path /= "tokenizer.json"
    if path.is_file():
        return path
    cached = (
        require("huggingface_hub").try_to_load_from_cache(source, "tokenizer.json")
        if _is_name(source)
        else None
    )
    if isinstance(cached, str):
        return Path(cached)
    raise ConfigError(
        f"There is no tokenizer file {source!r}, and no model of this name in the local cache.",
        f"Where there is a network, run `hf download {source} tokenizer.json`; or name a"
        " tokenizer.json.",
    )


def _is_name(source: str) -> bool:
    owner, _, name = source.rpartition("/")
    return (
        bool(name) and "/" not in owner and not source.endswith(".json") and source[0] not in "./~"
    )


def _is_local(described: dict[str, Any]) -> bool:
    """True if a text is split at white space before the vocabulary is applied, and no other part of
    the tokenizer undoes this. See `Tokenizer.local`.
    """
    splits = {
        part["type"]
        for part in _parts(described["pre_tokenizer"], "pretokenizers")
        if part.get("use_regex", True)
    }
    changes = {part["type"] for part in _parts(described["normalizer"], "normalizers")}
    wide = any(
        token["lstrip"] or token["rstrip"] or any(char.isspace() for char in token["content"])
        for token in described["added_tokens"]
        if not token["special"]
    )
    return bool(splits & _SPLITTERS) and changes <= _HARMLESS and not wide


def _parts(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return cast("list[dict[str, Any]]", part[inner]) if part["type"] == "Sequence" else [part]


def _unknown_id(tokenizer: Any, model: dict[str, Any]) -> int | None:
    if isinstance(model.get("unk_id"), int):
        return model["unk_id"]
    token = model.get("unk_token")
    return tokenizer.token_to_id(token) if token else None


def models_on_disk() -> list[str]:
    """Names of models in Hugging Face's local cache that have a tokenizer.json."""
    hub = require("huggingface_hub")
    constants = require("huggingface_hub.constants")
    folders = sorted(Path(constants.HF_HUB_CACHE).glob("models--*"))
    names = [folder.name.removeprefix("models--").replace("--", "/") for folder in folders]
    return [
        name
        for name in names
        if isinstance(hub.try_to_load_from_cache(name, "tokenizer.json"), str)
    ]


def _tiled(found: Sequence[tuple[int, int]], text: str) -> Offsets:
    rows = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=2 * len(found)).reshape(
        -1, 2
    )
    return tiled(rows[:, 0], rows[:, 1], len(text))
