"""One batch of rollouts cut into several, each for an optimiser step of its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hrm_agent.errors import ConfigError
from hrm_agent.trajectory import Overlay, Verdict, derive_seed

__all__ = ["split_kept"]


def split_kept(overlays: Sequence[Overlay], count: int, *, seed: int) -> list[list[Overlay]]:
    """The kept overlays in `count` parts whose sizes differ by one at most, for `build_batches`.

    Drawn at random, by `seed` and step, so that no part has the rollouts of a few prompts only. A rollout is whole in
    its part: its tokens have one ratio in GSPO, and one mean in the aggregation by sequence. One part is the overlays
    in their order.
    """
    if count < 1:
        raise ConfigError(f"A batch cannot be cut into {count} mini-batches.", "Take 1 or more.")
    kept = [overlay for overlay in overlays if overlay.verdict is Verdict.KEPT]
    if count == 1:
        return [kept]
    random.Random(derive_seed(seed, "mini-batches", *(kept[:1] and [kept[0].step]))).shuffle(kept)
    return [kept[part::count] for part in range(count)]
