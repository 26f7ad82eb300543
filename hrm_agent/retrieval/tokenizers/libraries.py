"""The vocabularies of three libraries behind our interface: tokenizers, tiktoken, sentencepiece.

Each is opened from disk only; none of them may start a download in the middle of indexing. What each does by itself
and is undone here: a tokenizer.json may cap its counts (truncation) or fill them up (padding) without a word, and
the spelling of a control token in a text is parsed or raises. Counting and offsets are the same call, so that they
cannot disagree.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import Encoded, Offsets, checked, spelling, tiled

__all__ = ["HuggingFace", "SentencePiece", "Tiktoken", "require"]

_SPLITTERS = {"BertPreTokenizer", "ByteLevel", "Whitespace", "WhitespaceSplit"}
_HARMLESS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "StripAccents"}
_PUBLIC = "https://openaipublic.blob.core.windows.net/encodings/"
_FILES = {
    "cl100k_base": "cl100k_base",
    "o200k_base": "o200k_base",
    "o200k_harmony": "o200k_base",
    "p50k_base": "p50k_base",
    "p50k_edit": "p50k_base",
    "r50k_base": "r50k_base",
}
"""Encoding -> the file that tiktoken keeps under a hash of its address."""


def require(name: str) -> Any:
    """A library that only some installs have."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed.", 'Run `pip install "hrm-agent[tokenizers]"`.') from error


