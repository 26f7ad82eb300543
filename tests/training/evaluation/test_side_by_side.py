"""Several evaluations side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hrm_agent.errors import RunError
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.reports import side_by_side_markdown
from hrm_agent.training.evaluation.samples import Sample, samples_of
from hrm_agent.training.evaluation.side_by_side import (
    differing_rows,
    holm,
    letter,
    side_by_side,
    side_by_side_lines,
    side_by_side_rows,
)
from hrm_agent.trajectory import TaskRef
from tests.support.training.builders import trajectory


def samples(right: str, first: int = 0) -> list[Sample]:
    """One sample of each problem; `1` for right. The first problem is `first`."""
    made = [
        trajectory(
            0,
            float(flag),
            id=f"{n}",
            thread_id=f"{n}",
            group_id=f"g{n}",
            task=TaskRef(id=f"{n:02}", family="f", prompt=f"p{n}"),
        )
        for n, flag in enumerate(right, first)
    ]
    return samples_of(made)


def test_each_is_compared_with_the_first_on_the_problems_of_all() -> None:
    a = samples("1100110010")
    b = samples("1111110011")
    c = samples("11001100", first=2)
    found = side_by_side([a, b, c], ["a", "b", "c"])
    assert found.problems == 8
    assert [each.left_out for each in found.evaluations] == [2, 2, 0]
    shared = [[s for s in each if int(s.problem.id) >= 2] for each in (a, b)]
    pair = compare(shared[0], shared[1], ("a", "b"))
    row = found.evaluations[1]
    assert (row.difference, row.p_value, row.better) == (pair.difference, pair.p_value, 3)
    assert found.evaluations[0].difference is None
    # problems that divide the three evenly come before those on which one differs, and equal
    # ones are left out
    shares = {each.id: each.right for each in found.differing}
    assert shares == {
        "02": (0, 1, 1),
        "03": (0, 1, 1),
        "04": (1, 1, 0),
        "05": (1, 1, 0),
        "06": (0, 0, 1),
        "07": (0, 0, 1),
        "08": (1, 1, 0),
        "09": (0, 1, 0),
    }


def test_the_most_informative_problems_come_first() -> None:
    given = [samples(text) for text in ("1101", "1001", "1000", "1010")]
    found = side_by_side(given, list("abcd"), prompts={})
    assert [each.id for each in found.differing] == ["03", "01", "02"]
    assert found.differing[0].right == (1, 1, 0, 0)
    columns, rows = differing_rows(found)
    assert columns == ["problem", "prompt", "A", "B", "C", "D"]
    assert list(rows[0]) == ["03", "", "right", "right", "wrong", "wrong"]
    columns, rows = side_by_side_rows(found)
    assert len(rows) == 4 and all(len(row) == len(columns) for row in rows)
    assert "## Problems that differ" in side_by_side_markdown(found)


def test_holms_correction() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0]
    assert [letter(n) for n in (0, 25, 26)] == ["A", "Z", "A1"]
    few = side_by_side(
        [samples("0" * 8), samples("0" * 2 + "1" * 6), samples("0" * 8)], list("abc")
    )
    assert few.evaluations[1].p_value == pytest.approx(2 / 2**6)
    assert few.evaluations[1].corrected_p_value == pytest.approx(4 / 2**6)
    assert not few.evaluations[1].certain


def test_evaluations_without_a_common_problem_are_refused() -> None:
    with pytest.raises(RunError, match="a, b and c have no problem that is in all of them"):
        side_by_side([samples("1"), samples("1"), samples("1", first=5)], list("abc"))


def test_different_rewards_of_one_answer_are_reported() -> None:
    a, b = ([replace(s, answer_key="42") for s in samples(right)] for right in ("110", "100"))
    found = side_by_side([a, b, a], list("abc"))
    assert found.scored_apart == 1
    assert any("scored by different rewards" in line for line in side_by_side_lines(found))
    other = [replace(s, answer_key=f"{s.correct}") for s in b]
    assert compare(a, other, ("a", "b")).scored_apart == 0
