"""Every call of a rollout has the rollout's advantage.

The assumption of GRPO: with one number for a whole run nothing better is known of its calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.trajectory import Overlay, Trajectory

__all__ = ["advantage_of", "whole_trajectory"]


def whole_trajectory(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, float]:
    """The advantage of its trajectory for each call; what a fork inherited is the business of the
    run that made it.
    """
    pairs = zip(trajectories, overlays, strict=True)
    return {
        call.id: advantage_of(overlay)
        for trajectory, overlay in pairs
        for call in trajectory.own_calls
    }


def advantage_of(overlay: Overlay) -> float:
    """Raises `ValueError` where it has none: it was not kept, or `by_group` has not been called."""
    if overlay.advantage is None:
        raise ValueError(f"trajectory {overlay.trajectory_id} was kept but has no advantage")
    return overlay.advantage
