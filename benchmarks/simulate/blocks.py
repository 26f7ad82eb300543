"""Blocks of an engine's key-value cache, as vLLM V1 documents them (design/prefix_caching).

A block is held by a running sequence, or free. A freed block keeps its contents until it is
allocated again. The blocks that were freed first are allocated first, and of one sequence the last
blocks, so that what remains of a sequence is always a prefix. The full blocks of a prompt belong to
the group: all its running rollouts share one copy.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fit:
    """Blocks that a sequence would take."""

    blocks: int
    """Blocks to allocate."""
    hits: int
    """Cached blocks that were free until now."""
    own: bool
    """True if cached blocks beyond the prompt can be found: they are reachable only if the prompt
    is cached.
    """
    cached_tokens: int
    """Tokens that are cached and need no computation. The last token is always computed."""


class Blocks:
    """Blocks of one engine. `free` counts blocks that no sequence holds, with or without
    contents.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size, self.free = count, size, count
        self._kept: OrderedDict[str, int] = OrderedDict()  # blocks of a prefix, the oldest first
        self._blank = count
        self._holders: dict[str, int] = {}

    def of(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def fit(self, name: str, group: str, prompt: int, tokens: int, spare: int = 0) -> Fit | None:
        """Fit of a sequence of `tokens` that is not running (None unless it fits and `spare` blocks
        stay free).
        """
        shared = prompt // self.size
        if group in self._holders:
            found, hits = shared, 0
        else:
            found = hits = self._kept.get(f"group {group}", 0)
        if own := found == shared:
            kept = self._kept.get(name, 0)
            found, hits = found + kept, hits + kept
        blocks = self.of(tokens) - found
        fits = blocks + hits + spare <= self.free
        return Fit(blocks, hits, own, min(found * self.size, tokens - 1)) if fits else None

    def admit(self, name: str, group: str, prompt: int, tokens: int, spare: int = 0) -> Fit | None:
        """Run a sequence if it fits. Return its fit, or None."""
        fit = self.fit(name, group, prompt, tokens, spare)
        if fit is None:
            return None
        self.free -= fit.hits
        if group not in self._holders:
            self._kept.pop(f"group {group}", None)
        if fit.own:
            self._kept.pop(name, None)
        self._holders[group] = self._holders.get(group, 0) + 1
        self.take(fit.blocks)
        return fit

    def take(self, blocks: int) -> None:
        """Allocate free blocks and forget their contents."""
        self.free -= blocks
        assert self.free >= 0
        blank = min(blocks, self._blank)
        self._blank -= blank
        blocks -= blank
        while blocks:
            oldest, kept = next(iter(self._kept.items()))
            if kept > blocks:
                self._kept[oldest] = kept - blocks
                return
            del self._kept[oldest]
            blocks -= kept

    def release(self, name: str, group: str, prompt: int, tokens: int) -> None:
        """Release the blocks of a running sequence of `tokens`."""
        shared = prompt // self.size
        own, full = self.of(tokens) - shared, tokens // self.size - shared
        self.free += own
        self._blank += own - full + self._kept.pop(name, 0)
        if full:
            self._kept[name] = full
        self._holders[group] -= 1
        if not self._holders[group]:
            del self._holders[group]
            self.free += shared
            if shared:
                self._kept[f"group {group}"] = shared
