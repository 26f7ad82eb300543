"""`gguf:FILE`: the file's own weights and tokens, or an error; converted once."""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFValueType
from langchain_core.messages import HumanMessage
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from hrm_agent.errors import ModelError, to_install
from hrm_agent.models import policy
from hrm_agent.models.cached import gguf_conversion, gguf_file, gguf_head
from hrm_agent.models.cached.gguf_file import converted_folder, folder_of_gguf
from hrm_agent.models.cached.gguf_head import read_facts
from hrm_agent.models.loading.checking import check_model
from hrm_agent.models.loading.policy_loader import load_codec, load_policy, model_folder
from tests.models.cached.conftest import left_in
from tests.support.models.gguf_files import CONTEXT, WIDTH, gguf_tokens, write_gguf


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tiny.gguf"


NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def in_hugging_faces_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    for name, value in weights.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            named[f"model.layers.{layer}.{NAMES[part]}.weight"] = value
    return named


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (GGMLQuantizationType.F32, torch.float32),
        (GGMLQuantizationType.F16, torch.float16),
        (GGMLQuantizationType.BF16, torch.bfloat16),
        (GGMLQuantizationType.Q8_0, torch.float32),
        (GGMLQuantizationType.Q4_1, torch.float32),
    ],
)
def test_the_weights_are_those_of_the_file(
    file: Path, kind: GGMLQuantizationType, dtype: torch.dtype
) -> None:
    wanted = in_hugging_faces_names(write_gguf(file, kind=kind))
    found = load_file(folder_of_gguf(file) / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    for name, value in wanted.items():
        assert torch.equal(found[name], torch.from_numpy(value).to(dtype)), name


def test_it_is_a_folder_like_any_other(file: Path, cache: Path) -> None:
    write_gguf(file, kind=GGMLQuantizationType.Q4_1)
    folder = folder_of_gguf(file)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["max_position_embeddings"] == CONTEXT
    assert model_folder(f"gguf:{file}") == str(folder), "what a training loads"
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model(torch.tensor([[5, 6, 7]])).logits.sum().backward()
    assert model.model.embed_tokens.weight.grad.isfinite().all()
    card = json.loads((folder / "card.json").read_text())
    assert (card["title"], card["license"], card["source"]) == ("Tiny", "apache-2.0", "gguf")
    assert "llama" in card["origin"] and "Q4_1" in card["origin"]


def test_it_answers_in_its_own_tokens(file: Path) -> None:
    write_gguf(file)
    codec = load_codec(f"gguf:{file}")
    tokens = gguf_tokens()
    spelled = [tokens[id_] for id_ in codec.encode([HumanMessage("the  12\n\n1")])]
    content = spelled[spelled.index("Ċ") + 1 : spelled.index("<|im_end|>")]
    # two spaces and two ends of lines are whole before a digit, and digits stand alone although
    # "12" is a token
    assert content == ["the", "ĠĠ", "1", "2", "Ċ", "Ċ", "1"]
    answer = policy(model=f"gguf:{file}", max_tokens=4).invoke("Hello")
    assert answer.response_metadata["finish_reason"] in ("length", "stop", "control_token")


def test_a_file_is_converted_once(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_gguf(file)
    transformers_logging.enable_progress_bar()
    bar = modeling_gguf_pytorch_utils.tqdm
    folder = folder_of_gguf(file)
    assert (
        transformers_logging.is_progress_bar_enabled() and modeling_gguf_pytorch_utils.tqdm is bar
    )
    assert converted_folder(file) == folder
    monkeypatch.setattr(gguf_file, "read_facts", lambda file: pytest.fail("it was read again"))
    assert folder_of_gguf(file) == folder
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    moved = tmp_path / "moved.gguf"
    shutil.copy(file, moved)
    assert converted_folder(moved) is None and folder_of_gguf(moved) == folder, (
        "known by its content"
    )
    before = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `cp --preserve` would
    assert converted_folder(file) is None and folder_of_gguf(file) != folder


def test_a_conversion_that_was_damaged_is_made_again(file: Path) -> None:
    write_gguf(file)
    folder = folder_of_gguf(file)
    (folder / "tokenizer.json").unlink()
    assert converted_folder(file) is None
    assert folder_of_gguf(file) == folder and (folder / "tokenizer.json").is_file()


def test_a_file_that_is_gone_during_its_conversion_is_named(
    file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(file)
    monkeypatch.setattr(gguf_conversion, "convert_gguf", lambda *_: file.unlink())
    with pytest.raises(ModelError, match="was changed or removed while it was converted"):
        folder_of_gguf(file)
    assert left_in(cache) == []


def nothing(file: Path) -> None:
    """Write no file."""


def html(file: Path) -> None:
    file.write_text("<!DOCTYPE html><title>404</title>")


def cut(share: float) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        write_gguf(file)
        file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (nothing, "There is no GGUF file"),
        (html, "is not a GGUF file: it does not begin with GGUF"),
        (cut(0.0), "is not a GGUF file"),
        (cut(0.0002), "is cut short or damaged"),
        (cut(0.05), "is cut short or damaged"),
        (cut(0.9), "is cut short or damaged"),
        (
            lambda file: write_gguf(file, architecture="plamo2"),
            r"\(plamo2\) cannot be converted by transformers",
        ),
        (
            lambda file: write_gguf(file, architecture="clip"),
            r"\(clip\) cannot be converted by transformers",
        ),
        (lambda file: write_gguf(file, without=["blk.1.ffn_up.weight"]), "1 tensors are missing"),
        (
            lambda file: write_gguf(file, pre="unheard-of"),
            "not known how it splits text \\(unheard-of\\)",
        ),
        (lambda file: write_gguf(file, pre=None), "not known how its tokenizer splits text"),
        (lambda file: write_gguf(file, scaling="yarn"), "rotary embedding is scaled \\(yarn\\)"),
        (
            lambda file: write_gguf(file, rope_freqs=[1, 1, 1, 1, 1, 2, 3, 4.5]),
            "rotary embedding is scaled",
        ),
    ],
    ids=[
        *("nothing", "html", "empty", "head", "half", "tail"),
        *("architecture", "no-language", "missing", "pre", "no-pre", "yarn", "factors"),
    ],
)
def test_what_cannot_be_read_is_one_paragraph(
    file: Path, cache: Path, write: Callable[[Path], None], said: str
) -> None:
    write(file)
    with pytest.raises(ModelError, match=said) as caught:
        load_policy(f"gguf:{file}")
    assert str(file) in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint
    assert left_in(cache) == []


def head(*fields: tuple[str, GGUFValueType, bytes]) -> bytes:
    """A file of a head alone, without tensors. A field: its key, its type and the bytes of its
    value.
    """
    named = [text(key.encode()) + struct.pack("<I", kind) + value for key, kind, value in fields]
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(named) + bytes(32)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


LLAMA = ("general.architecture", GGUFValueType.STRING, text(b"llama"))
ARRAY = struct.pack("<IQ", GGUFValueType.ARRAY, 1)
BYTES = struct.pack("<I", GGUFValueType.UINT8)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (("x", GGUFValueType.ARRAY, BYTES + struct.pack("<Q", 10**6)), "it ends before byte"),
        (
            ("x", GGUFValueType.ARRAY, BYTES + struct.pack("<Q", 1 << 40)),
            "arrays of 1,099,511,627,776 items",
        ),
        (
            ("x", GGUFValueType.ARRAY, struct.pack("<IQ", GGUFValueType.STRING, 10**6)),
            "it ends before byte",
        ),
        (("x", GGUFValueType.ARRAY, ARRAY * 3000), "an array of arrays"),
        (("x", GGUFValueType.STRING, struct.pack("<Q", 1 << 63)), "it ends before byte"),
        (("general.name", GGUFValueType.STRING, text(b"\xff")), "can't decode byte"),
        (
            ("general.name", GGUFValueType.UINT32, struct.pack("<I", 7)),
            "general.name is 7, not of type str",
        ),
        (
            ("general.name", GGUFValueType.ARRAY, BYTES + struct.pack("<QB", 1, 7)),
            "general.name is an array",
        ),
        (
            ("split.count", GGUFValueType.STRING, text(b"many")),
            "split.count is 'many', not of type int",
        ),
        (("llama.context_length", GGUFValueType.STRING, text(b"many")), "context_length is 'many'"),
    ],
)
def test_a_head_that_lies_is_refused_at_once(
    file: Path, field: tuple[str, GGUFValueType, bytes], said: str
) -> None:
    file.write_bytes(head(LLAMA, field))
    with pytest.raises(ModelError, match="is cut short or damaged") as caught:
        check_model(f"gguf:{file}", load=False)
    assert said in caught.value.message and "\n" not in str(caught.value)


