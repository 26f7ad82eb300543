"""A vocabulary of one's own, learnt from a corpus: byte pairs, WordPiece or unigram.

Byte pairs and WordPiece are learnt by the tokenizers library and saved as a tokenizer.json (`hf:FILE` loads it).
Unigram is learnt by sentencepiece (`sentencepiece:FILE`), which takes a twentieth of the time. Both of the kinds that
may meet characters without a place in the vocabulary keep a way out: byte pairs start from all 256 bytes, unigram falls
back to bytes. WordPiece has an unknown token, as it has in the models that use it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.files import replacing
from hrm_agent.retrieval.tokenizers.base import Tokenizer, mended
from hrm_agent.retrieval.tokenizers.libraries import require
from hrm_agent.retrieval.tokenizers.load import load_tokenizer

__all__ = ["KINDS", "train_tokenizer"]

_UNKNOWN = "[UNK]"


def train_tokenizer(kind: str, texts: Iterable[str], file: Path, *, size: int = 8_192) -> Tokenizer:
    """Learn a vocabulary of at most `size` tokens, save it at `file` and load it.

    `kind`: `bpe`, `wordpiece` or `unigram`.
    """
    if kind not in KINDS:
        raise ConfigError(f"There is no kind of vocabulary {kind!r}.", nearest(kind, KINDS) or f"Known: {[*KINDS]}.")
    given = iter(mended(text) for text in texts)
    first = next((text for text in given if text.strip()), None)
    if first is None:
        raise ConfigError("There is no text to learn a vocabulary from.", "Name files that are not empty.")
    saved, library = KINDS[kind](chain((first,), given), size), "sentencepiece" if kind == "unigram" else "hf"
    with replacing(file) as part:
        part.write_bytes(saved)
    load_tokenizer.cache_clear()
    return load_tokenizer(f"{library}:{file}")


def _bpe(texts: Iterator[str], size: int) -> bytes:
    library = require("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet: list[str] = library.pre_tokenizers.ByteLevel.alphabet()
    _at_least(size, len(alphabet))
    trainer = library.trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    return _learnt(tokenizer, texts, trainer)


def _wordpiece(texts: Iterator[str], size: int) -> bytes:
    library = require("tokenizers")
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token=_UNKNOWN))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    _at_least(size, 2)
    trainer = library.trainers.WordPieceTrainer(vocab_size=size, special_tokens=[_UNKNOWN], show_progress=False)
    return _learnt(tokenizer, texts, trainer)


def _learnt(tokenizer: Any, texts: Iterator[str], trainer: Any) -> bytes:
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str().encode()


def _unigram(texts: Iterator[str], size: int) -> bytes:
    library, written = require("sentencepiece"), io.BytesIO()
    _at_least(size, 300)
    try:
        library.SentencePieceTrainer.train(
            sentence_iterator=(line for text in texts for line in text.replace("\0", " ").splitlines() if line.strip()),
            model_writer=written,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            minloglevel=2,
        )
    except RuntimeError as error:
        message = f"sentencepiece learns no vocabulary of {size} from this text: {error}."
        raise ConfigError(message, "Give it more text, or ask for fewer tokens.") from error
    return written.getvalue()


def _at_least(size: int, least: int) -> None:
    if size < least:
        raise ConfigError(f"A vocabulary of {size} tokens is too small.", f"Ask for at least {least}.")


KINDS: dict[str, Callable[[Iterator[str], int], bytes]] = {"bpe": _bpe, "unigram": _unigram, "wordpiece": _wordpiece}
"""Kind -> texts and a size to the bytes of the vocabulary's file."""
