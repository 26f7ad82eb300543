"""Classes of errors, lengths, and what selection changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from hrm_agent.training.analysis.facts import (
    RolloutFacts,
    error_class,
    error_classes,
    length_bins,
    mean_tokens,
)
from hrm_agent.training.analysis.selection import drop_rows, selected_shares


@pytest.mark.parametrize(
    ("stderr", "name"),
    [
        (
            "  File \"<snippet>\", line 1\n    (1\n    ^\nSyntaxError: '(' was never closed\n",
            "SyntaxError",
        ),
        ("Traceback ...\njson.decoder.JSONDecodeError: Expecting value\n\n", "JSONDecodeError"),
        ("AssertionError", "AssertionError"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("mine.Odd: no", "Odd"),
        ("it went wrong", "no exception named"),
        ("", "no exception named"),
        ("x" * 200 + ": y", "no exception named"),
        ("<script>alert(1)</script>: x", "no exception named"),
    ],
)
def test_the_class_is_read_from_the_last_line(stderr: str, name: str) -> None:
    assert error_class(stderr) == name


def facts(tokens: int | None, *, correct: bool, **changes: Any) -> RolloutFacts:
    given: dict[str, Any] = {
        "part": "step 1",
        "step": 1,
        "scored": True,
        "statuses": Counter(),
        "errors": Counter(),
        "failed": False,
        "penalty_format": 0.0,
        "padding": 0,
        "verdict": None,
        "drop_reason": None,
        "error_examples": (),
    }
    return RolloutFacts(tokens=tokens, correct=correct, **given | changes)


def test_lengths_of_equal_size_are_in_one_bin() -> None:
    found = (
        [facts(30, correct=True)] * 6
        + [facts(5, correct=False)] * 3
        + [facts(n, correct=n > 50) for n in (40, 60)]
    )
    found += [facts(None, correct=True), facts(7, correct=True, scored=False)]
    bins = length_bins(found, 4)
    assert [(each.least, each.most, each.rollouts, each.accuracy) for each in bins] == [
        (5, 5, 3, 0.0),
        (30, 30, 6, 1.0),
        (40, 60, 2, 0.5),
    ]
    assert all(low <= each.accuracy <= high for each in bins for low, high in [each.interval])
    scored = [each for each in found if each.scored]
    assert mean_tokens(scored, correct=True) == pytest.approx((30 * 6 + 60) / 7)
    assert mean_tokens(scored, correct=False) == pytest.approx((15 + 40) / 4)
    assert length_bins([]) == []


def test_what_was_kept_is_held_against_its_own_groups() -> None:
    found = [
        facts(10, correct=True, verdict="kept"),
        facts(20, correct=True, verdict="dropped", drop_reason="not_drawn", failed=True),
        facts(30, correct=False, verdict="kept", failed=True),
        facts(40, correct=True, verdict="group_rejected", drop_reason="equal_rewards"),
        facts(50, correct=True, verdict="group_rejected", drop_reason="equal_rewards"),
        facts(60, correct=True),
    ]
    shares = {
        each.measure: (each.all, each.in_groups, each.kept) for each in selected_shares(found)
    }
    assert shares["rollouts"] == (5, 3, 2)
    assert shares["correct"] == (0.8, pytest.approx(2 / 3), 0.5)
    assert shares["tool error, among the correct"] == (0.25, 0.5, 0.0)
    assert shares["tool error, among the wrong"] == (1.0, 1.0, 1.0)
    drops = [(row.reason, row.rollouts, row.correct) for row in drop_rows(found)]
    assert drops == [("equal_rewards", 2, 2), ("not_drawn", 1, 1)]
    assert selected_shares(found[-1:]) == [] and drop_rows(found[-1:]) == []


def test_classes_are_counted_by_call_and_by_correct_rollout() -> None:
    def erred(*lines: str, correct: bool) -> RolloutFacts:
        named = tuple((error_class(line), line) for line in lines)
        return facts(
            1, correct=correct, errors=Counter(name for name, _ in named), error_examples=named
        )

    found = error_classes(
        [erred("A: 1", "A: 2", correct=True), erred("A: 2", "B: 3", correct=False)]
    )
    assert [(each.name, each.calls, each.correct_rollouts, each.example) for each in found] == [
        ("A", 3, 1, "A: 2"),
        ("B", 1, 0, "B: 3"),
    ]
