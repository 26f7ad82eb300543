"""Digest of the weights a worker computes with. The comparison of a real server's tensors is in
`test_split.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from hrm_agent.models.vllm.in_server.hrm_agent_held import compare_weights, digest_of


class Model(nn.Module):
    """Tensors of odd sizes and several dtypes, one of them shared, and one that only its kernel
    has.
    """

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.embed = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.Parameter(
            torch.randn(3, generator=generator, dtype=torch.float64).to(torch.bfloat16)
        )
        self.register_buffer("scale", torch.tensor([3], dtype=torch.int8))
        self.register_buffer("cache", torch.zeros(2), persistent=False)
        self.packed = nn.Linear(130, 4, bias=False)
        self.matrix = torch.randn(4, 130, generator=generator)
        self.packed.weight = nn.Parameter(torch.empty(0))
        self.packed.input_size_per_partition = 130
        self.packed.cpu_linear = lambda x, weight, bias: x @ self.matrix.T
        with torch.no_grad():
            self.embed.weight.copy_(torch.randn(7, 5, generator=generator))


def flips(
    tensor: Callable[[Model], torch.Tensor], kind: torch.dtype, place: int
) -> Callable[[Model], None]:
    def flip(model: Model) -> None:
        tensor(model).data.view(kind).view(-1)[place] ^= 1

    return flip


CHANGES = {
    "the last bit of a weight": flips(lambda model: model.embed.weight, torch.int32, 34),
    "a bit of bfloat16": flips(lambda model: model.norm, torch.int16, 2),
    "a buffer": flips(lambda model: model.scale, torch.int8, 0),
    "the last bit of a packed matrix": flips(lambda model: model.matrix, torch.int32, 400),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_digest_sees_one_bit(name: str) -> None:
    model = Model()
    before = digest_of(model)
    assert digest_of(model) == before == digest_of(Model())
    CHANGES[name](model)
    after = digest_of(model)
    assert after != before
    CHANGES[name](model)
    assert digest_of(model) == before


def test_a_digest_sees_an_exchange_and_nothing_that_is_no_weight() -> None:
    model = Model()
    before = digest_of(model)
    model.get_buffer("cache").fill_(1)
    assert digest_of(model) == before
    model.embed.weight.data[[0, 1]] = model.embed.weight.data[[1, 0]]
    assert digest_of(model) != before


def test_where_layers_cannot_be_loaded_one_by_one_nothing_is_said_to_be_equal() -> None:
    """Older versions of vLLM cannot load layers one by one. The weights sent are still consumed to
    the end.
    """
    sent = iter([("a", torch.zeros(1)), ("b", torch.zeros(1))])
    found = compare_weights(Model(), sent)
    assert found.unknown == ["all: this version of vLLM does not load its layers one by one"]
    assert (found.differing, found.compared, list(sent)) == ([], 0, [])
