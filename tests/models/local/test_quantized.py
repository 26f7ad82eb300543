"""Weights in 4 and 8 bits, and adapters, through the packed engine: the same numbers as a plain
forward pass gives.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from langchain_core.messages import HumanMessage
from peft import LoraConfig, get_peft_model

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading import load_weights as loading
from hrm_agent.models.loading.load_weights import load_engine, load_for_answers
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.model_inspection import quantization
from hrm_agent.models.model_string import LoadOptions
from hrm_agent.trajectory import LogprobKind, Sampling
from tests.models.conftest import make_model


@pytest.fixture(scope="module")
def folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("model")
    make_model("qwen3", seed=1).save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """LoRA adapter that changes the model's answers."""
    torch.manual_seed(3)
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False
    )
    model: Any = get_peft_model(make_model("qwen3", seed=1), config)
    where = tmp_path_factory.mktemp("adapter")
    model.save_pretrained(where)
    return str(where)


def sampled(engine: TransformersEngine) -> list[tuple[list[int], list[int], tuple[float, ...]]]:
    """Prompt, answer and log-probs of six conversations that run side by side."""
    asked = [engine.codec.encode([HumanMessage("the sum " * (1 + i % 3))]) for i in range(6)]
    requests = [
        GenerationRequest(tuple(ids), Sampling(seed=i, max_tokens=24))
        for i, ids in enumerate(asked)
    ]
    done = [future.result(60) for future in [engine.submit(request) for request in requests]]
    return [(ids, list(one.token_ids), one.logprobs) for ids, one in zip(asked, done, strict=True)]


@pytest.mark.parametrize(
    ("load", "dtype", "adapted", "tolerance"),
    [
        ("nf4", "auto", False, 1e-4),
        ("nf4", "auto", True, 1e-4),
        ("int8", "auto", False, 0.02),
        (None, "auto", True, 1e-4),
        (None, "bfloat16", False, 0.3),
    ],
)
def test_logprobs_are_those_of_a_plain_forward_pass(
    folder: Path, adapter: str, load: str | None, dtype: str, adapted: bool, tolerance: float
) -> None:
    options = LoadOptions(load, dtype, "cpu", adapter if adapted else None)
    plain, _ = load_for_answers(str(folder), options)
    whole = make_model("qwen3", seed=1)
    far = 0.0
    with load_engine(str(folder), name="x", options=options) as engine:
        told = engine.capabilities()
        for prompt, answer, logprobs in sampled(engine):
            ids = torch.tensor([prompt + answer])
            with torch.inference_mode():
                own = torch.log_softmax(plain(input_ids=ids).logits[0].float(), -1)[
                    len(prompt) - 1 : -1
                ]
                other = torch.log_softmax(whole(input_ids=ids).logits[0].float(), -1)[
                    len(prompt) - 1 : -1
                ]
            expected = own.gather(1, torch.tensor(answer)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(logprobs), expected, atol=tolerance, rtol=1e-4)
            far = max(far, float((own - other).abs().max()))
    assert far > 1e-3, "it is not the model as it was"
    assert (told.quantized, told.trainable) == (load, load is None and not adapted)
    assert told.logprobs is LogprobKind.TEMPERED and told.device == "cpu"
    if load:
        assert told.memory_bytes and told.memory_bytes < 0.8 * whole.get_memory_footprint()
        assert quantization(plain) == load


def test_in_8_bits_an_answer_does_not_depend_on_its_neighbours(folder: Path) -> None:
    """The library detects outliers over the whole batch. Here a batch contains many conversations."""
    options = LoadOptions("int8", device="cpu")
    with load_engine(str(folder), name="x", options=options) as engine:
        together = sampled(engine)[0]
    with load_engine(str(folder), name="x", options=options) as engine:
        prompt = tuple(together[0])
        alone = engine.submit(GenerationRequest(prompt, Sampling(seed=0, max_tokens=24))).result(60)
    assert list(alone.token_ids) == together[1]
    torch.testing.assert_close(
        torch.tensor(alone.logprobs), torch.tensor(together[2]), atol=0.02, rtol=1e-4
    )


@pytest.mark.parametrize("load", ["nf4", "int8"])
def test_a_model_beside_its_engine_answers_as_alone(folder: Path, load: str) -> None:
    model, tokenizer = load_for_answers(str(folder), LoadOptions(load, device="cpu"))
    alone, _ = load_for_answers(str(folder), LoadOptions(load, device="cpu"))
    for name in ("first", "second"):
        with TransformersEngine(model, tokenizer, name=name) as engine:
            conversations = sampled(engine)
        assert np.isfinite([each for _, _, logprobs in conversations for each in logprobs]).all()
    ids = torch.tensor([conversations[0][0]])
    with torch.inference_mode():
        torch.testing.assert_close(
            model(input_ids=ids).logits, alone(input_ids=ids).logits, rtol=0, atol=0
        )


@pytest.mark.parametrize(
    ("options", "package", "command"),
    [
        (LoadOptions(load="nf4"), "bitsandbytes", "[quant]"),
        (LoadOptions(adapter="somewhere"), "peft", "[adapters]"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: LoadOptions, package: str, command: str
) -> None:
    found = loading.find_spec
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(ModelError) as caught:
        load_for_answers(str(folder), options)
    assert package in caught.value.message and command in caught.value.hint


def test_what_cannot_be_had_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"adapter .* cannot be put on the model"):
        load_for_answers(str(folder), LoadOptions(device="cpu", adapter=str(tmp_path)))
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="no GPU"):
            load_for_answers(str(folder), LoadOptions(device="cuda"))


@pytest.mark.slow
def test_where_nothing_is_quantized_nobody_hears_of_kernels(folder: Path, adapter: str) -> None:
    program = f"""if True:
        import sys, hrm_agent.training.demo
        assert "bitsandbytes" not in sys.modules and "peft" not in sys.modules
        from hrm_agent.models.loading.policy_loader import load_policy
        load_policy("{folder}?device=cpu&adapter={adapter}")
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    said = [
        line for line in done.stderr.splitlines() if not line.startswith("hrm-agent: loading torch")
    ]  # if it was slow
    assert said == []
