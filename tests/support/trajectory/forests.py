"""Random valid forests of calls, and the tokens that a trainer learns from a trajectory."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st

from hrm_agent.trajectory import BranchReason, Call, ForkRef, LogprobKind, Sampling, Trajectory
from hrm_agent.trajectory.forest import path_to, path_tokens
from tests.support.trajectory.samples import THREAD, identity, make_call, make_trajectory

Learned = tuple[tuple[int, ...], int, float]
"""Learned token as (tokens before it, token, log-prob)."""

tokens = st.integers(0, 2**31 - 1)
values = st.floats(-50.0, 0.0, width=32)


@st.composite
def trajectories(draw: Any) -> Trajectory:
    """Paths that share prefixes, untrainable calls, and calls that were inherited from another
    thread.
    """
    count = draw(st.integers(1, 6))
    inherited = draw(st.integers(0, count - 1))
    calls: list[Call] = []
    for i in range(count):
        earlier = [call.id for call in calls]
        parent = draw(st.sampled_from([None, *earlier]))
        calls.append(_call(draw, f"task-{i}", "origin" if i < inherited else THREAD, parent))
    fork = ForkRef(trajectory_id="origin", checkpoint_id="c") if inherited else None
    return make_trajectory(calls=tuple(calls), tool_calls=(), forked_from=fork)


def _call(draw: Any, task: str, thread: str, parent: str | None) -> Call:
    inserted = draw(st.lists(tokens, min_size=parent is None, max_size=3))
    sampled = draw(st.lists(st.tuples(tokens, values), min_size=1, max_size=4))
    raw = draw(st.booleans())
    return make_call(
        task,
        identity=identity(task, thread),
        parent=parent,
        branch_reason=None if parent else BranchReason.ROOT,
        token_ids=(*inserted, *(token for token, _ in sampled)),
        mask=(False,) * len(inserted) + (True,) * len(sampled),
        logprobs=(0.0,) * len(inserted) + tuple(value for _, value in sampled),
        logprob_kind=LogprobKind.RAW if raw else LogprobKind.SAMPLED,
        untrainable=None if raw else "log-probs are sampled",
        sampling=Sampling(max_tokens=8, seed=None, temperature=0.7),
    )


def learned(trajectory: Trajectory) -> Counter[Learned]:
    """Each token that a trainer learns from a trajectory, with all that it depends on."""
    found: Counter[Learned] = Counter()
    for call in trajectory.own_calls:
        if call.trainable:
            before = path_tokens(path_to(trajectory.calls, call.id)[:-1])
            for i, sampled in enumerate(call.mask):
                if sampled:
                    found[(*before, *call.token_ids[:i]), call.token_ids[i], call.logprobs[i]] += 1
    return found
