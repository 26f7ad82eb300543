"""Analysis as one page without scripts or external resources: pictures and style are embedded."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hrm_agent.basics.markup import Html, document, element, join, scrolled, table
from hrm_agent.training.analysis.forking import TokenExample, TokenRow
from hrm_agent.training.analysis.pictures import PICTURES
from hrm_agent.training.analysis.reflection import ReflectionReport
from hrm_agent.training.analysis.report import AnalysisReport, MarkedCall, TokenReport
from hrm_agent.training.analysis.tables import (
    Columns,
    error_class_table,
    length_table,
    reflection_table,
    selection_table,
    step_tables,
    weights_table,
)

__all__ = ["page"]

_TEXTS = 6
"""Number of rollouts whose text is shown, both of those with a failed tool call and of the others.
"""
_ROWS = 12
"""Number of tokens in a table before the rest is folded."""
_AROUND = 48
"""Number of context characters in a table."""
_LEVELS = 8
AFTER = {
    "error": "after a tool error",
    "ok": "after a tool response without error",
    "none": "after no tool response",
}
_TOKEN_COLUMNS = (
    "token",
    "count",
    "share",
    "mean nats",
    "of all its places",
    "where its entropy is highest",
)

_STYLE = """
:root{--heat:209,99,11}@media (prefers-color-scheme:dark){:root{--heat:170,75,0}}
p{max-width:75ch}h3{margin:1.4rem 0 .3rem}
.wide caption{color:inherit;font-weight:600;white-space:nowrap}.wide th{white-space:normal}
picture img{width:100%;min-width:640px;max-width:1100px;height:auto;display:block}
.wide code{font:.86rem/1.6 ui-monospace,monospace;background:var(--block);border-radius:3px;padding:.05rem .25rem;
 white-space:pre-wrap;overflow-wrap:anywhere}
.wide td:last-child code{display:inline-block;min-width:20rem}
mark{background:rgba(var(--heat),.35);color:inherit}
.f{text-decoration:underline;text-underline-offset:3px}.r{text-decoration:underline double;text-underline-offset:3px}
""" + "".join(
    f".e{level}{{background:rgba(var(--heat),.{level}0)}}" for level in range(1, _LEVELS + 1)
)


def page(
    report: AnalysisReport,
    marked: Sequence[MarkedCall],
    light: dict[str, bytes],
    dark: dict[str, bytes],
) -> str:
    """Render the page. `light` and `dark`: PNG files by name of their picture."""
    alts = {each.name: each.alt for each in PICTURES}

    def shows(name: str) -> Html | None:
        return _picture(alts[name], light[name], dark.get(name)) if name in light else None

    parts = _told(report)
    if report.tokens is not None:
        parts += [_entropy(report.tokens, report.run, shows("entropy"))]
        parts += [_reflection(report.tokens, shows("reflection"))]
        parts += [_texts(report.tokens, marked)]
    if report.error_classes or "tool-errors" in light:
        parts += [_section("Tool errors", shows("tool-errors"), _table(error_class_table(report)))]
    if report.length_bins:
        parts += [_section("Length and accuracy", shows("lengths"), _table(length_table(report)))]
    if report.selection:
        parts += [
            _section(
                "What selection changed", shows("selection"), *map(_table, selection_table(report))
            )
        ]
    parts += [
        _section(
            "Step by step", *(_folded(each.title, _table(each)) for each in step_tables(report))
        )
    ]
    title = f"Analysis of {report.run}"
    return document(
        title, element("h1", "Analysis of ", element("bdi", report.run)), *parts, style=_STYLE
    )


def _told(report: AnalysisReport) -> list[Html]:
    """Summary of analysed, missing and left-out data."""
    lines = [f"{report.rollouts:,} rollouts."]
    if (tokens := report.tokens) is not None:
        lines[0] = (
            f"{report.rollouts:,} rollouts. Entropy of {tokens.tokens:,} completion tokens in"
            f" {tokens.calls:,} calls of {tokens.rollouts:,} of them: at most {tokens.limit} a part"
            f" of the run, drawn by seed {tokens.seed}."
        )
    lines += [f"Missing: {name}, because {why}." for name, why in report.missing.items()]
    lines += [f"Left out: {count:,} ({why})." for why, count in report.left_out.items()]
    return [element("p", line) for line in lines]


def _section(title: str, *inside: Html | None) -> Html:
    name = re.sub(r"\W+", "-", title.lower())
    return element("section", element("h2", title, id=name), *inside, aria_labelledby=name)


def _folded(summary: str, *inside: Html) -> Html:
    return element("details", element("summary", summary), *inside)


def _table(found: Columns) -> Html:
    return scrolled(found.title, table(found.columns, found.rows, found.title))


def _picture(alt: str, light: bytes, dark: bytes | None) -> Html:
    """Embedded picture, light or dark by the reader's colour scheme."""
    source = (
        element("source", media="(prefers-color-scheme: dark)", srcset=_data(dark))
        if dark is not None
        else None
    )
    return scrolled(alt, element("picture", source, element("img", src=_data(light), alt=alt)))


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _whole(text: str) -> str:
    """Text of a token with escape characters shown, since a terminal command is part of the
    token.
    """
    return text.replace("\x1b", "␛")


