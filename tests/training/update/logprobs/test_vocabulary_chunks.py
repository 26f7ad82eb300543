"""Log-probs without all logits: the same numbers, and no tensor of K x V."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import CohereConfig, CohereForCausalLM

from hrm_agent.training.update.batch import MicroBatch, micro_batches
from hrm_agent.training.update.logprobs import log_softmax, token_logprobs, vocabulary_chunks
from hrm_agent.training.update.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.update.logprobs.vocabulary_chunks import logprobs_from_hidden
from tests.support.training.builders import tiny_model
from tests.support.training.families import rows_of, tool_loops
from tests.training.update.logprobs.test_forwards import SIZES

POSITIONS, WIDTH, VOCABULARY, ENTRIES = 37, 16, 1500, 90


class Sizes(TorchDispatchMode):
    """Shapes of all computed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in (
            result if isinstance(result, Iterable) and not isinstance(result, Tensor) else [result]
        ):
            if isinstance(each, Tensor):
                self.shapes.append(each.shape)
        return result


@pytest.fixture(params=[False, True], ids=["kept", "computed again"])
def again(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(vocabulary_chunks, "CHUNK_ELEMENTS", 5 * VOCABULARY)
    monkeypatch.setattr(vocabulary_chunks, "KEPT_ELEMENTS", 0 if request.param else 2**30)
    return request.param


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperatures", ["one", "by position", "by entry"])
def test_values_and_gradients_are_those_of_whole_logits(
    again: bool, bias: bool, temperatures: str
) -> None:
    del again
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, VOCABULARY, bias=bias).double()
    hidden = torch.randn(POSITIONS, WIDTH, dtype=torch.float64, requires_grad=True)
    places, token_ids = torch.randint(POSITIONS, (ENTRIES,)), torch.randint(VOCABULARY, (ENTRIES,))
    at = {
        "one": torch.ones(ENTRIES),
        "by position": (torch.rand(POSITIONS) + 0.5)[places],
        "by entry": torch.rand(ENTRIES) + 0.5,
    }[temperatures]
    upstream = torch.randn(ENTRIES, dtype=torch.float64)

    def of(logprobs: Tensor) -> list[Tensor]:
        return [
            logprobs.detach(),
            *torch.autograd.grad((logprobs * upstream).sum(), [hidden, *layer.parameters()]),
        ]

    ours = of(logprobs_from_hidden(hidden, layer, places, token_ids, at))
    expected = of(chosen_logprobs(layer(hidden[places]), token_ids, at))
    for found, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, VOCABULARY).bfloat16()
    hidden = torch.randn(POSITIONS, WIDTH).bfloat16().requires_grad_()
    places = torch.arange(POSITIONS)
    logprobs = logprobs_from_hidden(hidden, layer, places, places, torch.ones(POSITIONS))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(
        logprobs, chosen_logprobs(layer(hidden), places), atol=1e-4, rtol=1e-4
    )
    logprobs.sum().backward()
    assert (
        hidden.grad is not None and hidden.grad.dtype == layer.weight.grad.dtype == torch.bfloat16
    )


def test_no_tensor_of_all_logits_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_chunks, "CHUNK_ELEMENTS", 4 * VOCABULARY)
    monkeypatch.setattr(vocabulary_chunks, "KEPT_ELEMENTS", 0)
    layer = nn.Linear(WIDTH, VOCABULARY, bias=False)
    hidden = torch.randn(POSITIONS, WIDTH, requires_grad=True)
    places, token_ids = torch.randint(POSITIONS, (ENTRIES,)), torch.randint(VOCABULARY, (ENTRIES,))
    with Sizes() as sizes:
        logprobs_from_hidden(hidden, layer, places, token_ids, torch.ones(ENTRIES)).sum().backward()
    wide = [shape for shape in sizes.shapes if VOCABULARY in shape and WIDTH not in shape]
    assert wide and all(shape.numel() <= 4 * VOCABULARY for shape in wide)
    assert {shape.numel() for shape in sizes.shapes if WIDTH in shape} <= {
        n * WIDTH for n in (1, 4, POSITIONS, VOCABULARY)
    }


@contextmanager
def wide_products(model: nn.Module, width: int) -> Generator[list[int]]:
    """Numbers of rows of tensors with a column for each token of the vocabulary."""
    rows: list[int] = []
    with Sizes() as sizes:
        yield rows
    rows += [shape.numel() // width for shape in sizes.shapes if shape[-1:] == (width,)]


def test_entries_at_one_position_share_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    (tree,) = micro_batches(rows_of(tool_loops(0)), token_budget=1000, forward="tree")
    positions = len(tree.parents_N[tree.loss_indices_K].unique())
    assert positions < tree.trained_tokens - 5, "the case must share some"
    with wide_products(tiny_model(), 64) as rows, torch.no_grad():
        token_logprobs(tiny_model(), tree)
    assert max(rows) == 64 or max(rows) <= positions, "64 rows are the embeddings"
    assert tree.trained_tokens not in rows


def test_a_small_padded_batch_takes_the_path_of_whole_logits_and_a_large_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (batch,) = micro_batches(rows_of(tool_loops(1)), token_budget=1000)
    model = tiny_model()
    with wide_products(model, 64) as rows, torch.no_grad():
        whole = token_logprobs(model, batch)
    assert batch.trained_tokens in rows
    monkeypatch.setattr(log_softmax, "CHUNK_ELEMENTS", 64 * batch.trained_tokens - 1)
    monkeypatch.setattr(vocabulary_chunks, "CHUNK_ELEMENTS", 64 * 7)
    with wide_products(model, 64) as rows, torch.no_grad():
        chunked = token_logprobs(model, batch)
    assert batch.trained_tokens not in rows and 7 in rows
    torch.testing.assert_close(chunked, whole)


@pytest.mark.parametrize("forward", ["padded", "packed", "tree"])
def test_what_follows_the_output_layer_is_not_left_out(
    forward: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cohere scales its logits: they are not the product of hidden states and a weight."""
    torch.manual_seed(0)
    model = CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.3)).double()
    rows = rows_of(tool_loops(2))
    (batch,) = micro_batches(rows, token_budget=1000, forward=forward)
    monkeypatch.setattr(log_softmax, "CHUNK_ELEMENTS", 64)
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(token_logprobs(model, batch), by_hand(model, batch))


def by_hand(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Log-probs computed path by path."""
    found: list[Tensor] = []
    for index in batch.loss_indices_K.tolist():
        path = [index]
        while (before := int(batch.parents_N[path[0]])) >= 0:
            path.insert(0, before)
        tokens = batch.token_ids_N[path]
        found.append(model(input_ids=tokens[None]).logits[0, -2].log_softmax(-1)[tokens[-1]])
    return torch.stack(found)
