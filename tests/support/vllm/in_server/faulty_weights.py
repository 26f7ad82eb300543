"""The worker extension with the faults of others' ways to hand over weights, which a test switches on."""

from __future__ import annotations

from typing import Any

import hrm_agent_weights
from hrm_agent_weights import WeightsFromTrainer

__all__ = ["FaultyWeights"]

_taken = hrm_agent_weights.WeightsFromTrainer.hrm_take_weights


class FaultyWeights(WeightsFromTrainer):
    """Loads weights with the fault that was switched on."""

    def hrm_fault(self, name: str) -> dict[str, Any]:
        """none; stale: the weights stay what they were, as in a server that wakes with what it had; untied: the output
        layer that is tied to the embedding keeps what it had."""
        self.hrm_fault_now = name
        return {}

    def hrm_take_weights(self, path: str, version: str) -> dict[str, Any]:
        fault = getattr(self, "hrm_fault_now", "none")
        if fault == "stale":
            return {"version": int(version)}
        pack_tied = hrm_agent_weights._pack_tied
        try:
            if fault == "untied":
                hrm_agent_weights._pack_tied = lambda model: None
            return _taken(self, path, version)
        finally:
            hrm_agent_weights._pack_tied = pack_tied
