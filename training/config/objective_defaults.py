"""Default clips and aggregation of each objective, from its own paper.

clipped: DAPO's upper clip (arXiv 2503.14476), and rStar2-Agent's. gspo: arXiv 2507.18071, section
5.1. cispo has no lower bound; MiniMax-M1 (arXiv 2506.13585) gives no upper one, ScaleRL (arXiv
2510.13786) cuts the ratio at 5.

They are separate from the objectives so that a command's help does not need torch.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["OWN", "Aggregation", "ObjectiveDefaults", "ObjectiveName"]

ObjectiveName = Literal["clipped", "cispo", "gspo"]
Aggregation = Literal["token", "sequence", "constant"]


class ObjectiveDefaults(NamedTuple):
    """Defaults of one objective."""

    clip_low: float | None
    """Lower clip of the probability ratio, as a distance below 1 (None: no lower bound)."""
    clip_high: float
    """Upper clip of the probability ratio, as a distance above 1."""
    aggregation: Aggregation
    """Unit of the mean."""


OWN: dict[ObjectiveName, ObjectiveDefaults] = {
    "clipped": ObjectiveDefaults(0.2, 0.28, "token"),
    "cispo": ObjectiveDefaults(None, 4.0, "token"),
    "gspo": ObjectiveDefaults(3e-4, 4e-4, "sequence"),
}
"""Defaults by objective name."""
