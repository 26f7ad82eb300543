"""What each kind of file gives: its text, or the reason why there is none."""

from __future__ import annotations

import time

import pytest

from hrm_agent.retrieval.html_text import html_to_text
from hrm_agent.retrieval.index.reading import DocumentKind, NotRead, Why, read_document
from tests.support.retrieval.documents import pdf


@pytest.mark.parametrize(
    "text", ["plain\r\nlines\n", "Ünïcode \U0001f600 e\u0301", "<|endoftext|>", " # no HTML <b>\n"]
)
@pytest.mark.parametrize(
    ("name", "kind"), [("a.txt", DocumentKind.TEXT), ("A.MD", DocumentKind.MARKDOWN), ("Makefile", DocumentKind.TEXT)]
)
def test_text_and_markdown_are_taken_to_the_character(name: str, kind: DocumentKind, text: str) -> None:
    document = read_document(name, text.encode())
    assert (document.text, document.kind) == (text, kind)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_other_encodings(encoding: str) -> None:
    text = "Der Müller ging über die Brücke und hörte die Vögel, während es dämmerte. Schöne Grüße!"
    assert read_document("a.txt", text.encode(encoding)).text == text


def test_the_revision_is_that_of_the_text() -> None:
    one, two = read_document("a.txt", b"abc"), read_document("b.md", b"\xef\xbb\xbfabc")
    assert one.revision == two.revision != read_document("a.txt", b"abd").revision
    assert len(one.revision) == 32


def test_html_is_read_as_a_reader_sees_it() -> None:
    source = (
        "<!doctype html><title>Top</title><style>p{}</style><script>var x = '<p>no</p>'</script>"
        "<h1>Head &amp; tail</h1><p>One <b>bold</b>,\n  <a href=x>link</a>.<p>Two<br>lines <!-- no -->"
        "<table><tr><td>1<td>2<tr><td>3</table><pre>  kept\n    so</pre><ul><li>a<li>b</ul>caf&eacute;"
    )
    assert html_to_text(source) == (
        "Top\n\nHead & tail\n\nOne bold, link.\n\nTwo\nlines\n\n1\t2\n3\n\n  kept\n    so\n\na\nb\n\ncafé"
    )


def test_html_says_its_own_encoding() -> None:
    source = "<meta charset=iso-8859-2><p>Łódź</p>"
    assert read_document("a.html", source.encode("iso-8859-2")).text == "Łódź"
    assert read_document("a.html", source.replace("iso-8859-2", "utf-8").encode()).text == "Łódź"
    assert read_document("a.html", "<p>Łódź".encode("utf-16")).text == "Łódź"


@pytest.mark.parametrize(
    "source",
    ["<div>" * 50_000 + "deep", "<b>" * 20_000 + "deep", "<!-- x -->" * 20_000 + "deep", "deep" + "<a " * 20_000],
)
def test_html_that_other_parsers_stumble_on(source: str) -> None:
    clock = time.process_time()
    assert html_to_text(source) == "deep"
    assert time.process_time() - clock < 60, "read again for each tag, it would be hours"


def test_a_pdf_has_its_pages_in_order() -> None:
    document = read_document("a.pdf", pdf("Page one speaks of whales.", "Page two of otters."))
    assert document.kind is DocumentKind.PDF
    assert document.text.split("\f") == ["Page one speaks of whales.", "Page two of otters."]
    assert read_document("named.txt", pdf("Known by its content.")).text == "Known by its content."


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.pdf", pdf("whole")[:100], Why.UNREADABLE),
        ("a.pdf", b"no PDF at all", Why.UNREADABLE),
        ("scan.pdf", pdf("", ""), Why.EMPTY),
        ("a.txt", b"text \0 and more", Why.BINARY),
        ("a.md", bytes(range(128, 256)) * 20, Why.BINARY),
        ("a.html", b"\x7fELF\0\0", Why.BINARY),
        ("a.txt", b"", Why.EMPTY),
        ("a.html", b"<p> <!-- nothing --> <script>x()</script>", Why.EMPTY),
        ("a.txt", b"x" * 1001, Why.TOO_LARGE),
    ],
)
def test_files_that_give_no_text_say_why(name: str, data: bytes, why: Why) -> None:
    with pytest.raises(NotRead) as failure:
        read_document(name, data, max_bytes=1000)
    assert failure.value.why is why
    assert str(failure.value)
