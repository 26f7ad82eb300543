"""Projections: functions from a place to the JSON of pages. The server parses query values and
sends answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from hrm_agent.viewer.projections.bare_threads import bare_threads
from hrm_agent.viewer.projections.blobs import blob
from hrm_agent.viewer.projections.endpoint import Endpoint, Parameter
from hrm_agent.viewer.projections.groups import groups, step
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

__all__ = ["ENDPOINTS", "Endpoint", "Parameter"]

_NEEDED = Parameter(required=True)
_NUMBER = Parameter(int, 0)


def _limit(usual: int, most: int) -> Parameter:
    return Parameter(int, usual, least=1, most=most)


ENDPOINTS: Mapping[str, Endpoint] = {
    "runs": Endpoint(runs, everywhere=True),
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
