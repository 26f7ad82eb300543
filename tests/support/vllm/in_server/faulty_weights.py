"""The worker extension with faults that other projects had in their transfer of weights. A test
switches them on.
"""

from __future__ import annotations

from typing import Any

import hrm_agent_weights
import torch
from hrm_agent_weights import WeightsFromTrainer

__all__ = ["FaultyWeights"]

_taken = hrm_agent_weights.WeightsFromTrainer.hrm_take_weights


class FaultyWeights(WeightsFromTrainer):
    """Loads weights with the fault that was switched on."""

    def hrm_fault(self, name: str) -> dict[str, Any]:
        """Switch on a fault. `none`: no fault. `stale`: the weights stay unchanged, as in a server
        that wakes with old ones. `half`: the weights of all workers but the first stay unchanged.
        `untied`: the output layer that is tied to the embedding stays unchanged. `nudged`: the last
        bit of one weight of the last worker is flipped at once.
        """
        self.hrm_fault_now = name
        if name == "nudged" and self.rank + 1 == self.vllm_config.parallel_config.world_size:
            weight = self.model_runner.get_model().model.norm.weight.data
            bits = {2: torch.int16, 4: torch.int32}[weight.element_size()]
            weight.view(bits)[0] ^= 1
        return {}

    def hrm_take_weights(self, path: str, version: str) -> dict[str, Any]:
        fault = getattr(self, "hrm_fault_now", "none")
        if fault == "stale" or (fault == "half" and self.rank):
            return {"version": int(version)}
        pack_tied = hrm_agent_weights._pack_tied
        try:
            if fault == "untied":
                hrm_agent_weights._pack_tied = lambda model: None
            return _taken(self, path, version)
        finally:
            hrm_agent_weights._pack_tied = pack_tied
