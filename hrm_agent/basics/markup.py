"""HTML that is safe by construction: any text that is not `Html` yet is escaped when it is put into
an element.

Records hold text written by models and pages. None of it becomes a tag, and terminal colours are
removed. Characters that a browser would obey or hide (NUL, those that change the direction of
writing, zero width) are shown by their code points.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeGuard

__all__ = [
    "PAGE_STYLE",
    "Html",
    "cut",
    "document",
    "element",
    "fragment",
    "join",
    "pairs",
    "scrolled",
    "table",
]


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return self


_COLOURS = re.compile(
    "\x1b\\[[0-?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[@-Z\\\\-_]"
)
"""Terminal escape sequences: colours, titles, links, cursor moves."""
_HIDDEN = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f])\\1*"
)
_VOID = frozenset({"br", "col", "hr", "img", "meta", "source"})
_SHOWN = 60_000
"""Most characters shown of one text: a browser takes seconds to lay out megabytes in one block."""


def _escaped(text: str) -> Html:
    text = _COLOURS.sub("", text.replace("\r\n", "\n"))
    parts: list[str] = []
    at = 0
    for found in _HIDDEN.finditer(text):
        parts += [
            html.escape(text[at : found.start()]),
            f'<span class="char">{_number(found)}</span>',
        ]
        at = found.end()
    return Html("".join([*parts, html.escape(text[at:])]))


def _number(found: re.Match[str]) -> str:
    times = len(found[0])
    return f"U+{ord(found[1]):04X}" + (f" x{times}" if times > 1 else "")


def _attribute(value: object) -> str:
    plain = _HIDDEN.sub(_number, _COLOURS.sub("", str(value)))
    return html.escape(plain)


def element(name: str, /, *inside: object, **attributes: object) -> Html:
    """HTML element. `class_` becomes `class`, `aria_label` becomes `aria-label`; True is an
    attribute without a value.

    None is left out, both as content and as an attribute.
    """
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    told = "".join(
        f" {key}" if value is True else f' {key}="{_attribute(value)}"'
        for key, value in given.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{told}>" if name in _VOID else f"<{name}{told}>{join(*inside)}</{name}>")


def join(*parts: object) -> Html:
    """Concatenation of parts. Text that is not `Html` is escaped."""
    return Html(
        "".join(
            part if isinstance(part, Html) else _escaped(str(part))
            for part in parts
            if part is not None
        )
    )


def cut(text: str) -> Html:
    """Text as `Html`, without its middle if it is very long."""
    if len(text) <= _SHOWN:
        return join(text)
    head, tail = _SHOWN * 3 // 4, _SHOWN // 4
    left_out = element(
        "em", f"{len(text) - head - tail:,} characters are left out here", class_="quiet"
    )
    return join(text[:head], "\n", left_out, "\n", text[-tail:])


def pairs(facts: Iterable[tuple[str, object]]) -> Html:
    """List of names and values, without the empty ones."""
    shown = [
        element("div", element("dt", name), element("dd", value))
        for name, value in facts
        if value not in (None, "")
    ]
    return element("dl", *shown)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str | None = None
) -> Html:
    """Table with a header; None is an empty cell. Columns of numbers are aligned to the right."""
    cells = list(rows)
    numeric = [
        _is_number(next((row[i] for row in cells if row[i] not in (None, "")), None))
        for i in range(len(columns))
    ]
    looks = ["number" if number else None for number in numeric]
    heads = (
        element("th", name, scope="col", class_=look)
        for name, look in zip(columns, looks, strict=True)
    )
    body = [
        element("tr", *(_cell(*cell) for cell in zip(row, columns, looks, strict=True)))
        for row in cells
    ]
    title = element("caption", caption) if caption else None
    return element("table", title, element("thead", element("tr", *heads)), element("tbody", *body))


def scrolled(label: str, *inside: object) -> Html:
    """Region for content that may be wider than the screen. It scrolls alone, also by keys, and a
    table inside keeps its columns.
    """
    return element("div", *inside, class_="wide", role="region", aria_label=label, tabindex=0)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _told(value: float) -> str:
    """Number as text (`none` for nan, such as a mean over no values)."""
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.3f}"
        if math.isfinite(value)
        else "none"
    )


def _cell(value: object, column: str, look: str | None) -> Html:
    """Table cell. On a narrow screen each cell is shown alone, with the name of its column."""
    shown = _told(value) if _is_number(value) else value
    return element("td", shown, class_=look, data_name=column if value not in (None, "") else None)


def fragment(*inside: object) -> Html:
    """Element for a notebook. Its styles affect nothing else, and it takes the colours of the
    notebook.
    """
    return element("div", element("style", Html(_FRAGMENT_STYLE)), *inside, class_="hrm-agent")


_FRAGMENT_STYLE = """
.hrm-agent{font-size:.93em;line-height:1.45;max-width:70em;overflow-x:auto}
.hrm-agent dl{display:grid;gap:.1em 1em;margin:.3em 0}
.hrm-agent dl>div{display:grid;grid-template-columns:9em 1fr;gap:1em}
.hrm-agent dt{opacity:.7}.hrm-agent dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}
.hrm-agent table{border-collapse:collapse;margin:.4em 0}
.hrm-agent caption{text-align:left;font-weight:600;padding:.2em 0}
.hrm-agent th,.hrm-agent td{text-align:left;vertical-align:top;padding:.15em .7em .15em 0;
 border-bottom:1px solid rgba(128,128,128,.3);background:none;overflow-wrap:anywhere}
