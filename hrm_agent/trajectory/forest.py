"""Message forest: links between the calls of a trajectory, as pure functions over them.

    planner 1 ── planner 2                       one tree for each conversation that could be continued token by token
    solver a1 ── solver a2 ─┬─ solver a3
                            └─ solver a3'        two samples of one request, or a fork, share a prefix
    solver b1 ┄┄ solver b2                       a new root: the template rewrote b1, so b2 could not extend it

A call's `parent` is the call whose tokens it extends, and `token_ids` holds the tokens added.
Prompt and answer of a call are the concatenated tokens along the path from its root. Training on
the call needs nothing else: no rendering of messages, no tokenizer. A *leaf* is a call that no
other extends; the paths to the leaves are the sequences a trainer computes. A call may be on
several paths; `hrm_agent.training.update.batch` trains its tokens once.

A root's `branch_of` names the call that it would have extended. A *conversation* is all calls
connected by either link: one dialogue of one role, even if its tokens broke in between.

Calls are stored in the order in which they finished, so that a parent precedes its children;
nothing here relies on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hrm_agent.trajectory.schema import Call, Trajectory

__all__ = ["conversations", "path_mask", "path_to", "path_tokens", "paths", "training_roots"]


def paths(calls: Iterable[Call]) -> list[tuple[Call, ...]]:
    """Paths from the root to each leaf, leaves in the order of `calls`.

    Raises `ValueError` if a parent is missing or calls extend each other in a circle.
    """
    by_id = {call.id: call for call in calls}
    extended = {call.parent for call in by_id.values()}
    if by_id and extended >= by_id.keys():
        raise ValueError("the calls have no leaf: they extend each other in a circle")
    return [_walk(call, by_id) for call in by_id.values() if call.id not in extended]


def path_to(calls: Iterable[Call], call_id: str) -> tuple[Call, ...]:
    """Path from the root to `call_id`, inclusive. Raises `KeyError` if it is not among `calls`."""
    by_id = {call.id: call for call in calls}
    return _walk(by_id[call_id], by_id)


def _walk(leaf: Call, by_id: dict[str, Call]) -> tuple[Call, ...]:
    path = [leaf]
    while (parent := path[-1].parent) is not None:
        if parent not in by_id:
            raise ValueError(f"call {path[-1].id} extends {parent}, which is not in the trajectory")
        if len(path) > len(by_id):
            raise ValueError(f"call {leaf.id} extends itself through its parents")
        path.append(by_id[parent])
    return tuple(reversed(path))


def training_roots(trajectory: Trajectory) -> list[Call]:
    """Roots of all calls that a trainer learns from, at which the training sequences of a run
    begin.

    A conversation has one root, and one more for each break in its tokens. If earlier calls are in
    another store, the first call on record counts as the root.
    """
    by_id = {call.id: call for call in trajectory.calls}
    roots: dict[str, Call] = {}
    for call in trajectory.policy_calls:
        for _ in by_id:
            if (parent := by_id.get(call.parent or "")) is None:
                break
            call = parent
        roots[call.id] = call
    return list(roots.values())


def path_tokens(path: Sequence[Call]) -> tuple[int, ...]:
    """Tokens that the model saw at the last call of `path`, followed by its answer."""
    return tuple(token for call in path for token in call.token_ids)


def path_mask(path: Sequence[Call]) -> tuple[bool, ...]:
    """Mask aligned with `path_tokens`: True for tokens that the policy sampled."""
    return tuple(sampled for call in path for sampled in call.mask)


def conversations(calls: Iterable[Call]) -> list[tuple[Call, ...]]:
    """Calls grouped by conversation. Groups and their calls follow the order of `calls`."""
    by_id = {call.id: call for call in calls}
    groups: dict[str, list[Call]] = {}
    for call in by_id.values():
        groups.setdefault(_origin(call, by_id), []).append(call)
    return [tuple(group) for group in groups.values()]


def _origin(call: Call, by_id: dict[str, Call]) -> str:
    """Id of the first call of the conversation that `call` belongs to."""
    for _ in by_id:
        earlier = by_id.get(call.parent or call.branch_of or "")
        if earlier is None:
            return call.id
        call = earlier
    raise ValueError(f"call {call.id} continues itself through earlier calls")
