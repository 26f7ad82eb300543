from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.trajectory import BranchReason, Call
from hrm_agent.trajectory.forest import (
    conversations,
    path_mask,
    path_to,
    path_tokens,
    paths,
    training_roots,
)
from tests.support.training.builders import call, trajectory


@st.composite
def forests(draw: st.DrawFn) -> list[Call]:
    """Calls in any order, each a root or the child of an earlier one."""
    parents = [
        draw(st.one_of(st.none(), st.integers(0, i - 1))) if i else None
        for i in range(draw(st.integers(1, 12)))
    ]
    calls = [
        call(
            str(i),
            parent=None if p is None else str(p),
            token_ids=(i,),
            mask=(True,),
            logprobs=(0.0,),
        )
        for i, p in enumerate(parents)
    ]
    return draw(st.permutations(calls))


def names(calls) -> list[str]:
    return [c.id for c in calls]


def test_the_docstrings_forest():
    calls = [
        call("a1"),
        call("a2", parent="a1"),
        call("a3", parent="a2"),
        call("a3x", parent="a2", sample_index=1),
        call("b1"),
        call("b2", branch_reason=BranchReason.TEMPLATE, branch_of="b1"),
    ]
    assert [names(p) for p in paths(calls)] == [
        ["a1", "a2", "a3"],
        ["a1", "a2", "a3x"],
        ["b1"],
        ["b2"],
    ]
    assert [names(c) for c in conversations(calls)] == [["a1", "a2", "a3", "a3x"], ["b1", "b2"]]
    assert names(path_to(calls, "a2")) == ["a1", "a2"]


def test_training_sequences_begin_with_roots_of_what_is_learned():
    calls = [
        call("a1"),
        call("a2", parent="a1"),
        call("b1", branch_reason=BranchReason.TEMPLATE, branch_of="a2"),
        call("b2", parent="b1"),
        call("b2x", parent="b1", sample_index=1),
        call("c1", untrainable="a schema chose among the tokens"),
        call("d2", parent="in another store"),
    ]
    assert names(training_roots(trajectory(calls=tuple(calls)))) == ["a1", "b1", "d2"]


@given(forests())
def test_paths_cover_every_call_and_end_at_leaves(calls):
    found = paths(calls)
    assert {c.id for path in found for c in path} == {c.id for c in calls}
    parents = {c.parent for c in calls}
    assert sorted(path[-1].id for path in found) == sorted(
        c.id for c in calls if c.id not in parents
    )
    for path in found:
        assert path[0].parent is None
        assert [c.parent for c in path[1:]] == [c.id for c in path[:-1]]


@given(forests())
def test_path_tokens_are_the_deltas_in_order(calls):
    for path in paths(calls):
        assert path_tokens(path) == tuple(int(c.id) for c in path)
        assert len(path_mask(path)) == len(path_tokens(path))


@given(forests())
def test_conversations_partition_the_calls(calls):
    grouped = [c.id for conversation in conversations(calls) for c in conversation]
    assert sorted(grouped) == sorted(names(calls))
    assert len(conversations(calls)) == sum(c.parent is None for c in calls)


def test_no_calls_no_paths():
    assert paths([]) == []
    assert conversations([]) == []


@pytest.mark.parametrize(
    "calls",
    [
        [call("a", parent="gone")],
        [call("a", parent="b"), call("b", parent="a")],
        [call("a", parent="b"), call("b", parent="a"), call("c", parent="b")],
    ],
)
def test_undefined_paths_are_refused(calls):
    with pytest.raises(ValueError, match=r"circle|itself|not in the trajectory"):
        paths(calls)


def test_a_circle_of_broken_conversations_is_refused():
    calls = [call("a", branch_of="b"), call("b", branch_of="a")]
    with pytest.raises(ValueError, match="continues itself"):
        conversations(calls)
