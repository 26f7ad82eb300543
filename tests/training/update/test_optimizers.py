"""AdamW in 8 bits, and on masters in single precision: they take the steps that AdamW takes."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from hrm_agent.errors import ModelError
from hrm_agent.models.loading import load_weights
from hrm_agent.testing import tiny_network
from hrm_agent.training.config.parts import OptimPart
from hrm_agent.training.update.optimizers import AdamW8bit, OnMasters, make_adamw

IDS = torch.arange(48).reshape(2, 24)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 64}


def loss_of(network: Any) -> torch.Tensor:
    return network(input_ids=IDS, labels=IDS).loss


def trained(network: Any, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses: list[float] = []
    for _ in range(steps):
        loss = loss_of(network)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def pair(dtype: torch.dtype = torch.float32, **optim: Any) -> tuple[Any, torch.optim.Optimizer]:
    network: Any = tiny_network(3, **SIZES).to(dtype)
    return network, make_adamw(network, OptimPart(learning_rate=2e-3, **optim))


def copied(state: Any) -> Any:
    """Return the state as a checkpoint restores it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_the_default_is_torchs_adamw_and_frozen_weights_are_left_out() -> None:
    network: Any = tiny_network(3, **SIZES)
    network.get_input_embeddings().weight.requires_grad_(False)
    optimizer = make_adamw(
        network, OptimPart(learning_rate=1e-3, adam_beta2=0.99, weight_decay=0.1)
    )
    (group,) = optimizer.param_groups
    assert type(optimizer) is AdamW and (group["betas"], group["weight_decay"]) == (
        (0.9, 0.99),
        0.1,
    )
    assert {id(each) for each in group["params"]} == {
        id(each) for each in network.parameters() if each.requires_grad
    }


def test_in_8_bits_a_model_learns_as_well_on_a_quarter_of_the_state() -> None:
    (whole, plain), (other, small) = pair(), pair(optimizer="adamw8bit")
    usual, ours = trained(whole, plain, 30), trained(other, small, 30)
    assert usual[-1] < 0.5 * usual[0]
    assert ours[0] == usual[0] and abs(ours[-1] - usual[-1]) < 0.03 * usual[0]
    large = [weight for weight in other.parameters() if weight.numel() >= 4096]
    assert large and all(small.state[weight]["root"].dtype == torch.uint8 for weight in large)

    def size(optimizer: torch.optim.Optimizer) -> int:
        kept = [
            each
            for state in optimizer.state.values()
            for each in state.values()
            if isinstance(each, torch.Tensor)
        ]
        return sum(each.numel() * each.element_size() for each in kept)

    assert size(small) < 0.27 * size(plain)


@pytest.mark.whole
@pytest.mark.slow  # importing the library takes 8 seconds
def test_in_8_bits_works_in_a_process_that_has_imported_nothing_else() -> None:
    """The operators of bitsandbytes are there once it is imported, which PEFT does, too."""
    program = """
import sys, torch
from hrm_agent.testing import tiny_network
from hrm_agent.training.update.optimizers import make_adamw
from hrm_agent.training.config.parts import OptimPart
network = tiny_network(3, hidden_size=64, intermediate_size=128, num_hidden_layers=1)
optimizer = make_adamw(network, OptimPart(optimizer="adamw8bit", learning_rate=1e-3))
assert "peft" not in sys.modules
ids = torch.arange(48)[None]
for _ in range(2):
    network(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_tensors_too_small_to_quantize_take_adamws_steps() -> None:
    weights = [nn.Parameter(torch.linspace(-1, 1, 50)) for _ in range(2)]
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}
    optimizers = AdamW(weights[:1], **options), AdamW8bit(weights[1:], **options)
    for step in range(20):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = (weight.detach() * 3 + step).sin()
            optimizer.step()
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


def test_what_is_small_beside_its_neighbours_takes_no_leap() -> None:
    """A block whose gradients differ by a factor of a thousand: squares would be rounded to 0, and
    steps would be unbounded.
    """
    weight = nn.Parameter(torch.zeros(4096))
    optimizer = AdamW8bit([weight], lr=0.01, weight_decay=0.0)
    gradient = torch.ones(4096)
    gradient[1::2] = 1e-3
    for _ in range(10):
        weight.grad = gradient.clone()
        optimizer.step()
    assert float(weight.detach().abs().max()) < 0.15 and float(weight.detach()[1::2].max()) < -0.05


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_goes_on_from_its_state_to_the_bit(dtype: torch.dtype, optimizer: str) -> None:
    whole, undisturbed = pair(dtype, optimizer=optimizer)
    trained(whole, undisturbed, 6)
    first, begun = pair(dtype, optimizer=optimizer)
    trained(first, begun, 3)
    again, resumed = pair(dtype, optimizer=optimizer)
    again.load_state_dict(copied(first.state_dict()))
    resumed.load_state_dict(copied(begun.state_dict()))
    trained(again, resumed, 3)
    for (name, one), other in zip(whole.named_parameters(), again.parameters(), strict=True):
        assert one.dtype == other.dtype == dtype and torch.equal(one, other), name


def test_steps_smaller_than_bfloat16_can_hold_add_up_in_the_masters() -> None:
    weights = [nn.Parameter(torch.full((8,), 1.0, dtype=torch.bfloat16)) for _ in range(2)]

    def plain(masters: list[nn.Parameter]) -> AdamW:
        return AdamW(masters, lr=1e-4, weight_decay=0.0)

    ours, lost = OnMasters(weights[:1], plain), plain(weights[1:])
    for _ in range(100):
        for weight, optimizer in zip(weights, (ours, lost), strict=True):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    assert float(weights[0].detach().mean()) == pytest.approx(0.99, abs=2**-8)
    assert float(weights[1].detach().mean()) == 1.0
    ours.param_groups[0]["lr"] = 0.0
    before = weights[0].detach().clone()
    ours.step()
    assert torch.equal(weights[0], before), (
        "the rate that is set from outside is the one that is taken"
    )
    ours.zero_grad()
    assert weights[0].grad is None


def test_bitsandbytes_is_asked_for_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_weights, "find_spec", lambda _: None)
    with pytest.raises(ModelError) as caught:
        pair(optimizer="adamw8bit")
    assert "adamw8bit needs bitsandbytes" in caught.value.message and "[quant]" in caught.value.hint
