"""One rank of `test_distributed.py`: an update on its share of the rows. Rank 0 writes the
result.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from hrm_agent.training.update.batch import Row, micro_batches
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from tests.support.training.builders import RareExpert, model_with_unused_parts, tiny_model
from tests.training.update.test_loss import random_rows
from tests.training.update.test_optimizer_step import numbered

SEVERAL_STEPS: dict[str, Any] = {
    "loss": LossOptions(
        objective="gspo", aggregation="sequence", correction="sequence", correction_cap=1.5
    ),
    "optim": OptimOptions(epochs=2, max_grad_norm=0.5),
    "version": 1,
}


def unused_parts() -> tuple[list[Row], list[Row]]:
    """Rows of each rank. Only rank 0 has the expert's token, and not in its last micro-batch."""
    rows = numbered(random_rows(5, 6), each=1)
    rows = [replace(row, token_ids=np.minimum(row.token_ids, RareExpert.TOKEN - 1)) for row in rows]
    rows[0].token_ids[:2] = RareExpert.TOKEN
    return rows[:3], rows[3:]


def update_unused_parts(rows: Sequence[Row], accelerator: Accelerator | None) -> dict[str, Any]:
    """Take two steps of AdamW. Return metrics, weights, and the names of the weights with optimiser
    state.
    """
    model = model_with_unused_parts()
    wrapped, optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    if accelerator is not None:
        wrapped, optimizer = accelerator.prepare(model, optimizer)
    batches, loss = micro_batches(rows, token_budget=1), LossOptions(old_logprobs="engine")
    rows_of_metrics = [
        policy_update(wrapped, optimizer, batches, accelerator=accelerator, loss=loss)
        for _ in range(2)
    ]
    named = dict(model.named_parameters())
    kept = {name for name, weight in named.items() if weight in optimizer.state}
    return {"metrics": rows_of_metrics, "weights": model.state_dict(), "with_state": kept}


def main(output: str, part: str = "updates") -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2, "the ranks do not form one group"
    if part == "unused":
        found = update_unused_parts(unused_parts()[accelerator.process_index], accelerator)
        torch.save(found, f"{output}.{accelerator.process_index}")
        accelerator.wait_for_everyone()
        os._exit(0)
    model = tiny_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    rows = random_rows(0)
    # Rank 0 has five micro-batches, rank 1 two. Rank 1 has to take part without rows of its own.
    share = rows[:5] if accelerator.process_index == 0 else rows[5:]
    batches, loss = micro_batches(share, token_budget=1), LossOptions(old_logprobs="engine")
    metrics = policy_update(model, optimizer, batches, accelerator=accelerator, loss=loss)
    metrics_of_none = policy_update(model, optimizer, [], accelerator=accelerator)
    first = {name: p.clone() for name, p in accelerator.unwrap_model(model).state_dict().items()}
    # In the first mini-batch rank 0 has two trajectories of two micro-batches each, and rank 1 has
    # one trajectory. In the second mini-batch only rank 1 has a trajectory.
    mine = ((0, 1), ()) if accelerator.process_index == 0 else ((2,), (3,))
    rows = numbered(random_rows(1, 8))
    parts = [
        micro_batches([row for row in rows if row.sequence in part], token_budget=1)
        for part in mine
    ]
    metrics_of_several = policy_update(
        model, optimizer, parts, accelerator=accelerator, **SEVERAL_STEPS
    )
    if accelerator.is_main_process:
        weights = accelerator.unwrap_model(model).state_dict()
        rows_of_metrics = {
            "metrics": metrics,
            "none": metrics_of_none,
            "several": metrics_of_several,
        }
        torch.save({"first": first, "weights": weights, **rows_of_metrics}, output)
    accelerator.wait_for_everyone()
    os._exit(0)  # after all work is done, the end of gloo's process group sometimes hangs


if __name__ == "__main__":
    main(*sys.argv[1:])
