"""Entropies of packed rows are those of a bare forward pass, token by token, and no tensor of all
logits is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, PreTrainedModel

from hrm_agent.training.update.batch import ForwardName, Row, micro_batches
from hrm_agent.training.update.logprobs import entropies, vocabulary_chunks
from hrm_agent.training.update.logprobs.entropies import token_entropies
from tests.support.training.builders import tiny_model
from tests.support.training.families import four_roles, rows_of, tool_loops
from tests.training.update.logprobs.test_forwards import SIZES
from tests.training.update.logprobs.test_vocabulary_chunks import Sizes


def scaled_logits() -> PreTrainedModel:
    """Model that scales its logits after the output layer."""
    torch.manual_seed(0)
    return CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.5)).eval()


def by_hand(
    model: PreTrainedModel, rows: list[Row]
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """Entropy and log-prob of each trained token, by row, from the softmax of all logits of the row
    alone.
    """
    found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for row in rows:
        ids = torch.from_numpy(row.token_ids)
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, :-1]
        places = torch.from_numpy(row.loss_mask[1:]).nonzero()[:, 0]
        own, recorded = (
            torch.from_numpy(t[1:])[places, None] for t in (row.temperatures, row.old_temperatures)
        )
        p = (logits[places] / own).softmax(-1)
        logs = (logits[places] / recorded).log_softmax(-1)
        found[row.sequence] = (
            -(p * p.log()).sum(-1),
            logs[torch.arange(len(places)), ids[1:][places]],
        )
    return found


@pytest.mark.parametrize("forward", ["padded", "packed", "tree"])
@pytest.mark.parametrize("model", [tiny_model, scaled_logits])
def test_entropies_are_those_of_a_bare_forward_pass(
    model: Callable[[], PreTrainedModel], forward: ForwardName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entropies, "LOGITS", 1000)
    monkeypatch.setattr(vocabulary_chunks, "CHUNK_ELEMENTS", 500)
    policy = model()
    rows = rows_of([*tool_loops(0), *four_roles(1)], (0.6, 1.0, 1.3))
    rows = [replace(row, sequence=n) for n, row in enumerate(rows)]
    expected = by_hand(policy, rows)
    seen = 0
    for batch in micro_batches(rows, token_budget=150, forward=forward):
        found, logprobs = token_entropies(policy, batch)
        for number in batch.sequences_K.unique().tolist():
            own = batch.sequences_K == number
            torch.testing.assert_close(found[own], expected[number][0], atol=1e-5, rtol=0)
            torch.testing.assert_close(logprobs[own], expected[number][1], atol=1e-5, rtol=0)
            seen += int(own.sum())
    assert seen == sum(int(row.loss_mask.sum()) for row in rows) > 100


def test_no_tensor_has_the_logits_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_chunks, "CHUNK_ELEMENTS", 640)
    rows = rows_of(tool_loops(2))
    (batch,) = micro_batches(rows, token_budget=10_000, forward="packed")
    model = tiny_model()
    with Sizes() as sizes:
        token_entropies(model, batch)
    vocabulary, width = model.get_output_embeddings().weight.shape
    logits = [
        shape
        for shape in sizes.shapes
        if shape and shape[-1] == vocabulary and shape != (width, vocabulary)
    ]
    assert 0 < max(shape.numel() for shape in logits) <= 640 < batch.trained_tokens * vocabulary
