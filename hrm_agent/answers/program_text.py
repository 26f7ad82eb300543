"""The program that a model's answer gives, out of fences as models write them.

It is the last block of Python. A block is Python's by the first word behind its fence, in any case: `python`,
`python3`, `py`, `{.python}`; where no block has such a word, blocks without a word are taken. Fences are those of
CommonMark (three or more backticks or tildes, closed by a line of at least as many), in a list or a quote as well, at
any indentation, and directly behind `<answer>`. Not taken are transcripts (`>>> f(2)`), and blocks that end within a
bracket or a string while an earlier one is whole. A last block without an end is taken if it is whole. A text without
any fence is the program itself.

One pass over the end of the text, and one over each block that is in doubt: the text comes from a model, and may be of
any size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hrm_agent.answers.final_answer import own_text

__all__ = ["MAX_CHARACTERS", "code_in"]

MAX_CHARACTERS = 2**20
"""Length of the text's end that is read. The sandbox takes no longer program."""
MAX_WORD = 100
"""Characters behind a fence in which the name of a language is looked for."""
MAX_DOUBTED = 8
"""Blocks from the end that are looked at so."""

_FENCE = re.compile(
    r"^(?P<before>[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)*(?:<answer>[ \t]*)?)"
    r"(?P<fence>`{3,}+(?=[^`\n]*$)|~{3,}+)(?P<info>[^\n]*)$",
    re.MULTILINE,
)
_CLOSES = re.compile(r"\s*(?:</answer>\s*)?\Z")
_PYTHON = re.compile(r"[{.\s]*(?:(?:python|py|pypy|ipython)[\d.]*(?![-+#\w])|[\w./-]+\.py(?!\w))", re.IGNORECASE)
_MARK = re.compile(r"""#[^\n]*|\'\'\'|\"\"\"|['"()\[\]{}]""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STRING_ENDS = {
    "'": re.compile(r"(?:[^\\\n']|\\.)*+'", re.DOTALL),
    '"': re.compile(r'(?:[^\\\n"]|\\.)*+"', re.DOTALL),
    "'''": re.compile(r"(?:[^\\']|\\.|'(?!''))*+'''", re.DOTALL),
    '"""': re.compile(r'(?:[^\\"]|\\.|"(?!""))*+"""', re.DOTALL),
}
_QUOTED = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Block:
    code: str
    named: bool
    """A word says that it is Python."""
    closed: bool


def code_in(text: str) -> str | None:
    """The program in the model's own words; None if there is none."""
    visible = own_text(text[-MAX_CHARACTERS:])
    if "```" not in visible and "~~~" not in visible:
        return visible.strip() or None
    blocks = [block for block in _blocks(visible) if block.code.strip() and not block.code.lstrip().startswith(">>>")]
    named = [block for block in blocks if block.named]
    return _last_whole(named or blocks)


def _last_whole(blocks: list[_Block]) -> str | None:
    """The last whole block; the last closed one if none is whole."""
    closed = [block for block in blocks if block.closed]
    if len(blocks) == len(closed) == 1:
        return closed[0].code
    for block in blocks[: -MAX_DOUBTED - 1 : -1]:
        if _is_whole(block.code):
            return block.code
    return closed[-1].code if closed else None


def _blocks(text: str) -> Iterator[_Block]:
    """All blocks that are Python's or have no word."""
    opening: re.Match[str] | None = None
    for mark in _FENCE.finditer(text):
        if opening is None:
            opening = mark
        elif mark["fence"].startswith(opening["fence"]) and _CLOSES.match(mark["info"]):
            yield from _block(text, opening, mark.start(), closed=True)
            opening = None
    if opening is not None:
        yield from _block(text, opening, len(text), closed=False)


def _block(text: str, opening: re.Match[str], end: int, *, closed: bool) -> Iterator[_Block]:
    named = _PYTHON.match(opening["info"][:MAX_WORD]) is not None
    if not named and opening["info"].strip():
        return
    code, before = text[opening.end() + 1 : end].replace("\r\n", "\n"), opening["before"]
    if ">" in before.replace("<answer>", ""):
        code = _QUOTED.sub("", code)
    elif width := len(before.removesuffix("<answer>")):
        code = re.sub(rf"^[ \t]{{1,{width}}}", "", code, flags=re.MULTILINE)
    yield _Block(code, named, closed)


def _is_whole(code: str) -> bool:
    """True if no bracket, string or statement is left open.

    Neither a parser nor `tokenize` is asked: one may not come back from a hostile text, the other takes the square of
    its length.
    """
    open_, position = list[str](), 0
    while (mark := _MARK.search(code, position)) is not None:
        found, position = mark[0], mark.end()
        if found[0] in "'\"":
            end = _STRING_ENDS[found].match(code, position)
            if end is None:
                return False
            position = end.end()
        elif found in _CLOSING:
            open_.append(_CLOSING[found])
        elif found[0] != "#" and (not open_ or open_.pop() != found):
            return False
    return not open_ and not code.rstrip().endswith((":", "\\"))
