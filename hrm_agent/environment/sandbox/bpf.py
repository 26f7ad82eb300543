"""Assembler for classic BPF, which the kernel runs for each system call. Instructions jump forward
to labels.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

__all__ = [
    "AND",
    "ARCHITECTURE",
    "ARGUMENT",
    "IF_ANY_BIT",
    "IF_AT_LEAST",
    "IF_EQUAL",
    "LOAD",
    "NUMBER",
    "Program",
]

LOAD, AND = 0x20, 0x54
_RETURN, _JUMP = 0x06, 0x05
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, (16, 24, 32, 40)
"""Offsets in struct seccomp_data. Those of arguments are the offsets of their lower halves."""
_WITHIN_REACH = 64
"""Maximum number of ranges whose search code is short enough for the jumps of comparisons, which
cover at most 255 instructions.
"""


class Program:
    """BPF program. Instructions jump forward to the next place of a label. An empty label means the
    next instruction.
    """

    def __init__(self, verdicts: Mapping[str, int]) -> None:
        self._verdicts = verdicts
        self._lines: list[tuple[int, int, str, str]] = []
        self._labels: dict[str, list[int]] = {}

    def mark(self, label: str) -> None:
        """Give the next instruction a label. A label may have several places; a jump goes to the
        next one.
        """
        self._labels.setdefault(label, []).append(len(self._lines))

    def add(self, code: int, operand: int, *, yes: str = "", no: str = "") -> None:
        self._lines.append((code, operand, yes, no))

    def one_of(self, values: tuple[int, ...], *, yes: str, no: str) -> None:
        """Jump to `yes` if the value that was loaded last is one of `values`, else to `no`."""
        for value in values[:-1]:
            self.add(IF_EQUAL, value, yes=yes)
        self.add(IF_EQUAL, values[-1], yes=yes, no=no)

    def no_pointer(self, place: int, *, yes: str, no: str) -> None:
        """Jump to `yes` if an argument is NULL in both halves, else to `no`."""
        self.add(LOAD, ARGUMENT[place])
        self.add(IF_EQUAL, 0, no=no)
        self.add(LOAD, ARGUMENT[place] + 4)
        self.add(IF_EQUAL, 0, yes=yes, no=no)

    def search(self, ranges: list[tuple[int, str]]) -> None:
        """Jump to the label of the last range that begins at or below the value loaded last."""
        half = len(ranges) // 2
        low = ranges[:half]
        high = ranges[half:]
        self.add(IF_AT_LEAST, high[0][0], yes=_label(high), no=_label(low))
        for part in (low, high):
            if len(part) > 1:
                self.mark(_label(part))
                self.search(part)
        if len(ranges) <= _WITHIN_REACH < 2 * len(ranges):
            for label in dict.fromkeys(label for _, label in ranges):
                self.give(label)

    def give(self, label: str) -> None:
        """Add a nearby place for `label`: its verdict, or a jump to the code that decides it."""
        self.mark(label)
        if label in self._verdicts:
            self.add(_RETURN, self._verdicts[label])
        else:
            self.add(_JUMP, 0, yes=label)

    def assemble(self) -> bytes:
        binary = b""
        for place, (code, operand, yes, no) in enumerate(self._lines):
            if code == _JUMP:
                binary += struct.pack("HBBI", code, 0, 0, self._distance(yes, place))
            else:
                binary += struct.pack(
                    "HBBI", code, self._distance(yes, place), self._distance(no, place), operand
                )
        return binary

    def _distance(self, label: str, place: int) -> int:
        return (
            next(there for there in self._labels[label] if there > place) - place - 1
            if label
            else 0
        )


def _label(ranges: list[tuple[int, str]]) -> str:
    return ranges[0][1] if len(ranges) == 1 else f"{ranges[0][0]} to {ranges[-1][0]}"
