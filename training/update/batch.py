"""Trajectories to tensors: each sampled token trained exactly once, each inserted token never.

A trajectory is a forest of calls (`hrm_agent.trajectory.forest`), and a model computes sequences.
So each path from a root to a leaf becomes one *row*. The tokens of a prefix that several paths
share are in each of their rows, but the loss mask is on in the first row only, since a token
counted twice would weigh twice. For the same reason the calls that a forked run inherited are
context in its rows; they are trained with the run that made them.

A micro-batch is flat. It lists the tokens that are forwarded, each with its position and the index
of the token before it, and has an entry for each token that is trained. The forward pass
(`hrm_agent.training.update.logprobs`) decides which rows are batched together within a budget of
tokens:

* padded: rows of similar length, the budget counts the padding
* packed: rows of similar length, one after the other
* tree: rows with common prefixes, each prefix once, so that siblings of a group are together

Each token is trained at the temperature of its call: the loss takes the log softmax of the logits
divided by it. Calls whose tokens are no sample of that distribution (temperature 0, top-p, a
schema) are context: `no_gradient` gives the reason.

The model predicts a token at the position of the token before it. Masks, log-probs and weights are
indexed by the predicted token itself.

A batch of rollouts can be split into mini-batches, each for a separate optimiser step
(`split_kept`).

In a tree each shared prefix is stored once. Rollouts of a group begin with the same prompt, and
rows of a rollout begin with the tokens that its calls share. In lexicographic order, rows with long
common prefixes are adjacent, and a row adds only the tokens that it does not share with its
neighbours.
"""

# Field names contain shapes, too.
# ruff: noqa: N815

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.training.update.advantages import Credit, as_recorded
from hrm_agent.trajectory import (
    Call,
    DropReason,
    LogprobKind,
    Overlay,
    Trajectory,
    Verdict,
    derive_seed,
)
from hrm_agent.trajectory.forest import paths

__all__ = [
    "ForwardName",
    "GrowingTree",
    "Lesson",
    "MicroBatch",
    "NoGradient",
    "PlacedRows",
    "Preamble",
    "Row",
    "build_batches",
    "kept_rows",
    "left_out",
    "lexicographic",
    "linearise",
    "micro_batches",
    "no_gradient",
    "placed_rows",
    "split_kept",
]


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """N tokens in an order in which a parent comes before its children, and all descendants of a
    token directly after it.
    """

    token_ids: np.ndarray
    """Token ids."""
    positions: np.ndarray
    """Depth of each token, from 0."""
    parents: np.ndarray
    """Index of the token before each token (-1 for the first token of a sequence)."""
    indices: list[np.ndarray]
    """Indices of the tokens of each row."""


def lexicographic(token_ids: np.ndarray) -> bytes:
    """Key that sorts rows in the order of their tokens."""
    return token_ids.astype(">i8").tobytes()


def placed_rows(rows: Sequence[np.ndarray], *, shared: bool) -> PlacedRows:
    """Place rows one after the other. `shared`: place each row without the prefix that it shares
    with the row before it.

    With `shared`, rows in lexicographic order become a tree in which no prefix is repeated.
    """
    indices: list[np.ndarray] = []
    commons: list[int] = []
    size = 0
    for number, row in enumerate(rows):
        common = _in_common(rows[number - 1], row) if shared and number else 0
        added = np.arange(size, size + len(row) - common)
        indices.append(np.concatenate([indices[-1][:common], added]) if common else added)
        commons.append(common)
        size += len(added)
    positions = np.concatenate(
        [np.arange(common, len(row)) for common, row in zip(commons, rows, strict=True)]
    )
    parents = np.arange(size) - 1
    for common, places in zip(commons, indices, strict=True):
        if common < len(places):
            parents[places[common]] = places[common - 1] if common else -1
    token_ids = np.concatenate([row[common:] for common, row in zip(commons, rows, strict=True)])
    return PlacedRows(token_ids, positions, parents, indices)


