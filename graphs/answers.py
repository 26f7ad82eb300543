"""Where an answer stands in a policy's own text."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["final_answer", "first_json_object"]

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def final_answer(text: str) -> str | None:
    r"""Content of the last `\boxed{}` inside the last `<answer>`; None without one.

    A box in the reasoning, or one that a tool printed, is no answer.
    """
    answers = _ANSWER.findall(text)
    return _last_boxed(answers[-1]) if answers else None


def _last_boxed(text: str) -> str | None:
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    start += len(r"\boxed{")
    depth = 1
    for end, char in enumerate(text[start:], start):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[start:end].strip()
    return None


def first_json_object(text: str) -> dict[str, Any] | None:
    """The first JSON object in `text`; None if there is none that decodes."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            found, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        return found
    return None
