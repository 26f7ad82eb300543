"""Capabilities of a model, in terms of graphs, records and trainers.

Each engine reports its own capabilities, so that `hrm-agent models check` and other callers need
not distinguish engines. Each missing capability has a hint, if possible a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hrm_agent.trajectory import LogprobKind

__all__ = ["Capabilities", "Fault", "Lack", "Speech"]


class Lack(NamedTuple):
    """Missing capability that can be added, for example by installing a package."""

    what: str
    """Short name: `structured output`, `4-bit loading`."""
    hint: str
    """Sentence on how to add it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Part of a model that does not work."""

    what: str
    """Short description."""
    hint: str
    """Advice, as a sentence."""
    about_tools: bool = False
    """True if the fault only matters when tools are offered."""


@dataclass(frozen=True, slots=True)
class Speech:
    """Conversation format of a model."""

    tools: str
    """Form of its calls, and whether its template knows tools."""
    thoughts: str | None
    """Spellings around its thoughts (None if its template knows none)."""
    ends: tuple[str, ...]
    """Tokens that end its answers."""
    settings: tuple[str, ...]
    """Sampling settings in the model's own configuration that are not used."""
    faults: tuple[Fault, ...]
    """Faults of the format (empty for a model that works)."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of one model."""

    kind: str
    """Kind of its engine: `transformers`, `vllm`, `scripted` or `hosted`."""
    tools: bool | None
    """True if tools can be offered to the model (None if unknown before the model is loaded)."""
    token_ids: bool
    """True if the record holds the exact tokens."""
    logprobs: LogprobKind
    """Distribution of its log-probs (NONE if it gives none)."""
    streaming: bool
    """True if text is shown while it is sampled."""
    structured: bool
    """True if an answer can be constrained to a JSON schema."""
    trainable: bool
    """True if `hrm-agent train` can train the model, also on its recorded runs."""
    quantized: str | None = None
    """Quantization, `nf4` or `int8` (None if the weights are not quantized, or it is unknown)."""
    dtype: str | None = None
    """Number format of the weights, such as `bfloat16` (None if unknown)."""
    device: str | None = None
    """Device of the weights, such as `cuda:0` (None if unknown)."""
    max_length: int | None = None
    """Maximum tokens of prompt and answer together (None if unknown)."""
    parameters: int | None = None
    """Number of parameters (None if unknown)."""
    memory_bytes: int | None = None
    """Size of the weights in bytes (None unless they are in this process)."""
    speech: Speech | None = None
    """Conversation format, as a test of its chat template showed (None if there is no template
    here).
    """
    lacks: tuple[Lack, ...] = field(default=())
    """Missing capabilities that can be added."""