def _in_common(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix of two rows."""
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length


@dataclass(slots=True)
class GrowingTree:
    """Number of tokens in the tree of some rows, updated as rows are added in any order."""

    size: int = 0
    """Number of tokens in the tree."""
    _keys: list[bytes] = field(default_factory=list[bytes])
    _rows: list[np.ndarray] = field(default_factory=list[np.ndarray])

    def add(self, row: np.ndarray) -> None:
        key = lexicographic(row)
        place = bisect_left(self._keys, key)
        neighbours = self._rows[max(0, place - 1) : place + 1]
        self.size += len(row) - max((_in_common(each, row) for each in neighbours), default=0)
        self._keys.insert(place, key)
        self._rows.insert(place, row)


ForwardName = Literal["padded", "packed", "tree"]
"""Forward pass: rows padded to one length, rows one after the other, or each shared prefix once."""


class NoGradient(StrEnum):
    """Reason why a call of a kept trajectory is context only. Values are names of metrics,
    `select/{name}`.
    """

    OTHER_MODEL = "calls_of_other_models"
    """Call of another model than the policy."""
    CONSTRAINED = "constrained_calls"
    """Call whose tokens were constrained by a schema."""
    GREEDY = "greedy_calls"
    """Call at temperature 0."""
    NUCLEUS = "nucleus_calls"
    """Call with top_p below 1, which samples from a renormalised distribution, not from
    the policy.
    """
    UNTRAINABLE = "untrainable_calls"
    """Call with any other reason in `Call.untrainable`, for example no token ids or log-probs of an
    unknown kind.
    """


def no_gradient(call: Call, policy: str) -> NoGradient | None:
    """Reason in a call's record why it cannot be trained on (None if it can)."""
    if call.model != policy:
        return NoGradient.OTHER_MODEL
    if call.constrained:
        return NoGradient.CONSTRAINED
    if call.token_ids and call.sampled_with.temperature == 0:
        return NoGradient.GREEDY
    if call.token_ids and call.sampled_with.top_p < 1:
        return NoGradient.NUCLEUS
    return None if call.trainable else NoGradient.UNTRAINABLE


class Preamble(NamedTuple):
    """Prompt that a teacher reads in place of the policy's."""

    token_ids: tuple[int, ...]
    """Tokens of the prompt."""
    replaces: int
    """Number of tokens at the beginning of the row that it replaces. None of them is trained."""


Lesson = Callable[[Trajectory, Call], tuple[int, Preamble | None]]
"""Function of a trajectory and the first call of a row that returns the number of the row's teacher
(-1: none can read it), and what it reads in place of the prompt (None: the prompt).
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Path of a forest, as arrays with one entry per token."""

    token_ids: np.ndarray
    """Tokens of the path from its root to its leaf."""
    loss_mask: np.ndarray
    """True if the token is trained in this row."""
    old_logprobs: np.ndarray
    """Natural log-prob of the token as the engine reported it, 0 if not trained."""
    weights: np.ndarray
    """Weight of the token in the loss: advantage times credit, 0 if not trained."""
    temperatures: np.ndarray
    """Temperature at which the token was sampled, 1 if not trained."""
    old_temperatures: np.ndarray
    """Temperature at which `old_logprobs` were computed: 1 for raw log-probs, the token's
    temperature for tempered ones, 1 if not trained.
    """
    versions: np.ndarray
    """Policy version that sampled the token, 0 if not trained."""
    sequence: int = 0
    """Number of the trajectory within the batch of the whole step."""
    sequence_tokens: int = 0
    """Number of trained tokens of the trajectory, over all its rows."""
    role: str = ""
    """Role whose adapter sampled the trained tokens (empty for the shared adapter)."""
    teacher: int = 0
    """Number of the row's teacher, if there are teachers (-1: none can read it)."""
    preamble: Preamble | None = None
    """Prompt that the teacher reads (None: the policy's)."""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """N tokens, each forwarded once, and K entries of the loss, in row-major order."""

    token_ids_N: Int[Tensor, " N"]
    """Token ids, without padding."""
    positions_N: Int[Tensor, " N"]
    """Depth of each token in its sequence, from 0."""
    parents_N: Int[Tensor, " N"]
    """Index in N of the token before each token (-1 for the first token of a sequence)."""
    loss_indices_K: Int[Tensor, " K"]
    """Index in N of each token to train, never the first of a sequence. If several rows share a
    trained token, each has an entry for it.
    """
    weights_K: Float[Tensor, " K"]
    """Weight of each token in the loss: advantage times credit."""
    old_logprobs_K: Float[Tensor, " K"]
    """Natural log-probs as reported by the engine."""
    temperatures_K: Float[Tensor, " K"]
    """Sampling temperature of each token's call."""
    old_temperatures_K: Float[Tensor, " K"]
    """Temperature at which `old_logprobs_K` were computed: 1 for raw log-probs, the call's
    temperature for tempered ones.
    """
    versions_K: Int[Tensor, " K"]
    """Policy version that sampled the token."""
    sequences_K: Int[Tensor, " K"]
    """Number of the token's trajectory within the batch of the whole step, the same in all
    micro-batches.
    """
    lengths_K: Float[Tensor, " K"]
    """Number of trained tokens of that trajectory in the whole step."""
    role: str = ""
    """Role through whose adapter all tokens go (empty for the shared adapter)."""
    forward: ForwardName = "padded"
    """Forward pass of the batch. In a tree, several tokens may have one parent."""
    teacher: int = 0
    """Number of the teacher of all tokens, if there are teachers (-1: none can read them)."""
    preambles: Mapping[tuple[int, int], Preamble] = field(
        default_factory=dict[tuple[int, int], Preamble]
    )
    """Number of a trajectory and index in N of a trained token of it -> prompt that the token's
    teacher reads.
    """

    @property
    def trained_tokens(self) -> int:
        return len(self.loss_indices_K)

    def to(self, device: torch.device | str) -> MicroBatch:
        """Copy of the batch on `device`."""
        tensors = {
            name: value
            for name in self.__slots__
            if isinstance(value := getattr(self, name), Tensor)
        }
        return replace(
            self, **{name: each.to(device, non_blocking=True) for name, each in tensors.items()}
        )


def build_batches(
    trajectories: Iterable[Trajectory],
    overlays: Iterable[Overlay],
    *,
    token_budget: int,
    forward: ForwardName = "padded",
    whole_trajectories: bool = False,
    credit: Credit = as_recorded,
    roles: Collection[str] = (),
    lesson: Lesson | None = None,
    may_be_empty: bool = False,
) -> list[MicroBatch]:
    """Build micro-batches of the kept trajectories (empty if nothing is kept). `roles`: roles that
    have an adapter, besides the shared one. `lesson`: what teachers get (None without a teacher).

    Raises `ModelError` if trajectories were kept but none of them can be trained on, unless it
    `may_be_empty`.
    """
    rows = kept_rows(
        trajectories, overlays, credit, roles, lesson=lesson, may_be_empty=may_be_empty
    )
    return micro_batches(
        rows, token_budget=token_budget, forward=forward, whole_trajectories=whole_trajectories
    )


def kept_rows(
    trajectories: Iterable[Trajectory],
    overlays: Iterable[Overlay],
    credit: Credit = as_recorded,
    roles: Collection[str] = (),
    *,
    lesson: Lesson | None = None,
    may_be_empty: bool = False,
) -> list[Row]:
    """Rows of all kept trajectories, in the order of the overlays (empty if nothing was kept).

    `credit` gives each call its weight. By default this is the weight recorded in the overlay, or
    the trajectory's advantage if none is recorded.

    Raises `ModelError` if trajectories were kept but none of them can be trained on, unless it
    `may_be_empty`.
    """
    by_id = {trajectory.id: trajectory for trajectory in trajectories}
    kept = [overlay for overlay in overlays if overlay.verdict is Verdict.KEPT]
    whole = [by_id[overlay.trajectory_id] for overlay in kept]
    weights = credit(whole, kept)
    rows = [
        row
        for sequence, each in enumerate(whole)
        for row in linearise(each, weights, sequence, roles, lesson)
    ]
    if kept and not rows and not may_be_empty:
        raise ModelError(
            f"None of the {len(kept)} kept trajectories has a sampled token to train on:"
            f" {_why_untrainable(whole[0])}.",
            "Sample with a policy that reports token ids, at a temperature above 0 and with top_p"
            " 1, and do not freeze all roles.",
        )
    return rows


def linearise(
    trajectory: Trajectory,
    weight_by_call: Mapping[str, float],
    sequence: int = 0,
    roles: Collection[str] = (),
    lesson: Lesson | None = None,
) -> list[Row]:
    """Rows of a trajectory, one for each path that has tokens to train. `sequence`: the
    trajectory's number within the batch.

    Each of `roles` has an adapter, and a call and all tokens before it went through the adapter of
    its role. So a path with calls of several adapters becomes a row for each adapter, in which
    calls of other adapters are context. Calls without a weight, untrainable calls, calls of other
    models and calls that a fork inherited are context only.
    """
    free = {
        call.id for call in trajectory.own_calls if no_gradient(call, trajectory.policy) is None
    }
    own = free & weight_by_call.keys()
    trained: set[str] = set()
    rows: list[Row] = []
    for path in paths(trajectory.calls):
        fresh = {
            c.id: c.identity.role if c.identity.role in roles else ""
            for c in path
            if c.id in own and c.id not in trained
        }
        for role in dict.fromkeys(fresh.values()):
            mine = [name for name, adapter in fresh.items() if adapter == role]
            # Cut the path after its last call with tokens to train: later calls are no context for
            # these tokens.
            last = max(place for place, call in enumerate(path) if call.id in mine)
            row = _row(path[: last + 1], {name: weight_by_call[name] for name in mine})
            if row.loss_mask.any():
                teacher, preamble = lesson(trajectory, path[0]) if lesson else (0, None)
                rows.append(replace(row, role=role, teacher=teacher, preamble=preamble))
        trained.update(fresh)
    tokens = sum(int(row.loss_mask.sum()) for row in rows)
    return [replace(row, sequence=sequence, sequence_tokens=tokens) for row in rows]


def _row(path: Sequence[Call], fresh: Mapping[str, float]) -> Row:
    """Row of the tokens of `path`, in which the sampled tokens of the calls in `fresh`
    are trained.
    """
    size = sum(len(call.token_ids) for call in path)
    token_ids = np.zeros(size, np.int64)
    loss_mask = np.zeros(size, np.bool_)
    old_logprobs = np.zeros(size, np.float32)
    weights = np.zeros(size, np.float32)
    temperatures = np.ones(size, np.float32)
    old_temperatures = np.ones(size, np.float32)
    versions = np.zeros(size, np.int64)
    start = 0
    for call in path:
        span = slice(start, start := start + len(call.token_ids))
        token_ids[span] = call.token_ids
        if call.id in fresh:
            mask = np.asarray(call.mask, np.bool_)
            loss_mask[span] = mask
            old_logprobs[span] = np.where(mask, call.logprobs, 0.0)
            weights[span] = np.where(mask, fresh[call.id], 0.0)
            temperatures[span] = np.where(mask, call.sampled_with.temperature, 1.0)
            versions[span] = np.where(mask, call.policy_version, 0)
            if call.logprob_kind is LogprobKind.TEMPERED:
                old_temperatures[span] = temperatures[span]
    if loss_mask[:1].any():
        raise ValueError(
            f"call {path[0].id} begins with a sampled token, but no token predicts the first of"
            " a sequence"
        )
    return Row(
        token_ids, loss_mask, old_logprobs, weights, temperatures, old_temperatures, versions
    )


def _why_untrainable(trajectory: Trajectory) -> str:
    reasons = [call.why_untrainable for call in trajectory.own_calls if call.why_untrainable]
    others = [call.model for call in trajectory.own_calls if call.model != trajectory.policy]
    if not reasons and others:
        return f"its calls are of {others[0]!r}, the policy is {trajectory.policy!r}"
    if not reasons and any(
        no_gradient(call, trajectory.policy) is None for call in trajectory.own_calls
    ):
        return "the roles of its calls are frozen"
    return reasons[0] if reasons else "no call sampled a token"


def left_out(trajectories: Iterable[Trajectory], overlays: Iterable[Overlay]) -> dict[str, float]:
    """Number of calls without a gradient, by reason, as metrics of a step. Calls count if their
    trajectory was kept, or was dropped for lack of a gradient.
    """
    counted = {
        o.trajectory_id
        for o in overlays
        if o.verdict is Verdict.KEPT or o.drop_reason is DropReason.NO_GRADIENT
    }
    found = Counter(
        no_gradient(call, t.policy) for t in trajectories if t.id in counted for call in t.own_calls
    )
    return {f"select/{reason.value}": float(found[reason]) for reason in NoGradient}


def micro_batches(
    rows: Iterable[Row],
    *,
    token_budget: int,
    forward: ForwardName = "padded",
    whole_trajectories: bool = False,
) -> list[MicroBatch]:
    """Group rows into micro-batches of at most `token_budget` tokens, longest rows first. A row
    longer than the budget is alone.

    With the longest rows first, a budget that is too large for the memory fails at once and not
    late in the step. For a tree, rows are in lexicographic order instead. With `whole_trajectories`
    all rows of a trajectory are in one micro-batch, even beyond the budget. Rows that go through
    different adapters or have different teachers are never batched together.
    """
    alike: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.role, row.teacher), []).append(row)
    return [
        batch
        for kind in sorted(alike)
        for batch in _of_one_kind(alike[kind], token_budget, forward, whole_trajectories)
    ]


