"""Training step of ours or of TRL, alone in a process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from benchmarks.real_size.arithmetic import (
    FORWARD_AND_BACKWARD,
    FROZEN,
    Network,
    measured_rates,
)
from benchmarks.real_size.clock import begin, peak_gib, seconds, tell
from benchmarks.training_step import Step, credited, fixed_trajectories, ours, trl
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.fitted import decided, fit
from hrm_agent.training.config.parts import AdapterPart, OptimPart
from hrm_agent.training.update.batch import build_batches
from hrm_agent.training.update.optimizers import make_adamw
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import Overlay, Trajectory

WAYS: dict[str, dict[str, Any]] = {
    "TRL": {},
    "padded": {"forward": "padded"},
    "packed": {"forward": "packed"},
    "tree": {"forward": "tree"},
    "tree, LoRA of rank 16": {"forward": "tree", "rank": 16},
    "tree, masters": {"forward": "tree"},
    "padded, masters": {"forward": "padded"},
    "packed, masters": {"forward": "packed"},
}
"""Ways to take a step."""


def step_of(
    work: dict[str, Any], trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]
) -> tuple[Step, float]:
    """Step of a way, and the operations that it needs."""
    way = WAYS[work["way"]]
    format_ = work["format"]
    if "forward" not in way:
        model, _ = load_pretrained(work["folder"], dtype=format_)
        operations = FORWARD_AND_BACKWARD * forward_operations(
            model, trajectories, overlays, "packed"
        )
        return trl(trajectories, overlays, model, work["trl_rows"], recorded=False), operations
    rank = way.get("rank", 0)
    model = TrainedPolicy.load(
        work["policy"],
        AdapterPart(lora_rank=rank),
        dtype=format_,
        device=work.get("device", "cpu"),
        seed=0,
    ).model
    factor = FROZEN if rank else FORWARD_AND_BACKWARD
    step = ours(
        trajectories,
        overlays,
        way["forward"],
        model,
        decided(fit(GrpoConfig(policy=work["policy"])).loss.micro_batch_tokens, "loss"),
        optimizer=make_adamw(model, OptimPart(learning_rate=1e-5)),
        recorded=False,
    )
    return step, factor * forward_operations(model, trajectories, overlays, way["forward"])


def forward_operations(
    model: Any, trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], forward: Any
) -> float:
    """Operations of a forward pass without padding, in which a tree has each prefix once."""
    forward = "tree" if forward == "tree" else "packed"
    (batch,) = build_batches(trajectories, overlays, token_budget=1 << 40, forward=forward)
    return Network.of(model.config).forward(
        len(batch.token_ids_N),
        int(batch.positions_N.sum()) + len(batch.token_ids_N),
        len(batch.parents_N[batch.loss_indices_K].unique()),
    )


def main() -> None:
    work = begin()
    torch.set_num_threads(work["threads"])
    trajectories = fixed_trajectories(*work["shape"])
    step, operations = step_of(work, trajectories, credited(trajectories))
    norm = step()  # also reserves the optimiser's state
    found = {
        "grad_norm": norm,
        "whole": [seconds(step) for _ in range(work["repeats"])],
        "operations": operations,
        "tokens": sum(len(call.token_ids) for each in trajectories for call in each.calls),
        "peak_gib": peak_gib(),
    }
    version = f"transformers {transformers.__version__}"
    if work["way"] == "TRL":
        import trl as library

        version = f"TRL {library.__version__}"
    rates = measured_rates(work["format"])
    tell(found | {"version": version, "load": os.getloadavg(), **rates})


if __name__ == "__main__":
    main()
