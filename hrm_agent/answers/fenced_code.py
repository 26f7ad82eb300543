"""Python in fenced blocks of a model's answer, for models that cannot call tools.

Fences are those of CommonMark: three or more backticks or tildes at the beginning of a line, closed
by a line of at least as many. The content of a fence of another language is not searched for
blocks. Neither are the model's reasoning, and tool calls and tool responses that the model writes
as text. A message with an `<answer>` outside its blocks is final: the answer is read, and no block
is run.

The text is read in one pass: it comes from a model and may be of any size.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from hrm_agent.answers.final_answer import HIDDEN_TAGS

__all__ = ["MAX_BLOCKS", "FencedBlock", "asked_ids", "block_ids", "python_blocks"]

MAX_BLOCKS = 8
"""Maximum number of blocks of one message that are run. One more block is returned, as refused."""
LANGUAGES = ("python", "py", "python3")
"""First words behind a fence that mark its content as Python. A fence without a word is no
block.
"""

_TAGS = "|".join(HIDDEN_TAGS)
_MARK = re.compile(
    rf"<(?P<closes>/?)(?P<tag>{_TAGS})>"
    rf"|(?:^|{'|'.join(f'(?<=</{name}>)' for name in HIDDEN_TAGS)})"
    r"(?P<indent> {0,3})(?P<fence>`{3,}+(?=[^`\n]*$)|~{3,}+)(?P<info>[^\n]*)$",
    re.MULTILINE,
)
_HIDDEN_TAG = re.compile(rf"</?(?:{_TAGS})>")


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """Block of Python."""

    code: str
    """Python source, up to the end of the message if the block is not closed."""
    problem: str = ""
    """Reason why the block cannot be run, as shown to the model (empty if it can be run)."""


@lru_cache(maxsize=4096)
def block_ids(call_id: str) -> tuple[str, ...]:
    """Ids of the tool calls that the blocks of a model's call become, for the maximum number of
    blocks.
    """
    return tuple(f"{call_id[:16]}-block{number}" for number in range(1, MAX_BLOCKS + 2))


def asked_ids(call_id: str, response: Mapping[str, Any]) -> list[str]:
    """`tool_call_id` of each tool call for which a model call asked with its answer. They include
    the ids that fenced blocks in the text would have.
    """
    made = [
        *(response.get("tool_calls") or ()),
        *(response.get("invalid_tool_calls") or ()),
    ]
    return [*(str(each.get("id")) for each in made), *block_ids(call_id)]


def python_blocks(text: str) -> list[FencedBlock]:
    """Blocks of Python in a message, in order (none if the message has a final `<answer>`)."""
    blocks: list[FencedBlock] = []
    outside: list[str] = []
    position = 0
    while len(blocks) <= MAX_BLOCKS and (mark := _MARK.search(text, position)) is not None:
        outside.append(text[position : mark.start()])
        if mark["fence"]:
            block, position = _read_block(text, mark)
            blocks += [block] if block is not None else []
        elif mark["closes"]:  # the chat template has opened the reasoning, so all before is hidden
            blocks = []
            outside = []
            position = mark.end()
        else:
            closing = f"</{mark['tag']}>"
            end = text.find(closing, mark.end())
            position = len(text) if end < 0 else end + len(closing)
    outside.append(text[position:])
    said = "".join(outside)
    if "</answer>" in said.partition("<answer>")[2]:
        return []
    return [
        *blocks[:MAX_BLOCKS],
        *(
            FencedBlock(block.code, f"only the first {MAX_BLOCKS} blocks of a message are run")
            for block in blocks[MAX_BLOCKS:]
        ),
    ]


def _read_block(text: str, opening: re.Match[str]) -> tuple[FencedBlock | None, int]:
    """Block that a fence opens (None if it is not Python), and the position behind it."""
    fence = opening["fence"]
    begin = min(opening.end() + 1, len(text))
    closing = re.compile(rf"^ {{0,3}}{fence[0]}{{{len(fence)},}}[ \t\r]*$", re.MULTILINE).search(
        text, begin
    )
    end = len(text) if closing is None else closing.start()
    after = len(text) if closing is None else closing.end()
    if (opening["info"].split() or [""])[0].lower() not in LANGUAGES:
        return None, after
    code = text[begin:end].rstrip("\n")
    if opening["indent"]:
        code = re.sub(rf"^ {{1,{len(opening['indent'])}}}", "", code, flags=re.MULTILINE)
    if closing is None:
        return FencedBlock(code, f"the block is not closed by a line {fence}"), after
    # the model may have meant the tag as code, or as the begin or end of its reasoning
    if tag := _HIDDEN_TAG.search(code):
        return (
            FencedBlock(
                code, f"the block contains {tag[0]}: write it in two parts, '<' + '{tag[0][1:]}'"
            ),
            after,
        )
    return FencedBlock(code, "" if code.strip() else "the block is empty"), after
