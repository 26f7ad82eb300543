"""The text of single tokens, without loading a model and without code of anybody's.

Tokenizers are read of the policies that the package ships, of models that were fetched by name, and of model folders
inside the place's own folder: a store names no other path that is opened. They are data for the `tokenizers` library;
nothing of a folder is run.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hrm_agent.errors import to_install
from hrm_agent.models.cached.folders import models_cache
from hrm_agent.models.cached.known import KNOWN_MODELS
from hrm_agent.models.policy_loader import BUILTIN_POLICIES

__all__ = ["TokenTexts", "token_texts"]

_MOST_BYTES = 1 << 26
"""Of a tokenizer's file."""
_SHIPPED = Path(__file__).parents[2] / "models" / "builtin"
_BYTES_FRAME = {256: "<|im_start|>", 257: "<|im_end|>", 258: "<tool_response>", 259: "</tool_response>"}


class TokenTexts:
    """Spells tokens of one vocabulary."""

    def __init__(self, name: str, pieces: dict[int, bytes | str]) -> None:
        """`pieces`: a token's bytes, or its text where it always stands for whole characters."""
        self.name = name
        self._pieces = pieces

    def spell(self, ids: Sequence[int]) -> list[str]:
        """One text a token. The bytes of a character are shown at the token that completes it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found: list[str] = []
        for id_ in ids:
            piece = self._pieces.get(id_, f"<{id_}>")
            if isinstance(piece, bytes):
                found.append(decoder.decode(piece))
            else:
                found.append(decoder.decode(b"", True) + piece)
                decoder.reset()
        return found


def token_texts(model: str, folder: Path | None) -> tuple[TokenTexts | None, str | None]:
    """What spells the tokens of a model; else why there is none. `folder`: that of the place."""
    base = model.partition("?")[0]
    scheme, colon, rest = base.partition(":")
    if "scripted" in (base, scheme):
        return _of_bytes(), None
    if colon and scheme == "builtin":
        if rest not in BUILTIN_POLICIES:
            return None, f"There is no built-in policy {rest[:80]!r} here."
        return _from_file(_SHIPPED / rest / "tokenizer.json")
    if base in KNOWN_MODELS and (fetched := models_cache() / base / "tokenizer.json").is_file():
        return _from_file(fetched)
    found = _inside(base, folder)
    if found is None:
        return None, "Its tokenizer is not in the folder of this run, and no other is opened."
    return _from_file(found)


def _inside(name: str, folder: Path | None) -> Path | None:
    """The tokenizer of a model that was saved in the place's folder, wherever that lies now."""
    if folder is None or "\0" in name:
        return None
    root = folder.resolve()
    parts = Path(name).parts
    tails = [parts[n + 1 :] for n, part in enumerate(parts) if part == folder.name] + [parts]
    for tail in tails:
        candidate = root.joinpath(*tail, "tokenizer.json")
        try:
            real = candidate.resolve()
            if real.is_relative_to(root) and real.is_file():
                return real
        except (OSError, ValueError, RuntimeError):
            continue
    return None


def _from_file(path: Path) -> tuple[TokenTexts | None, str | None]:
    try:
        facts = path.stat()
    except OSError:
        return None, "Its tokenizer is not here."
    if facts.st_size > _MOST_BYTES:
        return None, "Its tokenizer's file is too large."
    if find_spec("tokenizers") is None:
        return None, f"The library that reads tokenizers is not installed: `{to_install('train')}`."
    return _read(path, facts.st_mtime_ns)


@lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> tuple[TokenTexts | None, str | None]:
    """`changed` is part of the key: a file that is written anew is read anew."""
    from tokenizers import Tokenizer

    del changed
    try:
        tokenizer: Any = Tokenizer.from_file(str(path))
        added = {int(id_): str(token.content) for id_, token in tokenizer.get_added_tokens_decoder().items()}
        vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
        in_bytes = "ByteLevel" in str(type(tokenizer.decoder)) or '"ByteLevel"' in _decoder_of(tokenizer)
    except Exception as error:
        return None, f"Its tokenizer cannot be read: {' '.join(str(error).split())[:200]}."
    pieces: dict[int, bytes | str] = {}
    for text, id_ in vocabulary.items():
        pieces[id_] = _bytes_of(text) if in_bytes else text.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
    return TokenTexts(path.parent.name, pieces | added), None


def _decoder_of(tokenizer: Any) -> str:
    return str(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else ""


def _bytes_of(text: str) -> bytes | str:
    """GPT-2's spelling of bytes, as byte-level vocabularies have it."""
    spelled = [_BYTE_OF.get(character) for character in text]
    return text if None in spelled else bytes(byte for byte in spelled if byte is not None)


def _byte_alphabet() -> dict[str, int]:
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()


@lru_cache(maxsize=1)
def _of_bytes() -> TokenTexts:
    return TokenTexts("bytes", {**{byte: bytes([byte]) for byte in range(256)}, **_BYTES_FRAME})
