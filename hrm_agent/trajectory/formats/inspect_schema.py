"""Of the logs of inspect_ai, the documented fields that become a trajectory. Other fields are
passed over.
"""

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
    """Unix time of an ISO 8601 text; a time without a zone is taken as UTC."""
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
    """Why a tool call failed."""

    type: str
    """A word for it, such as `timeout`."""
    message: str = ""
    """In words."""


class InspectToolUse(_Part):
    """A tool call, as the model made it."""

    id: str
    """By which its result names it."""
    function: str
    """The tool."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """As the model gave them."""
    parse_error: str | None = None
    """Why they could not be decoded."""


class InspectMessage(_Part):
    """A message of any role."""

    role: Literal["system", "user", "assistant", "tool"]
    """Who said it."""
    content: str | list[dict[str, Any]]
    """Text, or parts with a `type`."""
    tool_calls: list[InspectToolUse] | None = None
    """Of an assistant's message."""
    tool_call_id: str | list[str] | None = None
    """The call that a tool's message answers."""
    function: str | None = None
    """The tool that answers."""
    error: InspectToolError | None = None
    """Of a tool's message: why the call failed."""


class InspectUsage(_Part):
    """Tokens of a call. Those that were cached are not among `input_tokens`."""

    input_tokens: Count = 0
    """Tokens of the prompt that were not cached."""
    output_tokens: Count = 0
    """Tokens of the answer."""
    input_tokens_cache_write: Count | None = None
    """Tokens of the prompt that were cached for later."""
    input_tokens_cache_read: Count | None = None
    """Tokens of the prompt that had been cached before."""
    total_cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Price in US dollars."""


class InspectChoice(_Part):
    """One answer."""

    message: InspectMessage
    """The answer."""
    stop_reason: str = "unknown"
    """Why it ended."""


class InspectOutput(_Part):
    """The answers to one request."""

    choices: list[InspectChoice] = Field(default_factory=list[InspectChoice])
    """The answers; the first is the one that the run went on with."""
    usage: InspectUsage | None = None
    """What they took."""


class InspectConfig(_Part):
    """How a call was sampled; None where the provider's own value held."""

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus sampling."""
    max_tokens: Annotated[int, Field(ge=1, lt=2**53)] | None = None
    """Most tokens of the answer."""
    seed: int | None = None
    """Seed."""


class InspectModelEvent(_Part):
    """A model call."""

    model: str
    """Name of the model."""
    input: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """What was sent, after what `input_refs` names."""
    input_refs: list[list[int]] | None = None
    """Ranges of the sample's pool of messages, which were sent."""
    tools: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """The tools offered: name, description and parameters."""
    config: InspectConfig = InspectConfig()
    """How it was sampled."""
    output: InspectOutput = InspectOutput()
    """What came of it."""
    error: str | None = None
    """Why nothing came of it."""
    pending: bool | None = None
    """It was under way."""
    timestamp: Moment | None = None
    """When it began."""
    completed: Moment | None = None
    """When it ended."""


class InspectToolEvent(_Part):
    """A tool call with its outcome."""

    id: str
    """By which the model's message names it."""
    function: str
    """The tool."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """As the model gave them."""
    result: Any = ""
    """What came of it."""
    error: InspectToolError | None = None
    """Why it failed."""
    pending: bool | None = None
    """It was under way."""
    timestamp: Moment | None = None
    """When it began."""
    completed: Moment | None = None
    """When it ended."""


class InspectScore(_Part):
    """What a scorer made of a sample."""

    value: Any
    """A word, a number, or several by name; NaN where it is not scored."""


class InspectLimit(_Part):
    """A limit that ended a sample."""

    type: str
    """What was limited, such as `token`."""


class InspectError(_Part):
    """What ended a sample."""

    message: str
    """In words."""


class InspectPools(_Part):
    """What the events of a sample refer to."""

    messages: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """All messages that were sent to a model."""


class InspectSample(_Part):
    """One run of one task."""

    id: int | str
    """The task."""
    epoch: Annotated[int, Field(ge=1, lt=2**31)]
    """Which of its runs, from 1."""
    input: str | list[InspectMessage]
    """The task's text, or the messages that it begins with."""
    target: str | list[str] = ""
    """The reference answer, or several that are right."""
    messages: list[InspectMessage] = Field(default_factory=list[InspectMessage])
    """The conversation at its end."""
    scores: dict[str, InspectScore] | None = None
    """By the name of the scorer."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """What else the data set says of the task."""
    events: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """What happened, in order."""
    events_data: InspectPools | None = None
    """What the events refer to."""
    attachments: dict[str, str] = Field(default_factory=dict)
    """Long texts, which stand elsewhere as `attachment://` and their key."""
    started_at: Moment | None = None
    """Start of the run."""
    completed_at: Moment | None = None
    """End of the run."""
    uuid: str | None = None
    """The run."""
    limit: InspectLimit | None = None
    """The limit that ended it."""
    error: InspectError | None = None
    """What it failed of."""


class InspectEval(_Part):
    """What was evaluated."""

    task: str
    """Name of the task."""
    model: str
    """Name of the model."""
    eval_id: str = ""
    """The evaluation."""
    run_id: str = ""
    """The command that it was part of."""
    created: Moment = 0.0
    """When it began."""


class InspectHeader(_Part):
    """A log without its samples."""

    version: Annotated[int, Field(ge=1)] = 2
    """Of the format."""
    eval: InspectEval
    """What was evaluated."""
