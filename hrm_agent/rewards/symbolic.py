"""Equality of two expressions by math-verify. The module is only imported in the process of
`bounded_call`.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

__all__ = ["is_equal"]


def is_equal(answer: str, reference: str) -> bool:
    """True if math-verify finds the expressions equal. The caller has to limit the time."""
    gold, given = (
        parse(
            f"${text.strip().strip('$')}$",
            parsing_timeout=None,  # pyright: ignore[reportArgumentType]
        )
        for text in (reference, answer)
    )
    return bool(verify(gold, given, timeout_seconds=None))


# drop its warnings that the caller has to limit the time
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# the parser is slow with its first text, so it reads one before the first call
is_equal(r"x(x+1) + \frac{\sqrt{2}}{2}", r"x^2 + x + \frac{1}{\sqrt{2}}")
