"""tiktoken's byte-pair encodings behind our interface, without its download.

The library downloads a vocabulary on first use, without a time limit, and again if its file is
damaged. Here the file is checked before the library is called.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import Encoded, Offsets, checked, spelling
from hrm_agent.retrieval.tokenizers.libraries import require

__all__ = ["Tiktoken", "encodings_on_disk"]

_PUBLIC = "https://openaipublic.blob.core.windows.net/encodings/"
_FILES = {
    "cl100k_base": "cl100k_base",
    "o200k_base": "o200k_base",
    "o200k_harmony": "o200k_base",
    "p50k_base": "p50k_base",
    "p50k_edit": "p50k_base",
    "r50k_base": "r50k_base",
}
"""File that tiktoken stores under a hash of its address, by encoding."""
_CONTENTS = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "p50k_base": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
}
"""SHA-256 of the contents, by file."""
_DESERT = 100_000
"""Characters of white space after which a run is cut. From about 300,000 on the library fails,
since its expressions backtrack over all of them.
"""
_VISIBLE = re.compile(r"\S")
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""Expression by which GPT-2, and `ByteLevel` of the tokenizers library, split a text before the
byte pairs.
"""


class Tiktoken:
    """Byte-pair encoding of tiktoken: one of its own by name, or a file of ranks that is split like
    GPT-2.
    """

    local = True

    def __init__(self, source: str) -> None:
        """Load an encoding by a name such as `cl100k_base`, or from a file `*.tiktoken` written by
        `train_tokenizer`.
        """
        library = require("tiktoken")
        self.name = f"tiktoken:{source}"
        path = Path(source)
        if path.suffix == ".tiktoken":
            ranks = _read_ranks(path)
            self._encoding: Any = library.Encoding(
                path.stem, pat_str=_GPT2, mergeable_ranks=ranks, special_tokens={}
            )
        else:
            _require_on_disk(source)
            self._encoding = library.get_encoding(source)
        # in bytes (0: not yet known)
        self._sizes = np.zeros(self._encoding.max_token_value + 1, dtype=np.int64)

    @property
    def native(self) -> Any:
        """Encoding of the library, for splitters that accept one."""
        return self._encoding

    def count(self, text: str) -> int:
        return len(self._ids(text))

    def offsets(self, text: str) -> Offsets:
        return self._offsets(text, self._ids(text))

    def encoded(self, text: str) -> Encoded:
        ids = self._ids(text)
        rows = self._offsets(text, ids)
        return Encoded(ids.tolist(), rows, 0, spelling(rows))

    def decoded(self, ids: list[int]) -> str:
        return self._encoding.decode(ids)

    def _offsets(self, text: str, ids: NDArray[Any]) -> Offsets:
        for new in np.unique(ids[self._sizes[ids] == 0]).tolist():
            self._sizes[new] = len(self._encoding.decode_single_token_bytes(new))
        return _from_bytes(text, self._sizes[ids])

    def _ids(self, text: str) -> NDArray[np.uint32]:
        parts = [
            self._encoding.encode_to_numpy(part, disallowed_special=())
            for part in _without_deserts(checked(text))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _without_deserts(text: str) -> list[str]:
    """Parts of a text, cut where a run of white space is longer than the library's expressions can
    take.

    Only the run decides where it is cut, so a text counts the same as its parts
    (`Tokenizer.local`).
    """
    cuts, done = [0], 0
    for at in range(0, len(text) - _DESERT + 1, _DESERT):
        if at >= done and text[at : at + _DESERT].isspace():
            before = text[max(at - _DESERT, 0) : at]
            begun, end = at - len(before) + len(before.rstrip()), _VISIBLE.search(text, at)
            done = end.start() if end else len(text)
            cuts += range(begun + _DESERT, done, _DESERT)
    return [text[a:b] for a, b in pairwise([*cuts, len(text)])]


def encodings_on_disk() -> list[str]:
    """Names of tiktoken's own encodings that need no download."""
    return [
        encoding
        for encoding in _FILES
        if (file := _cached(encoding)) is not None and file.is_file()
    ]


def _cached(encoding: str) -> Path | None:
    """Path where tiktoken caches a vocabulary (None if TIKTOKEN_CACHE_DIR is empty, which disables
    the cache).
    """
    chosen = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if chosen == "":
        return None
    folder = Path(chosen or Path(tempfile.gettempdir()) / "data-gym-cache")
    address = f"{_PUBLIC}{_FILES[encoding]}.tiktoken"
    return folder / hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()


def _require_on_disk(encoding: str) -> None:
    if encoding not in _FILES:
        known = f"Known: {', '.join(_FILES)}, or a file FILE.tiktoken."
        raise ConfigError(
            f"There is no tiktoken encoding {encoding!r}.",
            f"{nearest(encoding, _FILES)} {known}".strip(),
        )
    file = _cached(encoding)
    fetch = (
        'TIKTOKEN_CACHE_DIR=FOLDER python -c "import tiktoken;'
        f" tiktoken.get_encoding('{encoding}')\""
    )
    if file is None or not file.is_file():
        raise ConfigError(
            f"The vocabulary of {encoding!r} is not on disk"
            f" ({file or 'TIKTOKEN_CACHE_DIR is empty'}).",
            f"Run `{fetch}` where there is a network, and set TIKTOKEN_CACHE_DIR to that folder; or"
            " use `pieces`.",
        )
    if hashlib.sha256(_bytes(file)).hexdigest() != _CONTENTS[_FILES[encoding]]:
        raise ConfigError(
            f"The vocabulary of {encoding!r} in {file} is damaged.",
            f"Delete the file, and run `{fetch}` where there is a network.",
        )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", "Name a file that can."
        ) from error


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read a rank file with one token per line: its bytes in base64, and its rank."""
    if path.stem in _FILES:
        raise ConfigError(
            f"{path} has the name of an encoding that splits text in a way of its own.",
            f"Copy it to {_cached(path.stem)} and name `tiktoken:{path.stem}`.",
        )
    try:
        pairs = [line.split() for line in _bytes(path).splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a tiktoken file: {error}.", "Name another file."
        ) from error
    if len(set(ranks.values())) < len(pairs) or any(
        bytes([byte]) not in ranks for byte in range(256)
    ):
        raise ConfigError(
            f"{path} is not a whole vocabulary: bytes or ranks are missing.", "Name another file."
        )
    return ranks


def _from_bytes(text: str, sizes: NDArray[np.int64]) -> Offsets:
    """Character offsets of adjacent tokens, from their sizes in bytes."""
    ends = np.cumsum(sizes)
    if text.isascii():
        return np.stack((ends - sizes, ends)).T
    encoded = np.frombuffer(text.encode(), dtype=np.uint8)
    begun = np.cumsum((encoded & 0xC0) != 0x80)
    return np.stack((begun[ends - sizes] - 1, begun[ends - 1])).T
