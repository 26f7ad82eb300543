"""`train sft` reports the number of skipped steps, and fails if it has skipped all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from hrm_agent.testing import tiny_model
from hrm_agent.training.metrics import read_metrics
from tests.cli.conftest import Command

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
}


@pytest.mark.whole
def test_the_command_counts_the_steps_that_it_left_out(hrm: Command) -> None:
    """An embedding of one token is broken: rows with it cannot be learnt from, and others can."""
    file = tiny_model(Path("model"), **SIZES) / "model.safetensors"
    tokenizer: Any = AutoTokenizer.from_pretrained("model")
    weights = load_file(file)
    weights["model.embed_tokens.weight"][tokenizer.encode("?", add_special_tokens=False)] = math.inf
    save_file(weights, file, metadata={"format": "pt"})
    row = {
        "messages": [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "2"}]
    }
    asked = {"messages": [{"role": "user", "content": "1 + 1?"}, row["messages"][1]]}
    Path("rows.jsonl").write_text("\n".join(json.dumps(each) for each in (row, asked)))
    flags = ("--policy", "model", "--batch-size", "1", "--warmup-steps", "0", "--cooldown", "0")
    done = hrm("train", "sft", "rows.jsonl", *flags, "--steps", "4", "--out", "run")
    assert done.code == 0 and "2 of 4 steps were skipped: the gradient is not finite" in done.err
    assert sum(row["stepped"] for row in read_metrics(Path("run/metrics.jsonl"))) == 2
    Path("rows.jsonl").write_text(json.dumps(asked))
    failed = hrm("train", "sft", "rows.jsonl", *flags, "--steps", "2", "--out", "other")
    assert failed.code == 2 and "None of the 2 steps could be taken" in failed.err
    assert not Path("other/model").exists()
