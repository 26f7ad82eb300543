"""Engines loaded from a folder, and the errors if a part of it is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading.load_weights import load_engine
from hrm_agent.models.model_string import LoadOptions
from hrm_agent.trajectory import Sampling


@pytest.fixture
def folder(own_model: Any, tokenizer: Any, tmp_path: Path) -> Path:
    own_model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_saved_model_answers(folder: Path) -> None:
    with load_engine(str(folder), name="saved", options=LoadOptions(dtype="float32")) as engine:
        prompt = tuple(engine.codec.encode([HumanMessage("2 + 2?")]))
        completion = engine.submit(
            GenerationRequest(prompt, Sampling(seed=1, max_tokens=5))
        ).result(30)
        assert (engine.name, len(completion.token_ids) > 0) == ("saved", True)


@pytest.mark.parametrize(
    ("pattern", "missing"),
    [
        ("config.json", "configuration"),
        ("*.safetensors", "weights"),
        ("tokenizer*", "tokenizer"),
        ("*.jinja", "template"),
    ],
)
def test_what_is_missing_is_named(folder: Path, pattern: str, missing: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()
    with pytest.raises(ModelError, match=missing):
        load_engine(str(folder), name="broken")


def test_a_name_that_leads_nowhere_is_named() -> None:
    with pytest.raises(ModelError, match="no-such-model"):
        load_engine("nobody/no-such-model", name="broken")
