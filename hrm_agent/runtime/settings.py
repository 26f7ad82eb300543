"""Settings shared by every command that runs graphs. Commands extend these classes by their own
keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, cast

from pydantic import (
    AfterValidator,
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
from hrm_agent.prompts import PROMPTS
from hrm_agent.prompts_file import PromptsByName
from hrm_agent.trajectory import Sampling

__all__ = [
    "Durability",
    "GraphContext",
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
"""Time of commits during a run (`hrm_agent.runtime.episode.EpisodeRunner`)."""
ModeName = Literal["single", "best-of-n", "majority", "search"]
"""Mode: number of runs of a task, and choice of an answer
(`hrm_agent.runtime.selection.strategies`).
"""


def _without_secret(context: dict[str, Any]) -> dict[str, Any]:
    if (name := secret_in(context)) is not None:
        raise ConfigError(
            f"The option {name!r} of the graph is named like a secret, or holds an address with a"
            " password: options are recorded.",
            "Let the graph read it from an environment variable.",
        )
    return context


GraphContext = Annotated[dict[str, Any], AfterValidator(_without_secret)]
"""Options of a graph, none of them a secret."""


class RunnerOptions(TypedDict, total=False):
    """Fields of an `EpisodeRunner`."""

    sampling: Sampling
    """Sampling parameters of calls that name none."""
    recursion_limit: int
    """Maximum steps of the graph (LangGraph's recursion_limit)."""
    stand_in: bool
    """Let the policy answer for chat models that the graph holds itself."""
    constrain: bool
    """Constrain replies to the schemas that the graph requests, if the engine can."""
    own_sampling: bool
    """Use `sampling` for the policy alone. A hosted model in a role is then sent only the
    parameters that the graph names.
    """
    repeats_errors: bool
    """Repeat a step that raises, to find out whether the error follows from the policy's
    answers.
    """
    durability: Durability
    """Time of commits."""
    share_memory: bool
    """Share the caches and the LangGraph stores of the graph among rollouts."""


def holds_none(value: Any) -> bool:
    """True if a value holds None, at any depth."""
    if isinstance(value, Mapping):
        return any(map(holds_none, cast("Mapping[Any, Any]", value).values()))
    return (
        any(map(holds_none, cast("list[Any]", value)))
        if isinstance(value, (list, tuple))
        else value is None
    )


class GraphOptions(BaseModel):
    """Options of graphs beside their task."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    context: GraphContext = Field(default_factory=dict[str, Any])
    """Options of the graph, such as max_turns=6."""
    configurable: GraphContext = Field(default_factory=dict[str, Any])
    """Values of config["configurable"] for the graph or its factory. --config KEY=VALUE does the
    same.
    """

    allow: Annotated[list[str], ONE_BY_ONE] = Field(default_factory=list[str])
    """Type that states may hold and the graph does not declare, as package.module:Type;
    repeatable.
    """

    @property
    def allowed_types(self) -> list[str]:
        """Types of `allow`, by the names under which values are stored, as a store is opened with
        them.
        """
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
                "A value of configurable holds null, and cannot be kept: options are kept as TOML,"
                " which has no null.",
                "Leave the key out: the graph then has its default.",
            )
        return configurable


class GraphSettings(GraphOptions):
    """Graph to run, and its options."""

    graph: str = "tool_loop"
    """Graph to run: tool_loop, reasoning, research, or your own as package.module:attribute or
    ./file.py:attribute.
    """
    answer_path: str = ""
    """Path of the answer in the final state, such as report or drafts[-1].text; empty: the last
    message.
    """

    @field_serializer("graph", when_used="json")
    def _by_its_file(self, graph: str, info: FieldSerializationInfo) -> str:
        """Compare graphs by file: a program records `agent:graph`, a command `./agent.py:graph`."""
        return file_named(graph) if info.context == COMPARED else graph

    prompts: PromptsByName = Field(default_factory=dict[str, str])
    """Prompts file whose texts replace prompts of the graph, such as one of `hrm-agent optimize`."""

    def task_options(self) -> dict[str, Any]:
        """Options that are recorded in each task's metadata, so that every later run of the task
        gets the same options.
        """
        options = {
            "configurable": self.configurable,
            "answer_path": self.answer_path,
            PROMPTS: self.prompts,
        }
        return {name: value for name, value in options.items() if value}


class RolloutSettings(BaseModel):
    """Sampling of a graph's model, and the environment of model-written code."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    temperature: float | None = Field(default=None, ge=0)
    """Sampling temperature; 0 takes the most probable token; none: 1, or the provider's default for
    a hosted model.
    """
    max_tokens: Annotated[int | None, BY_MODEL] = Field(default=None, ge=1)
    """Maximum completion tokens of one reply; a graph may set fewer. By the model: half of its
    context, at most 2048; for a hosted model its own limit.
    """
    isolation: LeastIsolation = DEFAULT_ISOLATION
    """Minimum isolation of model-written code: L3, L2, L1 or L0."""
    environment: Where | None = None
    """Environment of model-written code: none for this machine, the URL of `hrm-agent environment
    serve`, ray[:ADDRESS].
    """
    otel: bool = False
    """Send spans of each run, when it ends, to the OpenTelemetry collector that the OTEL_*
    variables name.
    """
    otel_content: bool = False
    """Include prompts, answers, and the inputs and outputs of tools in these spans."""

    def runner_options(self) -> RunnerOptions:
        """Settings that an `EpisodeRunner` holds."""
        return {"sampling": self.sampling()}

    def sampling(self, **further: Any) -> Sampling:
        """Given parameters over the defaults of this package. `further`: parameters of a
        subclass.
        """
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens, **further}
        return Sampling.model_validate(
            {key: value for key, value in given.items() if value is not None}
        )

    @field_serializer("temperature", "max_tokens", when_used="json")
    def _as_taken(self, value: Any, info: FieldSerializationInfo) -> Any:
        """Compare by the value in effect, since earlier versions saved a default where None is
        saved now.
        """
        taken = Sampling.model_fields[info.field_name or ""].default
        return taken if value is None and info.context == COMPARED else value


class RunSettings(RolloutSettings):
    """Settings of runs that are not trained on."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling: the share of the probability that is sampled from."""
    recursion_limit: int = Field(default=200, ge=1)
    """Maximum steps of the graph (LangGraph's recursion_limit)."""
    stand_in: bool = False
    """Let the policy answer for chat models that the graph holds itself; otherwise those are asked,
    and recorded.
    """
    constrain: bool = True
    """Constrain the answers of roles to their schemas, if the engine can. Tokens decided so are not
    trained on.
    """

    def runner_options(self) -> RunnerOptions:
        return {
            "sampling": self.sampling(top_p=None if self.top_p == 1 else self.top_p),
            "recursion_limit": self.recursion_limit,
            "stand_in": self.stand_in,
            "constrain": self.constrain,
        }


class SelectionSettings(BaseModel):
    """Choice of the answer to a task."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    mode: ModeName = "single"
    """One run, or a choice among several: best-of-n, majority,
    or search by the critic's verdicts.
    """
    n: int = Field(default=4, ge=1)
    """Maximum runs of a task, in modes with more than one."""
    width: int = Field(default=2, ge=1)
    """Mode `search`: number of parallel forks of one checkpoint."""
