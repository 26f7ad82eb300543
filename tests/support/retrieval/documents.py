"""Files to index: a small PDF made by hand, and a folder of many texts. A context takes root's
right to read all files.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


def pdf(*pages: str, encrypted: bool = False) -> bytes:
    """A PDF with one line of text on each page; `encrypted`: with a password that nobody knows."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET" if text else ""
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 400 200] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>".encode(),
            f"<< /Length {len(content)} >>\nstream\n{content}\nendstream".encode(),
        ]
    if encrypted:
        key = b"ab" * 32
        objects.append(b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%b> /U <%b> >>" % (key, key))
    out, places = bytearray(b"%PDF-1.4\n"), list[int]()
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    lock = b" /Encrypt %d 0 R /ID [<00> <00>]" % len(objects) if encrypted else b""
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size, start = len(objects) + 1, len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n%btrailer\n<< /Size %d /Root 1 0 R%b >>\n" % (
        size,
        table,
        size,
        lock,
    )
    return bytes(out + b"startxref\n%d\n%%%%EOF\n" % start)


def write_texts(folder: Path, count: int) -> None:
    """Write `count` files into two folders. Each file has several chunks and a word that no other
    file has.
    """
    for number in range(count):
        place = folder / ("even" if number % 2 == 0 else "odd") / f"{number:03}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"Sentence {line} of the text about thing{number}x. " for line in range(100))
        place.write_text("".join(lines), encoding="utf-8")


@contextmanager
def powerless() -> Generator[None]:
    """Context in which file permissions bind root, too, in this thread."""
    if os.geteuid():
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    kept = (ctypes.c_uint32 * 6)(*held)
    kept[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, kept) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
