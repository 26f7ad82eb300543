"""Plan of attention in which each token of a sequence sees its path, as products of dense matrices.

Each token of the sequence sees itself and the tokens on its path to the root. A *run* is an
interval of the sequence in which the parent of each token is the token directly before it. Only the
first token of a run may have no parent, or a parent in an earlier run. So the path of a run's last
token is a few intervals of the sequence and the run itself.

A *job* is an interval of a run as queries, with all keys on its path. A *round* is a set of jobs of
similar size, padded to one size and computed at once. Besides half a block on the diagonal and a
little padding, only needed products are computed. So the cost grows with the tokens times the
length of their paths, not with the square of all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from torch import Tensor

__all__ = ["AttentionPlan", "AttentionRows", "RoundRows", "Run", "runs_of"]

BLOCK, BLOCK_ON_GPU = 160, 512
"""Maximum number of queries of a job."""
ROUND_PRODUCTS, ROUND_PRODUCTS_ON_GPU = 2**16, 2**22
"""Maximum number of (query, key) pairs in a round, for each head. The limit keeps a round in the
cache of a CPU. On a GPU it is larger, so that fewer kernels are launched.
"""
PADDING = 1.15
"""Rough maximum of the ratio of computed pairs in a round to needed pairs."""

Intervals = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Interval of tokens that follow each other, with its prefix."""

    start: int
    """Index of the first token."""
    stop: int
    """Index after the last token."""
    prefix: Intervals
    """Intervals of the tokens before the run, from the root on."""


def runs_of(parents: np.ndarray) -> tuple[Run, ...]:
    """Runs of a sequence in which `parents[i]` is the index of the token before i (-1 for none).

    Raises `ValueError` if a token stands before its parent.
    """
    index = np.arange(len(parents))
    if (parents >= index).any():
        raise ValueError("a token stands before its parent")
    starts = np.flatnonzero((parents != index - 1) | (index == 0))
    bounds = [*starts.tolist(), len(parents)]
    runs: list[Run] = []
    for start, stop in pairwise(bounds):
        before = int(parents[start])
        prefix = ()
        if before >= 0:
            earlier = runs[int(np.searchsorted(starts, before, side="right")) - 1]
            prefix = (*earlier.prefix, (earlier.start, before + 1))
        runs.append(Run(start, stop, prefix))
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class _Job:
    queries: np.ndarray
    """Indices of the query tokens, ascending."""
    own: tuple[int, int]
    """Interval that contains the queries."""
    prefix: Intervals
    """Intervals of the visible tokens before `own`."""

    @property
    def before(self) -> int:
        return sum(stop - start for start, stop in self.prefix)

    @property
    def keys(self) -> int:
        return self.before + self.own[1] - self.own[0]


@dataclass(frozen=True, slots=True)
class _Round:
    """B jobs that are computed at once, padded to T queries and L keys."""

    jobs: list[_Job]
    queries: np.ndarray
    """[B, T] index of each query, -1 for padding."""
    keys: np.ndarray
    """[B, L] index of each key on the path, 0 for padding."""
    mask: Tensor
    """[B or 1, 1, T, L] mask: minus infinity for a hidden key, else 0."""


@dataclass(frozen=True, slots=True)
class RoundRows:
    """Round of a plan, for vectors that are listed by token and head."""

    jobs: int
    """Number B of the round's jobs."""
    query_shape: tuple[int, int]
    """Number of matrices in the batched product, and number of queries in each."""
    key_shape: tuple[int, int]
    """Number of matrices in the batched product, and number of keys in each."""
    query_rows: Tensor
    """Indices of the query vectors."""
    key_rows: Tensor
    """Indices of the key vectors."""
    mask: Tensor
    """[B or 1, 1, T, L] mask: minus infinity for a hidden key, else 0."""
    asking: slice
    """Slice of the round's queries among the queries of all rounds."""
    known: slice
    """Slice of the round's keys among the keys of all rounds."""
    prefixes: tuple[tuple[slice, Intervals], ...]
    """Slices of jobs that share a prefix, each with the prefix. Jobs without a prefix
    are left out.
    """

    def of_queries(self, vectors: Tensor) -> Tensor:
        return vectors.index_select(0, self.query_rows).view(*self.query_shape, -1)

    def of_keys(self, vectors: Tensor) -> Tensor:
        return vectors.index_select(0, self.key_rows).view(*self.key_shape, -1)


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """All rounds of a plan, for vectors that are listed by token and head."""

    rounds: tuple[RoundRows, ...]
    """Rounds, ordered by the size of their jobs."""
    shared: int
    """Number of key heads."""
    queries: int
    """Number of queries of all rounds, with padding."""
    keys: int
    """Number of keys of all rounds, with padding and repeats."""
    query_places: Tensor
    """Index of each vector among the queries of all rounds (the index after the last query if the
    vector is no query).
    """
    key_places: Tensor
    """Index of each vector among the keys of all rounds, as a key of the job whose interval
    contains its token (the index after the last key if there is no such job).
    """


