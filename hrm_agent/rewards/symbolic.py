"""Equality of two expressions by math-verify. Imported only in a bounded process: see
`bounded_call`.
"""

from __future__ import annotations

import logging

from math_verify import parse, verify

__all__ = ["is_equal"]


def is_equal(answer: str, reference: str) -> bool:
    """True if math-verify finds them equal; it takes as long as it takes."""
    gold, given = (
        parse(
            f"${text.strip().strip('$')}$",
            parsing_timeout=None,  # pyright: ignore[reportArgumentType]
        )
        for text in (reference, answer)
    )
    return bool(verify(gold, given, timeout_seconds=None))


# it warns that the caller has to bound its time
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# a parser is slow at its first text
is_equal(r"x(x+1) + \frac{\sqrt{2}}{2}", r"x^2 + x + \frac{1}{\sqrt{2}}")
