"""Rows of the cache: the conversation in each row, and the tokens to feed next.

Each row has a number of known tokens and a number of tokens in the cache. A row with a job is being
sampled if exactly one known token is not in the cache, and is being fed if several are not. A row
without a job is idle and keeps its contents. State is kept in arrays, so a step costs the same
Python time for one row as for 256.

For a new prompt, the longest prefix that any row has is used. If the prompt continues all cached
tokens of an idle row (the next turn of the same conversation), it gets this row. Otherwise (for
example, for another sample of the same prompt), the prefix is copied to another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from hrm_agent.models.local.kv_cache import KVPool, tensor_on
from hrm_agent.models.local.packed_attention import Feeding, Mask, Masks, PackedStep
from hrm_agent.models.local.shared_prefixes import SharedPrefixes, shared_prefixes

__all__ = ["FEEDING", "IDLE", "SAMPLING", "Rows", "StepInput"]

SAMPLING, FEEDING, IDLE = 0, 1, 2
_WIDTH = 32
_ROWS = 32
"""Number of rows that a CPU samples from with one mask. A row takes the time of the longest one that
has the same mask, and rows that began together are neighbours.
"""
_STEP_TOKENS = 2048
_MASK_ELEMENTS = 1 << 24

Array = np.ndarray[Any, Any]


class StepInput:
    """Packed step with its tokens, and the rows whose next token it samples."""

    def __init__(
        self,
        ids_T: Array,
        positions_T: Array,
        step: PackedStep,
        fed_R: Array,
        last_S: Array,
        row_S: Array,
        adapters_T: Array,
        long_T: Array,
    ) -> None:
        device = step.pool.shape.device
        self.ids_1T = tensor_on(device, ids_T).unsqueeze(0)
        self.positions_1T = tensor_on(device, positions_T).unsqueeze(0)
        self.step = step
        self.fed_R = fed_R
        """Number of tokens to feed to each of the first rows."""
        self.last_S = tensor_on(device, last_S)
        """Index in the step of the last token of each row to sample."""
        self.row_S = row_S
        self.adapters_T = adapters_T
        """Number of the adapter for each token."""
        self.long_T = long_T
        """Mask of tokens whose text is longer than the length at which the model switches rotary
        factors.
        """


class Rows:
    """Tokens and cache of all rows, and the engine's state per row. Only for one thread.

    `known` and `cached` count a row's tokens. `start` is the begin of its answer and `limit` its
    maximum end. `seed`, `temperature` and `top_p` are its sampling settings, `held` is its schema,
    and `jobs` its request. A row's cache belongs to one `adapter`, and is never used for a prompt
    of another adapter. Some models switch rotary factors for texts of more than `switch` tokens.
    The cache of such a `long` row is only used for long prompts, and that of other rows only for
    other prompts. Rows of one `stem` (a number above 0) have their first `stem_length` tokens in
    common, with equal keys and values.
    """

    def __init__(
        self,
        pool: KVPool,
        switch: int | None = None,
        *,
        windows: Sequence[int | None] | None = None,
        share: bool = False,
    ) -> None:
        """`windows`: number of tokens that a token sees in each layer, including itself (None: all
        previous tokens, in all layers or in one layer). `share`: read a prefix that several rows
        have in common once for all of them.
        """
        self.pool = pool
        self._switch = switch
        self._share = share
        self._windows = tuple(windows or [None] * len(pool.shape.layers))
        self.clock = 0
        self._state: dict[str, Array] = {}
        self._new_state(pool.rows, pool.length)

    def _new_state(self, rows: int, length: int) -> None:
        old = self._state
        self._state = {
            "tokens": np.zeros((rows, length), np.int64),
            "logprobs": np.zeros((rows, length), np.float32),
            "known": np.zeros(rows, np.int64),
            "cached": np.zeros(rows, np.int64),
            "kind": np.full(rows, IDLE, np.int64),
            "used_at": np.zeros(rows, np.int64),
            "start": np.zeros(rows, np.int64),
            "limit": np.zeros(rows, np.int64),
            "seed": np.zeros(rows, np.uint64),
            "temperature": np.ones(rows, np.float64),
            "top_p": np.ones(rows, np.float64),
            "held": np.zeros(rows, bool),
            "adapter": np.zeros(rows, np.int64),
            "long": np.zeros(rows, bool),
            "stem": np.zeros(rows, np.int64),
            "stem_length": np.zeros(rows, np.int64),
            "jobs": np.full(rows, None, object),
        }
        for name, array in old.items():
            kept = tuple(
                slice(0, min(a, b))
                for a, b in zip(array.shape, self._state[name].shape, strict=True)
            )
            self._state[name][kept] = array[kept]
        self.tokens, self.logprobs = self._state["tokens"], self._state["logprobs"]
        self.known, self.cached = self._state["known"], self._state["cached"]
        self.kind, self.used_at = self._state["kind"], self._state["used_at"]
        self.start, self.limit, self.seed = (
            self._state["start"],
            self._state["limit"],
            self._state["seed"],
        )
        self.temperature, self.top_p = self._state["temperature"], self._state["top_p"]
        self.held, self.jobs = self._state["held"], cast("Any", self._state["jobs"])
        self.adapter, self.long = self._state["adapter"], self._state["long"]
        self.stem, self.stem_length = self._state["stem"], self._state["stem_length"]

    @property
    def active(self) -> int:
        return int((self.kind != IDLE).sum())

    def prefixes(self, prompt: Array, adapter: int = 0) -> Array:
        """Length of the common prefix of the prompt with each row's known tokens (0 for rows of
        another adapter or with other rotary factors).
        """
        width = min(len(prompt), self.pool.length)
        differs = self.tokens[:, :width] != prompt[:width]
        first = differs.argmax(axis=1)
        first[~differs[np.arange(len(first)), first]] = width
        alike = (self.adapter == adapter) & (self.long == self._is_long(len(prompt)))
        return np.where(alike, np.minimum(first, self.known), 0)

    def has_row_for(self, prompt: Array, adapter: int) -> bool:
        """True if a row is empty, or idle with a conversation that the prompt continues."""
        usable_R = np.minimum(self.prefixes(prompt, adapter), len(prompt) - 1)
        return bool(((self.kind == IDLE) & (usable_R >= self.cached)).any())

    def _is_long(self, tokens: Any) -> Any:
        return tokens > self._switch if self._switch is not None else False

    def place(self, prompt: Array, prefix_R: Array) -> int:
        """Put a prompt into a row, with the longest cached prefix. Returns the row, or -1 if every
        row is busy.
        """
        usable_R = np.minimum(np.minimum(prefix_R, self.cached), len(prompt) - 1)
        donor = int(usable_R.argmax())
        length = int(usable_R[donor])
        continued = self.kind[donor] == IDLE and length >= self.cached[donor]
        target = donor if continued else self._free_row()
        if target < 0:
            return -1
        if target == donor:
            self.stem_length[target] = min(self.stem_length[target], length)
        else:
            self.stem[target] = 0
            if length:
                self.pool.copy(donor, target, length)
                self._share_stem(donor, target, length)
        self.tokens[target, : len(prompt)] = prompt
        self.known[target], self.cached[target] = len(prompt), length
        self.long[target] = self._is_long(len(prompt))
        self.kind[target] = SAMPLING if len(prompt) - length == 1 else FEEDING
        self.touch(target)
        return target

    def _share_stem(self, donor: int, target: int, length: int) -> None:
        """Record that `target` has a copy of the first tokens of `donor`.

        A row has one stem, so a short common prefix never replaces a longer one.
        """
        known = self.stem_length[donor] if self.stem[donor] else 0
        if length < known:
            return
        if length > known:
            self.clock += 1
            self.stem[donor], self.stem_length[donor] = self.clock, length
        self.stem[target], self.stem_length[target] = self.stem[donor], length

    def _free_row(self) -> int:
        """Idle row to use next: an empty row if there is one, else the row that was idle for the
        longest time (-1 without an idle row).
        """
        idle = np.flatnonzero(self.kind == IDLE)
        if not len(idle):
            return -1
        return int(idle[np.where(self.cached[idle] == 0, -1, self.used_at[idle]).argmin()])

    def touch(self, row: int) -> None:
        self.clock += 1
        self.used_at[row] = self.clock

    def release(self, row: int) -> None:
        """End a row's job. Its cached tokens stay."""
        self.kind[row] = IDLE
        self.jobs[row] = None
        self.known[row] = self.cached[row]
        self.touch(row)

    def forget(self) -> None:
        """Drop all contents."""
        self.known[:] = self.cached[:] = self.stem[:] = 0
        self.kind[:] = IDLE
        self.jobs[:] = None
        self.pool.clear()

    def resize(self, rows: int, length: int) -> None:
        self.pool.resize(rows, length)
        self._new_state(rows, length)

    def shrink(self) -> None:
        """Drop all contents, and free their memory."""
        self.pool.shrink()
        self._state = {}
        self._new_state(self.pool.rows, self.pool.length)

    def arrange(self) -> None:
        """Sort rows: sampling, feeding, idle."""
        wanted = np.sort(self.kind)
        targets = np.flatnonzero(self.kind != wanted)
        sources = targets[np.argsort(self.kind[targets], kind="stable")]
        if len(targets):
            moves = np.stack([sources, targets, self.cached[sources]], axis=1)
            self.pool.move([tuple(move) for move in moves[moves[:, 2] > 0].tolist()])
            for array in self._state.values():
                array[targets] = array[sources]

    def plan(self) -> StepInput | None:
        """Next step (None if there is nothing to do). Rows have to be arranged."""
        sampling = int((self.kind == SAMPLING).sum())
        lacking_F = (self.known - self.cached)[
            sampling : sampling + int((self.kind == FEEDING).sum())
        ]
        fed_F = self._portions(lacking_F, sampling)
        if not sampling and not len(fed_F):
            return None
        fed_R = np.concatenate([np.ones(sampling, np.int64), fed_F])
        rows_T = np.repeat(np.arange(len(fed_R)), fed_R)
        ends_R = np.cumsum(fed_R)
        positions_T = (
            np.arange(len(rows_T)) - np.repeat(ends_R - fed_R, fed_R) + self.cached[rows_T]
        )
        done_R = self.cached[: len(fed_R)] + fed_R == self.known[: len(fed_R)]
        feeding = self._feeding(fed_F)
        prefixes = self._prefixes(sampling)
        masks = {
            each: self._masks(sampling, fed_F, each, prefixes if each is None else None)
            for each in set(self._windows)
        }
        of_layers = tuple(masks[each] for each in self._windows)
        step = PackedStep(
            self.pool, self._written(rows_T, positions_T), sampling, feeding, of_layers
        )
        ids_T = self.tokens[rows_T, positions_T]
        last_S = (ends_R - 1)[done_R]
        row_S = np.flatnonzero(done_R)
        return StepInput(
            ids_T, positions_T, step, fed_R, last_S, row_S, self.adapter[rows_T], self.long[rows_T]
        )

    def advance(self, done: StepInput, token_S: Array, logprob_S: Array) -> None:
        """Update rows with the fed and sampled tokens of a step."""
        fed = len(done.fed_R)
        rows = done.row_S
        self.cached[:fed] += done.fed_R
        at = self.known[rows]
        self.tokens[rows, at] = token_S
        self.logprobs[rows, at] = logprob_S
        self.known[rows] = at + 1
        self.kind[rows] = SAMPLING
        if self._switch is not None:
            # texts that have grown beyond the switch are fed again, with the other factors
            grown = rows[(self.known[rows] > self._switch) & ~self.long[rows]]
            self.long[grown] = True
            self.cached[grown] = self.stem[grown] = 0
            self.kind[grown] = FEEDING

    def _portions(self, lacking_F: Array, first: int) -> Array:
        """Number of tokens to feed to each of the first feeding rows. The numbers are limited to
        keep the step and its mask small.
        """
        if not len(lacking_F):
            return lacking_F
        window = int((self.known[first : first + len(lacking_F)]).max())
        limit = max(_WIDTH, min(_STEP_TOKENS, _MASK_ELEMENTS // window))
        portions_F = np.minimum(lacking_F, limit)
        padded = np.maximum.accumulate(portions_F) * np.arange(1, len(portions_F) + 1)
        return portions_F[: max(1, int((padded <= limit).sum()))]

    def _written(self, rows_T: Array, positions_T: Array) -> dict[int, torch.Tensor]:
        length = self.pool.length
        found = dict[int, torch.Tensor]()
        for heads in self.pool.shape.heads:
            of_token = rows_T * (heads * length) + positions_T
            every = of_token[:, None] + np.arange(heads) * length
            found[heads] = tensor_on(self.pool.shape.device, every.reshape(-1))
        return found

    def _feeding(self, fed_F: Array) -> Feeding | None:
        if not len(fed_F):
            return None
        longest = int(fed_F.max())
        starts_F = np.cumsum(fed_F) - fed_F
        offsets_L = np.arange(longest)
        inside_FL = offsets_L < fed_F[:, None]
        gather_FL = np.where(inside_FL, starts_F[:, None] + offsets_L, 0)
        device = self.pool.shape.device
        gather = tensor_on(device, gather_FL.reshape(-1))
        scatter = tensor_on(device, np.flatnonzero(inside_FL))
        return Feeding(len(fed_F), longest, gather, scatter)

    def _prefixes(self, sampling: int) -> SharedPrefixes | None:
        if not self._share or not sampling:
            return None
        return shared_prefixes(
            self.stem[:sampling], self.stem_length[:sampling], self.cached[:sampling]
        )

    def _masks(
        self, sampling: int, fed_F: Array, window: int | None, prefixes: SharedPrefixes | None
    ) -> Masks:
        feeding = None
        if len(fed_F):
            rows = slice(sampling, sampling + len(fed_F))
            offsets_FL = np.minimum(np.arange(int(fed_F.max())), fed_F[:, None] - 1)
            feeding = self._mask(rows, self.cached[rows, None] + offsets_FL, window)
        start = 0 if prefixes is None else prefixes.length
        size = _ROWS if self.pool.shape.device.type == "cpu" else max(1, sampling)
        parts = [slice(at, min(at + size, sampling)) for at in range(0, sampling, size)]
        masks = [self._mask(each, self.cached[each, None], window, start) for each in parts]
        return Masks(tuple(masks), feeding, prefixes)

    def _mask(self, rows: slice, last_RL: Array, window: int | None, start: int = 0) -> Mask:
        """Mask for tokens of `rows` at the positions `last_RL`. Each token sees all positions from
        `start` up to its own, or the last `window` of them.
        """
        longest = int(last_RL.max()) + 1
        stop = min(-(-longest // _WIDTH) * _WIDTH, self.pool.length)
        if window is not None:
            start = max(0, int(last_RL.min()) + 1 - window) // _WIDTH * _WIDTH
        last = tensor_on(self.pool.shape.device, last_RL)[..., None]
        positions = torch.arange(start, stop, device=last.device)
        hidden = positions > last
        if window is not None and window < longest:
            hidden |= positions <= last - window
        values = torch.zeros(hidden.shape, dtype=self.pool.shape.dtype, device=last.device)
        return Mask(rows, slice(start, stop), values.masked_fill_(hidden, float("-inf"))[:, None])
