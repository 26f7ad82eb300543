"""Extraction of the program from a model's answer, with fences as models write them.

The program is the last block of Python. A block is marked as Python by the first word behind its
fence, in upper or lower case: `python`, `python3`, `py`, `{.python}`. If no block is marked, blocks
without a word (or with the word `code`) are taken.

Fences are those of CommonMark: three or more backticks or tildes, closed by a line of at least as
many. A fence may also be in a list or a quote, at any indentation, or directly behind `<answer>`. A
fence that is marked as Python may be behind any text. A closing fence is at most three columns
deeper than the opening one. Backticks outside strings end a block too, since they are not Python. A
fence within a docstring does not end a block.

Transcripts (`>>> f(2)`) are not taken. A block is incomplete if it ends within a bracket or a
string. An incomplete block, or a block that does nothing (a constant, a name, a comment), is not
taken if an earlier block is complete. A last block without a closing fence is taken if it is
complete. A text without any fence outside its strings is the program itself.

The text comes from a model and may be of any size. So there is one pass over the end of the text,
one over its blocks, and a limited number over blocks that end within a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hrm_agent.answers.final_answer import own_text

__all__ = ["MAX_CHARACTERS", "code_in"]

MAX_CHARACTERS = 2**20
"""Number of characters at the end of the text that are read. The sandbox accepts no longer
program.
"""
MAX_WORD = 100
"""Number of characters behind a fence in which the name of a language is looked for."""
MAX_LOOKS = 8
"""Maximum number of searches for a later end of a block that ends within a string."""
MAX_DEEPER = 3
"""Maximum number of columns by which a closing fence may be deeper than its opening one, as in
CommonMark.
"""

_FENCE = re.compile(
    r"^(?:(?P<before>[ \t]*(?:(?:[-*+>]|\d{1,9}[.)])[ \t]+)*(?:<answer>["
    r" \t]*)?)|[^\n`]*+(?<!\w)(?=`))"
    r"(?P<fence>`{3,}+(?=[^`\n]*$)|~{3,}+)(?P<info>[^\n]*)$",
    re.MULTILINE,
)
_CLOSES = re.compile(r"\s*(?:</answer>\s*)?\Z")
_PYTHON = re.compile(
    r"[{.\s]*(?:(?:python|py|pypy|ipython)[\d.]*(?![-+#\w])|[\w./-]+\.py(?!\w))", re.IGNORECASE
)
_MARK = re.compile(r"""#[^\n]*|\'\'\'|\"\"\"|['"()\[\]{}]|`{3,}""")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_STRING_ENDS = {
    "'": re.compile(r"(?:[^\\\n']|\\.)*+'", re.DOTALL),
    '"': re.compile(r'(?:[^\\\n"]|\\.)*+"', re.DOTALL),
    "'''": re.compile(r"(?:[^\\']|\\.|'(?!''))*+'''", re.DOTALL),
    '"""': re.compile(r'(?:[^\\"]|\\.|"(?!""))*+"""', re.DOTALL),
}
_ACTS = re.compile(r"[\w\])][ \t]*\(|=|^[ \t]*(?:import|from|class)[ \t]", re.MULTILINE)
_QUOTED = re.compile(r"^[ \t]*>[ \t]?", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Scan:
    """Result of a scan of code up to backticks that are not Python."""

    end: int
    """Index of these backticks, or the length of the code."""
    whole: bool
    """True if no bracket, string or statement is left open."""
    in_string: bool
    acts: bool
    """True if the code holds more than constants, names and comments."""


@dataclass(frozen=True, slots=True)
class _Block:
    code: str
    named: bool
    """True if a word behind the fence marks it as Python."""
    closed: bool
    scan: _Scan


def code_in(text: str) -> str | None:
    """Program in the model's own text (None if there is none)."""
    visible = own_text(text[-MAX_CHARACTERS:])
    if ("```" not in visible and "~~~" not in visible) or _is_program(visible):
        return visible.strip() or None
    blocks = [
        block
        for block in _blocks(visible)
        if block.code.strip() and not block.code.lstrip().startswith(">>>")
    ]
    return _best([block for block in blocks if block.named] or blocks)


def _is_program(text: str) -> bool:
    """True if all fences of a text are within strings."""
    scan = _scan(text, "```")
    return scan.whole and scan.acts and scan.end == len(text) and "~~~" not in text


def _best(blocks: list[_Block]) -> str | None:
    """Code of the last complete block that does something, else of the last complete block, else of
    the last block with a closing fence.
    """
    whole = [block for block in blocks if block.scan.whole]
    acting = [block for block in whole if block.scan.acts]
    closed = [block for block in blocks if block.closed]
    return next((found[-1].code for found in (acting, whole, closed) if found), None)


def _blocks(text: str) -> Iterator[_Block]:
    """Blocks that are marked as Python, or are not marked at all."""
    position = 0
    looks = MAX_LOOKS
    while (opening := _FENCE.search(text, position)) is not None:
        position = opening.end()
        if opening["before"] is None and not _is_named(opening):
            continue
        closing = next(_closings(text, opening, position, MAX_DEEPER), None)
        end, position = (closing.start(), closing.end()) if closing else (len(text), len(text))
        block = _block(text, opening, end, closed=closing is not None)
        if block is not None and block.scan.in_string and closing and looks:
            looks -= 1
            block, position = _later(text, opening, position) or (block, position)
        if block is not None:
            yield block


def _later(text: str, opening: re.Match[str], position: int) -> tuple[_Block, int] | None:
    """Pair (block, position behind it) for the first later closing fence at which the block is
    complete (None if there is none).
    """
    for closing in islice(_closings(text, opening, position, MAX_CHARACTERS), MAX_LOOKS):
        block = _block(text, opening, closing.start(), closed=True)
        if block is not None and block.scan.whole:
            return block, closing.end()
    return None


def _closings(
    text: str, opening: re.Match[str], position: int, deeper: int
) -> Iterator[re.Match[str]]:
    for mark in _FENCE.finditer(text, position):
        if (
            mark["before"] is not None
            and mark["fence"].startswith(opening["fence"])
            and _CLOSES.match(mark["info"])
            and _width(mark) <= _width(opening) + deeper
        ):
            yield mark


def _width(mark: re.Match[str]) -> int:
    return len((mark["before"] or "").replace("<answer>", "").expandtabs(4))


def _is_named(opening: re.Match[str]) -> bool:
    return _PYTHON.match(opening["info"][:MAX_WORD]) is not None


def _block(text: str, opening: re.Match[str], end: int, *, closed: bool) -> _Block | None:
    named = _is_named(opening)
    if not named and opening["info"].strip().lower() not in ("", "code"):
        return None
    code = text[opening.end() + 1 : end].replace("\r\n", "\n")
    before = opening["before"] or ""
    if ">" in before.replace("<answer>", ""):
        code = _QUOTED.sub("", code)
    elif width := len(before.removesuffix("<answer>")):
        code = re.sub(rf"^[ \t]{{1,{width}}}", "", code, flags=re.MULTILINE)
    scan = _scan(code, opening["fence"])
    return _Block(code[: scan.end], named, closed or scan.end < len(code), scan)


def _scan(code: str, fence: str) -> _Scan:
    """Scan code up to backticks that start with `fence`.

    Neither a parser nor `tokenize` is used: the first may hang on a hostile text, the second takes
    quadratic time.
    """
    open_ = list[str]()
    bare = list[str]()
    position = 0
    sound = True
    while (mark := _MARK.search(code, position)) is not None:
        found = mark[0]
        start = position
        bare.append(code[start : mark.start()])
        position = mark.end()
        if found[0] in "'\"":
            end = _STRING_ENDS[found].match(code, position)
            if end is None:
                return _Scan(len(code), whole=False, in_string=True, acts=False)
            position = end.end()
        elif found[0] == "`":
            if found.startswith(fence):
                return _scanned(code[: mark.start()], bare, whole=sound and not open_)
            sound = False
        elif found in _CLOSING:
            bare.append(found)
            open_.append(_CLOSING[found])
        elif found[0] != "#":
            bare.append(found)
            closes_the_last = bool(open_) and open_.pop() == found
            sound = closes_the_last and sound
    bare.append(code[position:])
    return _scanned(code, bare, whole=sound and not open_)


def _scanned(code: str, bare: list[str], *, whole: bool) -> _Scan:
    whole = whole and not code.rstrip().endswith((":", "\\"))
    return _Scan(len(code), whole, in_string=False, acts=_ACTS.search("".join(bare)) is not None)
