"""Credit of rollouts' advantages to their calls: the registry, frozen roles, and its record.

A graph has several roles and makes many calls, an outcome is one number. A credit sees the kept
rollouts of a step with their overlays, and gives each call a weight. A call without one is context:
its tokens are read, and never trained. The calls of a frozen role have no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.update.advantages.estimators import estimator_by_name
from hrm_agent.training.update.advantages.even import even
from hrm_agent.training.update.advantages.per_role import per_role
from hrm_agent.training.update.advantages.whole_trajectory import whole_trajectory
from hrm_agent.trajectory import Overlay, Trajectory, Verdict

__all__ = ["CREDITS", "Credit", "as_recorded", "credit_by_name", "credited"]

Credit = Callable[[Sequence[Trajectory], Sequence[Overlay]], Mapping[str, float]]
"""Function (kept trajectories, their overlays with advantages, in the same order) -> weight by call
id.

A call that is not in the mapping is not trained on.
"""

CREDITS = ("whole_trajectory", "per_role", "even")
"""Names of credits that a user may give."""


def credit_by_name(
    name: str, *, advantages: str = "grpo", eps: float = 1e-6, frozen: Collection[str] = ()
) -> Credit:
    """Credit `name`, under which calls of the roles `frozen` have no weight.

    `advantages` and `eps` are passed to `by_group`, by which `per_role` compares siblings. Raises
    `ConfigError` for an unknown name.
    """
    if name not in CREDITS:
        hint = f"{nearest(name, CREDITS)} Credits: {', '.join(CREDITS)}.".strip()
        raise ConfigError(f"There is no credit {name!r}.", hint)
    estimate = estimator_by_name(advantages)
    if name == "whole_trajectory" and not frozen:
        return whole_trajectory

    def credit(trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]) -> dict[str, float]:
        if name == "per_role":
            weights = per_role(trajectories, overlays, estimate, eps)
        else:
            weights = whole_trajectory(trajectories, overlays)
        free = {
            call.id
            for each in trajectories
            for call in each.own_calls
            if call.identity.role not in frozen
        }
        weights = {call_id: weight for call_id, weight in weights.items() if call_id in free}
        return even(trajectories, weights) if name == "even" else weights

    return credit


def credited(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], credit: Credit
) -> list[Overlay]:
    """Overlays in their order, the kept ones with the weights that `credit` gives their calls.

    Weights of `whole_trajectory` are not recorded, since they follow from the advantage.
    """
    if credit is whole_trajectory:
        return list(overlays)
    by_id = {trajectory.id: trajectory for trajectory in trajectories}
    kept = [overlay for overlay in overlays if overlay.verdict is Verdict.KEPT]
    weights = credit([by_id[overlay.trajectory_id] for overlay in kept], kept)
    given = {
        overlay.trajectory_id: {
            call.id: weights[call.id]
            for call in by_id[overlay.trajectory_id].own_calls
            if call.id in weights
        }
        for overlay in kept
    }
    return [
        (
            overlay.model_copy(update={"credit": given[overlay.trajectory_id]})
            if overlay.verdict is Verdict.KEPT
            else overlay
        )
        for overlay in overlays
    ]


def as_recorded(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, float]:
    """Weights by call as recorded in the overlays. If an overlay has none, each of its calls gets
    the advantage.
    """
    weights: dict[str, float] = {}
    for trajectory, overlay in zip(trajectories, overlays, strict=True):
        given = overlay.credit
        weights |= whole_trajectory([trajectory], [overlay]) if given is None else given
    return weights
