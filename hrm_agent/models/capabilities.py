"""What a model can do, in the terms that a graph, a record and a trainer ask in.

Whoever stands behind a model string says it of itself, so that `hrm-agent models check` and whoever else
asks need not know one engine from another. What is missing comes with what to do about it, best a command.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hrm_agent.trajectory import LogprobKind

__all__ = ["Capabilities", "Lack"]


class Lack(NamedTuple):
    """Something that could be had, and is not there."""

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
    streaming: bool
    """Text is shown while it is sampled."""
    structured: bool
    """An answer can be held to a JSON schema."""
    trainable: bool
    """`hrm-agent train` can train it, and its runs can be learnt from."""
    quantized: str | None = None
    """`nf4` or `int8`; None where the weights are whole, or where nobody says."""
    dtype: str | None = None
    device: str | None = None
    max_length: int | None = None
    """Prompt and answer are at most so many tokens; None where nobody says."""
    parameters: int | None = None
    memory_bytes: int | None = None
    """Of the weights, where they are in this process."""
    lacks: tuple[Lack, ...] = field(default=())
