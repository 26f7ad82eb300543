"""4 bits on a CPU, by the library's packed kernel and without it: the packed layers, and their
results.

Both ways are tested on every machine. If the CPU has no such kernel, a stand-in reads the same
layout.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import bitsandbytes
import pytest
import torch
from bitsandbytes import functional as library
from bitsandbytes.nn.modules import Linear4bit
from peft import LoraConfig, get_peft_model

from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading import load_weights as nf4
from hrm_agent.models.loading.load_weights import (
    choose_kernels,
    has_packed_kernel,
    load_engine,
    load_for_answers,
    takes_packed,
)
from hrm_agent.models.model_string import LoadOptions
from hrm_agent.trajectory import Sampling
from tests.models.conftest import make_model

TOLERANCE, MEAN = 0.2, 0.03
"""Tolerances of log-probs in bfloat16, for one token and for the mean of many. Measured: 0.04 and
0.009, which bfloat16 alone causes.
"""
SIZES = {
    "few fit": {"hidden_size": 32, "intermediate_size": 48},
    "some fit": {"hidden_size": 64, "intermediate_size": 80},
    "all fit": {"hidden_size": 64, "intermediate_size": 128},
}
PACKED = {"few fit": 2, "some fit": 8, "all fit": 14}
"""Number of packed layers (of fourteen) by width."""


def stand_in(
    given: torch.Tensor, weight: torch.Tensor, out: Any = None, state: Any = None, **_: Any
) -> torch.Tensor:
    """Compute the packed kernel's result by unpacking."""
    state = copy.copy(state)
    plain, _ = library._convert_weight_packed_for_cpu_inverse(weight.data, state)
    state.absmax = state.absmax.T.reshape(-1).float()
    whole = library.dequantize_4bit(plain, state).bfloat16()
    return torch.nn.functional.linear(given.bfloat16(), whole).to(given.dtype)


