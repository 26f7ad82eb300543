"""Inputs of the shipped weights, condensed to a few figures in their cards.

They show when the policies have to be rebuilt. They depend on what the sources *produce*, not on
the sources themselves: to rename or tidy a module does not change them. A digest covers everything
that is equal to the byte on every machine: the tokens of the first demonstrations (and with them
the problems, the prompts, the chat template, the tokenizer and the codec) and the recipe's figures.
Float computations are rehearsed by a few steps in miniature. The losses and the change of weights
of a rehearsal agree on every CPU (to four digits, with SSE4, AVX2, AVX-512 and its bfloat16), and
differ if initialisation, optimiser, sampling, graph, verifier, selection or loss have changed.
Versions of libraries are left out, since their effect shows in the rehearsal.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import METRICS_FILE, read_metrics
from hrm_agent.training.sft import tokenize, train_sft
from hrm_agent.training.small_policy.architecture import SMALL_DEFAULTS, new_model
from hrm_agent.training.small_policy.cold_start import COLD_START, TOKENIZER_TEXTS, build_tokenizer
from hrm_agent.training.small_policy.roles_cold_start import (
    LOOKING,
    ROLES_COLD_START,
    erring_lessons,
    looking_lessons,
)
from hrm_agent.training.small_policy.traces import demonstrations
from hrm_agent.training.small_policy.trained import REINFORCEMENT

__all__ = [
    "Inputs",
    "cold_start_inputs",
    "inputs_of_card",
    "roles_inputs",
    "stale",
    "trained_digest",
    "trained_inputs",
]

TOLERANCE = 9e-5
"""Largest relative difference of two rehearsals that are equal except for rounding."""

SFT_KEYS = (
    "steps", "batch_size", "optimizer", "learning_rate", "matrix_learning_rate", "warmup_steps", "cooldown",
    "weight_decay", "max_grad_norm", "average",
)  # fmt: skip
RL_KEYS = (
    "tasks", "graph", "context", "max_tokens", "algorithm", "selection", "steps", "prompts_per_step", "group_size",
    "oversampling", "learning_rate", "warmup_steps", "cooldown", "weight_decay", "max_grad_norm",
    "clip_low", "clip_high", "temperature",
)  # fmt: skip
"""Options of the recipe that the digest covers. They are named, so that a new option whose default
has no effect makes no weights stale.
"""

ROLE_LESSONS = 2000
"""Number of demonstrations of the roles whose tokens the digest covers."""

_LINE = re.compile(r"^Inputs: `([0-9a-f]{16})`, rehearsal ((?:\S+ ?)+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one of the policies."""

    digest: str
    """16 hex digits over what is equal to the byte on every machine: tokens and the recipe's
    figures.
    """
    rehearsal: tuple[float, ...]
    """Losses, or tokens and gradient norms, of a few steps, then the norm of the weights'
    change.
    """

    def __str__(self) -> str:
        return (
            f"Inputs: `{self.digest}`, rehearsal"
            f" {' '.join(f'{figure:.6g}' for figure in self.rehearsal)}"
        )

    def agree_with(self, others: Inputs) -> bool:
        """True if both make the same weights except for rounding."""
        return (
            self.digest == others.digest
            and len(self.rehearsal) == len(others.rehearsal)
            and all(
                isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-6)
                for a, b in zip(self.rehearsal, others.rehearsal, strict=True)
            )
        )


def inputs_of_card(card: str) -> Inputs | None:
    """Inputs of the weights as given in a card (None if the card has none)."""
    found = _LINE.search(card)
    return Inputs(found[1], tuple(map(float, found[2].split()))) if found else None


def stale(builtin: Path, seed: int = 0) -> list[str]:
    """Policies in a folder that are missing, or would differ if they were built now."""
    cold = cold_start_inputs(seed)
    if not _agrees(builtin / "cold-start", cold):
        return ["cold-start", "roles-cold-start", "trained"]
    made_of = {"roles-cold-start": roles_inputs, "trained": trained_inputs}
    return [
        name
        for name, inputs in made_of.items()
        if not (builtin / name).exists()
        or not _agrees(builtin / name, inputs(builtin / "cold-start", cold, seed))
    ]


def _agrees(policy: Path, now: Inputs) -> bool:
    card = policy / "README.md"
    said = inputs_of_card(card.read_text(encoding="utf-8")) if card.exists() else None
    return said is not None and said.agree_with(now)


