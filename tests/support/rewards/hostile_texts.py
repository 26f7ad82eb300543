"""Texts that a policy could write to slow down or break the readers of answers."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from hrm_agent.rewards import comparison_of, reader_of
from hrm_agent.rewards.code_tests import code_in

__all__ = ["LONGEST_SECONDS", "hostile_texts", "slow_or_broken"]

LONGEST_SECONDS = 5.0
"""CPU time that a reader may take for one text on a slow machine. A quadratic reader takes
minutes.
"""
_PIECES = (
    *(
        "```\n",
        "```python\n",
        "~~~\n",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<result>",
        "</result>",
    ),
    *(
        "\\boxed{",
        "\\boxed",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        '\\"',
        "'''",
        '"""',
        "1",
        "1,111,",
        "1 ",
    ),
    *(
        "1/",
        "1 /",
        ".1",
        "1e",
        "-",
        "−",
        "$",
        "$1$",
        ", ",
        "; ",
        "\n",
        " ",
        "  \n",
        "\r\n",
        "\t",
        "a",
        "a ",
        '"a":',
    ),
    *(
        '{"a":',
        "[1,",
        "//",
        "// \n",
        "_",
        "é",
        "\ud800",
        "\0",
        "<",
        "</",
        "<tool_call>",
        "\\text{",
        "\\frac{",
        "%",
    ),
    *(
        "0",
        "9",
        "“",
        "”",
        "# ",
        "> ",
        "- ",
        "1. ",
        "'a' ",
        "\\u00",
        "\\ud800",
        "None",
        "10^{",
        "!",
        "\\sqrt{",
        "x^",
    ),
)
_READERS = ("boxed", "last_line", "last_number", "text", "tag:result", "json:a.0")
_COMPARISONS = ("exact", "text", "numeric:0.01", "set")


def hostile_texts(seed: int, count: int, longest: int) -> list[str]:
    """Texts of up to `longest` characters, of few pieces that are often repeated. Identical for the
    same seed.
    """
    draw = random.Random(seed)
    return [_text(draw, draw.choice([50, 2000, longest])) for _ in range(count)]


def _text(draw: random.Random, size: int) -> str:
    parts = [draw.choice(_PIECES) for _ in range(draw.randint(0, 3))]
    while sum(map(len, parts)) < size:
        period = "".join(draw.choice(_PIECES) for _ in range(draw.randint(1, 4)))
        parts.append(period * draw.randint(1, size // len(period) + 1))
    return "".join([*parts, *(draw.choice(_PIECES) for _ in range(draw.randint(0, 3)))])[: 2 * size]


def slow_or_broken(texts: list[str]) -> list[tuple[str, str, str]]:
    """Readers and texts, each with what went wrong (empty if each reader gives an answer or None in
    time).
    """
    jobs = {"code_in": code_in, **{name: reader_of(name) for name in _READERS}}
    for name in _COMPARISONS:
        jobs[name] = lambda text, same=comparison_of(name): same(text, "{1, 2.5}")
    wrong: list[tuple[str, str, str]] = []
    for text in texts:
        for name, job in jobs.items():
            began = time.thread_time()
            try:
                found = job(text)
            except Exception as error:
                wrong.append((name, text, f"{type(error).__name__}: {error}"))
                continue
            if (took := time.thread_time() - began) > LONGEST_SECONDS:
                wrong.append((name, text, f"{took:.1f} s"))
            if found is True:
                wrong.append((name, text, "equal"))
    return wrong


def main() -> int:
    """Read `--count` hostile texts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=50_000)
    given = parser.parse_args()
    began = time.thread_time()
    wrong = slow_or_broken(hostile_texts(given.seed, given.count, given.longest))
    for name, text, what in wrong[:20]:
        print(name, what, ascii(text[:200]))
    print(Counter(name for name, _, _ in wrong))
    seconds = time.thread_time() - began
    print(
        f"{given.count} texts of seed {given.seed}, {len(wrong)} misread, {seconds:.0f} s of CPU"
        " time"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
