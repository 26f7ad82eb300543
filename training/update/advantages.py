"""Advantages of rollouts (`by_group`), and the credit of a rollout's calls (`credit_by_name`): two
registries.

An *estimator* turns the rewards of a group into a number for each kept rollout. All estimators use
only the *kept* rollouts of a group, so that the baseline is computed from the rollouts that are
trained on, as in rStar2-Agent (section 2).

A *credit* turns a rollout's advantage into a weight for each of its calls, so that calls of
different roles may get different weights from one outcome. Its input is all kept rollouts of a
step, with their overlays. A call without a weight is context: its tokens are read, but not trained.
The calls of a frozen role have no weight.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from hrm_agent.answers.fenced_code import asked_ids
from hrm_agent.config import is_own
from hrm_agent.training.config.parts import LossPart
from hrm_agent.training.own_parts import OwnFunction, part_by_name
from hrm_agent.trajectory import Call, Overlay, RunStatus, Trajectory, Verdict

__all__ = [
    "ADVANTAGES",
    "CREDITS",
    "Credit",
    "Estimator",
    "TurnOptions",
    "advantage_of",
    "as_recorded",
    "by_group",
    "centred",
    "credit_by_name",
    "credited",
    "dr_grpo",
    "estimator_by_name",
    "even",
    "forks",
    "group_advantages",
    "grpo",
    "normalised",
    "per_role",
    "per_turn",
    "reinforce_plus_plus",
    "rloo",
    "turn_options",
    "turns_differ",
    "whole_trajectory",
]


def grpo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """GRPO: rewards less the mean of their group, over its standard deviation.

        A_i = (R_i - mean R) / (std R + eps)

    with the unbiased standard deviation (rStar2-Agent, section 2).
    """
    return [normalised(reward_G, eps) for reward_G in reward_by_group]


def normalised(reward_G: Sequence[float], eps: float = 1e-6) -> list[float]:
    """Rewards less their mean, over their unbiased standard deviation plus `eps` (zeros for fewer
    than two rewards).
    """
    if len(reward_G) < 2:
        return [0.0] * len(reward_G)
    mean = statistics.fmean(reward_G)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in reward_G) / (len(reward_G) - 1))
    return [(reward - mean) / (std + eps) for reward in reward_G]


def dr_grpo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """Dr. GRPO: rewards less the mean of their group, and no more (Liu et al., arXiv 2503.20783).

        A_i = R_i - mean R

    GRPO's division by the deviation gives a group that is almost always right, or almost always
    wrong, more weight than a group in between. `eps` is unused.
    """
    del eps
    return [centred(reward_G) for reward_G in reward_by_group]


def centred(reward_G: Sequence[float]) -> list[float]:
    """Rewards less their mean (zero for a single reward)."""
    if not reward_G:
        return []
    mean = statistics.fmean(reward_G)
    return [reward - mean for reward in reward_G]


def rloo(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
    """RLOO: rewards less the mean of the *other* rollouts of their group (Ahmadian et al., arXiv
    2402.14740).

        A_i = R_i - sum of R_j over j != i / (n - 1)

    The baseline of a rollout does not contain its own reward, so the estimate of the gradient is
    unbiased. A single rollout has advantage zero. `eps` is unused.
    """
    del eps
    advantages: list[list[float]] = []
    for reward_G in reward_by_group:
        total = math.fsum(reward_G)
        others = max(1, len(reward_G) - 1)
        is_single = len(reward_G) < 2
        advantages.append(
            [0.0 if is_single else reward - (total - reward) / others for reward in reward_G]
        )
    return advantages


def reinforce_plus_plus(
    reward_by_group: Sequence[Sequence[float]], eps: float
) -> list[list[float]]:
    """REINFORCE++ with a baseline: rewards less the mean of their group, normalised over the whole
    batch.

        B_i = R_i - mean of R over its group,      A_i = (B_i - mean B) / (std B + eps)

    This is *REINFORCE++-baseline*, the variant of Hu et al. (arXiv 2501.03262) for several rollouts
    of a prompt. Mean and unbiased deviation are over all kept rollouts of the step, and each
    rollout counts once, however long it is. So a group whose rewards hardly differ keeps small
    advantages, which GRPO would scale up.
    """
    groups = [centred(reward_G) for reward_G in reward_by_group]
    advantages = iter(normalised([each for group in groups for each in group], eps))
    return [[next(advantages) for _ in group] for group in groups]


Estimator = Callable[[Sequence[Sequence[float]], float], list[list[float]]]
"""Function (rewards of the kept rollouts of each group, eps) -> advantages of these rollouts, in
the same order.
"""

ADVANTAGES: dict[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
}
"""Estimators by the name that a user gives."""


def estimator_by_name(name: str) -> Estimator:
    """Return the estimator `name`: one of `ADVANTAGES`, or a user's function. Raises `ConfigError`."""
    return part_by_name("advantages", name, ADVANTAGES, _own_estimator)


