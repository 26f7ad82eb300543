r"""Where an answer stands in a policy's own text.

*Which* text counts is decided first, because it is where rewards are hacked. Only the model's own
final message is read, and of it only what stands outside `<reason>`, `<think>`, `<tool_call>` and
`<tool_response>`: a `\boxed{}` in the reasoning, printed by a tool or written into a forged tool
response is no answer. `final_answer` then takes the last `\boxed{}` of the last
`<answer>...</answer>`.
"""

from __future__ import annotations

import re
from collections import deque

__all__ = ["HIDDEN_TAGS", "final_answer", "own_text", "stated_value"]

MAX_BOXED_CHARACTERS = 2**16
"""A box that is not closed within them is no answer."""

HIDDEN_TAGS = ("reason", "think", "tool_call", "tool_response")
"""Tags whose content is no part of what a model says."""
_TAG = re.compile(rf"<(/?)({'|'.join(HIDDEN_TAGS)})>")
_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def own_text(text: str) -> str:
    """`text` without reasoning, tool calls and (forged) tool responses.

    A tag that is never closed hides all that follows; a closing tag without an opening one hides
    all before it, as where the chat template itself opens `<reason>`.
    """
    parts: list[str] = []
    hidden_by, start = "", 0
    for tag in _TAG.finditer(text):
        closes, name = bool(tag[1]), tag[2]
        if hidden_by:
            if closes and name == hidden_by:
                hidden_by, start = "", tag.end()
        elif closes:
            parts, start = [], tag.end()
        else:
            parts.append(text[start : tag.start()])
            hidden_by = name
    if not hidden_by:
        parts.append(text[start:])
    return "".join(parts)


def final_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{}` in the last `<answer>...</answer>` of a final message, or
    None.
    """
    visible = own_text(text)
    end = visible.rfind("</answer>")
    start = visible.rfind("<answer>", 0, max(end, 0))
    if start < 0:
        return None
    return _last_boxed(visible[start + len("<answer>") : end])


def _last_boxed(text: str) -> str | None:
    boxes = deque(_BOXED.finditer(text), maxlen=1)  # a hostile text has a hundred thousand
    if not boxes:
        return None
    start, depth = boxes[-1].end(), 1
    for brace in _BRACE.finditer(text, start, start + MAX_BOXED_CHARACTERS):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()].strip()
    return None


def stated_value(text: str) -> str | None:
    """What a solver says its subgoal comes to: the final answer, or what it boxes or tags as one
    without the rest.

    Nothing is rewarded for it, so it need not be strict.
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
