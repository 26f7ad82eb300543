"""Blocked weights compared with the layers' own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.local.blocked_weights import BlockedWeights
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.testing import tiny_network
from hrm_agent.trajectory import Sampling

IDS = torch.arange(60).view(1, 60)


@pytest.fixture
def wide() -> Any:
    """Network whose layers are large enough to gain."""
    return tiny_network(hidden_size=512, intermediate_size=1024, num_hidden_layers=1)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(IDS).logits


def test_products_are_the_same_and_follow_the_weights(wide: Any) -> None:
    twin = copy.deepcopy(wide)
    blocked = BlockedWeights(twin)
    blocked.refresh()
    first = logits(twin)
    torch.testing.assert_close(first, logits(wide))
    for model in (wide, twin):
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(3)
    blocked.refresh()
    assert torch.equal(logits(twin), first)
    blocked.weights_changed()
    blocked.refresh()
    torch.testing.assert_close(logits(twin), logits(wide))
    assert not torch.allclose(logits(twin), first)


def test_a_model_of_small_layers_is_unchanged_to_the_bit() -> None:
    small = tiny_network()
    twin = copy.deepcopy(small)
    BlockedWeights(twin).refresh()
    assert torch.equal(logits(twin), logits(small))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_engine_samples_with_the_weights_that_were_published(
    wide: Any, dtype: torch.dtype
) -> None:
    wide = wide.to(dtype)
    prompt = tuple(range(40))

    def check(version: int) -> None:
        answer = engine.submit(GenerationRequest(prompt, Sampling(seed=0, max_tokens=8))).result()
        text = torch.tensor([[*prompt, *answer.token_ids]])
        with torch.inference_mode():
            plain = wide(text).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        chosen = plain[range(len(answer.token_ids)), list(answer.token_ids)]
        near = 1e-4 if dtype is torch.float32 else 0.1
        torch.testing.assert_close(torch.tensor(answer.logprobs), chosen, atol=near, rtol=near)
        assert answer.policy_version == version

    with TransformersEngine(wide, ByteCodec(), name="wide") as engine:
        check(0)
        with torch.no_grad():
            wide.lm_head.weight.copy_(wide.lm_head.weight.flip(0) * 2)
        engine.publish(1)
        check(1)
