"""Settings shared by every command that runs graphs; commands extend these classes by keys of their own."""

from __future__ import annotations

from typing import Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.environment.isolation import DEFAULT_ISOLATION
from hrm_agent.environment.open import LeastIsolation, Where
from hrm_agent.trajectory import Sampling

__all__ = ["GraphSettings", "RolloutSettings", "RunSettings", "RunnerOptions"]


class RunnerOptions(TypedDict, total=False):
    """Fields of an `EpisodeRunner`."""

    sampling: Sampling
    recursion_limit: int
    stand_in: bool
    constrain: bool


class GraphSettings(BaseModel):
    """Which graph runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    graph: str = "tool_loop"
    """tool_loop, reasoning, research, or your own as package.module:attribute or ./file.py:attribute."""
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the graph, such as max_turns=6."""


class RolloutSettings(BaseModel):
    """How a graph's model samples, and where model-written code runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: float = Field(default=1.0, ge=0)
    """0 takes the most probable token."""
    max_tokens: int = Field(default=512, ge=1)
    """Most completion tokens of one answer; a graph may set fewer."""
    isolation: LeastIsolation = DEFAULT_ISOLATION
    """The least isolation of model-written code that is accepted: L2, L1 or L0; L3 is not offered yet."""
    environment: Where | None = None
    """Where model-written code runs: none for this machine, the URL of `hrm-agent environment serve`, ray[:ADDRESS]."""

    def runner_options(self) -> RunnerOptions:
        """The part of the settings that an `EpisodeRunner` holds."""
        return {"sampling": Sampling(temperature=self.temperature, max_tokens=self.max_tokens)}


class RunSettings(RolloutSettings):
    """Settings of runs that are not trained on."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the share of the probability that is sampled from."""
    recursion_limit: int = Field(default=200, ge=1)
    """Most steps of the graph (LangGraph's recursion_limit)."""
    stand_in: bool = False
    """Let the policy answer for chat models that the graph holds itself; otherwise those are asked, and recorded."""
    constrain: bool = True
    """Constrain the answers of roles to their schemas, where the engine can; tokens decided so are not trained on."""

    def runner_options(self) -> RunnerOptions:
        return {
            "sampling": Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens),
            "recursion_limit": self.recursion_limit,
            "stand_in": self.stand_in,
            "constrain": self.constrain,
        }