def _alone(text: str) -> Html:
    """Single token with visible spaces and line feeds."""
    marked = _whole(text).replace("\n", "⏎").replace("\t", "⇥")
    spaces = re.sub("^ +| +$", lambda found: "␣" * len(found[0]), marked)
    return element("code", element("bdi", spaces))


def _entropy(tokens: TokenReport, run: str, image: Html | None) -> Html:
    told = (
        "In nats, over the whole vocabulary, at the temperature of the call. Forking tokens are the"
        f" {tokens.share:.0%} of highest entropy: those above {tokens.threshold:.4g} nats. Mean"
        f" {tokens.mean_entropy:.3f}; {_quantiles(tokens.quantiles)}."
    )
    return _section(
        "Entropy and forking tokens",
        element("p", told),
        image,
        _table(weights_table(tokens, run)),
        _tokens("forking tokens by text", tokens.forking),
    )


def _quantiles(found: Mapping[str, float]) -> str:
    return ", ".join(
        f"{float(q):.0%} of the tokens are below {value:.3g}" for q, value in found.items()
    )


def _reflection(tokens: TokenReport, image: Html | None) -> Html:
    told = (
        f"The first {tokens.window} completion tokens of a call that begins after a tool response;"
        " of them those above the same threshold are reflection tokens."
    )
    tables = [
        _tokens(f"reflection tokens {AFTER[each.after]}", each.rows)
        for each in _after_tools(tokens)
    ]
    return _section(
        "Reflection after tool responses",
        element("p", told),
        image,
        _table(reflection_table(tokens)),
        *tables,
    )


def _after_tools(tokens: TokenReport) -> list[ReflectionReport]:
    return [each for each in tokens.reflection if each.after != "none" and each.rows]


def _tokens(title: str, rows: Sequence[TokenRow]) -> Html:
    first = _table(Columns(title, _TOKEN_COLUMNS, [_token_row(row) for row in rows[:_ROWS]]))
    if len(rows) <= _ROWS:
        return first
    others = Columns(
        f"{title}, from the {_ROWS + 1}th on",
        _TOKEN_COLUMNS,
        [_token_row(row) for row in rows[_ROWS:]],
    )
    return join(first, _folded(f"{len(rows) - _ROWS} further tokens", _table(others)))


def _token_row(row: TokenRow) -> list[Any]:
    of_all = f"{row.count / max(1, row.occurrences):.0%}"
    examples = [part for each in row.examples for part in (element("br"), _example(each))]
    return [_alone(row.text), row.count, row.share, row.mean_entropy, of_all, join(*examples[1:])]


def _example(found: TokenExample) -> Html:
    told = f"{found.entropy:.3f} nats, call {found.call_id[:8]}, token {found.index}"
    before, text, after = (
        _whole(each).replace("\n", "⏎")
        for each in (found.before[-_AROUND:], found.text, found.after[:_AROUND])
    )
    return element("code", element("bdi", before, element("mark", text), after), title=told)


def _texts(tokens: TokenReport, marked: Sequence[MarkedCall]) -> Html:
    by_rollout = [
        list(calls) for _, calls in groupby(marked, key=lambda each: each.call.trajectory_id)
    ]
    erred = [calls for calls in by_rollout if any(each.call.after == "error" for each in calls)]
    others = [calls for calls in by_rollout if calls not in erred]
    scale = max(tokens.quantiles["0.99"], 1e-6)
    told = (
        "The stronger its colour, the higher the entropy of a token; at full strength it has"
        f" {scale:.2g} nats or more. Forking tokens are underlined once, reflection tokens twice."
        " Grey: prompt tokens, which the policy did not sample."
    )
    shown_calls = [_rollout(calls, scale) for calls in (*_spread(erred), *_spread(others))]
    return _section("Tokens in their text", element("p", told), *shown_calls)


def _spread(rollouts: Sequence[Sequence[MarkedCall]]) -> list[Sequence[MarkedCall]]:
    """Choose a few rollouts spread over the whole run."""
    count = min(_TEXTS, len(rollouts))
    return [rollouts[number * len(rollouts) // count] for number in range(count)]


def _rollout(calls: Sequence[MarkedCall], scale: float) -> Html:
    parts = [element("h3", "Trajectory ", element("bdi", calls[0].call.trajectory_id))]
    for each in calls:
        begin = int(each.call.sampled[0]) if len(each.call.sampled) else len(each.texts)
        prompt = element("bdi", _whole("".join(each.texts[:begin])), class_="quiet")
        parts += [
            element(
                "p",
                "call ",
                element("bdi", each.call.call_id[:8]),
                f", {AFTER[each.call.after]}",
                class_="quiet",
            ),
            _folded(f"{begin} prompt tokens", element("pre", prompt)),
            element("pre", element("bdi", *_sampled(each, scale, begin))),
        ]
    return join(*parts)


def _sampled(each: MarkedCall, scale: float, begin: int) -> Iterator[Html]:
    forking, reflection = set(each.forking), set(each.reflection)
    for place in range(begin, len(each.texts)):
        text, entropy = _whole(each.texts[place]), float(each.call.entropies[place])
        if math.isnan(entropy):  # a prompt token
            yield element("span", text, class_="quiet")
            continue
        level = min(_LEVELS, round(_LEVELS * entropy / scale))
        classes = [f"e{level}"] * (level > 0) + ["r" if place in reflection else "f"] * (
            place in forking
        )
        yield element("span", text, class_=" ".join(classes) or None, title=f"{entropy:.3f} nats")
