"""Advantages of a step's kept rollouts, by one of several estimators.

All estimators use only the *kept* rollouts of a group: the baseline belongs to the rollouts that
are trained on, as in rStar2-Agent (section 2).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.training.update.advantages.dr_grpo import dr_grpo
from hrm_agent.training.update.advantages.grpo import grpo
from hrm_agent.training.update.advantages.reinforce_plus_plus import reinforce_plus_plus
from hrm_agent.training.update.advantages.rloo import rloo
from hrm_agent.trajectory import Overlay, Verdict

__all__ = ["ADVANTAGES", "Estimator", "by_group", "estimator_by_name", "group_advantages"]

Estimator = Callable[[Sequence[Sequence[float]], float], list[list[float]]]
"""Function (rewards of the kept rollouts of each group, eps) -> their advantages, in the same
order.
"""

ADVANTAGES: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
}
"""Estimators by the name that a user gives."""


def estimator_by_name(name: str) -> Estimator:
    """Return the estimator `name`. Raises `ConfigError` for a name that is not in `ADVANTAGES`."""
    if name not in ADVANTAGES:
        hint = f"{nearest(name, ADVANTAGES)} Advantages: {', '.join(ADVANTAGES)}.".strip()
        raise ConfigError(f"There are no advantages {name!r}.", hint)
    return ADVANTAGES[name]


def by_group(overlays: Iterable[Overlay], name: str = "grpo", eps: float = 1e-6) -> list[Overlay]:
    """Overlays in their order, with the advantages of those kept. Groups are distinguished by
    `group_id`.

    `name` is one of `ADVANTAGES`. `eps` is added to deviations used as divisors.
    """
    estimate, judged = estimator_by_name(name), list(overlays)
    kept: dict[str, list[int]] = defaultdict(list)
    for index, overlay in enumerate(judged):
        if overlay.verdict is Verdict.KEPT:
            kept[overlay.group_id].append(index)
    estimated = estimate([[judged[i].reward for i in indices] for indices in kept.values()], eps)
    for indices, advantages in zip(kept.values(), estimated, strict=True):
        for index, advantage in zip(indices, advantages, strict=True):
            judged[index] = judged[index].model_copy(update={"advantage": advantage})
    return judged


def group_advantages(overlays: Iterable[Overlay], eps: float = 1e-6) -> list[Overlay]:
    """Advantages of GRPO, by `by_group`."""
    return by_group(overlays, "grpo", eps)