.hrm-agent td:first-child{min-width:6.5em}
.hrm-agent .number{text-align:right;font-variant-numeric:tabular-nums}
.hrm-agent pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.2em 0;padding:.4em .6em;
 background:rgba(128,128,128,.1);border-radius:4px}
.hrm-agent .char{border:1px solid;border-radius:3px;font-size:.75em;padding:0 .2em;opacity:.75}
.hrm-agent summary{cursor:pointer}.hrm-agent .quiet{opacity:.7}
"""

PAGE_STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1c2128;--quiet:#59636e;--line:#d1d9e0;--block:#f3f5f7;--link:#0757b8;
 --good:#146c2e;--bad:#b3261e;--warn:#7a5200;--key:#8250df;--string:#0a5c36;--number:#0550ae;--shade:176,38,30}
@media (prefers-color-scheme:dark){:root{--back:#14181d;--text:#e2e8ee;--quiet:#9aa6b2;--line:#38424c;--block:#1d232a;
 --link:#79b8ff;--good:#6bd68a;--bad:#ff8b82;--warn:#e3b341;--key:#cfa8ff;--string:#8ddb8c;--number:#79c0ff;
 --shade:255,123,114}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.2rem clamp(.8rem,3vw,2rem) 4rem}
h1{font-size:1.35rem;line-height:1.3;margin:.2rem 0 .8rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2rem 0 .5rem}h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
a{color:var(--link)}a:focus-visible,summary:focus-visible{outline:2px solid var(--link);outline-offset:2px}
p{margin:.4rem 0}.quiet{color:var(--quiet)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
dl{margin:.4rem 0 1rem}dl>div{display:grid;grid-template-columns:8.5rem 1fr;gap:1rem;padding:.15rem 0}
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere;white-space:pre-wrap}
table{border-collapse:collapse;font-size:.93rem;margin:.4rem 0 1rem}
caption{text-align:left;color:var(--quiet);padding:.2rem 0}
th,td{text-align:left;vertical-align:top;padding:.35rem .8rem .35rem 0;border-bottom:1px solid var(--line)}
th{color:var(--quiet);font-weight:600;white-space:nowrap}.number{text-align:right;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere;min-width:3.5rem}td:first-child{min-width:6rem}
pre{margin:.4rem 0;padding:.6rem .8rem;background:var(--block);border-radius:6px;white-space:pre-wrap;
 overflow-wrap:anywhere;font:13.5px/1.5 ui-monospace,monospace}
.step{border-left:3px solid var(--line);padding:.1rem 0 .1rem .9rem;margin:1rem 0}
.step.call{border-color:var(--link)}.step.tool{border-color:var(--good)}.step.tool.failed{border-color:var(--bad)}
.step.turn{border-color:var(--key)}
.facts{font-size:.87rem;color:var(--quiet);overflow-wrap:anywhere}
.back{font-size:.87rem}
.mark{display:inline-block;border:1px solid;border-radius:4px;padding:0 .35em;font-size:.85em;white-space:nowrap;
 margin:0 .15em .1em 0}
.char{border:1px solid var(--warn);color:var(--warn);border-radius:3px;font:11px ui-monospace,monospace;padding:0 .2em}
details{margin:.3rem 0}summary{cursor:pointer;color:var(--quiet);font-size:.9rem}
article{border-top:1px solid var(--line);padding-top:1rem;margin-top:1.4rem}
article:target,details:has(:target)>summary{background:var(--block)}
.tokens{display:flex;flex-wrap:wrap;gap:1px;padding:.4rem 0}
.tokens i{width:.7rem;height:1.1rem;border-radius:2px;background:var(--line)}
.l1{--a:.2}.l2{--a:.36}.l3{--a:.52}.l4{--a:.7}.l5{--a:.95}
.tokens i[class]{background:rgba(var(--shade),var(--a))}
.k{color:var(--key)}.s{color:var(--string)}.n{color:var(--number)}.c{color:var(--quiet);font-style:italic}
.wide{overflow-x:auto;margin:.75rem 0}.wide>table{margin:0}
@media (max-width:640px){dl>div{grid-template-columns:1fr;gap:0}
 :not(.wide)>table>thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
 :not(.wide)>table,:not(.wide)>table>tbody{display:block}
 :not(.wide)>table tr{display:block;border-bottom:1px solid var(--line);padding:.4rem 0}
 :not(.wide)>table td{display:inline-block;min-width:0;border:0;padding:0 .9rem 0 0;text-align:left}
 :not(.wide)>table td[data-name]::before{content:attr(data-name) " ";color:var(--quiet);font-size:.85rem}}
"""


def document(title: str, *inside: object, style: str = "") -> Html:
    """Whole HTML file, without scripts and fetched resources. Its content security policy forbids
    both.

    `style`: CSS of the page in addition to `PAGE_STYLE`.
    """
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action"
        " 'none'"
    )
    head = [
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", Html(_attribute(title))),
        element("style", Html(PAGE_STYLE + style)),
    ]
    body = element("main", *inside)
    return Html(
        "<!doctype"
        f" html>\n{element('html', element('head', *head), element('body', body), lang='en')}\n"
    )
