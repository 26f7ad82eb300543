"""Training of a vocabulary from a corpus: byte pairs, WordPiece, unigram, whole words.

The tokenizers library learns byte pairs, WordPiece and words, and saves a tokenizer.json (loaded by
`hf:FILE`). sentencepiece learns byte pairs and unigram (loaded by `sentencepiece:FILE`), and takes
a twentieth of the time of tokenizers for unigram. Byte pairs that the tokenizers library has learnt
may also be saved as a rank file (loaded by `tiktoken:FILE`), which tiktoken reads several times as
fast. With both files, text is first split into pieces as by GPT-2.

Some kinds can encode any character: byte pairs start from all 256 bytes, and sentencepiece falls
back to bytes. WordPiece and words have an unknown token for characters that are not in the
vocabulary, as in the models that use them.

The same texts give the same file, byte for byte. For WordPiece, this takes an extra step. Its
trainer numbers the characters inside of words in the order of a hash table that differs between
processes, and breaks ties by these numbers. So these characters are collected first and passed to
the trainer in a fixed order.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import replacing
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import ConfigError, nearest
from hrm_agent.retrieval.tokenizers.base import Tokenizer
from hrm_agent.retrieval.tokenizers.libraries import require
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["KINDS", "VocabularyKind", "train_tokenizer", "vocabulary_file", "vocabulary_name"]

_UNKNOWN = "[UNK]"
_LONGEST_LINE = 1_000
"""Maximum characters of a training line. sentencepiece silently drops lines over 4,192 bytes."""


@dataclass(frozen=True, slots=True)
class VocabularyKind:
    """Kind of vocabulary with its trainer."""

    learn: Callable[[Sequence[str], int], bytes]
    """Function of texts and a size that returns the bytes of the file."""
    library: str
    """Library that loads the vocabulary, as in the part of its name before the colon."""
    file: str
    """Default file name. Any file has to have the same suffix, or `.tiktoken` for byte pairs."""


def vocabulary_file(kind: str, out: Path) -> Path:
    """Path at which a vocabulary of this kind is saved. `out`: a file or a folder. Raises
    `ConfigError` for a wrong suffix, or if the file exists and is not such a vocabulary.
    """
    usual = _kind(kind).file
    if out.is_dir() or not out.suffix:
        out /= usual
    allowed = [Path(usual).suffix, *([".tiktoken"] if kind == "bpe" else [])]
    if out.suffix not in allowed:  # otherwise, a text could be overwritten by mistake
        raise ConfigError(
            f"A {kind} vocabulary is saved as {' or '.join(allowed)}, not as {out.name}.",
            f"Name a folder, or {out.with_suffix(allowed[0])}.",
        )
    if out.exists() and not _is_vocabulary(kind, out):
        raise ConfigError(
            f"{out} exists already and is not a {kind} vocabulary.", "Name another file."
        )
    return out


def vocabulary_name(kind: str, file: Path) -> str:
    """String that loads a vocabulary of this kind from this file."""
    return f"{'tiktoken' if file.suffix == '.tiktoken' else _kind(kind).library}:{file}"


def _is_vocabulary(kind: str, file: Path) -> bool:
    try:
        _load(kind, file)
    except ConfigError:
        return False
    return True


def _load(kind: str, file: Path) -> Tokenizer:
    load_tokenizer.cache_clear()  # the file may have changed since it was loaded
    return load_tokenizer(vocabulary_name(kind, file))


def train_tokenizer(kind: str, texts: Iterable[str], file: Path, *, size: int = 8_192) -> Tokenizer:
    """Learn a vocabulary of at most `size` tokens, save it at `file` and load it. All texts are
    held in memory.

    `kind`: `bpe`, `sentencepiece-bpe`, `unigram`, `word` or `wordpiece`.
    """
    chosen = _kind(kind)
    file = vocabulary_file(kind, file)
    given = [replace_surrogates(text) for text in texts]
    if not any(text.strip() for text in given):
        raise ConfigError(
            "There is no text to learn a vocabulary from.", "Name files that are not empty."
        )
    try:
        # fails before the long training if the file cannot be written
        file.parent.mkdir(parents=True, exist_ok=True)
        saved = chosen.learn(given, size)
        with replacing(file) as part:
            part.write_bytes(_ranks(saved) if file.suffix == ".tiktoken" else saved)
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror or error}.", "Name another place."
        ) from error
    return _load(kind, file)


def _kind(kind: str) -> VocabularyKind:
    if kind not in KINDS:
        known = f"Known: {', '.join(KINDS)}."
        raise ConfigError(
            f"There is no kind of vocabulary {kind!r}.", f"{nearest(kind, KINDS)} {known}".strip()
        )
    return KINDS[kind]


def _bpe(texts: Sequence[str], size: int) -> bytes:
    library = require("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet: list[str] = library.pre_tokenizers.ByteLevel.alphabet()
    _at_least(size, len(alphabet))
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _word(texts: Sequence[str], size: int) -> bytes:
    library = require("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordLevel(unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    _at_least(size, 2)
    trainer = library.trainers.WordLevelTrainer(
        vocab_size=size, special_tokens=[_UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _wordpiece(texts: Sequence[str], size: int) -> bytes:
    inside = sorted(
        token for token in _wordpieces(texts, 1, []).get_vocab() if token.startswith("##")
    )
    _at_least(size, len(inside) + 2)
    described = json.loads(_wordpieces(texts, size, inside).to_str())
    described["added_tokens"] = [
        token for token in described["added_tokens"] if token["content"] == _UNKNOWN
    ]
    return json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()


def _wordpieces(texts: Sequence[str], size: int, inside: list[str]) -> Any:
    """Train WordPiece. `inside`: characters inside of words, in the order in which they are
    numbered.
    """
    library = require("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    special = [_UNKNOWN, *inside]
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _sentencepiece(kind: str, texts: Sequence[str], size: int) -> bytes:
    """Train sentencepiece. The line break is added as a token, since sentencepiece learns from
    lines and never sees a line break.
    """
    library = require("sentencepiece")
    written = io.BytesIO()
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts),
            model_writer=written,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            user_defined_symbols=["\n"],
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        if needed := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
            _at_least(size, int(needed[1]))
        message = (
            f"sentencepiece cannot learn a vocabulary of {size} tokens from this text: {error}."
        )
        raise ConfigError(message, "Give more text.") from error
    return written.getvalue()


def _lines(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        for line in text.replace("\0", " ").splitlines():
            if line.strip():
                yield from (line[i : i + _LONGEST_LINE] for i in range(0, len(line), _LONGEST_LINE))


def _at_least(size: int, least: int) -> None:
    if size < least:
        raise ConfigError(
            f"A vocabulary of {size} tokens is too small for this text.",
            f"Choose a size of at least {least}.",
        )


def _ranks(saved: bytes) -> bytes:
    """Rank file for tiktoken, from the byte pairs of a tokenizer.json: the bytes of each token, and
    its rank.
    """
    shown = [byte for byte in range(256) if chr(byte).isprintable() and chr(byte) != " "]
    byte_of = {chr(byte): byte for byte in shown}
    byte_of |= {
        chr(256 + i): byte
        for i, byte in enumerate(byte for byte in range(256) if byte not in shown)
    }
    vocabulary: dict[str, int] = json.loads(saved)["model"]["vocab"]
    lines = [
        b"%b %d\n" % (base64.b64encode(bytes(byte_of[char] for char in token)), rank)
        for token, rank in sorted(vocabulary.items(), key=lambda one: one[1])
    ]
    return b"".join(lines)


KINDS = {
    "bpe": VocabularyKind(_bpe, "hf", "tokenizer.json"),
    "sentencepiece-bpe": VocabularyKind(
        partial(_sentencepiece, "bpe"), "sentencepiece", "tokenizer.model"
    ),
    "unigram": VocabularyKind(
        partial(_sentencepiece, "unigram"), "sentencepiece", "tokenizer.model"
    ),
    "word": VocabularyKind(_word, "hf", "tokenizer.json"),
    "wordpiece": VocabularyKind(_wordpiece, "hf", "tokenizer.json"),
}
"""Kinds of vocabularies by name."""
