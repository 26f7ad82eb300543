"""Defaults that depend on the model: those in its configuration, and the maximum length of an
answer.

A default that suits one model may ruin another. So a model may have its own defaults under the key
`hrm_agent` of its `config.json`. transformers keeps such a key when it saves a model, so trained
copies of the model have it, too.

    "hrm_agent": {"run": {"max_tokens": 512}, "train_rl": {"learning_rate": 0.0005}, "train_sft": {"steps": 400}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_agent.errors import ModelError
from hrm_agent.trajectory import Sampling

__all__ = [
    "OWN_KEY",
    "OwnDefaults",
    "RlDefaults",
    "RunDefaults",
    "SftDefaults",
    "UsualAnswer",
    "own_defaults",
    "usual_answer",
    "with_limit",
]

OWN_KEY = "hrm_agent"
"""Key of a model's configuration that holds its own defaults."""
_MOST = 2048
"""Upper limit of tokens for an answer without an explicit limit. It leaves room to reason, and ends
an answer that would never end.
"""


class RunDefaults(BaseModel):
    """Defaults of every command that samples."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum completion tokens of one reply (None: chosen by the model's context)."""


class RlDefaults(BaseModel):
    """Defaults of `train rl`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float | None = Field(default=None, gt=0)
    """AdamW's learning rate (None: chosen by the size of the model)."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum completion tokens of one reply (None: the default of all commands)."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one forward pass (None: chosen by the size of the model)."""


class SftDefaults(BaseModel):
    """Defaults of `train sft`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(default=None, ge=1)
    """Optimiser steps (None: chosen by the number of conversations)."""
    batch_size: int | None = Field(default=None, ge=1)
    """Number of conversations of one step (None: chosen by the number of all conversations)."""
    micro_batch_tokens: int | None = Field(default=None, ge=1)
    """Maximum tokens of one forward pass (None: chosen by the size of the model)."""
    learning_rate: float | None = Field(default=None, gt=0)
    """AdamW's learning rate (None: chosen by the size of the model)."""
    matrix_learning_rate: float | None = Field(default=None, gt=0)
    """Muon's learning rate (None: derived from AdamW's)."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Number of first steps, in which the learning rate rises (None: chosen by the number of
    steps).
    """


class OwnDefaults(BaseModel):
    """Defaults in a model's own configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: RunDefaults = RunDefaults()
    """Defaults of every command that samples."""
    train_rl: RlDefaults = RlDefaults()
    """Defaults of reinforcement learning."""
    train_sft: SftDefaults = SftDefaults()
    """Defaults of supervised fine-tuning."""


@runtime_checkable
class UsualAnswer(Protocol):
    """Engine that has a maximum length for answers without an explicit limit."""

    @property
    def usual_answer(self) -> int:
        """Maximum completion tokens."""
        ...


def usual_answer(context: int | None) -> int:
    """Maximum completion tokens of an answer without an explicit limit: half of the context, at
    most 2,048.

    If the context is unknown (None), it may be short, and the default of `Sampling` is used.
    """
    return Sampling().max_tokens if context is None else max(1, min(context // 2, _MOST))


def with_limit(
    sampling: Sampling, engine: object, asked: int | None, budget: int | None
) -> Sampling:
    """Sampling parameters for `engine`, with the token limit that suits its model if none is set.

    `asked`: limit that the graph set in the call. `budget`: tokens that the graph has left.
    """
    if "max_tokens" in sampling.model_fields_set or not isinstance(engine, UsualAnswer):
        return sampling
    limit = asked or engine.usual_answer
    if budget is not None:
        limit = min(limit, budget)
    return (
        sampling
        if limit == sampling.max_tokens
        else sampling.model_copy(update={"max_tokens": limit})
    )


def own_defaults(config: Mapping[str, Any], where: str) -> OwnDefaults:
    """Defaults in a model's configuration. Raises `ModelError` for an invalid key or value."""
    try:
        return OwnDefaults.model_validate(config.get(OWN_KEY) or {})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([OWN_KEY, *map(str, first["loc"])])
        raise ModelError(
            f"The configuration of {where!r} has an invalid value in {place}: {first['msg']}, not"
            f" {first['input']!r}.",
            f"Correct it in config.json, or leave {OWN_KEY} out.",
        ) from error
