"""Exchange of gradients between ranks, clipping, and optimiser steps that are skipped if the
gradient is not finite. All trainers use them.

Gradients stay on their rank until the last micro-batch of a step has been processed
(`kept_on_rank`). Then `clip` averages them over the ranks. The data-parallel wrapper cannot do
this, since it waits for a gradient of every parameter in each backward pass, and a step may not use
all parameters. A vision tower has no gradient for text, an expert has none if no token was routed
to it, and a role's adapter has none if the role sampled nothing. Another rank may use such a
parameter. If any rank has used a parameter, it has a gradient on all ranks afterwards. If no rank
has used it, it has none, and the optimiser skips it, including weight decay, as in one process.

A step with a non-finite gradient would ruin the weights, so it is skipped: one overflow must not
end a run of days. A run ends with an error if no step can be taken, or if a step has made weights
non-finite.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from hrm_agent.errors import RunError
from hrm_agent.training.metrics import NOT_FINITE
from hrm_agent.training.update.reductions import max_over_ranks

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["SkippedSteps", "clip", "kept_on_rank", "step_if_finite", "weights_not_finite"]

_BUCKET = 2**23
"""Number of elements that are exchanged at once."""
_MOST_IN_A_ROW = 10
"""Number of consecutive skipped steps at which a run ends with an error."""


def kept_on_rank(model: nn.Module, accelerator: Accelerator | None) -> AbstractContextManager[Any]:
    """Exchange no gradients in a backward pass within the block, except those of sharded weights
    (FSDP2).
    """
    return nullcontext() if accelerator is None else accelerator.no_sync(model)


def clip(model: nn.Module, accelerator: Accelerator | None, max_norm: float) -> Tensor:
    """Average gradients over ranks, and scale them down to the L2 norm `max_norm`. Returns their
    total L2 norm before scaling.
    """
    if accelerator is None:
        return nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if accelerator.num_processes > 1:
        _average(
            each
            for each in model.parameters()
            if each.requires_grad and not isinstance(each, DTensor)
        )
    norm: Any = accelerator.clip_grad_norm_(model.parameters(), max_norm)
    return (
        norm.full_tensor()
        if isinstance(norm, DTensor)
        else torch.as_tensor(0.0 if norm is None else norm)
    )


@torch.no_grad()
def _average(weights: Iterable[nn.Parameter]) -> None:
    """Average each gradient over all ranks. A rank without a gradient counts as 0 if another rank
    has one.
    """
    every = list(weights)
    if not every:
        return
    used = torch.tensor(
        [each.grad is not None for each in every], dtype=torch.uint8, device=every[0].device
    )
    distributed.all_reduce(used, distributed.ReduceOp.MAX)
    for bucket in _buckets(
        [each for each, is_used in zip(every, used.tolist(), strict=True) if is_used]
    ):
        flat = torch.cat(
            [
                (torch.zeros_like(each) if each.grad is None else each.grad).flatten()
                for each in bucket
            ]
        )
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
            each.grad = part.view_as(each)


def _buckets(weights: Sequence[nn.Parameter]) -> Generator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for weight in weights:
        if bucket and (size + weight.numel() > _BUCKET or weight.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
            size = 0
        bucket.append(weight)
        size += weight.numel()
    if bucket:
        yield bucket


def step_if_finite(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    norm: Tensor,
    accelerator: Accelerator | None = None,
) -> bool:
    """Take a step of each optimiser if the gradient's `norm` is finite, and drop the gradient.
    Returns True if it was taken.

    Raises `RunError` if weights were finite before the step and are not after it.
    """
    stepped = bool(torch.isfinite(norm))
    if stepped:
        before = weights_not_finite(model)
        for optimizer in optimizers:
            optimizer.step()
        ruined = [name for name in weights_not_finite(model) if name not in before]
        device = next(model.parameters()).device
        if count := int(max_over_ranks(len(ruined), accelerator, device)):
            example = f", {ruined[0]!r} for example" if ruined else ""
            rate = float(optimizers[-1].param_groups[0]["lr"])
            raise RunError(
                f"A step has made {count} of the model's tensors not finite{example}; "
                f"the norm of the gradient was {float(norm):.3g}, the learning rate {rate:.3g}.",
                "Checkpoints are of the weights before. Start a new run from one, with a lower"
                " learning rate.",
            )
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    return stepped


@torch.no_grad()
def weights_not_finite(model: nn.Module) -> list[str]:
    """Names of trained weights with non-finite numbers (if sharded, in this rank's share)."""
    named: list[tuple[str, Tensor]] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            own = weight.to_local() if isinstance(weight, DTensor) else weight
            if own.numel():
                named.append((name, own))
    if not named:
        return []
    # Sums are a quick first check. A sum is finite if all numbers are, unless they are so large
    # that it overflows; so tensors with a non-finite sum are then checked number by number.
    sums = torch.stack(
        [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for _, weight in named]
    )
    suspects = [
        pair
        for pair, is_finite in zip(named, sums.isfinite().tolist(), strict=True)
        if not is_finite
    ]
    return [name for name, weight in suspects if not bool(weight.isfinite().all())]


class SkippedSteps:
    """Counts the steps of a run that were skipped because of a non-finite gradient."""

    def __init__(self) -> None:
        self.steps = self.skipped = 0
        """Number of steps with tokens to train, and number of those that were skipped."""
        self._in_a_row = 0
        self.taken_before = False
        """True if a step was taken before the run was resumed."""

    def count(self, *, stepped: bool) -> None:
        """Count a step. Raises `RunError` if too many consecutive steps were skipped."""
        self.steps += 1
        self.skipped += not stepped
        self._in_a_row = 0 if stepped else self._in_a_row + 1
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise _cannot_recover(f"None of the last {self._in_a_row} steps could be taken")

    def end(self) -> None:
        """Raise `RunError` if there were steps and all of them were skipped."""
        if self.steps and self.skipped == self.steps and not self.taken_before:
            raise _cannot_recover(f"None of the {self.steps} steps could be taken")


def _cannot_recover(said: str) -> RunError:
    return RunError(
        f"{said}: {NOT_FINITE}, and the weights stay as they are.",
        "Look at the weights that the run starts from, and at the rewards or the rows that it"
        " learns from; lower the learning rate; train in float32.",
    )
