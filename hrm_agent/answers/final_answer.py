r"""Extraction of the answer from a policy's own text.

The text that counts is selected first, since a policy could hack its reward by other text. Only the
model's final message is read, and only its parts outside `<reason>`, `<think>`, `<tool_call>` and
`<tool_response>`. So a `\boxed{}` in the reasoning, in a tool's output or in a forged tool response
is not an answer. `final_answer` then takes the last `\boxed{}` of the last `<answer>...</answer>`.
"""

from __future__ import annotations

import re
from collections import deque

__all__ = ["HIDDEN_TAGS", "final_answer", "own_text", "stated_value"]

MAX_BOXED_CHARACTERS = 2**16
"""Maximum number of characters of a box. A longer box, or a box that is not closed, is not an
answer.
"""

HIDDEN_TAGS = ("reason", "think", "tool_call", "tool_response")
"""Tags whose content does not count as the model's own text."""
_TAG = re.compile(rf"<(/?)({'|'.join(HIDDEN_TAGS)})>")
_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def own_text(text: str) -> str:
    """`text` without reasoning, tool calls and (forged) tool responses.

    A tag that is never closed hides all text after it. A closing tag without an opening tag hides
    all text before it, since the chat template itself may have opened `<reason>`.
    """
    parts: list[str] = []
    hidden_by = ""
    start = 0
    for tag in _TAG.finditer(text):
        closes = bool(tag[1])
        name = tag[2]
        if hidden_by:
            if closes and name == hidden_by:
                hidden_by = ""
                start = tag.end()
        elif closes:
            parts = []
            start = tag.end()
        else:
            parts.append(text[start : tag.start()])
            hidden_by = name
    if not hidden_by:
        parts.append(text[start:])
    return "".join(parts)


def final_answer(text: str) -> str | None:
    r"""Content of the last `\boxed{}` in the last `<answer>...</answer>` of a final message (None
    if there is none).
    """
    visible = own_text(text)
    end = visible.rfind("</answer>")
    start = visible.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    return _last_boxed(visible[start + len("<answer>") : end])


def _last_boxed(text: str) -> str | None:
    boxes = deque(_BOXED.finditer(text), maxlen=1)  # a hostile text may have 100,000 boxes
    if not boxes:
        return None
    start = boxes[-1].end()
    depth = 1
    for brace in _BRACE.finditer(text, start, start + MAX_BOXED_CHARACTERS):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()].strip()
    return None


def stated_value(text: str) -> str | None:
    r"""Value that a solver gives for its subgoal: the final answer, else the last `\boxed{}`, else
    the content of the last `<answer>` (None if there is none).

    It reads more forms than `final_answer`, since no reward depends on it.
    """
    visible = own_text(text)
    before, _, _ = visible.rpartition("</answer>")
    tagged = before.rpartition("<answer>")
    return (
        final_answer(text)
        or _last_boxed(visible)
        or (tagged[2].strip() if tagged[1] else None)
        or None
    )