def _of_one_kind(
    rows: Iterable[Row], token_budget: int, forward: ForwardName, whole_trajectories: bool
) -> list[MicroBatch]:
    units = _by_trajectory(rows) if whole_trajectories else [[row] for row in rows]
    if forward == "tree":
        units = sorted(units, key=lambda unit: min(lexicographic(row.token_ids) for row in unit))
    else:
        units = sorted(units, key=_longest, reverse=True)
    taken = _TAKEN[forward]()
    groups: list[list[Row]] = []
    for unit in units:
        if not groups or taken.with_more(unit) > token_budget:
            groups.append([])
            taken = _TAKEN[forward]()
            taken.with_more(unit)
        groups[-1] += unit
    return [_flat(group, forward) for group in groups]


def _by_trajectory(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sequence, []).append(row)
    return list(found.values())


def _longest(rows: Sequence[Row]) -> int:
    return max(len(row) for row in rows)


@dataclass(slots=True)
class _Padded:
    """Number of tokens of a micro-batch with its padding, updated as rows are added."""

    rows: int = 0
    width: int = 0

    def with_more(self, rows: Sequence[Row]) -> int:
        self.rows += len(rows)
        self.width = max(self.width, _longest(rows))
        return self.rows * self.width


@dataclass(slots=True)
class _Packed:
    tokens: int = 0

    def with_more(self, rows: Sequence[Row]) -> int:
        self.tokens += sum(len(row) for row in rows)
        return self.tokens


