r"""Exact equality of two answers.

Numbers are compared **exactly, as rationals**. A relative tolerance of 1e-4, usual in this field,
would accept 100005 for 100000. These texts are equal: `0.5`, `1/2`, `\frac12`, `.50` and `5e-1`;
`1,000` and `1000`; `1\frac{1}{2}` (a mixed number) and `1.5`. But 0.333 and 1/3 are not equal.

A unit is one trailing `%`, degree sign, `\text{...}` or `\mathrm{...}` (with a power), or a leading
currency sign. If only one side has a unit, it is ignored (`18` for `\$18`, `50\%` for `50`). If
both sides have one, the units must be equal. So `%` never divides by 100. A text with a word that
scales (`\text{ million}`) is not read as a number.

A text that is not a number is compared as text without surrounding white space. So is a number
beyond the bounds below: a policy may send a million digits or `1e999999999`, and neither may cost
the trainer much time.
"""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["exact_equal", "number", "quantity"]

MAX_NUMBER_CHARACTERS = 256
"""Longer texts are not read as numbers."""
MAX_EXPONENT = 256
"""Larger exponents, of either sign, are not read as numbers."""

_SCALES = ("hundred", "thousand", "million", "billion", "trillion", "dozen")
_INTEGER = r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)"
_DECIMAL = re.compile(
    rf"(?P<whole>{_INTEGER})?(?:\.(?P<fraction>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{{1,9}}))?"
)
_LATEX_FRACTION = re.compile(
    r"(?P<whole>[0-9]*)\\[dt]?frac(?P<top>\{[^{}]*\}|[0-9])(?P<bottom>\{[^{}]*\}|[0-9])"
)
_UNIT = re.compile(
    r"(?P<value>.*?)\s*(?P<unit>\\?%|°|\^\{?\\circ\}?|\\(?:text|mathrm)\s*\{[^{}]*\}(?:\^\{?[0-9]\}?)?)\.?",
    re.DOTALL,
)
_CURRENCY = re.compile(r"(?P<sign>[+-]?)\s*(?P<unit>\\?\$|€|£)\s*(?P<value>[^$]*)", re.DOTALL)


def exact_equal(a: str, b: str) -> bool:
    """True if both texts are the same number, or the same text if one of them is not a number."""
    left = quantity(a)
    right = quantity(b)
    if left is None or right is None:
        return a.strip() == b.strip()
    units_agree = not left[1] or not right[1] or left[1] == right[1]
    return left[0] == right[0] and units_agree


def number(text: str) -> Fraction | None:
    """Number in `text`, without its unit (None if it is not a number or exceeds the bounds)."""
    found = quantity(text)
    return found[0] if found else None


def quantity(text: str) -> tuple[Fraction, str] | None:
    """Pair (number in `text`, its unit without white space). The unit is empty if there is none.
    Returns None if `text` is not a number or exceeds the bounds.
    """
    if len(text) > MAX_NUMBER_CHARACTERS:
        return None
    text, unit = _split_unit(_plain(text))
    if any(scale in unit.lower() for scale in _SCALES):
        return None
    value = _unsigned(text[1:].strip() if text[:1] in ("+", "-") else text)
    if value is None:
        return None
    signed = -value if text.startswith("-") else value
    return signed, unit


def _plain(text: str) -> str:
    r"""`text` without math delimiters and LaTeX spacing, with one kind of minus sign and of
    thousands separator.
    """
    text = text.strip()
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1]
    text = text.replace("−", "-").replace("{,}", ",").replace("\u00a0", " ")
    return re.sub(r"\\[!,;: ]", "", text).strip()


def _split_unit(text: str) -> tuple[str, str]:
    if match := _CURRENCY.fullmatch(text):
        return match["sign"] + match["value"].strip(), match["unit"].lstrip("\\")
    if match := _UNIT.fullmatch(text):
        unit = re.sub(r"\\(?:text|mathrm)|[\\{}\s]", "", match["unit"])
        return match["value"], "°" if unit == "^circ" else unit
    return text, ""


def _unsigned(text: str) -> Fraction | None:
    if match := _LATEX_FRACTION.fullmatch(re.sub(r"\s", "", text) if "frac" in text else text):
        part = _ratio(match["top"].strip("{}"), match["bottom"].strip("{}"))
        return None if part is None else int(match["whole"] or 0) + part
    top, slash, bottom = text.partition("/")
    return _ratio(top.strip(), bottom.strip()) if slash else _decimal(text)


def _ratio(top: str, bottom: str) -> Fraction | None:
    numerator = _signed_decimal(top)
    denominator = _signed_decimal(bottom)
    return None if numerator is None or not denominator else numerator / denominator


def _signed_decimal(text: str) -> Fraction | None:
    value = _decimal(text[1:] if text[:1] in ("+", "-") else text)
    return -value if value is not None and text.startswith("-") else value


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match["whole"] or match["fraction"]):
        return None
    exponent = int(match["exponent"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        return None
    fraction = match["fraction"] or ""
    digits = int((match["whole"] or "").replace(",", "") + fraction)
    return digits * Fraction(10) ** (exponent - len(fraction))