def cold_start_inputs(seed: int = 0) -> Inputs:
    """Inputs of the cold start: the texts of the tokenizer, and four steps of training. Takes some
    seconds.
    """
    lessons = list(demonstrations("train", seed, TOKENIZER_TEXTS))
    tokenizer = build_tokenizer(lessons)
    codec = ChatTemplateCodec(tokenizer)
    tokens = [
        [example.token_ids, example.mask]
        for lesson in lessons
        for example in tokenize(lesson, codec)
    ]
    digest = _digest(seed, tokens, _figures(COLD_START))
    model = new_model(tokenizer, seed)
    before = _weights(model)
    short = COLD_START.model_copy(
        update={"steps": 4, "batch_size": 8, "warmup_steps": 1, "seed": seed}
    )
    rows = train_sft(model, codec, lessons[:32], short)
    return Inputs(digest, (*(row["loss"] for row in rows), _change(before, _weights(model))))


def roles_inputs(cold: Path, made_from: Inputs, seed: int = 0) -> Inputs:
    """Inputs of the roles' cold start: two steps of each part of the fine-tuning, from the cold
    start in `cold`. Takes some seconds.
    """
    parts = [
        (LOOKING, looking_lessons(seed, ROLE_LESSONS)),
        (ROLES_COLD_START, erring_lessons(seed, ROLE_LESSONS)),
    ]
    codec = ChatTemplateCodec(AutoTokenizer.from_pretrained(cold))
    tokens = [
        [e.token_ids, e.mask]
        for _, lessons in parts
        for lesson in lessons
        for e in tokenize(lesson, codec)
    ]
    recipe = [_figures(config) for config, _ in parts]
    model = _load(cold)
    before, losses = _weights(model), list[float]()
    for config, lessons in parts:
        short = config.model_copy(
            update={"steps": 2, "batch_size": 8, "warmup_steps": 1, "seed": seed}
        )
        losses += [row["loss"] for row in train_sft(model, codec, lessons[:16], short)]
    return Inputs(
        _digest(seed, made_from.digest, tokens, recipe), (*losses, _change(before, _weights(model)))
    )


def trained_inputs(cold: Path, made_from: Inputs, seed: int = 0) -> Inputs:
    """Inputs of the trained policy: two steps of reinforcement learning from the cold start in
    `cold`. Takes some seconds.
    """
    config = REINFORCEMENT.model_copy(update={"policy": str(cold), "seed": seed})
    digest = trained_digest(made_from, config)
    short = config.but(steps=2, prompts_per_step=2, group_size=4, shuffle_block=4)
    with TemporaryDirectory() as folder:
        model = asyncio.run(train(short, Path(folder) / "rehearsal"))
        rows = read_metrics(Path(folder) / "rehearsal" / METRICS_FILE)
        change = _change(_weights(_load(cold)), _weights(_load(model)))
    seen = [float(row.get(key) or 0.0) for row in rows for key in ("trained_tokens", "grad_norm")]
    return Inputs(digest, (*seen, change))


def trained_digest(made_from: Inputs, config: GrpoConfig) -> str:
    """Digest of the start weights and of the values of `RL_KEYS`, regardless of the tables that
    hold them.
    """
    values = config.model_dump(mode="json")
    for part in (config.rollout, config.select, config.loss, config.optim):
        values |= part.model_dump(mode="json")
    if (whole := int(config.rollout.oversampling)) == config.rollout.oversampling:
        values["oversampling"] = whole  # as in digests of older cards
    return _digest(config.seed, made_from.digest, {key: values[key] for key in RL_KEYS})


def _figures(recipe: SftConfig) -> dict[str, Any]:
    """Figures of a recipe for the digest. Without Muon, its learning rate counts as the small
    policy's default.
    """
    own = SMALL_DEFAULTS.train_sft.matrix_learning_rate
    figures = recipe.model_dump(mode="json", include=set(SFT_KEYS))
    return figures | {"matrix_learning_rate": recipe.matrix_learning_rate or own}


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


def _weights(model: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def _change(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> float:
    """Euclidean distance between two sets of weights."""
    return float(sum((a - b).square().sum() for a, b in zip(after, before, strict=True)) ** 0.5)
