"""Documented fields of inspect_ai logs that become a trajectory. Other fields are ignored."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

__all__ = [
    "InspectEval",
    "InspectHeader",
    "InspectMessage",
    "InspectModelEvent",
    "InspectPools",
    "InspectSample",
    "InspectScore",
    "InspectToolEvent",
    "InspectUsage",
]

NEWEST = 2
"""Newest version of logs that is read."""


def _seconds(value: Any) -> Any:
    """Unix time of an ISO 8601 text. A time without a zone is taken as UTC."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{value[:80]!r} is no ISO 8601 time") from error


Count = Annotated[int, Field(ge=0, lt=2**53)]
Moment = Annotated[float, BeforeValidator(_seconds), Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class InspectToolError(_Part):
    """Error of a tool call."""

    type: str
    """Kind of error, such as `timeout`."""
    message: str = ""
    """Description of the error."""


class InspectToolUse(_Part):
    """Tool call, as the model made it."""

    id: str
    """Id by which its result names it."""
    function: str
    """Name of the tool."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments as the model gave them."""
    parse_error: str | None = None
    """Reason why the arguments could not be decoded."""


class InspectMessage(_Part):
    """Message of any role."""

    role: Literal["system", "user", "assistant", "tool"]
    """Role of the author."""
    content: str | list[dict[str, Any]]
    """Text, or parts with a `type`."""
    tool_calls: list[InspectToolUse] | None = None
    """Tool calls of an assistant's message."""
    tool_call_id: str | list[str] | None = None
    """Id of the call that a tool's message answers."""
    function: str | None = None
    """Name of the tool that answers."""
    error: InspectToolError | None = None
    """Error of a tool's message."""


class InspectUsage(_Part):
    """Tokens of a call. Cached ones are not among `input_tokens`."""

    input_tokens: Count = 0
    """Tokens of the prompt that were not cached."""
    output_tokens: Count = 0
    """Tokens of the answer."""
    input_tokens_cache_write: Count | None = None
    """Tokens of the prompt that were written to the cache."""
    input_tokens_cache_read: Count | None = None
    """Tokens of the prompt that were read from the cache."""
    total_cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Price in US dollars."""


class InspectChoice(_Part):
    """Answer of a model."""

    message: InspectMessage
    """Message of the answer."""
    stop_reason: str = "unknown"
    """Reason why the answer ended."""


class InspectOutput(_Part):
    """Answers to one request."""

    choices: list[InspectChoice] = Field(default_factory=list[InspectChoice])
    """Answers. The run continued with the first."""
    usage: InspectUsage | None = None
    """Usage of the request."""


class InspectConfig(_Part):
    """Sampling parameters of a call (None: the provider's default)."""

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """Maximum number of tokens of the answer."""
    seed: int | None = None
    """Seed."""


class InspectModelEvent(_Part):
    """Model call."""

    model: str
    """Name of the model."""
    input: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """Messages sent, after those of `input_refs`."""
    input_refs: list[list[int]] | None = None
    """Ranges of the sample's message pool that were sent."""
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Tools offered: name, description and parameters."""
    config: InspectConfig = InspectConfig()
    """Sampling parameters."""
    output: InspectOutput = InspectOutput()
    """Answers of the model."""
    error: str | None = None
    """Error of a failed call."""
    pending: bool | None = None
    """True if the call was in progress."""
    timestamp: Moment | None = None
    """Start of the call."""
    completed: Moment | None = None
    """End of the call."""


class InspectToolEvent(_Part):
    """Tool call with its outcome."""

    id: str
    """Id by which the model's message names it."""
    function: str
    """Name of the tool."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments as the model gave them."""
    result: Any = ""
    """Result of the tool."""
    error: InspectToolError | None = None
    """Error of a failed call."""
    pending: bool | None = None
    """True if the call was in progress."""
    timestamp: Moment | None = None
    """Start of the call."""
    completed: Moment | None = None
    """End of the call."""


class InspectScore(_Part):
    """Score of a sample by one scorer."""

    value: Any
    """Word, number, or several values by name; NaN if unscored."""


class InspectLimit(_Part):
    """Limit that ended a sample."""

    type: str
    """Limited quantity, such as `token`."""


class InspectError(_Part):
    """Error that ended a sample."""

    message: str
    """Message of the error."""


class InspectPools(_Part):
    """Data that the events of a sample refer to."""

    messages: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """All messages that were sent to a model."""


class InspectSample(_Part):
    """Run of one task."""

    id: int | str
    """Id of the task."""
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    """Number of the run of this task, from 1."""
    input: str | list[InspectMessage]
    """Text of the task, or its first messages."""
    target: str | list[str] = ""
    """Reference answer, or several that are right."""
    messages: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """Conversation at the end of the sample."""
    scores: dict[str, InspectScore] | None = None
    """Scores by the name of the scorer."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Further data about the task from the data set."""
    events: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Events in order."""
    events_data: InspectPools | None = None
    """Data that the events refer to."""
    attachments: dict[str, str] = Field(default_factory=dict)
    """Long texts by key, referenced elsewhere as `attachment://KEY`."""
    started_at: Moment | None = None
    """Start of the run."""
    completed_at: Moment | None = None
    """End of the run."""
    uuid: str | None = None
    """Id of the run."""
    limit: InspectLimit | None = None
    """Limit that ended the run."""
    error: InspectError | None = None
    """Error that the run failed with."""


class InspectEval(_Part):
    """Evaluation that was run."""

    task: str
    """Name of the task."""
    model: str
    """Name of the model."""
    eval_id: str = ""
    """Id of the evaluation."""
    run_id: str = ""
    """Id of the command that it was part of."""
    created: Moment = 0.0
    """Start of the evaluation."""


class InspectHeader(_Part):
    """Log without its samples."""

    version: Annotated[int, Field(ge=1)] = 2
    """Version of the log format."""
    eval: InspectEval
    """Evaluation that the log describes."""