def _own_estimator(own: OwnFunction) -> Estimator:
    def estimate(reward_by_group: Sequence[Sequence[float]], eps: float) -> list[list[float]]:
        found = own(reward_by_group, eps)
        groups = own.items(found, len(reward_by_group), f"{len(reward_by_group)} groups")
        return [
            [
                own.number(each, f"a reward of the group {[*reward_G]}")
                for each in own.items(group, len(reward_G), f"the group {[*reward_G]}")
            ]
            for group, reward_G in zip(groups, reward_by_group, strict=True)
        ]

    return estimate


def by_group(overlays: Iterable[Overlay], name: str = "grpo", eps: float = 1e-6) -> list[Overlay]:
    """Overlays in their given order, in which the kept ones have an advantage. Groups are
    distinguished by `group_id`.

    `name` is as for `estimator_by_name`. `eps` is added to standard deviations before a division by
    them.
    """
    estimate = estimator_by_name(name)
    judged = list(overlays)
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


def whole_trajectory(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> dict[str, float]:
    """Credit under which every call of a rollout has the rollout's advantage.

    GRPO assumes the same: with one number for a whole run, its calls cannot be told apart.

    Returns the weights by call id. Calls that a fork inherited have no weight here, since they are
    trained with the run that made them.
    """
    pairs = zip(trajectories, overlays, strict=True)
    return {
        call.id: advantage_of(overlay)
        for trajectory, overlay in pairs
        for call in trajectory.own_calls
    }


def advantage_of(overlay: Overlay) -> float:
    """Advantage of a kept rollout. Raises `ValueError` if there is none, because the rollout was
    not kept or `by_group` was not called.
    """
    if overlay.advantage is None:
        raise ValueError(f"trajectory {overlay.trajectory_id} was kept but has no advantage")
    return overlay.advantage


_Place = tuple[str, str, bytes | int]
"""Key that siblings have in common: (group, role, digest of the tokens that a call saw or its
place).
"""


@dataclass(frozen=True, slots=True)
class TurnOptions:
    """Options of the credit `per_turn`."""

    weight: float = 1.0
    """Weight of the calls' advantages, beside 1 for the rollout's."""
    discount: float = 1.0
    """Discount of a later call's reward, for each call in between."""
    baseline: Literal["position", "anchor"] = "position"
    """Calls that a call is compared with: those at the same place, or those that saw the same
    tokens.
    """


def per_role(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], estimate: Estimator, eps: float
) -> dict[str, float]:
    """Credit that compares the calls of a role among siblings: the same role in other rollouts,
    after the same context to the token.

    Rollouts of one prompt whose plans differ give their solvers different subgoals, and the outcome
    of a run depends on its plan as much as on its solvers. If several rollouts share a plan (forks
    of one run, or runs that planned alike), their solvers can be compared among themselves: the
    plan is the same, so any difference of the outcome is due to the solvers.

    A *stretch* is a sequence of calls of one role in one conversation of a run, without inherited
    calls. Siblings are stretches of one role in one group whose first calls saw the same tokens,
    prompt included. If siblings come from at least two rollouts with different rewards, the calls
    of a stretch get the advantage among its siblings. If not, they get the advantage of their
    rollout. A planner sees the same prompt in each rollout of its group, so its siblings are the
    whole group, and its calls get the same weights as without this credit.

    Returns the weights by call id. `estimate` computes the advantage among siblings.
    """
    siblings: dict[_Place, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for index, trajectory in enumerate(trajectories):
        for role, seen, call in _stretches(trajectory):
            siblings[overlays[index].group_id, role, seen][index].append(call.id)
    compared = [
        calls for calls in siblings.values() if len({overlays[i].reward for i in calls}) > 1
    ]
    advantages = estimate([[overlays[i].reward for i in calls] for calls in compared], eps)
    weights = whole_trajectory(trajectories, overlays)
    for calls, among in zip(compared, advantages, strict=True):
        for ids, advantage in zip(calls.values(), among, strict=True):
            weights.update(dict.fromkeys(ids, advantage))
    return weights


def turn_options(loss: LossPart) -> TurnOptions:
    """Options of the credit `per_turn` in a configuration."""
    return TurnOptions(loss.turn_weight, loss.turn_discount, loss.turn_baseline)


def per_turn(
    trajectories: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    estimate: Estimator,
    eps: float,
    options: TurnOptions,
) -> dict[str, float]:
    """Credit that adds the advantage of each call by the rewards of single calls to the advantage
    of its rollout.

        G_t = r_t + discount * G_(t+1),      weight of call t = A + options.weight * A_t

    r_t is the reward of the policy's t-th call in its rollout (`Trajectory.rewards_by_call`), with
    those of the tool calls that it asked for. A_t is the advantage of G_t among siblings in the
    group: calls of the same role at the same place of their rollouts, or those that saw the same
    tokens (GiGPO's anchor states, Feng et al., arXiv 2505.10978, which computes G_t from the
    outcome, too). A call without a sibling has A_t 0. In a rollout that the policy made fail, which
    no rubric scores, each call has the lowest G_t of its siblings.

    Returns the weights by call id. If all rewards of single calls are zero, they are those of
    `whole_trajectory`.
    """
    compared = _compared(trajectories, options)
    advantages = estimate([[value for _, value in calls] for calls in compared], eps)
    weights = whole_trajectory(trajectories, overlays)
    for calls, among in zip(compared, advantages, strict=True):
        for (id_, _), advantage in zip(calls, among, strict=True):
            weights[id_] += options.weight * advantage
    return weights


def turns_differ(trajectories: Sequence[Trajectory], options: TurnOptions) -> bool:
    """True if the credit `per_turn` gives some call another weight than its siblings."""
    compared = _compared(trajectories, options)
    return any(len({value for _, value in calls}) > 1 for calls in compared)


def _compared(
    trajectories: Sequence[Trajectory], options: TurnOptions
) -> list[list[tuple[str, float]]]:
    """Siblings that are compared, each as (call id, G_t)."""
    siblings: dict[_Place, list[tuple[str, float | None]]] = defaultdict(list)
    for trajectory in trajectories:
        failed = trajectory.status is RunStatus.FAILED
        returns = _returns(trajectory, options.discount)
        seen: Counter[str] = Counter()
        for call in trajectory.policy_calls:
            role = call.identity.role
            place = seen[role] if options.baseline == "position" else _context_of(trajectory, call)
            seen[role] += 1
            value = None if failed else returns[call.id]
            siblings[trajectory.group_id, role, place].append((call.id, value))
    found: list[list[tuple[str, float]]] = []
    for calls in siblings.values():
        lowest = min((value for _, value in calls if value is not None), default=0.0)
        if len(calls) > 1:
            found.append([(id_, lowest if value is None else value) for id_, value in calls])
    return found


def _returns(trajectory: Trajectory, discount: float) -> dict[str, float]:
    """Discounted sum of the rewards of each call of the policy and of those after it."""
    calls = trajectory.policy_calls
    worth = dict.fromkeys((call.id for call in calls), 0.0)
    asked = {id_: call.id for call in calls for id_ in asked_ids(call.id, call.response)}
    tools = {call.id: call for call in trajectory.own_tool_calls}
    for id_, value in trajectory.rewards_by_call.get("reward", {}).items():
        tool = tools.get(id_)
        owner = id_ if tool is None else asked.get(tool.tool_call_id)
        if owner in worth:  # another model's calls are not trained
            worth[owner] += value
    following = 0.0
    for call in reversed(calls):
        following = worth[call.id] + discount * following
        worth[call.id] = following
    return worth


def _context_of(trajectory: Trajectory, call: Call) -> bytes:
    """Digest of all tokens that a call saw, from the root to its first sampled token."""
    by_id = {each.id: each for each in trajectory.calls}
    prompt = call.mask.index(True) if True in call.mask else len(call.mask)
    parts = [call.token_ids[:prompt]]
    before = call
    while before.parent is not None:
        before = by_id[before.parent]
        parts.append(before.token_ids)
    context = array("q", [token for part in reversed(parts) for token in part])
    # a step may have thousands of calls with thousands of tokens each: only digests are kept
    return hashlib.sha256(context.tobytes()).digest()


def _stretches(trajectory: Trajectory) -> Iterator[tuple[str, bytes, Call]]:
    """Calls of a run that have tokens and were not inherited, each as (role, digest of the tokens
    that the first call of its stretch saw, call).
    """
    by_id = {call.id: call for call in trajectory.calls}
    own = {call.id for call in trajectory.own_calls if call.token_ids}
    seen: dict[str, bytes] = {}
    for call in (call for call in trajectory.own_calls if call.id in own):
        first = call
        while first.parent in own and by_id[first.parent].identity.role == call.identity.role:
            first = by_id[first.parent]
        if first.id not in seen:
            seen[first.id] = _context_of(trajectory, first)
        yield call.identity.role, seen[first.id], call


def forks(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], *, divides: bool, eps: float
) -> dict[str, float]:
    """Credit that gives a call the difference that it made to the expected reward, by rollouts that
    begin in the middle of others (forks).

    The value of a moment is the mean reward of all that went on from it: of its forks, and of the
    rollout that they left, by the value of its next moment. The value of a prompt is the mean over
    the values of its rollouts that begin with the task. A call gets the value of the moment after
    it less that of the moment before it. The last moment of a rollout is worth its reward.

        V(m_k) = mean of V(m_(k+1)) and of the rewards of the forks of m_k
        weight of a call between m_k and m_(k+1) = V(m_(k+1)) - V(m_k)

    So the weights along a rollout sum to its reward less the value of the prompt. VinePPO
    (Kazemnejad et al., arXiv 2410.01679) values each step by forks that are not trained on. Here
    they are, with their reward less the value of the moment at which they begin.

    `divides`: the weights are divided by the unbiased deviation of the rewards of the group plus
    `eps`, as in `grpo`. Returns the weights by call id. Without forks, they are those of
    `whole_trajectory`.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for index, overlay in enumerate(overlays):
        groups[overlay.group_id].append(index)
    weights: dict[str, float] = {}
    for indices in groups.values():
        reward_G = [overlays[i].reward for i in indices]
        scale = 1.0
        if divides:
            scale = (statistics.stdev(reward_G) if len(reward_G) > 1 else 0.0) + eps
        group = [(trajectories[i], overlays[i].reward) for i in indices]
        weights |= {id_: value / scale for id_, value in _by_forks(group).items()}
    return weights


def _by_forks(group: Sequence[tuple[Trajectory, float]]) -> dict[str, float]:
    """Differences of values by call id, for the rollouts of a group with their rewards."""
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    inherited: dict[str, set[str]] = {}
    begun = [(each, reward) for each, reward in group if each.forked_from is None]
    left = [(each, reward, each.forked_from) for each, reward in group if each.forked_from]
    for each, reward, at in left:
        rewards[at.trajectory_id][at.checkpoint_id].append(reward)
        own = {call.id for call in each.own_calls}
        inherited[at.checkpoint_id] = {call.id for call in each.calls} - own
    moment_value: dict[str, float] = {}
    worth: dict[str, float] = {}
    for each, reward in begun:
        value = reward
        last_first = sorted(rewards[each.id], key=lambda at: -len(inherited[at]))
        for at in last_first:
            value = statistics.fmean([value, *rewards[each.id][at]])
            moment_value[at] = value
        worth[each.id] = value
    whole = statistics.fmean(worth.values()) if worth else 0.0
    found: dict[str, float] = {}
    for each, reward in begun:
        moments = sorted(rewards[each.id], key=lambda at: len(inherited[at]))
        values = [whole, *(moment_value[at] for at in moments), reward]
        for call in each.own_calls:
            passed = sum(call.id not in inherited[at] for at in moments)
            found[call.id] = values[passed + 1] - values[passed]
    for each, reward, at in left:
        # the rollout that a fork left may be out of the group
        value = moment_value.get(at.checkpoint_id)
        if value is None:
            value = statistics.fmean(rewards[at.trajectory_id][at.checkpoint_id])
        found |= dict.fromkeys((call.id for call in each.own_calls), reward - value)
    return found


def even(
    trajectories: Sequence[Trajectory], weight_by_call: Mapping[str, float]
) -> dict[str, float]:
    """Credit under which a rollout of many tokens weighs as much as a rollout of few.

    Under a mean over tokens a rollout weighs by its number of tokens: a rollout with nine calls
    outweighs one with five, though each has one outcome. Here the weights of a rollout with n
    trained tokens are scaled by k / n, so that the sum of |weight| over its tokens is k
    |advantage|. k is the mean number of trained tokens of a rollout. With this k the mean scale
    over the batch's tokens is 1, so that the gradient keeps its size.

    Returns the scaled weights by call id. Rollouts without a token to train are left out.
    """
    lengths: dict[str, int] = {}
    for each in trajectories:
        calls = (call for call in each.policy_calls if not call.constrained)
        length = sum(call.sampled_tokens for call in calls if call.id in weight_by_call)
        if length:
            lengths[each.id] = length
    mean = sum(lengths.values()) / max(1, len(lengths))
    return {
        call.id: weight_by_call[call.id] * (mean / lengths[each.id])
        for each in trajectories
        if each.id in lengths
        for call in each.own_calls
        if call.id in weight_by_call
    }


Credit = Callable[[Sequence[Trajectory], Sequence[Overlay]], Mapping[str, float]]
"""Function (kept trajectories, their overlays with advantages, in the same order) -> weight by call
id.

