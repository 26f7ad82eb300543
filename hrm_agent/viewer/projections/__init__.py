"""Projections: functions that return the JSON that pages show of a place. The server parses query
values and sends the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hrm_agent.errors import ConfigError, nearest
from hrm_agent.viewer.projections.bare_threads import bare_threads
from hrm_agent.viewer.projections.blobs import blob
from hrm_agent.viewer.projections.datasets import dataset, datasets
from hrm_agent.viewer.projections.evaluations import evaluations
from hrm_agent.viewer.projections.groups import groups, step
from hrm_agent.viewer.projections.run.analyses import analyses, analysis
from hrm_agent.viewer.projections.run.compare import compare
from hrm_agent.viewer.projections.run.curves import metrics
from hrm_agent.viewer.projections.run.environment import environment
from hrm_agent.viewer.projections.run.trajectories import search, trajectories
from hrm_agent.viewer.projections.runs import runs
from hrm_agent.viewer.projections.trajectory.citations import citations, source
from hrm_agent.viewer.projections.trajectory.graph import graph
from hrm_agent.viewer.projections.trajectory.items import items
from hrm_agent.viewer.projections.trajectory.moments import moment, moments
from hrm_agent.viewer.projections.trajectory.tokens import tokens
from hrm_agent.viewer.projections.trajectory.trajectory import trajectory

__all__ = ["ENDPOINTS", "PLACE", "Endpoint", "Parameter"]

PLACE = "place"
"""Query value that names the place. The server reads it, so it is not in the parameters of an
endpoint.
"""
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Parameter:
    """Query value of an endpoint."""

    type: type[str] | type[int] = str
    """Type of the value."""
    default: str | int | None = None
    """Default value."""
    required: bool = False
    """True if the value must be given."""
    least: int = 0
    """Lower bound of a number."""
    most: int = 2**53 - 1
    """Upper bound of a number."""

    def read(self, name: str, text: str) -> str | int:
        """Parse the text of a value. Raises `ConfigError` if it is invalid."""
        if self.type is str:
            if len(text) > _LONGEST:
                raise ConfigError(f"{name} has {len(text)} characters.", f"At most {_LONGEST}.")
            return text
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):
            raise ConfigError(f"{name}={text[:80]!r} is not a whole number.", f"Write {name}=N.")
        number = int(text)
        if not self.least <= number <= self.most:
            raise ConfigError(
                f"{name}={number} is out of range.", f"From {self.least} to {self.most}."
            )
        return number


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Projection with its query values."""

    function: Callable[..., dict[str, Any]]
    """Function that is called with a place (or all places, if `everywhere`) and the query values by
    name.
    """
    parameters: Mapping[str, Parameter] = field(default_factory=dict[str, Parameter])
    """Query values by name, without the place."""
    everywhere: bool = False
    """True if the function takes all places."""
    of_datasets: bool = False
    """True if the function also takes the folder of data sets."""

    def read(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Arguments of the function. Raises `ConfigError` for an unknown, malformed or missing
        value.
        """
        for name in query:
            if name not in self.parameters and (name != PLACE or self.everywhere):
                known = ", ".join(self.parameters) or "none"
                raise ConfigError(
                    f"There is no query value {name[:80]!r}. {nearest(name[:80], self.parameters)}".strip(),
                    f"Known: {known}.",
                )
        found: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if query.get(name, "") != "":
                found[_argument(name)] = parameter.read(name, query[name])
            elif parameter.required:
                raise ConfigError(f"The query value {name!r} is missing.", f"Add {name}=VALUE.")
            else:
                found[_argument(name)] = parameter.default
        return found


def _argument(name: str) -> str:
    """Argument name of a query value. It differs for `from`, a keyword of Python."""
    return f"{name}_" if name == "from" else name


_NEEDED = Parameter(required=True)
_NUMBER = Parameter(int, 0)


def _limit(usual: int, most: int) -> Parameter:
    return Parameter(int, usual, least=1, most=most)


ENDPOINTS: Mapping[str, Endpoint] = {
    "runs": Endpoint(runs, everywhere=True),
    "datasets": Endpoint(datasets, everywhere=True, of_datasets=True),
    "dataset": Endpoint(
        dataset,
        {
            "name": _NEEDED,
            "version": Parameter(int, required=True, least=1),
            "after": _NUMBER,
            "limit": _limit(2_000, 10_000),
        },
        everywhere=True,
        of_datasets=True,
    ),
    "evaluations": Endpoint(evaluations, {"runs": _NEEDED}, everywhere=True),
    "metrics": Endpoint(metrics, {"run": Parameter(default=""), "after": _NUMBER}),
    "step": Endpoint(step, {"run": Parameter(default=""), "step": Parameter(int, required=True)}),
    "groups": Endpoint(
        groups, {"run": Parameter(default=""), "after": _NUMBER, "limit": _limit(50, 500)}
    ),
    "trajectories": Endpoint(
        trajectories,
        {"run": Parameter(default=""), "after": _NUMBER, "limit": _limit(2_000, 10_000)},
    ),
    "threads": Endpoint(
        bare_threads, {"after": Parameter(default=""), "limit": _limit(200, 1_000)}
    ),
    "trajectory": Endpoint(trajectory, {"id": _NEEDED}),
    "items": Endpoint(items, {"id": _NEEDED, "after": _NUMBER, "limit": _limit(200, 1_000)}),
    "moments": Endpoint(
        moments,
        {
            "thread": _NEEDED,
            "after": _NUMBER,
            "limit": _limit(50, 500),
            "checkpoint": Parameter(default=""),
        },
    ),
    "moment": Endpoint(moment, {"thread": _NEEDED, "checkpoint": _NEEDED}),
    "tokens": Endpoint(
        tokens, {"call": _NEEDED, "from": _NUMBER, "to": _NUMBER, "run": Parameter(default="")}
    ),
    "graph": Endpoint(graph, {"thread": _NEEDED}),
    "environment": Endpoint(environment, {"run": Parameter(default="")}),
    "analyses": Endpoint(analyses, {"run": _NEEDED}),
    "analysis": Endpoint(analysis, {"run": _NEEDED, "name": _NEEDED}),
    "citations": Endpoint(citations, {"id": _NEEDED}),
    "source": Endpoint(
        source, {"id": _NEEDED, "source": _NEEDED, "start": _NUMBER, "end": _NUMBER}
    ),
    "search": Endpoint(
        search, {"q": _NEEDED, "run": Parameter(default=""), "limit": _limit(50, 500)}
    ),
    "compare": Endpoint(compare, {"a": _NEEDED, "b": _NEEDED}),
    "blob": Endpoint(blob, {"item": _NEEDED, "field": _NEEDED, "from": _NUMBER}),
}
"""Endpoints by name, as in `GET /api/v1/NAME`."""
