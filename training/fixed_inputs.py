"""What is fixed before the first optimiser step of a batch, however many steps are taken on it.

Old log-probs and corrections are of the weights before that step. Where the first forward pass of a micro-batch is
taken with those weights, they come from it; for what is trained on later, and where a correction is by rollout and the
rollout's tokens lie in several micro-batches, they come from a forward pass without gradients beforehand.
"""

# Shapes stand in the names of fields too.
# ruff: noqa: N815

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.training.batch import MicroBatch
from hrm_agent.training.logprobs import sampled_and_recorded_logprobs, token_logprobs
from hrm_agent.training.objectives import LossOptions
from hrm_agent.training.objectives.correction import Correction, corrections
from hrm_agent.training.objectives.tokens import sum_by_sequence

__all__ = ["FixedInputs", "fix_inputs", "require_sampled_logprobs", "sequence_log_ratios"]


@dataclass(slots=True)
class FixedInputs:
    """Of one micro-batch. What is None as yet comes from the first forward pass with a gradient."""

    batch: MicroBatch
    """Its tokens."""
    old_logprobs_K: Tensor | None = None
    """Log-probs that the ratio is to."""
    recorded_at_K: Tensor | None = None
    """The trainer's log-probs at the temperatures at which the engine's were recorded."""
    correction: Correction | None = None
    """Factors of the loss for whom the tokens were sampled by."""
    reference_logprobs_K: Tensor | None = None
    """Of the reference policy; None where the loss has none."""

    def complete(self, logprobs_K: Tensor, options: LossOptions) -> Tensor:
        """Take what is missing from log-probs under the weights before the first step; the old log-probs."""
        if self.old_logprobs_K is None:
            self.old_logprobs_K = logprobs_K.detach()
        if self.correction is None and options.correction != "none":
            batch = self.batch
            self.correction = corrections(self.old_logprobs_K, batch.old_logprobs_K, batch.sequences_K, options)
        return self.old_logprobs_K


def fix_inputs(
    model: nn.Module,
    reference: nn.Module | None,
    batches: Sequence[MicroBatch],
    options: LossOptions,
    *,
    first: bool,
    split: bool,
) -> list[FixedInputs]:
    """The fixed inputs of a mini-batch, on the device of its micro-batches.

    `first`: it is the one that is trained on first; `split`: some of its trajectories lie in several micro-batches.
    """
    found = [FixedInputs(batch) for batch in batches]
    by_sequence = options.correction == "sequence" and split
    for each in found:
        with torch.no_grad():
            if options.old_logprobs == "engine":
                each.old_logprobs_K = each.batch.old_logprobs_K
            elif not first or by_sequence:
                each.old_logprobs_K, each.recorded_at_K = sampled_and_recorded_logprobs(model, each.batch)
            if reference is not None:
                each.reference_logprobs_K = token_logprobs(reference, each.batch)
    if by_sequence:
        _correct_together(found, options)
    return found


def _correct_together(found: Sequence[FixedInputs], options: LossOptions) -> None:
    sizes = [each.batch.trained_tokens for each in found]
    old = torch.cat([each.old_logprobs_K for each in found if each.old_logprobs_K is not None])
    engine = torch.cat([each.batch.old_logprobs_K for each in found])
    sequences = torch.cat([each.batch.sequences_K for each in found])
    weights, cut = corrections(old, engine, sequences, options)
    for each, weights_K, cut_K in zip(found, weights.split(sizes), cut.split(sizes), strict=True):
        each.correction = Correction(weights_K, cut_K)


def sequence_log_ratios(
    logprobs: Callable[[MicroBatch], Tensor], fixed: Sequence[FixedInputs], options: LossOptions
) -> list[Tensor]:
    """For each micro-batch the mean log ratio of each token's whole trajectory, by `logprobs` of the weights as they
    are.
    """
    differences: list[Tensor] = []
    with torch.no_grad():
        for each in fixed:
            logprobs_K = logprobs(each.batch)
            differences.append(logprobs_K - each.complete(logprobs_K, options))
    sequences = torch.cat([each.batch.sequences_K for each in fixed])
    lengths = torch.cat([each.batch.lengths_K for each in fixed])
    means = sum_by_sequence(torch.cat(differences), sequences) / lengths
    return list(means.split([each.batch.trained_tokens for each in fixed]))


def require_sampled_logprobs(batches: Sequence[MicroBatch]) -> None:
    """Raises `ModelError` where a log-prob was recorded at another temperature than the one of sampling."""
    for batch in batches:
        wrong_K = batch.old_temperatures_K != batch.temperatures_K
        if wrong_K.any():
            at = float(batch.temperatures_K[wrong_K][0])
            raise ModelError(
                f"Tokens sampled at temperature {at:g} have raw log-probs on record, and the ratio of an off-policy "
                "step needs those of the distribution that was sampled.",
                "Sample with an engine of this process, with a vLLM server in --logprobs-mode processed_logprobs, or "
                "at temperature 1.",
            )
