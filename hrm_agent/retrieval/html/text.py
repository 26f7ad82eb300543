"""Text of HTML as a reader sees it: blocks as paragraphs, white space as in a browser, without
hidden text.

libxml2's parser reads a page twice: first for its style sheets, which may be anywhere, then for its
text. No tree is built, since some parsers take minutes to build a tree for a file of a hundred
thousand nested elements, and others silently drop deep elements. Layout in columns is not kept,
since it cannot be quoted. Paragraphs are separated by an empty line, lines by a line break, cells
of a row by a tab. A heading begins with its marks in Markdown, `#` to `######`, so that it can be
recognized and a text can be cut before it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Protocol, TypeVar

from hrm_agent.retrieval.html.hidden import SHOWN, StyleRules, StyleSheets

__all__ = ["html_to_text"]

# fmt: off
_PARAGRAPHS = {
    "address", "article", "aside", "blockquote", "body", "details", "dialog", "div", "dl", "fieldset", "figcaption",
    "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "main", "menu",
    "nav", "ol", "p", "pre", "search", "section", "summary", "table", "title", "ul",
}
# fmt: on
_LINES = {"br", "caption", "dd", "dt", "legend", "li", "option", "thead", "tbody", "tfoot", "tr"}
_BREAKS = ("", "\t", "\n", "\n\n")
_CELLS = {"td", "th"}
_UNSEEN = {"datalist", "iframe", "noembed", "noframes", "script", "style", "svg", "template"}
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_SPACES = re.compile(r"[ \t\n\r\f]+")
_END_BY_SLASH = re.compile(rb"(<(?:math|svg)(?=[\s/])[^<>]*)?/>", re.IGNORECASE)
_END_BY_SLASH_IN_XML = re.compile(
    rb"(<(?:iframe|math|noembed|noframes|noscript|script|style|svg|textarea|title|xmp)(?=[\s/])[^<>]*)?/>",
    re.IGNORECASE,
)
_PIECE = 65_536
"""Number of bytes passed to the parser at a time."""
_Result_co = TypeVar("_Result_co", covariant=True)


def html_to_text(source: str | bytes, *, hidden_text: bool = False, headings: bool = True) -> str:
    """Convert HTML to plain text without tags. Malformed HTML raises no error.

    Bytes are decoded in the encoding that they declare. `hidden_text`: include text that a browser
    would not show (`hrm_agent.retrieval.html.hidden`), except scripts and templates. `headings`:
    put Markdown's marks before headings.
    """
    if isinstance(source, bytes) and source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        source = source.decode("utf-16", "replace")
    data = source.encode("utf-8", "replace") if isinstance(source, str) else source
    if not data.strip():
        return ""
    data = _without_slashes(data)
    encoding = "utf-8" if isinstance(source, str) else None
    rules = None if hidden_text else _parsed(data, encoding, StyleSheets())
    return _parsed(data, encoding, _Text(rules, _HEADINGS if headings else {}))


def _without_slashes(data: bytes) -> bytes:
    """Data without the slashes in `/>` that do not end an element in HTML, although they would for
    the parser.

    In HTML, `<div/>` opens an element like `<div>`. A slash only ends `svg` and `math`. In XML, it
    also ends elements whose contents are not HTML, such as scripts. If such an element stayed open,
    all following text would be lost.
    """
    ending = (
        _END_BY_SLASH_IN_XML
        if data.removeprefix(codecs.BOM_UTF8).lstrip()[:5] == b"<?xml"
        else _END_BY_SLASH
    )
    return ending.sub(lambda found: found[0] if found[1] else b"/ >", data)


class _Target(Protocol[_Result_co]):
    def close(self) -> _Result_co: ...


def _parsed(data: bytes, encoding: str | None, target: _Target[_Result_co]) -> _Result_co:
    from lxml.etree import HTMLParser, XMLSyntaxError

    parser = HTMLParser(target=target, huge_tree=True, encoding=encoding)
    try:
        for start in range(0, len(data), _PIECE):
            parser.feed(data[start : start + _PIECE])
        return parser.close()
    except XMLSyntaxError:  # there is no element
        return target.close()


class _Text:
    """Parser target that collects text. A break is written only when text follows, so breaks do not
    add up.
    """

    def __init__(self, rules: StyleRules | None, headings: Mapping[str, str]) -> None:
        """Collect text that is not hidden by `rules` (None to include hidden text)."""
        self._rules = rules
        self._headings = headings
        self._pieces: list[str] = []
        self._break = self._mark = ""
        self._space = False
        self._unseen = self._pre = 0
        """Number of open elements whose text is not shown, and number of open `pre` elements."""
        self._around = [SHOWN]
        """Visibility of the open elements, outermost first."""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._rules is not None:
            self._around.append(self._rules.inside(self._around[-1], tag, attributes))
        self._unseen += tag in _UNSEEN
        self._pre += tag == "pre"
        self._mark = self._headings.get(tag, self._mark)
        self._break_by(
            "\n\n"
            if tag in _PARAGRAPHS
            else "\n"
            if tag in _LINES
            else "\t"
            if tag in _CELLS
            else ""
        )

    def end(self, tag: str) -> None:
        self._break_by("\n\n" if tag in _PARAGRAPHS else "")
        if len(self._around) > 1:
            self._around.pop()
        self._unseen -= tag in _UNSEEN
        self._pre -= tag == "pre"
        self._mark = "" if tag in self._headings else self._mark

    def comment(self, _text: str) -> None:
        """Do nothing, since a comment is not shown."""

    def close(self) -> str:
        return "".join(self._pieces)

    def _break_by(self, kind: str) -> None:
        """Keep the stronger of two adjacent breaks: a paragraph's is stronger than a line's, and a
        line's than a cell's. Hidden elements make no breaks.
        """
        if kind and not self._unseen and self._around[-1].rendered:
            self._break = max(self._break, kind, key=_BREAKS.index)
            self._space = False

    def data(self, data: str) -> None:
        if self._unseen or not self._around[-1].is_shown:
            return
        if self._pre:
            self._add(data)
            return
        shown = _SPACES.sub(" ", data)
        if shown.startswith(" "):
            self._space = not self._break
            shown = shown[1:]
        if shown:
            self._add(shown.removesuffix(" "))
        self._space = self._space or (shown.endswith(" ") and not self._break)

    def _add(self, text: str) -> None:
        before = self._break or (" " if self._space else "")
        if self._pieces:
            self._pieces.append(before)
        self._pieces.append(self._mark + text)
        self._break = ""
        self._space = False
        self._mark = ""
