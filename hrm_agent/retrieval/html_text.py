"""The text of HTML as a reader sees it: blocks as paragraphs, white space as a browser shows it, no scripts.

One pass over the events of libxml2's parser. No tree is built: with one, other parsers take minutes for a file of a
hundred thousand nested elements, or leave out what is deep without a word, and layout in columns is nothing to quote.
Paragraphs are apart by an empty line, lines by a line break, cells of a row by a tab.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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
_UNSEEN = {"iframe", "noembed", "noframes", "script", "style", "svg", "template"}
_SPACES = re.compile(r"[ \t\n\r\f]+")
_PIECE = 65_536
"""Bytes that the parser is given at a time."""


def html_to_text(source: str | bytes) -> str:
    """Plain text, never a tag. Anything is HTML: what is malformed gives the text that is in it.

    Bytes are in the encoding that they name themselves.
    """
    from lxml.etree import HTMLParser, XMLSyntaxError

    data = source.encode("utf-8", "replace") if isinstance(source, str) else source
    if not data.strip():
        return ""
    text = _Text()
    parser = HTMLParser(target=text, huge_tree=True, encoding="utf-8" if isinstance(source, str) else None)
    try:
        for start in range(0, len(data), _PIECE):
            parser.feed(data[start : start + _PIECE])
        return parser.close()
    except XMLSyntaxError:  # no element in it
        return text.close()


class _Text:
    """Collects text. A break is only remembered until text follows it, so that breaks do not add up."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._break = ""
        self._space = False
        self._unseen = self._pre = 0
        """Elements of the kind that are open."""

    def start(self, tag: str, _attributes: Mapping[str, str]) -> None:
        self._unseen += tag in _UNSEEN
        self._pre += tag == "pre"
        self._break_by("\n\n" if tag in _PARAGRAPHS else "\n" if tag in _LINES else "\t" if tag in _CELLS else "")

    def end(self, tag: str) -> None:
        self._unseen -= tag in _UNSEEN
        self._pre -= tag == "pre"
        self._break_by("\n\n" if tag in _PARAGRAPHS else "")

    def comment(self, _text: str) -> None:
        """Is not shown."""

    def close(self) -> str:
        return "".join(self._pieces)

    def _break_by(self, kind: str) -> None:
        """The stronger of two breaks that meet stands: a paragraph, then a line, then a cell."""
        if kind:
            self._break, self._space = max(self._break, kind, key=_BREAKS.index), False

    def data(self, data: str) -> None:
        if self._unseen:
            return
        if self._pre:
            self._add(data)
            return
        shown = _SPACES.sub(" ", data)
        if shown.startswith(" "):
            self._space, shown = not self._break, shown[1:]
        if shown:
            self._add(shown.removesuffix(" "))
        self._space = self._space or (shown.endswith(" ") and not self._break)

    def _add(self, text: str) -> None:
        before = self._break or (" " if self._space else "")
        if self._pieces:
            self._pieces.append(before)
        self._pieces.append(text)
        self._break, self._space = "", False
