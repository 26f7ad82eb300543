"""Novelty of a call's output, compared with everything that was known before the call.

A word or number is known if it appears in this or an earlier snippet of the session, follows from
these snippets without calculation (`hrm_agent.training.select.retracing.sessions`), or was shown
before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from hrm_agent.training.select.retracing.given import is_plain
from hrm_agent.training.select.retracing.sessions import Retraced
from hrm_agent.training.select.retracing.values import CALCULATED, GIVEN, LONG, READ, Value

__all__ = ["Known"]

_NUMBER = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TOKEN = re.compile(rf"[^\W\d]\w*|{_NUMBER.pattern}")
_LITERAL = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"")
_COMMENT = re.compile(r"#[^\n]*")
_ADDRESS = re.compile(r"<[^<>]* at 0x[0-9a-fA-F]+>")
_ARITHMETIC = re.compile(r"(?:print\(|round\(|[\d.+\-*/%()\s,])+")
_OPERATION = re.compile(r"[\d.)]\s*[*/+\-%]")
_NEUTRAL = re.compile(r"(?<![\d.])[01](?![\d.])")
_TYPES = ("array", "dtype", "float32", "float64", "int32", "int64")
"""Words that describe how a number is stored."""
_SMALL = 1000
"""Limit below which the result of a long calculation may appear in the code by chance."""


class Known:
    """Known words and numbers of a session, updated call by call."""

    def __init__(self) -> None:
        self._tokens = {"0", "1", *_TYPES}
        self._outputs: set[str] = set()
        self._codes: list[str] = []
        self._letters: set[str] = set()

    def read(self, code: str, retraced: Retraced | None) -> None:
        """Read the code of the next call."""
        self._codes.append(code)
        self._tokens |= _tokens(_COMMENT.sub("", code) if "#" in code else code)
        if "'" in code or '"' in code:
            self._letters.update(*_LITERAL.findall(code.casefold()))
        for value in (*retraced.shown, *retraced.given) if retraced is not None else ():
            if value.kind == GIVEN and value.is_known and is_plain(value.known):
                self._tokens |= _tokens(str(value.known)) | _tokens(repr(value.known))

    def has_plain_news(self, code: str, output: str) -> bool:
        """True if `code` is arithmetic and `output` a number that is certainly new. In this case
        both are known afterwards.

        False means undecided. This quick test makes retracing unnecessary for most calls.
        """
        if not _ARITHMETIC.fullmatch(code) or not _NUMBER.fullmatch(output):
            return False
        operands = _tokens(code)
        number = _number(output)
        near = {number}
        if number.isdecimal() and len(number) < 30:
            near |= {str(int(number) + 1), str(int(number) - 1)}
        works = len(_OPERATION.findall(code)) > len(_NEUTRAL.findall(code))
        if (
            not works
            or number in self._tokens
            or number in ("0", "1")
            or not near.isdisjoint(operands)
        ):
            return False
        self._codes.append(code)
        self._tokens |= operands
        self._tokens.add(number)
        self._outputs.add(output)
        return True

    def has_news(self, output: str, retraced: Retraced | None) -> bool:
        """True if `output`, of the code that was read last, shows anything new. The output is known
        afterwards.
        """
        output = _ADDRESS.sub("", output).strip()
        tokens = _tokens(output)
        news = output not in self._outputs and self._is_news(
            output, tokens, retraced.shown if retraced else (), retraced
        )
        self._outputs.add(output)
        self._tokens |= tokens
        return news

    def _is_spelt(self, token: str) -> bool:
        """True if `token` is a word that consists of letters of string literals in the code, in any
        order.
        """
        return (
            not token[0].isdigit()
            and token[0] != "."
            and (len(token) == 1 or self._letters.issuperset(token))
        )

    def _is_news(
        self, output: str, tokens: frozenset[str], shown: Iterable[Value], retraced: Retraced | None
    ) -> bool:
        values = list(shown)
        highest = max((value.kind for value in values), default=CALCULATED)
        noise = any(value.is_noise for value in values)
        if noise and highest == GIVEN:
            return False
        if retraced is not None and retraced.certain and _is_contradicted(tokens, values):
            return True
        if noise and all(value.is_known or value.is_noise for value in values):
            above = [
                value.known for value in values if value.kind > GIVEN and is_plain(value.known)
            ]
            tokens = frozenset[str]().union(*(_tokens(str(known)) for known in above))
        if highest == READ or any(
            token not in self._tokens and not self._is_spelt(token) for token in tokens
        ):
            return True
        if not tokens:
            return highest > GIVEN and not set(output).issubset({"\n", " "}.union(*self._codes))
        long = highest == LONG or (highest == CALCULATED and retraced is not None and retraced.long)
        return long and any(
            token.isdecimal() and int(token) < _SMALL for token in tokens if len(token) < 9
        )


def _is_contradicted(tokens: frozenset[str], values: list[Value]) -> bool:
    """True if the recorded output contradicts the retraced values. In this case the output is
    believed, not the values.
    """
    if (
        not values
        or not tokens
        or not all(value.is_known and is_plain(value.known) for value in values)
    ):
        return False
    shown = [_tokens(str(value.known)) | _tokens(repr(value.known)) for value in values]
    return all(shown) and tokens.isdisjoint(frozenset[str]().union(*shown))


@lru_cache(maxsize=4096)
def _tokens(text: str) -> frozenset[str]:
    """Words in lower case, and numbers in one notation."""
    return frozenset(
        _number(each) if each[0] in ".0123456789" else each.casefold()
        for each in _TOKEN.findall(text)
    )


def _number(text: str) -> str:
    if text.isdecimal():
        return text.lstrip("0") or "0"
    value = float(text)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
