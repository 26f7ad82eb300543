"""tiktoken's byte-pair encodings as a `Tokenizer`, without downloads.

tiktoken downloads a vocabulary on first use, without a time limit. So it is called only if the
vocabulary's file is on disk.
"""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_agent.errors import ConfigError, RetrievalError, nearest
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
"""Name of each encoding's file. tiktoken stores the file under a hash of its address."""
_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
"""Expression by which GPT-2, and `ByteLevel` of the tokenizers library, split a text before the
byte pairs.
"""


class Tiktoken:
    """Byte-pair encoding of tiktoken: an encoding that it knows by name, or a file of ranks, with
    text split as by GPT-2.
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
        # size of each token in bytes (0: not known yet)
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
        try:
            return self._encoding.encode_to_numpy(checked(text), disallowed_special=())
        except ValueError as error:
            raise RetrievalError(
                f"tiktoken cannot split a text of {len(text):,} characters: {error}",
                "It fails for runs of several 100,000 spaces, for example. Use the tokenizer"
                " `pieces`.",
            ) from error


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


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read a rank file with one token per line: its bytes in base64, and its rank."""
    if path.stem in _FILES:
        raise ConfigError(
            f"{path} has the name of an encoding of tiktoken, and cannot be read as a rank file,"
            " since that encoding splits text in its own way.",
            f"Copy it to {_cached(path.stem)} and name `tiktoken:{path.stem}`.",
        )
    try:
        pairs = [line.split() for line in path.read_bytes().splitlines() if line]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", "Name a readable file."
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a tiktoken file: {error}.", "Name another file."
        ) from error
    if len(set(ranks.values())) < len(pairs) or any(
        bytes([byte]) not in ranks for byte in range(256)
    ):
        raise ConfigError(
            f"{path} is not a complete vocabulary: bytes or ranks are missing.",
            "Name another file.",
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
