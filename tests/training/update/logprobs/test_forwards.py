"""All ways to forward a batch give one loss and one gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

from hrm_agent.errors import ModelError
from hrm_agent.training.update.batch import ForwardName, MicroBatch, Row, micro_batches
from hrm_agent.training.update.logprobs import (
    attention_plan,
    path_attention,
    sampled_and_recorded_logprobs,
    token_logprobs,
)
from tests.support.training.builders import VOCABULARY, tiny_model
from tests.support.training.families import four_roles, rows_of, tool_loops

FORWARDS: tuple[ForwardName, ...] = ("padded", "packed", "tree")
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def batches_of(rows: Sequence[Row], forward: ForwardName, count: int) -> list[MicroBatch]:
    """`count` batches, made with the largest token budget that gives this number."""
    for budget in range(2000, 0, -1):
        if len(batches := micro_batches(rows, token_budget=budget, forward=forward)) == count:
            return batches
    raise AssertionError(f"no budget makes {count} micro-batches")


def loss_of(model: nn.Module, batch: MicroBatch) -> Tensor:
    """Loss that is not linear in the log-probs, with a part averaged per trajectory."""
    logprobs = token_logprobs(model, batch)
    ratio = (logprobs - batch.old_logprobs_K).exp().clamp(0.7, 1.5)
    return (ratio * batch.weights_K + logprobs**2 / batch.lengths_K * (1 + batch.sequences_K)).sum()


def loss_and_gradient(model: nn.Module, batches: Sequence[MicroBatch]) -> tuple[float, Tensor]:
    model.zero_grad()
    losses = [loss_of(model, batch) for batch in batches]
    for loss in losses:
        loss.backward()
    grads = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return sum(float(loss.detach()) for loss in losses), torch.cat(grads)


FAMILIES: dict[str, Callable[[], list[Row]]] = {
    "tool loop": lambda: rows_of(tool_loops(0)),
    "four roles": lambda: rows_of(four_roles(1)),
    "both, at several temperatures": lambda: rows_of(
        [*tool_loops(2, 1), *four_roles(3)], (0.7, 1.0, 1.3)
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_are_those_of_padded_rows(family: str) -> None:
    rows = FAMILIES[family]()
    model = tiny_model().double()
    expected, gradient = loss_and_gradient(model, batches_of(rows, "padded", 1))
    assert gradient.abs().max() > 1
    for forward in FORWARDS:
        for count in (1, 2, 4):
            batches = batches_of(rows, forward, count)
            assert sum(b.trained_tokens for b in batches) == sum(
                int(row.loss_mask.sum()) for row in rows
            )
            loss, found = loss_and_gradient(model, batches)
            assert loss == pytest.approx(expected, rel=1e-9), (forward, count)
            # The model itself takes its norms in single precision, and rounds their gradients.
            torch.testing.assert_close(
                found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-6
            )


def test_nothing_depends_on_how_attention_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few queries, rounds of a few jobs, and probabilities that are computed again."""
    rows = rows_of([*tool_loops(4), *four_roles(5)])
    model = tiny_model().double()
    expected, gradient = loss_and_gradient(model, batches_of(rows, "padded", 1))
    monkeypatch.setattr(attention_plan, "BLOCK", 3)
    monkeypatch.setattr(attention_plan, "ROUND_PRODUCTS", 200)
    monkeypatch.setattr(path_attention, "KEPT_ELEMENTS", 0)
    for forward in ("packed", "tree"):
        loss, found = loss_and_gradient(model, batches_of(rows, forward, 1))
        assert loss == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(
            found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-6
        )


def test_a_tree_forwards_each_prefix_once() -> None:
    rows = rows_of(tool_loops(6, groups=2, siblings=4))
    (packed,), (tree,) = (batches_of(rows, forward, 1) for forward in ("packed", "tree"))
    assert len(packed.token_ids_N) == sum(len(row) for row in rows)
    prefixes = {tuple(row.token_ids[: end + 1]) for row in rows for end in range(len(row))}
    assert len(tree.token_ids_N) == len(prefixes), "one token for each prefix that there is"
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token_ids_N.tolist(), tree.parents_N.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert set(paths) == prefixes
    assert [len(path) - 1 for path in paths] == tree.positions_N.tolist()
    identical = np.array(
        [tree.loss_indices_K[tree.sequences_K == number].tolist() for number in (2, 3)]
    )
    assert (identical[0] == identical[1]).all(), (
        "two siblings that sampled the same have entries at the same tokens"
    )


