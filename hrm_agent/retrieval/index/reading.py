"""Reading of a file (plain text, Markdown, HTML, PDF) into the text that is indexed, quoted and
checked.

Text and Markdown are taken unchanged, so a span of the index is a span of the file. From HTML and
PDF, libraries extract a text. It is stored, since a citation is checked against the text that was
shown. Text that an HTML page hides from its readers is left out, unless `hidden_text` is True. For
a file without text, `NotRead` is raised with the reason.

The content takes precedence over the name of a file. A file that begins with `%PDF-` is a PDF, and
a file with a NUL byte that is not UTF-16 is binary.
"""

from __future__ import annotations

import hashlib
import threading
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
"""Maximum bytes of a file, and of the text that is extracted from it (UTF-8)."""
READER = 4
"""Version of the reader. It is incremented when the reader gives another text for the same bytes.
Files indexed with another version are read again.
"""
_PDFIUM = threading.Lock()
"""Lock for pdfium, which crashes the process if two threads use it at once."""
_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


class DocumentKind(StrEnum):
    """Format as which a file was read."""

    TEXT = "text"
    """Plain text, unchanged."""
    MARKDOWN = "markdown"
    """Markdown, unchanged."""
    HTML = "html"
    """Text extracted from HTML."""
    PDF = "pdf"
    """Text extracted from a PDF."""


class Why(StrEnum):
    """Kind of reason why a file gives no text."""

    BINARY = "binary"
    """Binary file or unknown format."""
    LINK = "link"
    """Link to a folder, to a missing file, or out of the folder."""
    EMPTY = "empty"
    """File of white space only, e.g. a scanned PDF."""
    TOO_LARGE = "too_large"
    """More bytes than the maximum."""
    UNREADABLE = "unreadable"
    """Broken or encrypted file, missing permission, or missing library."""


class NotRead(Exception):
    """A file has no text. A run over a folder reports this and continues."""

    def __init__(self, why: Why, reason: str) -> None:
        super().__init__(reason)
        self.why = why


@dataclass(frozen=True, slots=True)
class Document:
    """Text of a file."""

    text: str
    """Text that is indexed, quoted and checked."""
    kind: DocumentKind
    """Format as which the file was read."""

    @property
    def revision(self) -> str:
        """Hash of the text: 32 hex digits of its SHA-256. Spans hold for this text only."""
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
    """True if a file of this name is read as HTML, unless its content shows another format."""
    return _KINDS.get(Path(name).suffix.lower()) is DocumentKind.HTML


def read_document(
    name: str, data: bytes, max_bytes: int = MAX_BYTES, *, hidden_text: bool = False
) -> Document:
    """Return the text of a file, given its bytes. Raises `NotRead` if the file has no text.

    `hidden_text`: include HTML text that a browser would hide.
    """
    kind = (
        DocumentKind.PDF
        if data.startswith(b"%PDF-")
        else _KINDS.get(Path(name).suffix.lower(), DocumentKind.TEXT)
    )
    try:
        match kind:
            case DocumentKind.HTML:
                text = _html(data, hidden_text)
            case DocumentKind.PDF:
                text = _pdf(data)
            case _:
                text = _decoded(data)
        text = replace_surrogates(text)
    except NotRead:
        raise
    except ImportError as error:
        raise NotRead(
            Why.UNREADABLE,
            f"{kind} needs the package {error.name}: install it with `{to_install('retrieval')}`",
        ) from error
    except Exception as error:  # a library may raise anything for an unusual file
        raise NotRead(Why.UNREADABLE, f"{type(error).__name__}: {error}") from error
    if not text.strip():
        raise NotRead(
            Why.EMPTY,
            (
                "its pages have no text, so it may be a scan"
                if kind is DocumentKind.PDF
                else "no text in it"
            ),
        )
    if len(text) > max_bytes // 4 and len(text.encode()) > max_bytes:
        raise NotRead(Why.TOO_LARGE, f"its text has more than {max_bytes:,} bytes")
    return Document(text, kind)


def _decoded(data: bytes) -> str:
    """Decode by a byte order mark, as UTF-8, or else by a guessed encoding."""
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


def _html(data: bytes, hidden_text: bool) -> str:
    """Text of HTML, decoded as UTF-8 or else in the encoding that it declares."""
    from hrm_agent.retrieval.html.text import html_to_text

    source: str | bytes = data
    if any(map(data.startswith, _MARKS)) or b"\0" in data:
        source = _decoded(data)
    else:
        with suppress(UnicodeDecodeError):
            source = data.decode("utf-8")
    return html_to_text(source, hidden_text=hidden_text)


def _pdf(data: bytes) -> str:
    """Texts of the pages with a form feed between them, by which the page of a position can be
    found.
    """
    from pypdfium2 import PdfDocument, PdfiumError

    with _PDFIUM:
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
        # pdfium returns U+FFFE for a hyphen at the end of a line.
        return text.get_text_range().replace("\r\n", "\n").replace("\ufffe", "").replace("\f", " ")
    finally:
        text.close()
        page.close()