@dataclass(slots=True)
class _Tree:
    tree: GrowingTree = field(default_factory=GrowingTree)

    def with_more(self, rows: Sequence[Row]) -> int:
        for row in rows:
            self.tree.add(row.token_ids)
        return self.tree.size


_TAKEN: dict[ForwardName, type[_Padded | _Packed | _Tree]] = {
    "padded": _Padded,
    "packed": _Packed,
    "tree": _Tree,
}


def _flat(rows: Sequence[Row], forward: ForwardName) -> MicroBatch:
    if forward == "tree":
        rows = sorted(rows, key=lambda row: lexicographic(row.token_ids))
    placed = placed_rows([row.token_ids for row in rows], shared=forward == "tree")
    counts = [int(row.loss_mask.sum()) for row in rows]
    loss_indices = [places[row.loss_mask] for places, row in zip(placed.indices, rows, strict=True)]

    def trained(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(row, name)[row.loss_mask] for row in rows]))

    return MicroBatch(
        token_ids_N=torch.from_numpy(placed.token_ids),
        positions_N=torch.from_numpy(placed.positions),
        parents_N=torch.from_numpy(placed.parents),
        loss_indices_K=torch.from_numpy(np.concatenate(loss_indices)),
        weights_K=trained("weights"),
        old_logprobs_K=trained("old_logprobs"),
        temperatures_K=trained("temperatures"),
        old_temperatures_K=trained("old_temperatures"),
        versions_K=trained("versions"),
        sequences_K=torch.from_numpy(np.repeat([row.sequence for row in rows], counts)),
        lengths_K=torch.from_numpy(
            np.repeat(np.array([row.sequence_tokens for row in rows], np.float32), counts)
        ),
        role=rows[0].role,
        forward=forward,
        teacher=rows[0].teacher,
        preambles={
            (row.sequence, int(index)): row.preamble
            for indices, row in zip(loss_indices, rows, strict=True)
            if row.preamble is not None
            for index in indices
        },
    )


def split_kept(overlays: Sequence[Overlay], count: int, *, seed: int) -> list[list[Overlay]]:
    """Split the kept overlays into `count` parts whose sizes differ by at most one, for
    `build_batches`.

    The parts are drawn at random, by `seed` and step, so that no part has the rollouts of a few
    prompts only. A rollout is never divided, since GSPO needs all its tokens for their common
    ratio, and the aggregation by sequence for their mean. With `count` 1 the overlays keep their
    order.
    """
    if count < 1:
        raise ConfigError(f"A batch cannot be cut into {count} mini-batches.", "Take 1 or more.")
    kept = [overlay for overlay in overlays if overlay.verdict is Verdict.KEPT]
    if count == 1:
        return [kept]
    random.Random(derive_seed(seed, "mini-batches", *(kept[:1] and [kept[0].step]))).shuffle(kept)
    return [kept[part::count] for part in range(count)]
