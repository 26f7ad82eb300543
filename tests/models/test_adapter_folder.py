"""A folder of an adapter is a policy: the model that it was trained on is found, and loaded as it
was.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage
from peft import LoraConfig, get_peft_model

from hrm_agent.errors import ModelError
from hrm_agent.models.adapter_folder import (
    BASE_FILE,
    is_adapter_folder,
    on_its_base,
    write_base,
    write_codec,
)
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import (
    load_codec,
    load_policy,
    model_folder,
    size_of_weights,
    stamp_of_weights,
)
from hrm_agent.models.model_string import CodecOptions, LoadOptions, parse_model
from hrm_agent.trajectory import Sampling

MODEL = "builtin:cold-start"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Adapter folder as PEFT writes it."""
    torch.manual_seed(3)
    model, _ = load_pretrained(model_folder(MODEL))
    config = LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    where = tmp_path_factory.mktemp("adapter")
    get_peft_model(model, config).save_pretrained(where, save_embedding_layers=False)
    return str(where)


def answer(policy: str) -> tuple[list[int], list[float]]:
    engine: Any = load_policy(policy)
    prompt = tuple(engine.codec.encode([HumanMessage("What is 6 * 7?")]))
    done = engine.submit(
        GenerationRequest(prompt, Sampling(temperature=1.0, max_tokens=16, seed=1))
    ).result(60)
    return list(done.token_ids), list(done.logprobs)


def test_a_folder_answers_as_its_model_with_the_adapter(folder: str) -> None:
    assert is_adapter_folder(folder) and not is_adapter_folder(model_folder(MODEL))
    named = answer(f"{MODEL}?adapter={folder}&dtype=float32")
    assert answer(folder) == named != answer(MODEL)
    assert load_codec(folder).end_of_turn == load_codec(MODEL).end_of_turn
    own = Path(folder, "adapter_model.safetensors")
    assert size_of_weights(folder) == size_of_weights(MODEL) + own.stat().st_size
    assert stamp_of_weights(folder).startswith(stamp_of_weights(MODEL) + " adapter_model")


def test_what_it_was_trained_on_comes_before_pefts_word_and_options_before_both(
    folder: str, tmp_path: Path
) -> None:
    for file in Path(folder).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_base(tmp_path, f"{MODEL}?load=nf4&dtype=float32")
    ours = str(tmp_path)
    assert on_its_base(parse_model(ours)).options == LoadOptions("nf4", "float32", adapter=ours)
    assert on_its_base(parse_model(f"{ours}?dtype=bfloat16")).options == LoadOptions(
        "nf4", "bfloat16", adapter=ours
    )
    assert on_its_base(parse_model(MODEL)) == parse_model(MODEL)
    engine: Any = load_policy(ours)
    assert engine.capabilities().quantized == "nf4"

    (tmp_path / BASE_FILE).unlink()
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    for named, scheme in (("someone/model", "hf"), (folder, "")):
        (tmp_path / "adapter_config.json").write_text(
            json.dumps(config | {"base_model_name_or_path": named})
        )
        if scheme:
            assert on_its_base(parse_model(ours)).base == f"hf:{named}"
        else:
            with pytest.raises(ModelError, match="on top of another adapter"):
                on_its_base(parse_model(ours))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="which model it is for"):
        load_policy(f"{ours}?dtype=float32")


def test_it_is_spoken_to_as_the_model_in_its_bases_folder(folder: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    write_codec(base, CodecOptions(thoughts="keep"))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = json.loads(Path(folder, "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(base)})
    )
    for asked in (str(base), str(adapter), f"{base}?adapter={adapter}"):
        assert on_its_base(parse_model(asked)).codec == CodecOptions(thoughts="keep"), asked
    write_codec(base, CodecOptions())
    assert on_its_base(parse_model(str(adapter))).codec == CodecOptions()


def test_an_adapter_is_neither_trained_nor_put_on_another(folder: str) -> None:
    with pytest.raises(
        ModelError,
        match=r"cannot be trained whole: it is an adapter.*--lora-rank 4; or merge it into",
    ):
        model_folder(folder)
    with pytest.raises(ModelError, match="on top of another adapter"):
        load_policy(f"{folder}?adapter={folder}")


@pytest.mark.parametrize(
    "options", ["load=int8", "dtype=bfloat16", "load=nf4&dtype=bfloat16", "adapter=x"]
)
def test_of_the_options_a_new_adapter_takes_4_bits_alone(options: str) -> None:
    assert model_folder(f"{MODEL}?load=nf4", adapter=True) == model_folder(MODEL)
    with pytest.raises(ModelError, match=r"cannot be trained.*load=nf4\."):
        model_folder(f"{MODEL}?{options}", adapter=True)
    with pytest.raises(ModelError, match=r"cannot be trained.*--lora-rank 8"):
        model_folder(f"{MODEL}?load=nf4")
