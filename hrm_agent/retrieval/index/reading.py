"""From a file to the one text that is indexed, quoted and checked: plain text, Markdown, HTML, PDF.

Text and Markdown are taken as they are, character for character, so that a span of the index is a
span of the file. HTML and PDF have no such text; libraries make one, and it is stored, since a
citation is checked against what was shown. What an HTML page hides from its readers is left out,
unless it is asked for. A file that gives no text is an outcome with its reason, and the next file
is read.

What a file is decides its content before its name: `%PDF-` begins a PDF whatever it is called, and
a NUL byte in what is not UTF-16 makes a file binary.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import to_install

__all__ = [
    "MAX_BYTES",
    "READER",
    "Document",
    "DocumentKind",
    "NotRead",
    "Why",
    "is_html",
    "read_document",
]

MAX_BYTES = 32 * 2**20
"""Largest file that is read, and the largest text that is made of one (UTF-8)."""
READER = 3
"""Raised when the same bytes give another text: what was indexed before is read again."""
_PDFIUM = threading.Lock()
"""pdfium is not made for threads: two of them in it at once end the process."""
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class DocumentKind(StrEnum):
    """What a file was read as."""

    TEXT = "text"
    """Plain text, as it is."""
    MARKDOWN = "markdown"
    """Markdown, as it is."""
    HTML = "html"
    """Text that a library made of HTML."""
    PDF = "pdf"
    """Text that a library made of a PDF."""


class Why(StrEnum):
    """Why a file gives no text."""

    BINARY = "binary"
    """Not text, and no format that is read here."""
    LINK = "link"
    """A link to a folder, to nothing, or out of the folder."""
    EMPTY = "empty"
    """No character other than white space: a scanned PDF, for one."""
    TOO_LARGE = "too_large"
    """More bytes than are read."""
    UNREADABLE = "unreadable"
    """A broken or encrypted file, one that may not be opened, or a library that is missing."""


class NotRead(Exception):
    """A file gives no text. An outcome for the report, not an end of the work."""

    def __init__(self, why: Why, reason: str) -> None:
        super().__init__(reason)
        self.why = why


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file."""

    text: str
    """The text that is indexed, quoted and checked."""
    kind: DocumentKind
    """What the file was read as."""

    @property
    def revision(self) -> str:
        """32 hex digits of the text's SHA-256: spans hold in this text and in no other."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:32]


_KINDS = {
    ".md": DocumentKind.MARKDOWN,
    ".markdown": DocumentKind.MARKDOWN,
    ".html": DocumentKind.HTML,
    ".htm": DocumentKind.HTML,
    ".xhtml": DocumentKind.HTML,
    ".pdf": DocumentKind.PDF,
}


def is_html(name: str) -> bool:
    """Whether a file of this name is read as HTML if its content does not tell its kind."""
    return _KINDS.get(Path(name).suffix.lower()) is DocumentKind.HTML


def read_document(
    name: str, data: bytes, max_bytes: int = MAX_BYTES, *, hidden_text: bool = False
) -> Document:
    """The text of a file's bytes. `hidden_text`: that of HTML which a browser would not show, too.
    Raises `NotRead`.
    """
    kind = (
        DocumentKind.PDF
        if data.startswith(b"%PDF-")
        else _KINDS.get(Path(name).suffix.lower(), DocumentKind.TEXT)
    )
    read = (
        _hidden_html if hidden_text and kind is DocumentKind.HTML else _READERS.get(kind, _decoded)
    )
    try:
        text = replace_surrogates(read(data))
    except NotRead:
        raise
    except ImportError as error:
        raise NotRead(
            Why.UNREADABLE,
            f"{kind} needs the package {error.name}: install it with `{to_install('retrieval')}`",
        ) from error
    except Exception as error:  # a library met something that it does not know
        raise NotRead(Why.UNREADABLE, f"{type(error).__name__}: {error}") from error
    if not text.strip():
        raise NotRead(
            Why.EMPTY,
            (
                "no text on its pages: it may be a scan"
                if kind is DocumentKind.PDF
                else "no text in it"
            ),
        )
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        raise NotRead(Why.TOO_LARGE, f"its text is over {max_bytes:,} bytes")
    return Document(text, kind)


def _decoded(data: bytes) -> str:
    """UTF-8, or what a byte order mark says, or what the bytes look like."""
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    if encoding is None and b"\0" in data:
        raise NotRead(Why.BINARY, "it has NUL bytes")
    try:
        return data.decode(encoding or "utf-8")
    except UnicodeDecodeError:
        return _guessed(data)


def _guessed(data: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(data).best()
    if best is None:
        raise NotRead(Why.BINARY, "it is not text in a known encoding")
    return str(best)


def _html(data: bytes, *, hidden_text: bool = False) -> str:
    """In the encoding that it names, unless it is UTF-8."""
    from hrm_agent.retrieval.html.text import html_to_text

    source: str | bytes = data
    if any(map(data.startswith, _MARKS)) or b"\0" in data:
        source = _decoded(data)
    else:
        with suppress(UnicodeDecodeError):
            source = data.decode("utf-8")
    return html_to_text(source, hidden_text=hidden_text)


def _hidden_html(data: bytes) -> str:
    return _html(data, hidden_text=True)


def _pdf(data: bytes) -> str:
    """The pages' texts with a form feed between them, so that a place in the text has a page."""
    with _PDFIUM:
        return _pages(data)


def _pages(data: bytes) -> str:
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        pdf = PdfDocument(data)
    except PdfiumError as error:
        locked = "assword" in str(error)
        reason = (
            "it is encrypted: save it without its password"
            if locked
            else f"it is damaged, or not a PDF: {error}"
        )
        raise NotRead(Why.UNREADABLE, reason) from error
    try:
        return "\f".join(_page(pdf, number) for number in range(len(pdf)))
    finally:
        pdf.close()


def _page(pdf: Any, number: int) -> str:
    page = pdf[number]
    text = page.get_textpage()
    try:
        # pdfium marks a hyphen at the end of a line by a character that is none.
        return text.get_text_range().replace("\r\n", "\n").replace("\ufffe", "").replace("\f", " ")
    finally:
        text.close()
        page.close()


_READERS: dict[DocumentKind, Callable[[bytes], str]] = {
    DocumentKind.HTML: _html,
    DocumentKind.PDF: _pdf,
}
