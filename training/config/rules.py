"""Rules for keys of a reinforcement learning configuration that depend on each other."""

from __future__ import annotations

from collections.abc import Iterator

from hrm_agent.errors import ConfigError
from hrm_agent.training.config.parts import (
    AdapterPart,
    EvaluationPart,
    LossPart,
    OptimPart,
    RolloutPart,
    SelectPart,
)

__all__ = ["QUOTA_KEYS", "conditions", "ratio_moves", "refuse_uncorrected", "refuse_with_ranks"]

QUOTA_KEYS = ("min_positives", "min_negatives")


def ratio_moves(loss: LossPart, optim: OptimPart, *, on_record: bool) -> bool:
    """True if the probability ratio of a token may differ from 1."""
    return optim.epochs * optim.mini_batches > 1 or loss.old_logprobs == "engine" or on_record


def conditions(
    rollout: RolloutPart,
    select: SelectPart,
    loss: LossPart,
    optim: OptimPart,
    evaluation: EvaluationPart,
    *,
    on_record: bool,
) -> Iterator[tuple[str, tuple[str, ...], object, str]]:
    """Yield (table, keys, True if they have an effect, reason if not) for keys that depend on
    conditions.

    `on_record`: True if rollouts on record are learned from.
    """
    algorithm = select.algorithm
    moves = ratio_moves(loss, optim, on_record=on_record)
    once = "each batch is trained on once, so the ratio is 1 and nothing is clipped"
    yield "loss", ("clip_low", "clip_high", "dual_clip"), moves, once
    mean = loss.taken("aggregation")
    yield "loss", ("constant",), mean == "constant", f"the aggregation is {mean}"
    divides = loss.advantages in ("grpo", "reinforce_plus_plus")
    yield "loss", ("advantage_eps",), divides, f"{loss.advantages} divides by no deviation"
    older = rollout.versions_behind or rollout.carry_over or on_record
    yield "loss", ("max_staleness",), older, "all tokens of a step are of its own weights"
    corrected = loss.correction != "none"
    yield (
        "loss",
        ("correction_cap", "correction_mode"),
        corrected,
        "nothing is corrected without correction",
    )
    looked = evaluation.eval_every > 0
    yield (
        "evaluation",
        ("patience", "eval_problems"),
        looked,
        "nothing is evaluated without eval_every",
    )
    behind = "without versions_behind nothing is under way when weights are published"
    yield "rollout", ("on_publish",), rollout.versions_behind, behind
    waited = "without group_quorum all rollouts are waited for"
    yield "rollout", ("group_deadline", "carry_over"), rollout.group_quorum < 1, waited
    whole = "grpo samples G rollouts and trains on all of them"
    yield "rollout", ("oversampling",), algorithm != "grpo", whole
    by_roc = f"only grpo-roc selects by it, and the algorithm is {algorithm}"
    yield "select", QUOTA_KEYS, algorithm.startswith("grpo-roc"), by_roc
    yield "select", ("selection", "penalty_eps", "penalties"), algorithm == "grpo-roc", by_roc
    yield (
        "select",
        ("penalty_eps",),
        select.selection == "inverse",
        "selection = lowest does not invert penalties",
    )
    yield (
        "optim",
        ("fall", "least_rate"),
        optim.cooldown,
        "without cooldown the learning rate does not fall",
    )


def refuse_uncorrected(rollout: RolloutPart, loss: LossPart, samples: int) -> None:
    """Raise `ConfigError` if older weights sample without a correction, or if the quorum is only
    one of `samples`.
    """
    behind, share = rollout.versions_behind, rollout.group_quorum
    older = f"versions_behind = {behind}" if behind else "carry_over" if rollout.carry_over else ""
    if older and loss.correction == "none" and loss.old_logprobs != "engine":
        raise ConfigError(
            f"{older} trains on tokens of older weights, and nothing corrects for that.",
            "Set correction = token, which weighs each by the ratio of its probabilities, or"
            " old_logprobs = engine.",
        )
    if share < 1 and share * samples <= 1:
        raise ConfigError(
            f"group_quorum = {share:g} is one of {samples} rollouts, and one alone teaches"
            " nothing.",
            f"Set it above {1 / samples:g}.",
        )


def refuse_with_ranks(
    rollout: RolloutPart, optim: OptimPart, adapter: AdapterPart, *, on_record: bool
) -> None:
    """Raise `ConfigError` for settings that several processes do not support."""
    whole = "whole weights on each process: take ddp" if optim.sharding == "fsdp2" else ""
    for given, what, hint in (
        (on_record, "--from", "Learn from what is on record in one process."),
        (rollout.processes > 1, "processes", "Each rank runs graphs already: start more ranks."),
        (rollout.ray, "ray", "Each rank runs graphs already: start more ranks."),
        (
            rollout.versions_behind > 0,
            "versions_behind",
            "Several ranks take their steps one after the other.",
        ),
        (
            rollout.carry_over,
            "carry_over",
            "Leave it out: what a rank has cut off stays on record.",
        ),
        (whole and adapter.lora_rank > 0, "lora_rank", f"An adapter needs {whole}."),
        (
            whole and optim.optimizer == "adamw8bit",
            "optimizer = adamw8bit",
            f"8 bits need {whole}.",
        ),
    ):
        if optim.sharding != "none" and given:
            raise ConfigError(f"sharding = {optim.sharding} does not go with {what}.", hint)
