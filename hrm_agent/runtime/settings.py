"""Settings shared by every command that runs graphs; commands extend these classes by keys of their
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    field_serializer,
    field_validator,
)

from hrm_agent.config import BY_MODEL, COMPARED, ONE_BY_ONE, secret_in
from hrm_agent.environment.isolation import DEFAULT_ISOLATION
from hrm_agent.environment.open import LeastIsolation, Where
from hrm_agent.errors import ConfigError
from hrm_agent.import_by_name import file_named, types_by_name
from hrm_agent.trajectory import Sampling

__all__ = [
    "Durability",
    "GraphOptions",
    "GraphSettings",
    "ModeName",
    "RolloutSettings",
    "RunSettings",
    "RunnerOptions",
    "SelectionSettings",
    "holds_none",
]

Durability = Literal["steps", "calls"]
"""What a run commits as it goes (`hrm_agent.runtime.episode.EpisodeRunner`)."""
ModeName = Literal["single", "best-of-n", "majority", "search"]
"""How often a task is tried, and how an answer is chosen
(`hrm_agent.runtime.selection.strategies`).
"""


class RunnerOptions(TypedDict, total=False):
    """Fields of an `EpisodeRunner`."""

    sampling: Sampling
    """Sampling parameters of calls that name none of their own."""
    recursion_limit: int
    """Most steps of the graph (LangGraph's recursion_limit)."""
    stand_in: bool
    """The policy answers for chat models that the graph holds itself."""
    constrain: bool
    """Replies are held to the schemas that the graph asks for, where the engine can."""
    own_sampling: bool
    """The sampling parameters are the policy's alone: a hosted model in a role is sent what the
    graph names.
    """
    repeats_errors: bool
    """A step that raises is taken once more, to learn whether that follows from the policy's
    answers.
    """
    durability: Durability
    """What is committed when."""
    share_memory: bool
    """Rollouts share the caches and the LangGraph stores of their graph."""


def holds_none(value: Any) -> bool:
    """Check for None in a value, at any depth."""
    if isinstance(value, Mapping):
        return any(map(holds_none, cast("Mapping[Any, Any]", value).values()))
    return (
        any(map(holds_none, cast("list[Any]", value)))
        if isinstance(value, (list, tuple))
        else value is None
    )


class GraphOptions(BaseModel):
    """What graphs are given beside their task."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of the graph, such as max_turns=6."""
    configurable: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What the graph, or its factory, reads from config["configurable"]; --config KEY=VALUE is the
    same.
    """

    allow: Annotated[list[str], ONE_BY_ONE] = Field(default_factory=list[str])
    """A type of your own that states may hold and the graph does not declare, as
    package.module:Type; repeatable.
    """

    @property
    def allowed_types(self) -> list[str]:
        """`allow`, by the names under which values are stored: what a store is opened with."""
        return types_by_name(self.allow)

    @field_validator("allow")
    @classmethod
    def _are_types(cls, allow: list[str]) -> list[str]:
        types_by_name(allow)
        return allow

    @field_validator("configurable")
    @classmethod
    def _can_be_kept(cls, configurable: dict[str, Any]) -> dict[str, Any]:
        if holds_none(configurable):
            raise ConfigError(
                "A value of configurable holds null, which TOML, in which options are kept, does"
                " not have.",
                "Leave the key out: the graph then has its default.",
            )
        return configurable

    @field_validator("context", "configurable")
    @classmethod
    def _holds_no_secret(cls, context: dict[str, Any]) -> dict[str, Any]:
        if (name := secret_in(context)) is not None:
            raise ConfigError(
                f"The option {name!r} of the graph is named like a secret, or holds an address with"
                " a password: options are recorded.",
                "Let the graph read it from an environment variable.",
            )
        return context


class GraphSettings(GraphOptions):
    """Which graph runs."""

    graph: str = "tool_loop"
    """Graph to run: tool_loop, reasoning, research, or your own as package.module:attribute or
    ./file.py:attribute.
    """
    answer_path: str = ""
    """Where in the final state the answer is, as in report or drafts[-1].text; empty: the last
    message.
    """

    @field_serializer("graph", when_used="json")
    def _by_its_file(self, graph: str, info: FieldSerializationInfo) -> str:
        """Compare graphs by file: a program records `agent:graph` where a command has
        `./agent.py:graph`.
        """
        return file_named(graph) if info.context == COMPARED else graph

    def task_options(self) -> dict[str, Any]:
        """What goes on record with each task, in its metadata, so that every later run of it is
        given the same.
        """
        options = {"configurable": self.configurable, "answer_path": self.answer_path}
        return {name: value for name, value in options.items() if value}


class RolloutSettings(BaseModel):
    """How a graph's model samples, and where model-written code runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 takes the most probable token; none: 1, and of a hosted model its
    provider's own.
    """
    max_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Most completion tokens of one reply; a graph may set fewer. By the model: half of its
    context, 2048 at most; of a hosted model its own limit.
    """
    isolation: LeastIsolation = DEFAULT_ISOLATION
    """The least isolation of model-written code that is accepted: L3, L2, L1 or L0."""
    environment: Where | None = None
    """Where model-written code runs: none for this machine, the URL of
    `hrm-agent environment serve`, ray[:ADDRESS].
    """
    otel: bool = False
    """Send spans of each run, as it ends, to the OpenTelemetry collector that the OTEL_* variables
    name.
    """
    otel_content: bool = False
    """Put prompts, answers, and what tools were given and gave into these spans."""

    def runner_options(self) -> RunnerOptions:
        """The part of the settings that an `EpisodeRunner` holds."""
        return {"sampling": self.sampling()}

    def sampling(self, **further: Any) -> Sampling:
        """The given parameters over our own defaults; `further`: parameters of a subclass."""
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens, **further}
        return Sampling.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )

    @field_serializer("temperature", "max_tokens", when_used="json")
    def _as_taken(self, value: Any, info: FieldSerializationInfo) -> Any:
        """Compare by the value in effect, since earlier versions saved a default where there is
        None now.
        """
        taken = Sampling.model_fields[info.field_name or ""].default
        return taken if value is None and info.context == COMPARED else value


class RunSettings(RolloutSettings):
    """Settings of runs that are not trained on."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the share of the probability that is sampled from."""
    recursion_limit: int = Field(default=200, ge=1)
    """Most steps of the graph (LangGraph's recursion_limit)."""
    stand_in: bool = False
    """Let the policy answer for chat models that the graph holds itself; otherwise those are asked,
    and recorded.
    """
    constrain: bool = True
    """Constrain the answers of roles to their schemas, where the engine can; tokens decided so are
    not trained on.
    """

    def runner_options(self) -> RunnerOptions:
        return {
            "sampling": self.sampling(top_p=None if self.top_p == 1 else self.top_p),
            "recursion_limit": self.recursion_limit,
            "stand_in": self.stand_in,
            "constrain": self.constrain,
        }


class SelectionSettings(BaseModel):
    """How the answer to a task is chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: ModeName = "single"
    """One run, or a choice among several: best-of-n, majority,
    or search by the critic's verdicts.
    """
    n: int = Field(default=4, ge=1)
    """Most runs of a task, in modes with more than one."""
    width: int = Field(default=2, ge=1)
    """Mode `search`: how many forks of one checkpoint run at a time."""
