"""Credit under which every call of a rollout has the rollout's advantage.

This is the assumption of GRPO: one number for a whole run allows no distinction between its calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from hrm_agent.trajectory import Overlay, Trajectory

__all__ = ["advantage_of", "whole_trajectory"]


def whole_trajectory(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, float]:
    """Weights by call: the advantage of its trajectory. Calls that a fork inherited are left to the
    run that made them.
    """
    pairs = zip(trajectories, overlays, strict=True)
    return {
        call.id: advantage_of(overlay)
        for trajectory, overlay in pairs
        for call in trajectory.own_calls
    }


def advantage_of(overlay: Overlay) -> float:
    """Advantage of a kept rollout. Raises `ValueError` if it has none because it was not kept, or
    `by_group` has not been called.
    """
    if overlay.advantage is None:
        raise ValueError(f"trajectory {overlay.trajectory_id} was kept but has no advantage")
    return overlay.advantage
