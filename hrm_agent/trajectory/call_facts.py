"""Where a model call was made, how it was sampled, and what it used: the parts of a `Call`.

A call of an engine of ours has `Sampling`, in which every parameter has a value. What another
program's model was sent is `SentSampling`: a parameter that the request did not name is None, since
the provider's default is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import Field, ValidationError

from hrm_agent.langgraph_format import namespace_parts
from hrm_agent.trajectory.record import Record

__all__ = [
    "CallUsage",
    "GraphIdentity",
    "RaisedError",
    "Sampling",
    "SentSampling",
    "reported_usage",
    "total_usage",
]


class GraphIdentity(Record):
    """Where in a LangGraph run a call was made: the join key with the checkpoint."""

    thread_id: str
    """Thread of the run that made the call (the call's own run id when made outside a graph)."""
    checkpoint_id: str = ""
    """The checkpoint that the step started from; empty if the graph runs without a checkpointer."""
    root_checkpoint_id: str = ""
    """Checkpoint of the outermost graph that the step started from; equal to `checkpoint_id`
    outside subgraphs.
    """
    checkpoint_ns: str = ""
    """Namespace of the call's task: `node:task_id`, joined by `|` over nested subgraphs."""
    task_id: str
    """LangGraph's task id (the call's own run id when made outside a graph)."""
    node: str = ""
    """Name of the node that made the call, in the innermost graph; empty outside a graph."""
    path: str = ""
    """Place of the task within its step without random parts, for seeds: `step/node/send index`,
    joined by `|`.
    """
    attempt: int = 1
    """Node attempt, from 1; more than 1 under a retry policy."""

    @property
    def step(self) -> str:
        """The checkpoint of the outermost graph that the step started from."""
        return self.root_checkpoint_id or self.checkpoint_id

    @property
    def role(self) -> str:
        """Who asked or acted: the node of the outermost graph, `solve` for `solve:ID|reason:ID`;
        `none` outside.
        """
        return (
            next((part.node for part in namespace_parts(self.checkpoint_ns)), self.node) or "none"
        )


class Sampling(Record):
    """Sampling parameters of one call of an engine."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the share of the probability that is sampled from; 1 is all of it."""
    max_tokens: int = Field(default=512, ge=1)
    """Most completion tokens of this call."""
    seed: int | None = None
    """Seed of this call; the engine's tokens are a function of (weights, prompt, seed). None: drawn
    from the system.
    """
    stop: tuple[str, ...] = ()
    """Texts that end the call. The tokens that form them are kept in the call's `token_ids`."""

    @property
    def why_untrainable(self) -> str | None:
        """Why tokens chosen so are no sample of the policy's distribution at this temperature; None
        if they are.
        """
        if self.temperature == 0:
            return "temperature 0: the most probable token was taken, none was sampled"
        return (
            None
            if self.top_p == 1
            else f"top_p {self.top_p:g}: only a part of the distribution was sampled from"
        )


class SentSampling(Record):
    """Sampling parameters as a request to another program's model named them."""

    temperature: float | None = None
    """Sampling temperature; None: the request named none, and the provider's own default held."""
    top_p: float | None = None
    """Nucleus sampling; None: the request named none."""
    max_tokens: int | None = None
    """Most completion tokens, by whichever name the provider takes; None: the request named no
    limit.
    """
    seed: int | None = None
    """Seed; None: the request named none."""
    stop: tuple[str, ...] = ()
    """Texts that were to end the answer."""
    other: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Further parameters that change what is sampled, by the provider's names: top_k,
    reasoning_effort and so on.
    """


class RaisedError(Record):
    """Error of a call, with all that is needed to raise it again, of its own class if that is
    loaded.
    """

    kinds: tuple[str, ...]
    """Its class as `module:name`, then the classes above it, up to `builtins:Exception`."""
    message: str
    """Its text."""
    arguments: tuple[Any, ...] | None = None
    """Its `args` where they are plain JSON values; None: its text stands for them."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Its attributes that are plain JSON values: an HTTP status, a provider's code."""

    @property
    def name(self) -> str:
        """The class's name without its module; empty for a stream that the program left."""
        return self.kinds[0].rpartition(":")[2].rpartition(".")[2] if self.kinds else ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.kinds else self.message


class CallUsage(Record):
    """What one call used, as its provider reported it; None where it did not say."""

    input_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the model read, those from a cache included."""
    output_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the model wrote, those of its reasoning included."""
    cached_tokens: int | None = Field(default=None, ge=0)
    """Those of `input_tokens` that the provider had in its cache."""
    reasoning_tokens: int | None = Field(default=None, ge=0)
    """Those of `output_tokens` that were reasoning and are not part of the answer."""
    cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Price of the call in the provider's currency, where it states one; never computed here."""


def reported_usage(response: Mapping[str, Any]) -> CallUsage | None:
    """What the dump of an answer says of tokens and cost; None if it says nothing.

    A number that cannot be one of tokens or of money counts as not reported.
    """
    tokens, facts = (
        _table(response.get("usage_metadata")),
        _table(response.get("response_metadata")),
    )
    said = {
        "input_tokens": tokens.get("input_tokens"),
        "output_tokens": tokens.get("output_tokens"),
        "cached_tokens": _detail(tokens.get("input_token_details"), "cache_read"),
        "reasoning_tokens": _detail(tokens.get("output_token_details"), "reasoning"),
        "cost": _cost(facts),
    }
    known = {name: value for name, value in said.items() if _is_amount(value)}
    try:
        return CallUsage.model_validate(known) if known else None
    except ValidationError:  # a fraction of a token
        return None


def total_usage(usages: Iterable[CallUsage | None]) -> CallUsage:
    """The sum of what is known; None where nobody reported anything."""
    found = [usage for usage in usages if usage is not None]

    def total(name: str) -> Any:
        values = [value for usage in found if (value := getattr(usage, name)) is not None]
        return sum(values) if values else None

    return CallUsage(**{name: total(name) for name in CallUsage.model_fields})


def _cost(facts: Mapping[str, Any]) -> Any:
    """Providers state it beside the tokens (OpenRouter by way of OpenAI's client) or by itself."""
    stated = (_table(facts.get(name)).get("cost") for name in ("token_usage", "usage"))
    return next((cost for cost in (*stated, facts.get("cost")) if cost is not None), None)


def _detail(details: Any, name: str) -> int | None:
    """A detail by its name, or with a tier of service before it: `priority_cache_read`."""
    found = [
        value for key, value in _table(details).items() if key == name or key.endswith(f"_{name}")
    ]
    numbers = [int(value) for value in found if _is_amount(value)]
    return sum(numbers) if numbers else None


def _is_amount(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
    )


def _table(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