class AttentionPlan:
    """Plan of the attention in one sequence."""

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        asking: np.ndarray | None = None,
        window: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """`asking`: ascending indices of the query tokens (None for all). `window`: number of
        tokens that each token sees, itself included (None for its whole path).
        """
        self._window = window
        self._size = max(run.stop for run in runs)
        self._device = device
        is_cpu = torch.device(device).type == "cpu"
        block, products = (
            (BLOCK, ROUND_PRODUCTS) if is_cpu else (BLOCK_ON_GPU, ROUND_PRODUCTS_ON_GPU)
        )
        jobs = sorted(
            _jobs(runs, asking, window, block),
            key=lambda job: (len(job.queries), job.keys, job.prefix),
        )
        self._rounds = [self._round(group) for group in _grouped(jobs, products)]
        self._made: dict[tuple[int, int], AttentionRows] = {}

    @property
    def products(self) -> int:
        """Number of (query, key) pairs, with padding."""
        return sum(each.queries.size * each.keys.shape[1] for each in self._rounds)

    def rows(self, heads: int, shared: int) -> AttentionRows:
        """Rounds for `heads` query heads and `shared` key heads. They are cached, since layers
        share them.
        """
        if (heads, shared) not in self._made:
            self._made[heads, shared] = self._rows(heads, shared)
        return self._made[heads, shared]

    def _round(self, jobs: list[_Job]) -> _Round:
        width = max(len(job.queries) for job in jobs)
        length = max(job.keys for job in jobs)
        queries = np.full((len(jobs), width), -1)
        keys = np.zeros((len(jobs), length), np.int64)
        depths = np.zeros((len(jobs), width), np.int64)
        for row, job in enumerate(jobs):
            queries[row, : len(job.queries)] = job.queries
            keys[row, : job.keys] = np.concatenate(
                [np.arange(*each) for each in (*job.prefix, job.own)]
            )
            depths[row, : len(job.queries)] = job.queries - job.own[0] + job.before
        if (depths == depths[0]).all():
            depths = depths[:1]
        hidden = np.arange(length) > depths[..., None]
        if self._window is not None:
            hidden |= np.arange(length) <= depths[..., None] - self._window
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
        return _Round(jobs, queries, keys, self._tensor(mask[:, None]))

    def _rows(self, heads: int, shared: int) -> AttentionRows:
        rounds: list[RoundRows] = []
        query_places = np.full((self._size, heads), -1)
        key_places = np.full((self._size, shared), -1)
        asked = known = 0
        for each in self._rounds:
            count, width = each.queries.shape
            length = each.keys.shape[1]
            by_head = each.queries[:, None] * heads + np.arange(heads)[:, None]
            query_rows = np.where(each.queries[:, None] < 0, self._size * heads, by_head)
            key_rows = each.keys[:, None] * shared + np.arange(shared)[:, None]
            places = asked + np.arange(query_rows.size).reshape(query_rows.shape)
            own_places = known + np.arange(key_rows.size).reshape(key_rows.shape)
            for row, job in enumerate(each.jobs):
                query_places[job.queries] = places[row, :, : len(job.queries)].T
                key_places[slice(*job.own)] = own_places[row, :, job.before : job.keys].T
            rounds.append(
                RoundRows(
                    jobs=count,
                    query_shape=(count * shared, heads // shared * width),
                    key_shape=(count * shared, length),
                    query_rows=self._tensor(query_rows.ravel()),
                    key_rows=self._tensor(key_rows.ravel()),
                    mask=each.mask,
                    asking=slice(asked, asked := asked + query_rows.size),
                    known=slice(known, known := known + key_rows.size),
                    prefixes=tuple(_prefixes(each.jobs)),
                )
            )
        query_places[query_places < 0] = asked
        key_places[key_places < 0] = known
        places = self._tensor(query_places.ravel())
        own = self._tensor(key_places.ravel())
        return AttentionRows(tuple(rounds), shared, asked, known, places, own)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _prefixes(jobs: Sequence[_Job]) -> Iterator[tuple[slice, Intervals]]:
    first = 0
    for prefix, members in groupby(jobs, key=lambda job: job.prefix):
        last = first + len(list(members))
        if prefix:
            yield slice(first, last), prefix
        first = last


def _jobs(
    runs: Sequence[Run], asking: np.ndarray | None, window: int | None, block: int
) -> Iterator[_Job]:
    for run in runs:
        count = -(-(run.stop - run.start) // block)
        bounds = [run.start + (run.stop - run.start) * i // count for i in range(count + 1)]
        for start, stop in pairwise(bounds):
            queries = np.arange(start, stop)
            if asking is not None:
                queries = asking[slice(*np.searchsorted(asking, (start, stop)))]
            if len(queries):
                prefix = run.prefix if start == run.start else (*run.prefix, (run.start, start))
                yield _Job(queries, (start, int(queries[-1]) + 1), _last_of(prefix, window))


def _last_of(prefix: Intervals, window: int | None) -> Intervals:
    """Intervals of the tokens before a job that its first query may see."""
    if window is None:
        return prefix
    left = window - 1
    found = list[tuple[int, int]]()
    for start, stop in reversed(prefix):
        if left > 0:
            found.append((max(start, stop - left), stop))
            left -= stop - start
    return tuple(reversed(found))


def _grouped(jobs: Sequence[_Job], products: int) -> Iterator[list[_Job]]:
    """Groups of neighbouring jobs of similar size, with at most `products` pairs for each head."""
    group: list[_Job] = []
    width = length = needed = 0
    for job in jobs:
        wider = max(width, len(job.queries))
        longer = max(length, job.keys)
        more = (len(group) + 1) * wider * longer
        all_needed = needed + len(job.queries) * job.keys
        if group and (more > products or more > PADDING * all_needed + 1024 * len(group)):
            yield group
            group = []
            wider = len(job.queries)
            longer = job.keys
            all_needed = len(job.queries) * job.keys
        group.append(job)
        width = wider
        length = longer
        needed = all_needed
    if group:
        yield group
