"""Data sets as a library might have them, whose verifiers have faults that a grader has to
survive.
"""

from __future__ import annotations

import os
import time
from typing import Any


class Odd:
    """Verifier that does what the answer says."""

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float:
        match answer:
            case "loop":
                while True:
                    pass
            case "power":
                return float(9**9 ** int("9"))
            case "memory":
                return float(len(bytearray(64 * 1024**3)))
            case "print":
                print("\0\0\0\0\0\0\xf0\x3f" * 100, flush=True)
                return 0.0
            case "wait":
                time.sleep(0.3)
                return 1.0
            case "exit":
                os._exit(0)
            case "raise":
                raise BaseExceptionGroup("odd", [ValueError("odd")])
            case "nan":
                return float("nan")
            case _:
                return 1.0


class Held(Odd):
    """Verifier that cannot be sent to another process."""

    def __init__(self) -> None:
        self.function = lambda: None
