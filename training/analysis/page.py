"""The analysis as one page: no script, nothing loaded, pictures and style inside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from hrm_agent.training.analysis.forking import TokenExample, TokenRow
from hrm_agent.training.analysis.markup import Markup, document, folded, picture, section, shown, table, token
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
"""Rollouts whose text is shown, of those with a failed tool call and of the others."""
_ROWS = 12
"""Tokens of a table that are shown at once."""
_AROUND = 48
"""Characters of context in a table."""
_LEVELS = 8
AFTER = {"error": "after a tool error", "ok": "after a tool response without error", "none": "after no tool response"}
_TOKEN_COLUMNS = ("token", "count", "share", "mean nats", "of all its places", "where its entropy is highest")

Pictures = Mapping[str, bytes]


def page(report: AnalysisReport, marked: Sequence[MarkedCall], light: dict[str, bytes], dark: dict[str, bytes]) -> str:
    """The page; `light` and `dark`: PNG files by name of their picture."""
    alts = {each.name: each.alt for each in PICTURES}

    def shows(name: str) -> Markup:
        return picture(name, alts[name], light, dark)

    parts = [Markup(f"<h1>Analysis of <bdi>{shown(report.run)}</bdi></h1>"), _told(report)]
    if report.tokens is not None:
        parts += [_entropy(report.tokens, report.run, shows("entropy"))]
        parts += [_reflection(report.tokens, shows("reflection"))]
        parts += [_texts(report.tokens, marked)]
    if report.error_classes or "tool-errors" in light:
        parts += [_section("Tool errors", shows("tool-errors"), [error_class_table(report)])]
    if report.length_bins:
        parts += [_section("Length and accuracy", shows("lengths"), [length_table(report)])]
    if report.selection:
        parts += [_section("What selection changed", shows("selection"), selection_table(report))]
    parts += [section("Step by step", *(folded(each.title, _table(each)) for each in step_tables(report)))]
    return document(f"Analysis of {report.run}", *parts)


def _told(report: AnalysisReport) -> Markup:
    """What was looked at, and what could not be."""
    lines = [f"{report.rollouts:,} rollouts."]
    if (tokens := report.tokens) is not None:
        lines[0] = (
            f"{report.rollouts:,} rollouts. Entropy of {tokens.tokens:,} completion tokens in {tokens.calls:,} calls of"
            f" {tokens.rollouts:,} of them: at most {tokens.limit} a part of the run, drawn by seed {tokens.seed}."
        )
    lines += [f"Missing: {name}, because {why}." for name, why in report.missing.items()]
    lines += [f"Left out: {count:,} ({why})." for why, count in report.left_out.items()]
    return Markup("".join(f"<p>{shown(line)}</p>" for line in lines))


def _section(title: str, image: Markup, tables: Iterable[Columns]) -> Markup:
    return section(title, image, *map(_table, tables))


def _table(found: Columns) -> Markup:
    return table(found.title, found.columns, found.rows)


def _entropy(tokens: TokenReport, run: str, image: Markup) -> Markup:
    told = (
        "In nats, over the whole vocabulary, at the temperature of the call. Forking tokens are the"
        f" {tokens.share:.0%} of highest entropy: those above {tokens.threshold:.4g} nats. Mean"
        f" {tokens.mean_entropy:.3f}; {_quantiles(tokens.quantiles)}."
    )
    return section(
        "Entropy and forking tokens",
        Markup(f"<p>{shown(told)}</p>"),
        image,
        _table(weights_table(tokens, run)),
        _tokens("forking tokens by text", tokens.forking),
    )


def _quantiles(found: Mapping[str, float]) -> str:
    return ", ".join(f"{float(q):.0%} of the tokens are below {value:.3g}" for q, value in found.items())


def _reflection(tokens: TokenReport, image: Markup) -> Markup:
    told = (
        f"The first {tokens.window} completion tokens of a call that begins after a tool response; of them those above"
        " the same threshold are reflection tokens."
    )
    tables = [_tokens(f"reflection tokens {AFTER[each.after]}", each.rows) for each in _after_tools(tokens)]
    return section(
        "Reflection after tool responses",
        Markup(f"<p>{shown(told)}</p>"),
        image,
        _table(reflection_table(tokens)),
        *tables,
    )


def _after_tools(tokens: TokenReport) -> list[ReflectionReport]:
    return [each for each in tokens.reflection if each.after != "none" and each.rows]


def _tokens(title: str, rows: Sequence[TokenRow]) -> Markup:
    first = table(title, _TOKEN_COLUMNS, [_token_row(row) for row in rows[:_ROWS]])
    if len(rows) <= _ROWS:
        return first
    others = table(f"{title}, from the {_ROWS + 1}th on", _TOKEN_COLUMNS, [_token_row(row) for row in rows[_ROWS:]])
    return Markup(first + folded(f"{len(rows) - _ROWS} further tokens", others))


def _token_row(row: TokenRow) -> list[Any]:
    of_all = f"{row.count / max(1, row.occurrences):.0%}"
    examples = Markup("<br>".join(map(_example, row.examples)))
    return [token(row.text), row.count, row.share, row.mean_entropy, of_all, examples]


def _example(found: TokenExample) -> Markup:
    told = f"{found.entropy:.3f} nats, call {found.call_id[:8]}, token {found.index}"
    before, text, after = (
        each.replace("\n", "⏎") for each in (found.before[-_AROUND:], found.text, found.after[:_AROUND])
    )
    inner = f"{shown(before)}<mark>{shown(text)}</mark>{shown(after)}"
    return Markup(f'<code title="{shown(told)}"><bdi>{inner}</bdi></code>')


def _texts(tokens: TokenReport, marked: Sequence[MarkedCall]) -> Markup:
    by_rollout = [list(calls) for _, calls in groupby(marked, key=lambda each: each.call.trajectory_id)]
    erred = [calls for calls in by_rollout if any(each.call.after == "error" for each in calls)]
    others = [calls for calls in by_rollout if calls not in erred]
    scale = max(tokens.quantiles["0.99"], 1e-6)
    told = (
        "The stronger its colour, the higher the entropy of a token; at full strength it has"
        f" {scale:.2g} nats or more. Forking tokens are underlined once, reflection tokens twice. Grey: prompt tokens,"
        " which the policy did not sample."
    )
    shown_calls = [_rollout(calls, scale) for calls in (*_spread(erred), *_spread(others))]
    return section("Tokens in their text", Markup(f"<p>{shown(told)}</p>"), *shown_calls)


def _spread(rollouts: Sequence[Sequence[MarkedCall]]) -> list[Sequence[MarkedCall]]:
    """A few from all over the run."""
    count = min(_TEXTS, len(rollouts))
    return [rollouts[number * len(rollouts) // count] for number in range(count)]


def _rollout(calls: Sequence[MarkedCall], scale: float) -> Markup:
    parts = [f"<h3>Trajectory <bdi>{shown(calls[0].call.trajectory_id)}</bdi></h3>"]
    for each in calls:
        begin = int(each.call.sampled[0]) if len(each.call.sampled) else len(each.texts)
        prompt = f'<div class="text"><bdi class="p">{shown("".join(each.texts[:begin]))}</bdi></div>'
        sampled = "".join(_sampled(each, scale, begin))
        parts += [
            f'<p class="soft">call <bdi>{shown(each.call.call_id[:8])}</bdi>, {AFTER[each.call.after]}</p>',
            folded(f"{begin} prompt tokens", prompt),
            f'<div class="text"><bdi>{sampled}</bdi></div>',
        ]
    return Markup("".join(parts))


def _sampled(each: MarkedCall, scale: float, begin: int) -> Iterator[str]:
    forking, reflection = set(each.forking), set(each.reflection)
    for place in range(begin, len(each.texts)):
        entropy = float(each.call.entropies[place])
        if math.isnan(entropy):  # a prompt token
            yield f'<span class="p">{shown(each.texts[place])}</span>'
            continue
        level = min(_LEVELS, round(_LEVELS * entropy / scale))
        classes = [f"e{level}"] * (level > 0) + ["r" if place in reflection else "f"] * (place in forking)
        named = f' class="{" ".join(classes)}"' if classes else ""
        yield f'<span{named} title="{entropy:.3f} nats">{shown(each.texts[place])}</span>'