A call that is not in the mapping is not trained on.
"""

_MakeCredit = Callable[[Estimator, float, TurnOptions], Credit]

CREDITS: dict[str, _MakeCredit] = {
    "whole_trajectory": lambda estimate, eps, turns: whole_trajectory,
    "per_role": lambda estimate, eps, turns: partial(per_role, estimate=estimate, eps=eps),
    "per_turn": lambda estimate, eps, turns: partial(
        per_turn, estimate=estimate, eps=eps, options=turns
    ),
    "forks": lambda estimate, eps, turns: partial(forks, divides=estimate is grpo, eps=eps),
    # `credit_by_name` divides by the lengths
    "even": lambda estimate, eps, turns: whole_trajectory,
}
"""Functions (estimator, eps, options of turns) -> credit, by the name that a user gives."""


def credit_by_name(
    name: str,
    *,
    advantages: str = "grpo",
    eps: float = 1e-6,
    frozen: Collection[str] = (),
    turns: TurnOptions | None = None,
) -> Credit:
    """Return the credit `name`, one of `CREDITS` or a user's function, under which calls of the
    roles `frozen` have no weight.

    `per_role` and `per_turn` compare siblings by the estimator `advantages` with `eps`. Raises `ConfigError` for
    an unknown name.
    """
    make = part_by_name("credit", name, CREDITS, _own_credit)
    # a user's advantages are for rewards of rollouts, and sums of calls' rewards may be negative
    compare = "grpo" if name == "per_turn" and is_own(advantages) else advantages
    weigh = make(estimator_by_name(compare), eps, turns or TurnOptions())
    if name == "whole_trajectory" and not frozen:
        return whole_trajectory

    def credit(trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]) -> dict[str, float]:
        free = {
            call.id
            for each in trajectories
            for call in each.own_calls
            if call.identity.role not in frozen
        }
        given = weigh(trajectories, overlays)
        weights = {call_id: weight for call_id, weight in given.items() if call_id in free}
        return even(trajectories, weights) if name == "even" else weights

    return credit


def _own_credit(own: OwnFunction) -> _MakeCredit:
    def credit(trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]) -> dict[str, float]:
        found = own(trajectories, overlays)
        if not isinstance(found, Mapping):
            raise own.wrong(f"returned {type(found).__name__}, not weights by call id")
        weights = cast("Mapping[Any, Any]", found)
        known = {call.id for each in trajectories for call in each.own_calls}
        for each in weights:
            if each not in known:
                raise own.wrong(f"returned a weight for the unknown call {each!r}")
        return {each: own.number(weight, f"call {each}") for each, weight in weights.items()}

    return lambda estimate, eps, turns: credit


def credited(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], credit: Credit
) -> list[Overlay]:
    """Overlays in their given order. The kept ones have the weights that `credit` gives their
    calls.

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
    """Weights by call id, as recorded in the overlays. If an overlay records no weights, each call
    of its trajectory gets the advantage.
    """
    weights: dict[str, float] = {}
    for trajectory, overlay in zip(trajectories, overlays, strict=True):
        given = overlay.credit
        weights |= whole_trajectory([trajectory], [overlay]) if given is None else given
    return weights
