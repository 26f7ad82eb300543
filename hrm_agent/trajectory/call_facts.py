"""Parts of a `Call`: its place in the graph, its sampling parameters, and its usage.

A call of an engine of this project has `Sampling`, in which every parameter has a value. A request
to another program's model has `SentSampling`, in which a parameter that the request did not name is
None, since the provider's default is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import Field, ValidationError

from hrm_agent.langgraph_format import TOOL_NODE, namespace_around, namespace_parts
from hrm_agent.trajectory.record import Record

__all__ = [
    "CallUsage",
    "GraphIdentity",
    "RaisedError",
    "Sampling",
    "SentSampling",
    "reported_usage",
    "role_of_call",
    "total_usage",
]


def _is_empty(value: object) -> bool:
    return value == ""


class GraphIdentity(Record):
    """Place of a call in a LangGraph run. It connects the call with its checkpoint."""

    thread_id: str
    """Thread of the run that made the call (the call's own run id when made outside a graph)."""
    checkpoint_id: str = ""
    """Checkpoint that the step started from; empty if the graph runs without a checkpointer."""
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
    """Place of the task in its run: `step/nodes/path`. It has no random parts, so that seeds can be
    derived from it. Nodes of nested subgraphs are joined by `|`; `path` is LangGraph's path of the
    task within the step.
    """
    attempt: int = 1
    """Node attempt, from 1; more than 1 under a retry policy."""
    agent: str = Field(default="", exclude_if=_is_empty)
    """Name of the sub-agent that made the call: that of an agent inside the graph, as LangChain's
    agents have it (`lc_agent_name`); empty for all other calls.
    """

    @property
    def step(self) -> str:
        """The outermost graph's checkpoint at which the step started."""
        return self.root_checkpoint_id or self.checkpoint_id

    @property
    def scope(self) -> str:
        """Namespace of the graph around the calling node: that of the node's loop. Calls of the
        Python tool from one thread and scope share a session.
        """
        return namespace_around(self.checkpoint_ns)

    @property
    def role(self) -> str:
        """Node of the outermost graph that made the call: `solve` for `solve:ID|reason:ID` (`none`
        outside a graph). A sub-agent that is called by a tool has its name as role.
        """
        return role_of_call(self.checkpoint_ns, self.node, self.agent)


def role_of_call(checkpoint_ns: str, node: str, agent: str) -> str:
    """Role of a call with these fields of its `GraphIdentity`."""
    outermost = next((part.node for part in namespace_parts(checkpoint_ns)), node)
    return (agent if outermost == TOOL_NODE and agent else outermost) or "none"


class Sampling(Record):
    """Sampling parameters of one call of an engine."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature; 0 takes the most probable token."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: share of the probability from which tokens are sampled; 1 for the whole
    distribution.
    """
    max_tokens: int = Field(default=512, ge=1)
    """Maximum number of completion tokens of this call."""
    seed: int | None = None
    """Seed of this call (None: drawn from the system). The engine's tokens are a function of
    (weights, prompt, seed).
    """
    stop: tuple[str, ...] = ()
    """Texts that end the call. The tokens that form them are kept in the call's `token_ids`."""

    @property
    def why_untrainable(self) -> str | None:
        """Reason why tokens sampled with these parameters are no sample of the policy's
        distribution at this temperature (None if they are).
        """
        if self.temperature == 0:
            return "temperature 0: the most probable token was taken, none was sampled"
        return (
            None
            if self.top_p == 1
            else f"top_p {self.top_p:g}: only a part of the distribution was sampled from"
        )


class SentSampling(Record):
    """Sampling parameters named in a request to another program's model."""

    temperature: float | None = None
    """Sampling temperature (None: not sent, the provider's default applied)."""
    top_p: float | None = None
    """Nucleus sampling (None: not sent)."""
    max_tokens: int | None = None
    """Maximum number of completion tokens, by whichever name the provider takes (None: not
    sent).
    """
    seed: int | None = None
    """Seed (None: not sent)."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer."""
    other: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Further parameters that change the sampled text, by the provider's names: top_k,
    reasoning_effort and so on.
    """
    hashes: dict[str, str] | None = Field(default=None, exclude_if=lambda hashes: hashes is None)
    """Name of each further option of the request, also of its address -> hash of the value (None:
    not recorded).
    """


class RaisedError(Record):
    """Error of a call, with the data from which it is raised again: as an error of its class if
    that class is loaded.
    """

    kinds: tuple[str, ...]
    """Class as `module:name`, then its base classes up to `builtins:Exception`. Empty if the
    program stopped reading a stream before its end.
    """
    message: str
    """Text of the error."""
    arguments: tuple[Any, ...] | None = None
    """`args` of the error, if they are plain JSON values (None: `message` is used instead)."""
    facts: dict[str, Any] = Field(default_factory=dict)
    """Attributes of the error that are plain JSON values: an HTTP status, a provider's code."""

    @property
    def name(self) -> str:
        """Name of the class without its module; empty for a stream that was not read to its end."""
        return self.kinds[0].rpartition(":")[2].rpartition(".")[2] if self.kinds else ""

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.kinds else self.message


class CallUsage(Record):
    """Usage of one call as its provider reported it (None where not reported)."""

    input_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the model read, including cached ones."""
    output_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the model wrote, including reasoning."""
    cached_tokens: int | None = Field(default=None, ge=0)
    """Input tokens that were in the provider's cache."""
    reasoning_tokens: int | None = Field(default=None, ge=0)
    """Output tokens spent on reasoning, which are not part of the answer."""
    cost: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Price of the call in the provider's currency (None if not reported). It is never computed
    here.
    """


def reported_usage(response: Mapping[str, Any]) -> CallUsage | None:
    """Usage reported in the dump of an answer (None if there is none).

    A number that cannot be a token count or an amount of money counts as not reported.
    """
    tokens = _table(response.get("usage_metadata"))
    facts = _table(response.get("response_metadata"))
    stated = (_table(facts.get(name)).get("cost") for name in ("token_usage", "usage"))
    said = {
        "input_tokens": tokens.get("input_tokens"),
        "output_tokens": tokens.get("output_tokens"),
        "cached_tokens": _detail(tokens.get("input_token_details"), "cache_read"),
        "reasoning_tokens": _detail(tokens.get("output_token_details"), "reasoning"),
        "cost": next((cost for cost in (*stated, facts.get("cost")) if cost is not None), None),
    }
    known = {name: value for name, value in said.items() if _is_amount(value)}
    try:
        return CallUsage.model_validate(known) if known else None
    except ValidationError:  # a fraction of a token
        return None


def total_usage(usages: Iterable[CallUsage | None]) -> CallUsage:
    """Sum of the known values (None where nothing was reported)."""
    found = [usage for usage in usages if usage is not None]

    def total(name: str) -> Any:
        values = [value for usage in found if (value := getattr(usage, name)) is not None]
        return sum(values) if values else None

    return CallUsage(**{name: total(name) for name in CallUsage.model_fields})


def _detail(details: Any, name: str) -> int | None:
    """Sum of the counts of a detail. Its name may begin with a service tier:
    `priority_cache_read`.
    """
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