@pytest.fixture(params=["packed", "plain"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`packed` on any CPU."""
    if request.param == "packed" and not has_packed_kernel():
        monkeypatch.setattr(nf4, "has_packed_kernel", lambda: True)
        monkeypatch.setattr(library, "gemv_4bit", stand_in)
    return "auto" if request.param == "packed" else "plain"


@pytest.fixture(scope="module")
def folders(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made: dict[str, Path] = {}
    for name, sizes in SIZES.items():
        made[name] = tmp_path_factory.mktemp("model")
        make_model("qwen3", seed=1, initializer_range=0.1, **sizes).save_pretrained(made[name])
        tokenizer.save_pretrained(made[name])
    return made


def load(folder: Path, kernel: str, dtype: str) -> Any:
    return load_for_answers(str(folder), LoadOptions("nf4", dtype, "cpu", kernel=kernel))[0]


def packed_now(model: Any) -> int:
    layers = [layer for layer in model.modules() if isinstance(layer, Linear4bit)]
    assert len(layers) == 14
    return sum(
        getattr(layer.weight.quant_state, "packing_format_for_cpu", False) for layer in layers
    )


def logprobs_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), -1)


@pytest.mark.parametrize(
    ("shape", "block", "computes", "nested", "takes"),
    [
        ((32, 64), 64, torch.bfloat16, False, True),
        ((1536, 8960), 64, torch.bfloat16, False, True),
        ((32, 128), 128, torch.bfloat16, False, True),
        ((32, 64), 128, torch.bfloat16, False, False),
        ((64, 32), 64, torch.bfloat16, False, False),
        ((64, 48), 64, torch.bfloat16, False, False),
        ((64, 96), 64, torch.bfloat16, False, False),
        ((48, 64), 64, torch.bfloat16, False, False),
        ((2, 32, 64), 64, torch.bfloat16, False, False),
        ((32, 64), 64, torch.float32, False, False),
        ((32, 64), 64, torch.float16, False, False),
        ((32, 64), 64, None, False, False),
        ((32, 64), 64, torch.bfloat16, True, False),
    ],
)
def test_which_layers_are_packed(
    shape: tuple[int, ...], block: int, computes: torch.dtype | None, nested: bool, takes: bool
) -> None:
    assert takes_packed(shape, block, computes, nested=nested) is takes


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_the_engine_says_what_a_plain_forward_pass_does_of_any_width(
    width: str, dtype: str, kernel: str, folders: dict[str, Path]
) -> None:
    """Log-probs agree to 1e-4 in float32, with either kernel. In bfloat16 they agree within its
    rounding.
    """
    models = [load(folders[width], way, dtype) for way in (kernel, "plain")]
    tolerance, mean = (1e-4, 1e-4) if dtype == "auto" else (TOLERANCE, MEAN)
    far: list[torch.Tensor] = []
    options = LoadOptions("nf4", dtype, "cpu", kernel=kernel)
    with load_engine(str(folders[width]), name="x", options=options) as engine:
        requests = [
            GenerationRequest((5 + i, *range(20 + i)), Sampling(seed=i, max_tokens=24))
            for i in range(4)
        ]
        for request, future in [(request, engine.submit(request)) for request in requests]:
            done = future.result(60)
            ids = [*request.prompt_ids, *done.token_ids]
            answer = torch.tensor(done.token_ids)
            for model in models:
                own = logprobs_of(model, ids)[len(request.prompt_ids) - 1 : -1].gather(
                    1, answer[:, None]
                )[:, 0]
                torch.testing.assert_close(
                    torch.tensor(done.logprobs), own, atol=tolerance, rtol=1e-4
                )
                far.append((torch.tensor(done.logprobs) - own).abs())
    assert torch.cat(far).mean() < mean
    assert packed_now(models[0]) == (
        PACKED[width] if (kernel, dtype) == ("auto", "bfloat16") else 0
    )


def test_a_packed_layer_goes_back_before_it_learns_or_is_saved(
    kernel: str, folders: dict[str, Path]
) -> None:
    """Training needs this if rollouts are sampled between its steps. The gradients match those of
    weights never packed.
    """
    given = torch.tensor([[*range(3, 40)]])
    gradients: list[dict[str, torch.Tensor]] = []
    for way in (kernel, "plain"):
        torch.manual_seed(3)
        config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
        model: Any = get_peft_model(load(folders["all fit"], way, "bfloat16"), config)
        logprobs_of(model.eval(), [*range(3, 40)])
        assert packed_now(model) == (14 if way == "auto" else 0)
        model.train()(input_ids=given, labels=given).loss.backward()
        assert packed_now(model) == 0
        gradients.append(
            {name: p.grad.float() for name, p in model.named_parameters() if p.requires_grad}
        )
    assert len(gradients[0]) == 8
    for name, one in gradients[0].items():
        other = gradients[1][name]
        assert other.norm() > 0 and (one - other).norm() < 0.1 * other.norm(), name

    model = load(folders["all fit"], kernel, "bfloat16")
    before = logprobs_of(model, [*range(3, 40)])
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    assert packed_now(model) == 0
    untouched = load(folders["all fit"], "plain", "bfloat16").state_dict()
    assert saved.keys() == untouched.keys()
    for name, value in saved.items():
        torch.testing.assert_close(value.float(), untouched[name].float(), atol=0, rtol=2**-8)
    assert torch.equal(logprobs_of(model, [*range(3, 40)]), before), (
        "it is packed again, and no worse"
    )


def test_in_evaluation_too_what_asks_for_a_gradient_gets_one(kernel: str) -> None:
    layer = Linear4bit(
        64,
        32,
        bias=False,
        compute_dtype=torch.bfloat16,
        compress_statistics=False,
        quant_type="nf4",
    )
    layer.load_state_dict({"weight": torch.randn(32, 64)})
    model = torch.nn.Sequential(layer.to("cpu")).eval()
    assert choose_kernels(model, kernel) == (kernel == "auto")
    given = torch.randn(3, 64, dtype=torch.bfloat16)
    without = model(given)
    given.requires_grad_(True)
    asked = model(given)
    asked.sum().backward()
    assert given.grad is not None and given.grad.norm() > 0
    torch.testing.assert_close(asked.float(), without.float(), atol=0.2, rtol=0.02)


@pytest.mark.parametrize(("rows", "columns"), [(32, 64), (96, 192), (160, 320)])
def test_what_stands_in_for_the_kernel_computes_the_same(rows: int, columns: int) -> None:
    """`stand_in` agrees with unpacked weights, and with the kernel if the machine has one."""
    layer = Linear4bit(
        columns, rows, bias=False, compute_dtype=torch.bfloat16, compress_statistics=False
    )
    layer.load_state_dict({"weight": torch.randn(rows, columns)})
    layer = layer.to("cpu").eval()
    layer.support_avx512bf16_for_cpu = False
    given = torch.randn(40, columns, dtype=torch.bfloat16)
    found = [layer(given)]
    layer.weight.data, state = library._convert_weight_packed_for_cpu(
        layer.weight.data, layer.weight.quant_state
    )
    found += [layer(given)] if has_packed_kernel() else []
    wanted = stand_in(given, layer.weight, state=state)
    for one in found:
        torch.testing.assert_close(one, wanted, atol=0.02 * float(wanted.abs().max()), rtol=0.02)


def test_the_library_is_one_whose_layers_have_the_flag() -> None:
    """The flag that the loader sets is internal to the library and has no public name."""
    assert "support_avx512bf16_for_cpu" in vars(Linear4bit(64, 32)), bitsandbytes.__version__
