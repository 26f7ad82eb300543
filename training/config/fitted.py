"""Training defaults that depend on the model: learning rates, batches, steps and lengths of
answers.

Learning rates follow common practice. A pretrained model takes 1e-6 to 5e-6 in reinforcement
learning and 1e-5 to 5e-5 in fine-tuning; smaller models take higher rates. An adapter takes about
ten times the rate. A hundred times the rate suits a small model that is trained from scratch, but
ruins a pretrained model within a few steps. If a model brings its own defaults
(`hrm_agent.models.own_defaults`), these are used.

A configuration is fitted once, before its run begins, and saved with the chosen values. A resumed
run takes these values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from hrm_agent.models.model_facts import ModelFacts, facts_of
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.config.rules import with_values

__all__ = [
    "Fitted",
    "conversations_taken",
    "decided",
    "fit",
    "fit_grpo",
    "fit_sft",
    "left_open",
    "with_recorded",
]

Config = TypeVar("Config", bound="SftConfig | GrpoConfig")
Value = TypeVar("Value")


class _Rates(NamedTuple):
    """Usual learning rates of models of one size."""

    below: float
    """Upper bound of the number of parameters, exclusive."""
    rl: float
    """Rate for reinforcement learning of all weights."""
    rl_adapter: float
    """Rate for reinforcement learning of an adapter."""
    sft: float
    """Rate for fine-tuning of all weights."""
    sft_adapter: float
    """Rate for fine-tuning of an adapter."""


_RATES = (
    _Rates(below=1e9, rl=5e-6, rl_adapter=5e-5, sft=2e-5, sft_adapter=1e-4),
    _Rates(below=1e10, rl=2e-6, rl_adapter=2e-5, sft=1e-5, sft_adapter=1e-4),
    _Rates(below=inf, rl=1e-6, rl_adapter=1e-5, sft=1e-5, sft_adapter=1e-4),
)
"""Rates by size, ascending. The last entry also applies to a model of unknown size."""
_MATRIX_FACTOR = 5
"""Muon's rate over AdamW's. Muon's step is spread over a whole matrix, so that each number in the
matrix moves less.
"""
_BATCH = 16
_PASSES = 3
_MOST_WARMUP = 30
_MICRO_BATCH_BYTES = 4 << 30
_LEAST_MICRO_BATCH = 512
_MOST_OF_RL = 4096
_MOST_OF_SFT = 8192
"""Maximum tokens of a micro-batch in fine-tuning."""
_FAR = 100
"""Factor above or below the usual learning rate at which a warning is given."""
_SFT_KEYS = (
    "learning_rate",
    "matrix_learning_rate",
    "steps",
    "batch_size",
    "warmup_steps",
    "micro_batch_tokens",
)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Values for the keys that a configuration leaves to the model."""

    values: Mapping[str, Any]
    """Values by key."""
    lines: tuple[str, ...]
    """Text for the user: what was chosen and why (empty if nothing was left to the model)."""
    warning: str
    """Warning about a learning rate far from the usual one (empty if there is none)."""


def decided(value: Value | None, key: str) -> Value:
    """Return the value of `key` in a fitted configuration. Raises `ValueError` if it is None."""
    if value is None:
        raise ValueError(
            f"{key} has no value yet: fit the configuration to its model first ({__name__})"
        )
    return value


def conversations_taken(config: SftConfig) -> int:
    """Number of conversations that a fitted configuration learns from. A conversation counts once
    in each pass.
    """
    return decided(config.steps, "steps") * decided(config.batch_size, "batch_size")


def fit(config: GrpoConfig) -> GrpoConfig:
    """Return the configuration fitted to its policy. Raises `ModelError` if the policy cannot be
    trained.
    """
    if not left_open(config):
        return config
    facts = facts_of(config.policy, adapter=config.adapter.lora_rank > 0)
    return with_values(config, fit_grpo(config, facts).values)


def with_recorded(config: Config, recorded: Config) -> Config:
    """Return the configuration, in which keys left to the model get the values of the
    recorded run.
    """
    before = _by_model(recorded)
    return with_values(
        config, {key: before[key] for key, value in _by_model(config).items() if value is None}
    )


def left_open(config: SftConfig | GrpoConfig) -> list[str]:
    """Keys that the configuration leaves to the model."""
    idle = (
        {"matrix_learning_rate"}
        if isinstance(config, SftConfig) and config.optimizer != "muon"
        else set[str]()
    )
    return [key for key, value in _by_model(config).items() if value is None and key not in idle]


def _by_model(config: SftConfig | GrpoConfig) -> dict[str, Any]:
    """Keys whose defaults depend on the model -> their values."""
    if isinstance(config, SftConfig):
        return {key: getattr(config, key) for key in _SFT_KEYS}
    return {
        "learning_rate": config.optim.learning_rate,
        "max_tokens": config.max_tokens,
        "micro_batch_tokens": config.loss.micro_batch_tokens,
    }


def fit_grpo(config: GrpoConfig, facts: ModelFacts) -> Fitted:
    """Choose values for the keys that a configuration of reinforcement learning leaves to this
    model.
    """
    usual, why = _usual_rate(
        "rl", facts, facts.own.train_rl.learning_rate, adapter=config.adapter.lora_rank > 0
    )
    choice = _Choice(_by_model(config), facts.own.train_rl)
    rate = choice.take_rate(usual, why)
    choice.take("max_tokens", lambda: facts.answer, "answers of at most {:,} token{s}")
    choice.take(
        "micro_batch_tokens",
        lambda: _micro_batch(facts, _MOST_OF_RL),
        "micro-batches of {:,} token{s}",
    )
    of_stages = (stage.learning_rate for stage in config.stages if stage.learning_rate is not None)
    return choice.fitted(_warning((rate, *of_stages), usual))


