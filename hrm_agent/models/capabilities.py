"""Capabilities of a model, in terms of graphs, records and trainers.

Whoever stands behind a model string says it of itself, so that `hrm-agent models check` and whoever
else asks need not know one engine from another. What is missing comes with what to do about it,
best a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hrm_agent.trajectory import LogprobKind

__all__ = ["Capabilities", "Fault", "Lack", "Speech"]


class Lack(NamedTuple):
    """A capability that is missing, and could be had."""

    what: str
    """In a few words: `structured output`, `4-bit loading`."""
    hint: str
    """How to get it, as a sentence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that does not work."""

    what: str
    """In a few words."""
    hint: str
    """Advice, as a sentence."""
    about_tools: bool = False
    """It concerns who is offered tools only."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Way of speaking to a model."""

    tools: str
    """Form of its calls, and whether its template knows of tools."""
    thoughts: str | None
    """Marks around its thoughts (None if its template has no thoughts)."""
    ends: tuple[str, ...]
    """Tokens that end its answers."""
    settings: tuple[str, ...]
    """Settings for sampling that the model's own configuration asks for, and that are not used."""
    faults: tuple[Fault, ...]
    """Nothing, for a model that works."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of one model."""

    kind: str
    """Kind of its engine: `transformers`, `vllm`, `scripted` or `hosted`."""
    tools: bool | None
    """True if it can be offered tools (None if unknown before it is loaded)."""
    token_ids: bool
    """The record holds the exact tokens."""
    logprobs: LogprobKind
    """Distribution that its log-probs are of (NONE if it gives none)."""
    streaming: bool
    """Text is shown while it is sampled."""
    structured: bool
    """An answer can be constrained to a JSON schema."""
    trainable: bool
    """`hrm-agent train` can train it, also on its runs."""
    quantized: str | None = None
    """`nf4` or `int8`; None if the weights are not quantized, or it is not known."""
    dtype: str | None = None
    """Number format of the weights, such as `bfloat16`; None if not known."""
    device: str | None = None
    """Where the weights are, such as `cuda:0`; None if not known."""
    max_length: int | None = None
    """Most tokens of prompt and answer together; None if not known."""
    parameters: int | None = None
    """Number of parameters; None if not known."""
    memory_bytes: int | None = None
    """Size of the weights (None unless they are in this process)."""
    speech: Speech | None = None
    """Way of speaking to it, as a test of its chat template showed (None where there is no template
    here).
    """
    lacks: tuple[Lack, ...] = field(default=())
    """Capabilities that are missing and could be had."""