def test_the_rotary_scaling_of_llama_3_is_taken_over(file: Path) -> None:
    """A file has factors of the frequencies, by the formula of Llama 3.1's release, and not the
    numbers behind them.
    """
    factors = list[float]()
    for n in range(WIDTH // 4 // 2):
        wavelength = 2 * math.pi * 10_000.0 ** (2 * n / (WIDTH // 4))
        smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
        factors.append(
            1.0 if smooth > 1 else 32.0 if smooth < 0 else 1 / ((1 - smooth) / 32.0 + smooth)
        )
    assert 1.0 < factors[-1] <= 32.0
    write_gguf(file, rope_freqs=factors)
    rope = AutoConfig.from_pretrained(folder_of_gguf(file)).rope_parameters
    assert (rope["rope_type"], rope["original_max_position_embeddings"]) == ("llama3", 8192)
    assert rope["factor"] == pytest.approx(max(factors)) and rope["rope_theta"] == 10_000.0


def test_without_the_package_the_extra_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    write_gguf(file)
    monkeypatch.setattr(gguf_head, "find_spec", lambda name: None)
    with pytest.raises(ModelError) as caught:
        load_policy(f"gguf:{file}")
    assert (
        f"needs the package gguf. Run `{to_install('gguf')}`." in str(caught.value)
        and left_in(cache) == []
    )


def test_a_check_says_what_it_is(file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(file, kind=GGMLQuantizationType.Q8_0)
    facts = read_facts(file)
    read = check_model(f"gguf:{file}", load=False)
    assert (
        read.origin
        == f"GGUF file: llama, {facts.parameters:,} parameters in Q8_0; not converted yet"
    )
    assert (read.capabilities.max_length, read.capabilities.parameters) == (
        CONTEXT,
        facts.parameters,
    )
    assert read.capabilities.trainable and left_in(cache) == []
    assert (
        check_model(f"gguf:{file}?load=nf4", load=False).trained_by_adapter and left_in(cache) == []
    )
    found = check_model(f"gguf:{file}")
    assert found.capabilities.parameters == facts.parameters and found.capabilities.trainable
    assert found.origin is not None and found.origin.startswith("Tiny (tiny.gguf, llama, ")
    again = check_model(f"gguf:{file}", load=False)
    assert (
        again.origin == found.origin
        and again.capabilities.speech == found.capabilities.speech is not None
    )
    monkeypatch.setattr(
        "hrm_agent.models.loading.checking.find_spec",
        lambda name: None if name == "gguf" else object(),
    )
    shutil.rmtree(cache)
    assert [lack.what for lack in check_model(f"gguf:{file}", load=False).capabilities.lacks] == [
        "GGUF files"
    ]


def test_a_path_is_relative_to_the_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(file)
    monkeypatch.chdir(file.parent)
    (file.parent / "other").mkdir()
    assert load_policy("gguf:tiny.gguf") is load_policy("gguf:tiny.gguf")
    with pytest.raises(ModelError, match=r"Write gguf:tiny\.gguf"):
        load_policy("tiny.gguf")
    monkeypatch.chdir(file.parent / "other")
    with pytest.raises(ModelError, match="There is no GGUF file"):
        load_policy("gguf:tiny.gguf")