def fit_sft(
    config: SftConfig, facts: ModelFacts, *, adapter: bool, conversations: int | None
) -> Fitted:
    """Choose values for the keys that a configuration of fine-tuning leaves to this model.
    `adapter`: True if an adapter is trained.

    If the number of `conversations` is unknown (None), keys that depend on it stay None.
    """
    own = facts.own.train_sft
    usual, why = _usual_rate("sft", facts, own.learning_rate, adapter=adapter)
    choice = _Choice(_by_model(config), own)
    rate = choice.take_rate(usual, why)
    if config.optimizer == "muon":
        choice.take(
            "matrix_learning_rate", lambda: _MATRIX_FACTOR * rate, "a rate of {:.2g} for matrices"
        )
    count = conversations or 1
    batch = config.batch_size or _BATCH
    if conversations is not None or own.batch_size is not None:
        batch = choice.take("batch_size", lambda: min(_BATCH, count), "{:,} conversation{s} a step")
    steps = config.steps
    if conversations is not None or own.steps is not None:
        passes = f" for {_PASSES} passes over {count:,} conversation{'s' * (count != 1)}"
        text = "{:,} step{s}" + ("" if own.steps else passes)
        steps = choice.take("steps", lambda: ceil(_PASSES * count / batch), text)
    if steps is not None:
        choice.take(
            "warmup_steps", lambda: min(_MOST_WARMUP, ceil(steps / 10)), "{:,} step{s} to warm up"
        )
    choice.take(
        "micro_batch_tokens",
        lambda: _micro_batch(facts, _MOST_OF_SFT),
        "micro-batches of {:,} token{s}",
    )
    return choice.fitted(_warning((rate,), usual))


class _Choice:
    """Values chosen for one configuration, with the text that reports them to the user."""

    def __init__(self, given: Mapping[str, Any], own: BaseModel) -> None:
        """`given`: keys with their values (None: left to the model). `own`: defaults that the model
        brings.
        """
        self._given = given
        self._own = own
        self._values: dict[str, Any] = {}
        self._rate = ""
        self._others: list[str] = []

    def take_rate(self, usual: float, why: str) -> float:
        """Return the given learning rate, else `usual`. `why`: the reason for the usual rate."""
        if self._given["learning_rate"] is not None:
            return self._given["learning_rate"]
        self._values["learning_rate"] = usual
        self._rate = f"Learning rate {_figure(usual)}: {why}; --learning-rate sets another."
        return usual

    def take(self, key: str, by_model: Callable[[], Any], text: str) -> Any:
        """Return the value of `key`: the given value, else the default that the model brings, else
        `by_model()`. `text` describes a chosen value for the user.
        """
        if self._given[key] is not None:
            return self._given[key]
        own = getattr(self._own, key)
        self._values[key] = value = by_model() if own is None else own
        self._others.append(
            f"{text.format(value, s='s' * (value != 1))} (--{key.replace('_', '-')})"
        )
        return value

    def fitted(self, warning: str) -> Fitted:
        others = f"By the model, too: {', '.join(self._others)}." if self._others else ""
        return Fitted(self._values, tuple(filter(None, (self._rate, others))), warning)


def _usual_rate(
    kind: str, facts: ModelFacts, own: float | None, *, adapter: bool
) -> tuple[float, str]:
    """Return the usual learning rate of a training of this kind, and the reason."""
    if own is not None:
        return own, "the default of this model"
    parameters = facts.measure().parameters
    size = "" if parameters is None else f"{_count(parameters)} "
    rates = (
        _RATES[-1]
        if parameters is None
        else next(rates for rates in _RATES if parameters < rates.below)
    )
    what = (
        f"an adapter on the {size}weights of a pretrained model"
        if adapter
        else f"all {size}weights of a pretrained model"
    )
    return getattr(rates, f"{kind}_adapter" if adapter else kind), what


def _micro_batch(facts: ModelFacts, most: int) -> int:
    """Number of tokens in a micro-batch: a power of two that fits into the memory of a micro-batch,
    at most `most`.
    """
    size = facts.measure().training_bytes_per_token
    fitting = most if size is None else _MICRO_BATCH_BYTES // size
    return min(most, max(_LEAST_MICRO_BATCH, 1 << max(0, fitting.bit_length() - 1)))


def _warning(rates: Iterable[float], usual: float) -> str:
    """Warning about a learning rate far from the usual one (empty if there is none)."""
    nearly = _FAR * (1 - 1e-9)  # tolerates rounding of the quotient
    far = next((rate for rate in rates if max(rate / usual, usual / rate) >= nearly), None)
    if far is None:
        return ""
    high = far > usual
    times = round(far / usual) if high else round(usual / far)
    what = f"{times:,} times the usual" if high else f"1/{times:,} of the usual"
    end = (
        "such steps can ruin a pretrained model"
        if high
        else "so small steps change next to nothing"
    )
    return f"The learning rate {_figure(far)} is {what} for this model, {_figure(usual)}: {end}."


def _figure(rate: float) -> str:
    """Format a rate: 5e-4 for 0.0005."""
    mantissa, _, exponent = f"{rate:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _count(parameters: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M")):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return f"{parameters:,}"
