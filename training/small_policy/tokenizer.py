"""Tokenizer of the small policy: byte-level BPE, in which each digit and each tag of the
conversation form is a token.

Merges cross word boundaries. Prompts and the templates' texts are the same in every problem, so
they become a few long tokens. This leaves a small model's attention, and the CPU's time, to the
numbers. Any other text is encoded in shorter tokens, down to bytes, and decodes to itself.
`<|im_start|>`, `<|im_end|>` and `<|endoftext|>` (padding) are control tokens. The tags are added
tokens, but not special ones, so that decoded answers contain them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["CHAT_TEMPLATE", "CONTROL_TOKENS", "TAGS", "train_tokenizer"]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = tuple(
    f"<{slash}{name}>"
    for name in ("reason", "tool_call", "tool_response", "answer")
    for slash in ("", "/")
)
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

LONGEST_TOKEN = 32
"""Maximum length of a token in bytes, enough for a phrase of a prompt."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` tokens on `texts`, which have no tags and control
    tokens.
    """
    fast = Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAGS),
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    fast.train_from_iterator(texts, trainer)
    fast.add_tokens([AddedToken(tag, normalized=False) for tag in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(),
    )
