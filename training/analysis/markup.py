"""HTML of a page that needs no script: everything written by others is escaped, and what would not be seen is shown."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from hrm_agent.unicode import replace_surrogates

__all__ = ["STYLE", "Markup", "document", "folded", "picture", "section", "shown", "table", "token"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Control characters but tab and line feed, those without width, and those that turn the direction of writing."""


class Markup(str):
    """HTML that is whole and safe: text of others is in it escaped."""

    __slots__ = ()


def shown(text: str) -> Markup:
    """Text as it is, with the names of characters that nobody would see."""
    escaped = escape(replace_surrogates(text.replace("\r\n", "\n")))
    return Markup(_UNSEEN.sub(lambda found: f'<b class="chip">U+{ord(found[0]):04X}</b>', escaped))


def token(text: str) -> Markup:
    """A token by itself, with its spaces and line feeds to be seen."""
    marked = text.replace("\n", "⏎").replace("\t", "⇥")
    inner = marked.strip(" ")
    left = len(marked) - len(marked.lstrip(" ")) if inner else len(marked)
    right = len(marked) - len(inner) - left
    return Markup(f"<code><bdi>{'␣' * left}{shown(inner)}{'␣' * right}</bdi></code>")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    """Numbers stand to the right, and a column of them is as wide as they are."""
    listed = list(rows)
    kinds = [" class=n" if _is_number(value) else "" for value in (listed[0] if listed else columns)]
    head = "".join(f'<th scope="col"{kind}>{shown(name)}</th>' for name, kind in zip(columns, kinds, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in listed)
    inner = f"<table><caption>{shown(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return Markup(f'<div class="wide" role="region" aria-label="{shown(caption)}" tabindex="0">{inner}</div>')


def picture(name: str, alt: str, light: dict[str, bytes], dark: dict[str, bytes]) -> Markup:
    """A PNG in the page itself, as the reader's colours want it; nothing where there is none."""
    if name not in light:
        return Markup()
    source = ""
    if name in dark:
        source = f'<source media="(prefers-color-scheme: dark)" srcset="{_data(dark[name])}">'
    image = f'<picture>{source}<img src="{_data(light[name])}" alt="{escape(alt)}"></picture>'
    return Markup(f'<div class="wide" role="region" aria-label="{escape(alt)}" tabindex="0">{image}</div>')


def section(title: str, *parts: str) -> Markup:
    """A part of the page, with a heading that a link may lead to."""
    name = re.sub(r"\W+", "-", title.lower()).strip("-")
    return Markup(f'<section aria-labelledby="{name}"><h2 id="{name}">{shown(title)}</h2>{"".join(parts)}</section>')


def folded(summary: str, *parts: str) -> Markup:
    """Shown when it is asked for."""
    return Markup(f"<details><summary>{shown(summary)}</summary>{''.join(parts)}</details>")


def document(title: str, *parts: str) -> str:
    """The whole page."""
    head = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{shown(title)}</title><style>{STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>\n'


def _cell(value: object) -> str:
    if isinstance(value, Markup):
        return f"<td>{value}</td>"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td><bdi>{shown(str(value))}</bdi></td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if math.isfinite(value) else "none"
    return f'<td class="n">{text}</td>'


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


STYLE = """
:root{color-scheme:light dark;--ink:#1c1e21;--soft:#5f6368;--line:#d5d8dc;--page:#fff;--card:#f5f6f8;--link:#1a5fa8;
--heat:209,99,11}
@media(prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a5aab1;--line:#3c4047;--page:#1b1d21;--card:#24272c;
--link:#8ab8f0;--heat:170,75,0}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1120px;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.6rem;margin:0 0 .5rem;overflow-wrap:anywhere}h2{margin:2.5rem 0 .5rem;font-size:1.3rem}
h3{margin:1.5rem 0 .25rem;font-size:1.05rem}p{max-width:75ch;margin:.5rem 0}
a{color:var(--link)}nav a{margin-right:1rem}.soft{color:var(--soft)}
picture img{width:100%;min-width:640px;max-width:1100px;height:auto;display:block}
td:last-child code{display:inline-block;min-width:20rem}
.wide{overflow-x:auto;margin:.75rem 0}table{border-collapse:collapse;font-size:.92rem}
caption{text-align:left;font-weight:600;padding:.25rem 0;white-space:nowrap}
th,td{padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
th{color:var(--soft);font-weight:600}td.n,th.n{text-align:right}td.n{font-variant-numeric:tabular-nums}
code,.text{font:.86rem/1.6 ui-monospace,monospace}
code{background:var(--card);border-radius:3px;padding:.05rem .25rem;white-space:pre-wrap;overflow-wrap:anywhere}
.text{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);border-radius:6px;padding:.75rem;
margin:.4rem 0}
.text .p{color:var(--soft)}mark{background:rgba(var(--heat),.35);color:inherit}
.chip{font:600 .75rem ui-monospace,monospace;border:1px solid currentColor;border-radius:3px;padding:0 .2rem}
.f{text-decoration:underline;text-underline-offset:3px}.r{text-decoration:underline double;text-underline-offset:3px}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--link)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
""" + "".join(f".e{level}{{background:rgba(var(--heat),.{level}0)}}" for level in range(1, 9))