def test_siblings_stand_in_one_micro_batch() -> None:
    rows = rows_of(tool_loops(7, groups=6, siblings=4))
    whole = len(batches_of(rows, "tree", 1)[0].token_ids_N)
    batches = batches_of(rows[::2] + rows[1::2], "tree", 3)
    assert sum(len(batch.token_ids_N) for batch in batches) <= whole + 2 * max(
        len(row) for row in rows
    )
    together = micro_batches(rows, token_budget=60, forward="tree", whole_trajectories=True)
    found = [set(batch.sequences_K.tolist()) for batch in together]
    assert sum(len(each) for each in found) == len(set().union(*found))


def test_a_padded_forward_of_a_tree_is_refused() -> None:
    (tree,) = batches_of(rows_of(tool_loops(0)), "tree", 1)
    with pytest.raises(ValueError, match="share a prefix"):
        token_logprobs(tiny_model(), replace(tree, forward="padded"))


@pytest.mark.parametrize(
    "model",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
        lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=32,
                n_layer=2,
                n_head=4,
                attn_pdrop=0,
                resid_pdrop=0,
                embd_pdrop=0,
            )
        ),
    ],
    ids=["Llama", "Mistral", "GPT-2"],
)
def test_models_of_other_architectures(model: Callable[[], PreTrainedModel]) -> None:
    torch.manual_seed(0)
    network = model().double().train()
    rows = rows_of([*tool_loops(8), *four_roles(9)])
    expected, gradient = loss_and_gradient(network, batches_of(rows, "padded", 1))
    for forward in ("packed", "tree"):
        loss, found = loss_and_gradient(network, batches_of(rows, forward, 2))
        assert loss == pytest.approx(expected, rel=1e-7)
        torch.testing.assert_close(
            found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-6
        )
    assert network.config._attn_implementation == "sdpa", "the model is as it was"


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, query_pre_attn_scalar=8)),
            "uses softcap",
        ),
        (
            lambda: GPT2LMHeadModel(
                GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=4)
            ),
            "has dropout",
        ),
        (lambda: nn.Linear(2, 2), "no model of transformers"),
    ],
    ids=["softcap", "dropout", "other"],
)
def test_models_whose_tokens_meet_otherwise_are_refused(
    model: Callable[[], nn.Module], reason: str
) -> None:
    (batch,) = batches_of(rows_of(tool_loops(0)), "tree", 1)
    network = model()
    if not isinstance(network, PreTrainedModel):
        network.get_output_embeddings = lambda: network  # type: ignore[assignment]
    with pytest.raises(ModelError, match=f'{reason}.*forward = "padded"'):
        token_logprobs(network, batch)


def test_a_wrapped_model_exchanges_the_gradients_of_a_tree(tmp_path: Path) -> None:
    rows = rows_of(tool_loops(12))
    expected, gradient = loss_and_gradient(tiny_model().double(), batches_of(rows, "padded", 1))
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(tiny_model().double())
        exchanged: list[Tensor] = []
        wrapped.register_comm_hook(None, lambda _, bucket: _counted(bucket, exchanged))
        loss, found = loss_and_gradient(wrapped, batches_of(rows, "tree", 1))
    finally:
        torch.distributed.destroy_process_group()
    assert loss == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-6)
    assert sum(each.numel() for each in exchanged) == sum(p.numel() for p in wrapped.parameters())


def _counted(bucket: Any, exchanged: list[Tensor]) -> torch.futures.Future[Tensor]:
    exchanged.append(bucket.buffer())
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def test_adapters_are_trained_alike() -> None:
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    model = get_peft_model(tiny_model(), config).double()  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    rows = rows_of(tool_loops(10))
    expected, gradient = loss_and_gradient(model, batches_of(rows, "padded", 1))
    for forward in ("packed", "tree"):
        loss, found = loss_and_gradient(model, batches_of(rows, forward, 2))
        assert loss == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(
            found, gradient, atol=1e-6 * float(gradient.abs().max()), rtol=1e-6
        )


def test_recorded_log_probs_are_at_their_own_temperatures() -> None:
    rows = rows_of(tool_loops(11), (0.5, 2.0))
    model = tiny_model()
    for forward in FORWARDS:
        (batch,) = batches_of(rows, forward, 1)
        sampled, recorded = sampled_and_recorded_logprobs(model, batch)
        assert sampled.requires_grad and not recorded.requires_grad
        same = batch.temperatures_K == batch.old_temperatures_K
        assert not same.any(), "the case must tell them apart"
        at_1 = MicroBatch(
            **{n: getattr(batch, n) for n in batch.__slots__}
            | {"temperatures_K": batch.old_temperatures_K}
        )
        torch.testing.assert_close(recorded, token_logprobs(model, at_1).detach())
