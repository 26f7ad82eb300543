"""A pretrained model is trained with the defaults, and still knows its English."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.cli.main import main
from hrm_agent.models.adapter_folder import on_its_base
from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.loading.policy_loader import local_folder
from hrm_agent.models.model_string import parse_model
from tests.support.training.english import perplexity, write_conversations


def measured(name: str) -> float:
    whole = on_its_base(parse_model(name))
    model, tokenizer = load_for_answers(local_folder(whole), whole.options)
    return perplexity(model, tokenizer)


@pytest.mark.slow
def test_three_steps_with_the_defaults_leave_a_pretrained_model_its_english(
    real_model: str, tmp_path: Path
) -> None:
    before = measured(real_model)
    data = write_conversations(tmp_path / "chats.jsonl")
    run = tmp_path / "run"
    words = ("train", "sft", str(data), "--policy", real_model, "--steps", "3", "--out", str(run))
    assert main(list(words)) == 0
    after = measured(str(run / "model"))
    print(f"\nperplexity of ten paragraphs: {before:.2f} before, {after:.2f} after")
    assert after == pytest.approx(before, rel=0.1)
