"""Iteration costs of a fleet's servers, measured once for each kind if the scheduling policy uses
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from statistics import fmean

from hrm_agent.errors import ModelError
from hrm_agent.models.vllm.server import ServerGoneError
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.server import FleetServer

__all__ = ["FleetCosts"]


class FleetCosts:
    """Costs by kind of server."""

    def __init__(self, router: EngineRouter) -> None:
        self._router = router
        self._known: dict[object, IterationCosts] = {}

    def of(self, server: FleetServer) -> IterationCosts | None:
        """Costs measured for its kind (None if not measured)."""
        return self._known.get(server.kind)

    def unmeasured(self, servers: Iterable[FleetServer]) -> list[FleetServer]:
        """Return one server of each unmeasured kind, which has the weights and no requests yet."""
        if not self._router.scheduler.policy.uses_costs:
            return []
        idle = (
            each
            for each in servers
            if each.took is not None and each.name not in self._router.names
        )
        return list({each.kind: each for each in idle if each.kind not in self._known}.values())

    def measure(self, server: FleetServer) -> None:
        """Measure its costs. Raises `ServerGoneError` if it goes away meanwhile."""
        kind = server.kind
        try:
            self._known[kind] = server.measured()
        except ModelError as error:
            if not server.is_there():
                raise ServerGoneError(error.message, error.hint) from error
            sys.stderr.write(
                f"hrm-agent: what iterations at {server.url} cost is not known: {error.message}\n"
            )

    def metrics(self) -> dict[str, float]:
        """Means over the kinds (empty if none is measured)."""
        if not self._known:
            return {}
        costs = self._known.values()
        return {
            "iteration_seconds": fmean(each.weights_s + each.overhead_s for each in costs),
            "prompt_token_seconds": fmean(each.prompt_token_s for each in costs),
        }