class HuggingFace:
    """A tokenizer.json: byte-pair, WordPiece, unigram or word level, with its normaliser."""

    def __init__(self, source: str) -> None:
        """`source`: the file, its folder, or the name of a model that is in the local cache."""
        library = require("tokenizers")
        self.name = f"hf:{source}"
        path = _tokenizer_file(source)
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(f"{path} is no tokenizer.json: {error}.", "Name another file.") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        described = json.loads(self._tokenizer.to_str())
        self.local = _is_local(described)
        self._unknown = _unknown_id(self._tokenizer, described["model"])
        self._bytes = [i for byte in range(256) if (i := self._tokenizer.token_to_id(f"<0x{byte:02X}>")) is not None]

    def count(self, text: str) -> int:
        return len(self._encode(text))

    def offsets(self, text: str) -> Offsets:
        return _tiled(self._encode(text).offsets, text)

    def encoded(self, text: str) -> Encoded:
        found = self._encode(text)
        ids, rows = found.ids, _tiled(found.offsets, text)
        unknown = 0 if self._unknown is None else ids.count(self._unknown)
        return Encoded(ids, rows, unknown, spelling(rows, np.isin(ids, self._bytes) if self._bytes else None))

    def decoded(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _encode(self, text: str) -> Any:
        return self._tokenizer.encode(checked(text), add_special_tokens=False)


class Tiktoken:
    """A byte-pair encoding of tiktoken."""

    def __init__(self, encoding: str) -> None:
        library = require("tiktoken")
        self.name = f"tiktoken:{encoding}"
        self.local = True
        _require_on_disk(encoding)
        try:
            self._encoding: Any = library.get_encoding(encoding)
        except Exception as error:  # a damaged file makes the library fetch another, which fails in many ways
            message = f"The vocabulary {encoding!r} on disk cannot be read: {error}."
            raise ConfigError(message, "Delete it, and fetch it again where there is a network.") from error

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def offsets(self, text: str) -> Offsets:
        return self._offsets(text, self._ids(text))

    def encoded(self, text: str) -> Encoded:
        ids = self._ids(text)
        rows = self._offsets(text, ids)
        return Encoded(ids, rows, 0, spelling(rows))

    def decoded(self, ids: list[int]) -> str:
        return self._encoding.decode(ids)

    def _offsets(self, text: str, ids: list[int]) -> Offsets:
        if not ids:
            return np.zeros((0, 2), dtype=np.int64)
        distinct, places = np.unique(np.array(ids, dtype=np.int64), return_inverse=True)
        sizes = np.array([len(self._encoding.decode_single_token_bytes(int(i))) for i in distinct], dtype=np.int64)
        return _from_bytes(text, sizes[places])

    def _ids(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(checked(text))


class SentencePiece:
    """A sentencepiece model: unigram or byte-pair."""

    local = False

    def __init__(self, file: str) -> None:
        library = require("sentencepiece")
        self.name = f"sentencepiece:{file}"
        try:
            self._processor: Any = library.SentencePieceProcessor(model_file=file)
        except (OSError, RuntimeError) as error:
            raise ConfigError(f"{file} is no sentencepiece model: {error}.", "Name another file.") from error

        self._bytes = [i for i in range(self._processor.get_piece_size()) if self._processor.is_byte(i)]

    def count(self, text: str) -> int:
        return len(self._processor.encode(checked(text)))

    def offsets(self, text: str) -> Offsets:
        return _tiled(self._encode(text)["offsets"], text)

    def encoded(self, text: str) -> Encoded:
        found = self._encode(text)
        ids, rows = found["ids"], _tiled(found["offsets"], text)
        return Encoded(ids, rows, ids.count(self._processor.unk_id()), spelling(rows, np.isin(ids, self._bytes)))

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
    cached = require("huggingface_hub").try_to_load_from_cache(source, "tokenizer.json") if _is_name(source) else None
    if isinstance(cached, str):
        return Path(cached)
    raise ConfigError(
        f"There is no tokenizer file {source!r}, and no model of this name in the local cache.",
        f"Where there is a network, run `hf download {source} tokenizer.json`; or name a tokenizer.json.",
    )


def _is_name(source: str) -> bool:
    owner, _, name = source.rpartition("/")
    return bool(name) and "/" not in owner and not source.endswith(".json") and source[0] not in "./~"


def _is_local(described: dict[str, Any]) -> bool:
    """See `Tokenizer.local`: the text is split at white space before the vocabulary is asked, and nothing undoes it."""
    splits = {part["type"] for part in _parts(described["pre_tokenizer"], "pretokenizers") if _splits(part)}
    changes = {part["type"] for part in _parts(described["normalizer"], "normalizers")}
    wide = any(
        token["lstrip"] or token["rstrip"] or any(char.isspace() for char in token["content"])
        for token in described["added_tokens"]
        if not token["special"]
    )
    return bool(splits & _SPLITTERS) and changes <= _HARMLESS and not wide


def _splits(part: dict[str, Any]) -> bool:
    return part.get("use_regex", True)


def _parts(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return cast("list[dict[str, Any]]", part[inner]) if part["type"] == "Sequence" else [part]


def _unknown_id(tokenizer: Any, model: dict[str, Any]) -> int | None:
    if isinstance(model.get("unk_id"), int):
        return model["unk_id"]
    token = model.get("unk_token")
    return tokenizer.token_to_id(token) if token else None


def _require_on_disk(encoding: str) -> None:
    if encoding not in _FILES:
        raise ConfigError(f"There is no tiktoken encoding {encoding!r} here.", nearest(encoding, _FILES))
    chosen = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(tempfile.gettempdir()) / "data-gym-cache"
    address = f"{_PUBLIC}{_FILES[encoding]}.tiktoken"
    name = hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()
    if not (folder / name).is_file():
        raise ConfigError(
            f"The vocabulary of {encoding!r} is not on disk, and would have to be downloaded.",
            f"Put {address} into {folder} as {name} (TIKTOKEN_CACHE_DIR names another folder), or use `pieces`.",
        )


def _tiled(found: Sequence[tuple[int, int]], text: str) -> Offsets:
    rows = np.array(found, dtype=np.int64).reshape(-1, 2)
    return tiled(rows[:, 0], rows[:, 1], len(text))


def _from_bytes(text: str, sizes: NDArray[np.int64]) -> Offsets:
    """Character offsets of tokens that lie side by side, from their sizes in bytes."""
    ends = np.cumsum(sizes)
    if text.isascii():
        return np.stack((ends - sizes, ends), axis=1)
    encoded = np.frombuffer(text.encode(), dtype=np.uint8)
    begun = np.cumsum((encoded & 0xC0) != 0x80)
    return np.stack((begun[ends - sizes] - 1, begun[ends - 1]), axis=1).astype(np.int64)
