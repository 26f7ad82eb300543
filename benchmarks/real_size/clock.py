"""Time and memory of a way to sample or to train, which runs alone in a process.

The process reads its work from stdin as JSON, and prints its figures as a last line of JSON.
Standard library only, since the interpreters of other libraries import this module, too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["begin", "peak_gib", "sampled", "seconds", "tell"]

Seconds = dict[str, float]


def begin() -> dict[str, Any]:
    """Work of this process."""
    return json.load(sys.stdin)


def tell(found: dict[str, Any]) -> None:
    """Print the figures."""
    sys.stdout.write(json.dumps(found) + "\n")


def seconds(work: Callable[[], Any]) -> Seconds:
    """CPU seconds of this process, and seconds of the clock."""
    wall = time.perf_counter()
    cpu = time.process_time()
    work()
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}


def peak_gib() -> float:
    """Peak memory of this process in GiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM"))
    return int(line.split()[1]) / 2**20


def sampled(work: dict[str, Any], answer: Callable[[int], int]) -> dict[str, Any]:
    """Figures of sampling. `answer`: function that samples the given number of tokens for every
    prompt from an empty cache, and returns the number of tokens of all answers.
    """
    prompts, tokens = work["prompts"], work["tokens"]
    counts: list[int] = []
    answer(2)
    first = seconds(lambda: counts.append(answer(1)))
    whole = [seconds(lambda: counts.append(answer(tokens))) for _ in range(work["repeats"])]
    expected = [len(prompts), *[len(prompts) * tokens] * work["repeats"]]
    if counts != expected:
        raise SystemExit(f"Sampled {counts} tokens in place of {expected}.")
    return {"first": first, "whole": whole, "peak_gib": peak_gib()}
