"""Muon, and the running mean of the weights: options of supervised fine-tuning."""

from __future__ import annotations

import pytest
import torch

from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.sft import train_sft
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.update.optimizers import Muon, RunningMean, make_optimizers, orthogonalised
from hrm_agent.training.update.schedule import trapezoid

SHORT = SftConfig(steps=8, batch_size=4, learning_rate=3e-3, warmup_steps=2, cooldown=0.5)


@pytest.mark.parametrize("shape", [(8, 8), (4, 24), (24, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_direction_gets_a_step_of_about_the_same_size(shape, dtype):
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(shape, generator=generator)
    found = orthogonalised((100 * matrix).to(dtype))
    assert found.dtype == torch.float32 and found.shape == matrix.shape
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.5 and values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert ((left.T @ found @ right.T).diagonal() > 0.5).all()  # the same directions


def test_muon_finds_a_matrix():
    torch.manual_seed(0)
    target, matrix = torch.randn(6, 3), torch.nn.Parameter(torch.zeros(6, 3))
    optimizer = Muon([matrix], lr=0.1)
    for step in range(200):
        optimizer.zero_grad()
        (matrix - target).square().sum().backward()
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimizer.step()
    assert torch.allclose(matrix, target, atol=0.05)


def test_muons_state_is_saved_and_loaded():
    def after(steps, state=None):
        matrix = torch.nn.Parameter(torch.ones(3, 4))
        optimizer = Muon([matrix], lr=0.1, weight_decay=0.1)
        if state:
            matrix.data.copy_(state[0])
            optimizer.load_state_dict(state[1])
        for _ in range(steps):
            matrix.grad = torch.arange(12.0).reshape(3, 4).sin() * matrix.detach()
            optimizer.step()
        return matrix.detach(), optimizer.state_dict()

    assert torch.equal(after(2, after(3))[0], after(5)[0])


def test_each_trained_weight_has_one_optimiser(tokenizer):
    model = new_model(tokenizer, 0)
    frozen = model.model.layers[0].mlp.up_proj.weight
    frozen.requires_grad_(False)
    muon, adamw = make_optimizers(
        model, SHORT.model_copy(update={"optimizer": "muon", "matrix_learning_rate": 0.01})
    )
    assert isinstance(muon, Muon) and isinstance(adamw, torch.optim.AdamW)
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.01, 3e-3)
    taken = [
        [id(p) for group in each.param_groups for p in group["params"]] for each in (muon, adamw)
    ]
    assert sorted(taken[0] + taken[1]) == sorted(
        id(p) for p in model.parameters() if p is not frozen
    )
    assert id(model.get_input_embeddings().weight) in taken[1]
    assert id(model.model.layers[0].self_attn.q_proj.weight) in taken[0]
    (alone,) = make_optimizers(model, SHORT)
    assert isinstance(alone, torch.optim.AdamW)


def test_muon_trains_and_its_rates_follow_the_schedule(tokenizer, codec, lessons):
    config = SHORT.model_copy(update={"optimizer": "muon", "learning_rate": 2e-3})
    rows = train_sft(new_model(tokenizer, 0), codec, lessons, config)
    assert rows[-1]["loss"] < rows[0]["loss"] - 1
    rates = [row["learning_rate"] for row in rows]
    assert rates == pytest.approx(
        [2e-3 * trapezoid(step, 8, 2, config.cooldown) for step in range(8)]
    )


def test_the_mean_is_of_the_last_weights():
    layer = torch.nn.Linear(1, 1, bias=False)
    mean, expected = RunningMean(layer, 0.5), layer.weight.item()
    for value in (8.0, 4.0, 2.0, 1.0, 1.0, 1.0):
        layer.weight.data.fill_(value)
        mean.update()
    mean.take_place()
    for step, value in enumerate((8.0, 4.0, 2.0, 1.0, 1.0, 1.0), start=1):
        expected += (value - expected) * (1 - min(0.5, step / (9 + step)))
    assert layer.weight.item() == pytest.approx(expected, rel=1e-5)
    assert 1 < layer.weight.item() < 2


def test_a_run_ends_with_the_mean_of_its_weights(tokenizer, codec, lessons):
    def trained(steps, average):
        model = new_model(tokenizer, 0)
        config = SHORT.model_copy(update={"steps": steps, "average": average, "warmup_steps": 0})
        rows = train_sft(model, codec, lessons, config)
        return rows, model.model.layers[0].self_attn.q_proj.weight.detach().clone()

    (plain_rows, plain), (rows, averaged) = trained(3, 0.0), trained(3, 0.9)
    # training itself does not see the mean
    assert [row["loss"] for row in rows] == [row["loss"] for row in plain_rows]
    fresh = new_model(tokenizer, 0).model.layers[0].self_attn.q_proj.weight.detach()
    assert 0 < (averaged - plain).norm() < (fresh - plain).norm()
