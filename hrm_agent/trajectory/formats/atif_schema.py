"""ATIF documents, validated strictly: unknown keys are refused.

Field names and rules are those of ATIF 1.0 to 1.8. Each version added fields and removed none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "AtifAgent",
    "AtifDocument",
    "AtifMetrics",
    "AtifPart",
    "AtifResult",
    "AtifStep",
    "AtifToolUse",
]

NEWEST = 8
"""Minor version of the newest documents that are read."""
MOST_STEPS = 5000
"""Maximum number of steps of one document, without its subagents: a request is kept for each."""
_MOST_SUBAGENTS = 1000
Count = Annotated[int, Field(ge=0, lt=2**53)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
Extra = dict[str, Any] | None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class AtifSource(_Part):
    """Location of an image or a recording."""

    media_type: str
    """Media type, such as `image/png`."""
    path: str
    """Path or address. It is never opened here."""
    duration_sec: float | None = Field(default=None, ge=0)
    """Length of a recording in seconds."""


class AtifPart(_Part):
    """Part of a message: text, or the location of other content."""

    type: Literal["text", "image", "audio"]
    """Type of the part."""
    text: str | None = None
    """Text of a text part."""
    source: AtifSource | None = None
    """Location of another part's content."""

    @model_validator(mode="after")
    def _has_one(self) -> AtifPart:
        if (self.text is None) == (self.type == "text") or (self.source is None) != (
            self.type == "text"
        ):
            raise ValueError(
                "a text part has a text and no source, any other part a source and no text"
            )
        return self


class AtifToolUse(_Part):
    """Tool call, as the model made it."""

    tool_call_id: str
    """Id by which its result names it."""
    function_name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments as the model gave them."""
    extra: Extra = None
    """Data that the format has no field for."""


class AtifReference(_Part):
    """Location of a subagent's document."""

    trajectory_id: str | None = None
    """Id of a document in `subagent_trajectories`."""
    trajectory_path: str | None = None
    """Path of another file. It is never opened here."""
    session_id: str | None = None
    """Name of the run, for readers."""
    extra: Extra = None
    """Data that the format has no field for."""


class AtifResult(_Part):
    """Result of a step."""

    source_call_id: str | None = None
    """Id of the tool call of the same step that gave the result."""
    content: str | list[AtifPart] | None = None
    """Content that the agent was shown."""
    subagent_trajectory_ref: list[AtifReference] | None = None
    """Subagents that produced the result."""
    extra: Extra = None
    """Data that the format has no field for."""


class AtifObservation(_Part):
    """Results of a step."""

    results: list[AtifResult]
    """Results in order."""


class AtifMetrics(_Part):
    """Usage of a model call."""

    prompt_tokens: Count | None = None
    """Tokens of the whole prompt."""
    completion_tokens: Count | None = None
    """Tokens of the answer."""
    cached_tokens: Count | None = None
    """Tokens of the prompt that were cached."""
    cost_usd: float | None = Field(default=None, ge=0)
    """Price in US dollars."""
    prompt_token_ids: list[Token] | None = None
    """Token ids of the whole prompt."""
    completion_token_ids: list[Token] | None = None
    """Token ids of the answer."""
    logprobs: list[float] | None = None
    """Natural log-probs, one for each token of the answer."""
    extra: Extra = None
    """Data that the format has no field for."""

    @model_validator(mode="after")
    def _are_aligned(self) -> AtifMetrics:
        if self.logprobs is not None and self.completion_token_ids is not None:
            lengths = len(self.logprobs), len(self.completion_token_ids)
            if lengths[0] != lengths[1]:
                raise ValueError("{} logprobs for {} completion_token_ids".format(*lengths))
        return self


