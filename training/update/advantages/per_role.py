"""Credit that compares the calls of a role with those of its siblings: the same role after the very
same context.

Rollouts of one prompt whose plans differ give their solvers different subgoals, and the outcome of
a run depends on its plan as much as on its solvers. If several rollouts share a plan (forks of one
run, or runs that planned alike), their solvers can be compared among themselves: the plan is the
same, so any difference of the outcome is due to the solvers.

A *stretch* is the own calls of one role in one conversation, from its first one on. Siblings are
stretches of one role in one group whose first calls saw the same tokens, prompt included. If
siblings come from at least two rollouts with differing rewards, the calls of a stretch get the
advantage among them, otherwise that of their rollout. A planner sees the same prompt in each
rollout of its group, so that its siblings are the whole group and nothing changes for it.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence

from hrm_agent.training.update.advantages.estimators import Estimator
from hrm_agent.training.update.advantages.whole_trajectory import whole_trajectory
from hrm_agent.trajectory import Call, Overlay, Trajectory

__all__ = ["per_role"]

_Place = tuple[str, str, bytes]
"""Key shared by siblings: (group, role, digest of the tokens that the first call of a stretch saw).
"""


def per_role(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], estimate: Estimator, eps: float
) -> dict[str, float]:
    """Weights by call: the advantage among its siblings by `estimate`, or that of its trajectory if
    it has none.
    """
    siblings: dict[_Place, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for index, trajectory in enumerate(trajectories):
        for role, seen, call in _stretches(trajectory):
            siblings[overlays[index].group_id, role, seen][index].append(call.id)
    compared = [
        calls for calls in siblings.values() if len({overlays[i].reward for i in calls}) > 1
    ]
    advantages = estimate([[overlays[i].reward for i in calls] for calls in compared], eps)
    weights = whole_trajectory(trajectories, overlays)
    for calls, among in zip(compared, advantages, strict=True):
        for ids, advantage in zip(calls.values(), among, strict=True):
            weights.update(dict.fromkeys(ids, advantage))
    return weights


def _stretches(trajectory: Trajectory) -> Iterator[tuple[str, bytes, Call]]:
    """Own calls with tokens as (role, digest of the tokens seen by the first call of its stretch,
    call).
    """
    by_id = {call.id: call for call in trajectory.calls}
    own = {call.id for call in trajectory.own_calls if call.token_ids}
    seen: dict[str, bytes] = {}
    for call in (call for call in trajectory.own_calls if call.id in own):
        first = call
        while first.parent in own and by_id[first.parent].identity.role == call.identity.role:
            first = by_id[first.parent]
        if first.id not in seen:
            seen[first.id] = _digest(_context(first, by_id))
        yield call.identity.role, seen[first.id], call


def _context(call: Call, by_id: dict[str, Call]) -> list[int]:
    """Tokens before the first one that `call` sampled, from the root on."""
    prompt = call.mask.index(True) if True in call.mask else len(call.mask)
    parts = [call.token_ids[:prompt]]
    while call.parent is not None:
        call = by_id[call.parent]
        parts.append(call.token_ids)
    return [token for part in reversed(parts) for token in part]


def _digest(token_ids: Sequence[int]) -> bytes:
    """Digest of a context, which may have thousands of tokens, in a step of thousands of calls."""
    return hashlib.sha256(array("q", token_ids).tobytes()).digest()
