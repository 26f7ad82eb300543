"""Page of one trajectory: its facts and judgements first, then its steps in order."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from hrm_agent.basics.markup import Html, cut, document, element, join, pairs, table
from hrm_agent.pages.code import code_block
from hrm_agent.trajectory import (
    Call,
    Overlay,
    Scoring,
    ToolCall,
    ToolStatus,
    Trajectory,
    Turn,
    Verdict,
)
from hrm_agent.trajectory.words import (
    call_facts,
    code_of,
    credited,
    header_facts,
    in_order,
    judged,
    penalty_lines,
    score_text,
    scoring_text,
    text_of,
    thoughts_of,
    tool_call_facts,
)

__all__ = [
    "anchor",
    "article",
    "fact",
    "outcome_mark",
    "tool_strip",
    "trajectory_page",
    "verdict_mark",
]

_LONG = 1_500
"""Number of characters from which a text is folded."""
_TOKENS_SHOWN = 2_000
_STRIP_SHOWN = 24
_SHADES = (-0.1, -0.7, -1.6, -3.0, -4.6)
"""Log-probs below which a token is shaded darker: probabilities of about 0.9, 0.5, 0.2, 0.05 and
0.01.
"""
_VERDICTS = {Verdict.KEPT: "good", Verdict.DROPPED: "quiet", Verdict.GROUP_REJECTED: "warn"}


def trajectory_page(
    trajectory: Trajectory, overlays: Sequence[Overlay] = (), scorings: Sequence[Scoring] = ()
) -> str:
    """HTML file of a trajectory. `overlays`, `scorings`: judgements by training runs and
    rubrics.
    """
    return document(
        f"{trajectory.task.id} · {trajectory.id}",
        element("h1", "Trajectory ", trajectory.id),
        article(trajectory, overlays, scorings),
    )


def anchor(*names: str) -> str:
    """Anchor of a link within the file, for ids of any characters."""
    return "-".join(quote(name, safe="", errors="replace") for name in names)


def article(
    trajectory: Trajectory, overlays: Sequence[Overlay] = (), scorings: Sequence[Scoring] = ()
) -> Html:
    """Trajectory as a part of a page, with the anchor `#ID`."""
    return element(
        "article",
        _facts(trajectory),
        _judgements(overlays, scorings),
        _roles(trajectory),
        element("h2", "What happened"),
        *_steps(trajectory, credited(trajectory, overlays)),
        id=anchor(trajectory.id),
        aria_label=f"trajectory {trajectory.id}",
    )


def _facts(trajectory: Trajectory) -> Html:
    facts = [(name, fact(value)) for name, value in header_facts(trajectory)]
    reference = trajectory.task.answer
    at = next((place for place, (name, _) in enumerate(facts) if name == "answer"), len(facts) - 1)
    facts[at + 1 : at + 1] = [("reference", fact(reference))]
    return pairs(facts)


def _judgements(overlays: Sequence[Overlay], scorings: Sequence[Scoring]) -> Html | None:
    if not overlays and not scorings:
        return None
    said: list[Html] = []
    for overlay in overlays:
        where = f"step {overlay.step + 1} of {overlay.run_id}: {judged(overlay)}: {overlay.reason}"
        by_role = [element("li", line) for line in penalty_lines(overlay)]
        said.append(element("p", where))
        said += [element("ul", *by_role)] if by_role else []
    for scoring in scorings:
        parts = [element("li", cut(score_text(score))) for score in scoring.scores]
        said.append(element("p", scoring_text(scoring)))
        said += [element("ul", *parts)] if parts else []
    return join(element("h2", "What was made of it"), *said)


def verdict_mark(overlay: Overlay) -> Html:
    """Verdict in a word."""
    return element(
        "span", overlay.verdict.value.replace("_", " "), class_=f"mark {_VERDICTS[overlay.verdict]}"
    )


def outcome_mark(status: ToolStatus | None, **attributes: object) -> Html:
    """Outcome of a tool call in a word."""
    look = {ToolStatus.OK: "good", None: "quiet", ToolStatus.INFRASTRUCTURE: "warn"}.get(
        status, "bad"
    )
    name = attributes.pop("name", "span")
    return element(
        str(name), status.value if status else "under way", class_=f"mark {look}", **attributes
    )


def tool_strip(trajectory: Trajectory) -> Html:
    """Outcomes of the tool calls in order, each a link to its call."""
    calls = trajectory.own_tool_calls
    shown = [
        outcome_mark(
            call.status, name="a", href=f"#{anchor(trajectory.id, call.id)}", title=call.name
        )
        for call in calls[:_STRIP_SHOWN]
    ]
    more = f" and {len(calls) - _STRIP_SHOWN} more" if len(calls) > _STRIP_SHOWN else None
    return join(*shown, more)


def _roles(trajectory: Trajectory) -> Html | None:
    """Table of calls and tokens by role (None for a single role)."""
    calls = Counter(call.identity.role for call in trajectory.own_calls)
    tokens, tools = (
        Counter[str](),
        Counter(call.identity.role for call in trajectory.own_tool_calls),
    )
    for call in trajectory.own_calls:
        tokens[call.identity.role] += (call.used and call.used.output_tokens) or 0
    names = list(dict.fromkeys([*calls, *tools]))
    if len(calls) < 2:
        return None
    rows = [(name, calls[name], tokens[name], tools[name]) for name in names]
    columns = ("role", "model calls", "completion tokens", "tool calls")
    return join(element("h2", "Roles"), table(columns, rows))


def _steps(trajectory: Trajectory, credit: Mapping[str, str]) -> Iterator[Html]:
    numbers = {turn.id: number for number, turn in enumerate(trajectory.turns, start=2)}
    outcomes = {call.tool_call_id: call for call in trajectory.tool_calls}
    for record in in_order(trajectory):
        place = anchor(trajectory.id, record.id)
        if isinstance(record, Turn):
            head = element("h3", f"turn {numbers[record.id]}")
            yield element("section", head, folded(record.prompt), class_="step turn", id=place)
        elif isinstance(record, Call):
            yield _call(trajectory, record, credit.get(record.id), outcomes, place)
        else:
            yield _tool_call(record, place)


def _place(record: Call | ToolCall) -> str:
    """Role, and the node within it if that differs."""
    identity = record.identity
    return (
        identity.role
        if identity.node in ("", identity.role)
        else f"{identity.role} / {identity.node}"
    )


def _call(
    trajectory: Trajectory,
    call: Call,
    credit: str | None,
    outcomes: Mapping[str, ToolCall],
    place: str,
) -> Html:
    facts = [*call_facts(call), *([credit] if credit else [])]
    parts: list[object] = [
        element("h3", _place(call), " ", element("span", call.id[:8], class_="quiet"))
    ]
    parts.append(element("p", ", ".join(facts), class_="facts"))
    parts.append(_thoughts(call))
    text = text_of(call.response).strip()
    parts.append(folded(text) if text else None)
    for asked in call.response.get("tool_calls", ()):
        outcome = outcomes.get(asked.get("id"))
        link = f"#{anchor(trajectory.id, outcome.id)}" if outcome else None
        mark = outcome_mark(outcome.status, name="a", href=link) if outcome else None
        parts += [
            element("p", "calls ", element("b", asked.get("name")), " ", mark),
            _asked(asked.get("args")),
        ]
    for asked in call.response.get("invalid_tool_calls", ()):
        parts.append(element("p", f"undecodable call: {asked.get('error')}", class_="bad"))
    parts.append(_tokens(call))
    return element("section", *parts, class_="step call", id=place)


def _thoughts(call: Call) -> Html | None:
    """Thoughts of the model in a block that is closed at first (None without thoughts)."""
    thoughts = (thoughts_of(call.response) or "").strip()
    summary = element("summary", f"Thoughts, {len(thoughts):,} characters")
    return element("details", summary, element("pre", cut(thoughts))) if thoughts else None


def _asked(arguments: Any) -> Html:
    if isinstance(arguments, dict) and not isinstance(arguments.get("code"), str):
        return code_block(json.dumps(arguments, ensure_ascii=False, indent=1, default=str), "json")
    return code_block(code_of(arguments))


def _tool_call(call: ToolCall, place: str) -> Html:
    failed = call.status is not None and call.status is not ToolStatus.OK
    head = element(
        "h3",
        call.name,
        " ",
        element("span", call.id[:8], class_="quiet"),
        " ",
        outcome_mark(call.status),
    )
    facts = element("p", f"{_place(call)}: {tool_call_facts(call)}", class_="facts")
    more = [
        (name, text)
        for name, text in (("stdout", call.stdout), ("stderr", call.stderr), ("value", call.value))
        if text
    ]
    others = [
        element(
            "details",
            element("summary", f"{name}, {len(text):,} characters"),
            element("pre", cut(text)),
        )
        for name, text in more
        if text.strip() != call.content.strip()
    ]
    shown = (
        folded(call.content) if call.content.strip() else element("p", "no output", class_="quiet")
    )
    return element(
        "section",
        head,
        facts,
        shown,
        *others,
        class_=f"step tool{' failed' if failed else ''}",
        id=place,
    )


def fact(value: object) -> Html | None:
    """Value beside its name: a short text as it is, a long one folded."""
    text = "" if value is None else str(value)
    return (join(text) if len(text) <= _LONG else folded(text)) if text else None


def folded(text: str) -> Html:
    """Text in a block. A long one is folded behind its first line."""
    block = element("pre", cut(text))
    if len(text) <= _LONG:
        return block
    first = " ".join(text[:400].split())[:100]
    return element("details", element("summary", f"{first} … ({len(text):,} characters)"), block)


def _tokens(call: Call) -> Html | None:
    """Strip with a mark for each sampled token (None without any): the less probable the token, the
    stronger the mark.
    """
    sampled = [
        (token, p)
        for token, p, own in zip(call.token_ids, call.logprobs, call.mask, strict=False)
        if own
    ]
    if not sampled:
        return None
    lowest = min(range(len(sampled)), key=lambda place: sampled[place][1])
    told = (
        f"{len(sampled)} completion tokens, the least probable is number {lowest + 1}:"
        f" {sampled[lowest][1]:.3f}"
    )
    marks = [_token(number, *pair) for number, pair in enumerate(sampled[:_TOKENS_SHOWN], 1)]
    more = f"The first {_TOKENS_SHOWN:,}; " if len(sampled) > _TOKENS_SHOWN else ""
    legend = element(
        "p",
        f"{more}the stronger a mark, the less probable its token. Log-prob"
        f" ({call.logprob_kind.value}): {told}.",
        class_="quiet",
    )
    strip = element("div", *marks, class_="tokens", role="img", aria_label=told)
    return element(
        "details", element("summary", f"{len(sampled)} tokens by log-prob"), strip, legend
    )


def _token(number: int, token: int, logprob: float) -> Html:
    shade = sum(logprob < limit for limit in _SHADES)
    if not shade:
        return element("i")
    return element("i", class_=f"l{shade}", title=f"number {number}, token {token}, {logprob:.3f}")