class AtifStep(_Part):
    """Turn of the system, of the user, or of the agent with its results."""

    step_id: int
    """Number of the step, from 1."""
    source: Literal["system", "user", "agent"]
    """Author of the turn."""
    message: str | list[AtifPart]
    """Message of the turn."""
    timestamp: str | None = None
    """Time in ISO 8601."""
    model_name: str | None = None
    """Model of the step, if it is not the document's."""
    reasoning_effort: str | float | None = None
    """Reasoning effort sent to the model."""
    reasoning_content: str | None = None
    """Thoughts of the model apart from its answer."""
    tool_calls: list[AtifToolUse] | None = None
    """Tool calls in order."""
    observation: AtifObservation | None = None
    """Results of the step."""
    metrics: AtifMetrics | None = None
    """Usage of the model call."""
    extra: Extra = None
    """Data that the format has no field for."""
    llm_call_count: Count | None = None
    """Number of model calls of this step; 0 for a step without a model."""
    is_copied_context: bool | None = None
    """True if the step belongs to another document and is repeated for context."""

    @field_validator("timestamp")
    @classmethod
    def _is_a_time(cls, text: str | None) -> str | None:
        if text is not None:
            _seconds(text)
        return text

    @model_validator(mode="after")
    def _fits_its_source(self) -> AtifStep:
        of_agents = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")
        if self.source != "agent" and (
            wrong := next((n for n in of_agents if getattr(self, n) is not None), None)
        ):
            raise ValueError(f"a step of the {self.source} has no {wrong}")
        if (
            self.source == "agent"
            and self.llm_call_count == 0
            and (self.metrics or self.reasoning_content)
        ):
            raise ValueError(
                "a step without a model call has neither metrics nor reasoning_content"
            )
        asked = [call.tool_call_id for call in self.tool_calls or ()]
        if len(set(asked)) < len(asked):
            raise ValueError("two tool calls have one tool_call_id")
        for result in self.observation.results if self.observation else ():
            if (
                result.source_call_id is not None
                and self.tool_calls is not None
                and result.source_call_id not in asked
            ):
                raise ValueError(
                    "no tool call of the step has the source_call_id"
                    f" {result.source_call_id[:80]!r}"
                )
        return self

    @property
    def seconds(self) -> float | None:
        """`timestamp` as Unix time (None without one). A time without a zone is taken as UTC."""
        return None if self.timestamp is None else _seconds(self.timestamp)


class AtifAgent(_Part):
    """Program that acted."""

    name: str
    """Name of the program."""
    version: str
    """Version of the program."""
    model_name: str | None = None
    """Default model of the steps."""
    tool_definitions: list[dict[str, Any]] | None = None
    """Tools that it had, in OpenAI's form."""
    extra: Extra = None
    """Data that the format has no field for."""


class AtifTotals(_Part):
    """Sums over a document."""

    total_prompt_tokens: Count | None = None
    """Tokens of all prompts."""
    total_completion_tokens: Count | None = None
    """Tokens of all answers."""
    total_cached_tokens: Count | None = None
    """Cached tokens of all prompts."""
    total_cost_usd: float | None = Field(default=None, ge=0)
    """Price in US dollars."""
    total_steps: Count | None = None
    """Number of steps."""
    extra: Extra = None
    """Data that the format has no field for."""


class AtifDocument(_Part):
    """Run, or a subagent's part of one."""

    schema_version: str = Field(pattern=r"^ATIF-v1\.\d{1,3}$")
    """Version of the format, such as `ATIF-v1.8`."""
    agent: AtifAgent
    """Agent that acted."""
    steps: list[AtifStep] = Field(min_length=1, max_length=MOST_STEPS)
    """Steps in order."""
    session_id: str | None = None
    """Id of the run, which documents may share."""
    trajectory_id: str | None = None
    """Id of this document."""
    notes: str | None = None
    """Notes for readers."""
    final_metrics: AtifTotals | None = None
    """Sums over the document."""
    continued_trajectory_ref: str | None = None
    """Location of the run's continuation. It is never opened here."""
    extra: Extra = None
    """Data that the format has no field for."""
    subagent_trajectories: list[AtifDocument] | None = Field(
        default=None, max_length=_MOST_SUBAGENTS
    )
    """Documents of subagents."""

    @model_validator(mode="after")
    def _is_in_order(self) -> AtifDocument:
        wrong = next((i for i, step in enumerate(self.steps) if step.step_id != i + 1), None)
        if wrong is not None:
            raise ValueError(
                f"steps[{wrong}] has the step_id {self.steps[wrong].step_id}, where {wrong + 1}"
                " belongs"
            )
        inner = [one.trajectory_id for one in self.subagent_trajectories or ()]
        if None in inner or len(set(inner)) < len(inner):
            raise ValueError("each of subagent_trajectories needs a trajectory_id of its own")
        return self


def _seconds(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:80]!r} is no ISO 8601 time") from error
    if seconds < 0:
        raise ValueError(f"{text[:80]!r} is before 1970")
    return seconds
