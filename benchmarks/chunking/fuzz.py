"""Fuzz texts from a seed: joining and invisible characters, and text that a library may take for a
command.
"""

from __future__ import annotations

import random

__all__ = ["fuzz_text"]

_WRITTEN = [
    "The policy learns. ",
    "Dr. Who? ",
    "word",
    " ",
    "  ",
    "\n",
    "\n\n",
    "x" * 40,
    "1234567 ",
    "e.g. ",
    "A. B",
    "?!",
]
_MARKED = [
    "# Title\n",
    "## Part\n",
    "```\n",
    "- item\n",
    "    def f():\n\n",
    "<|endoftext|>",
    "[UNK]",
    "</s>",
    "\u2581",
]
_FOREIGN = [
    *(
        "日本語。",
        "नमस्ते ",
        "क्षि",
        "ﷺ",
        "한국",
        "\u1100\u1161\u11a8",
        "สวัสดี",
        "\U0001d518",
        "ß",
        "\u0130",
        "\u0345",
    ),
    *(
        "👨‍👩‍👧‍👦",
        "👍🏽",
        "🇩🇪",
        "🇫",
        "❤\ufe0f",
        "1\ufe0f\u20e3",
        "e\u0301",
        "a\u0308\u0323",
        "\U000e0067",
        "ﬁ",
        "\ufdfa",
    ),
]
_JOINING = [
    "\r\n",
    "\r",
    "\u0301",
    "\0",
    "\u200d",
    "\u200b",
    "\u2028",
    "\u0085",
    "\ufeff",
    "\u202e",
    "\ufffd",
    "\u00a0",
]
_KINDS = [_WRITTEN, _MARKED, _FOREIGN, _JOINING]
_PLANES = [
    (0, 0x7F),
    (0x80, 0x7FF),
    (0x800, 0xD7FF),
    (0xE000, 0xFFFF),
    (0x10000, 0x1FFFF),
    (0x20000, 0x10FFFF),
]


def fuzz_text(seed: int) -> str:
    """Text of up to about a hundred characters. Every third text has parts of one kind only."""
    rng = random.Random(seed)
    kinds = [rng.choice(_KINDS)] if seed % 3 == 0 else _KINDS
    return "".join(_part(rng, kinds) for _ in range(rng.randrange(120)))


def _part(rng: random.Random, kinds: list[list[str]]) -> str:
    if rng.random() < 0.15:
        first, last = rng.choice(_PLANES)
        return chr(rng.randint(first, last))
    return rng.choice(rng.choice(kinds)) * (rng.randrange(2, 9) if rng.random() < 0.05 else 1)
