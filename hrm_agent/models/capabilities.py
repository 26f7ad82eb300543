"""What a model can do, in terms of graphs, records and trainers.

Whoever stands behind a model string says it of itself, so that `hrm-agent models check` and whoever else
asks need not know one engine from another. What is missing comes with what to do about it, best a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hrm_agent.trajectory import LogprobKind

__all__ = ["Capabilities", "Lack"]


class Lack(NamedTuple):
    """A capability that is missing, and could be had."""

    what: str
    """In a few words: `structured output`, `4-bit loading`."""
    hint: str
    """How to get it, as a sentence."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What one model can do."""

    kind: str
    """What stands behind it: `transformers`, `vllm`, `scripted` or `hosted`."""
    tools: bool
    """It can be offered tools."""
    token_ids: bool
    """The record holds the exact tokens."""
    logprobs: LogprobKind
    """Of which distribution its log-probs are; NONE if it gives none."""
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
    """Of the weights, where they are in this process."""
    lacks: tuple[Lack, ...] = field(default=())
    """What is missing and could be had."""
