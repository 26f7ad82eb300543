"""Continued training of an adapter on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from hrm_agent.models.adapter_folder import BASE_FILE
from tests.cli.conftest import Command
from tests.training.update.test_adapters import MODEL, learner

WEIGHTS = "adapter_model.safetensors"


def test_without_a_rank_it_is_said_which_one_and_with_it_fine_tuning_goes_on(
    hrm: Command, tmp_path: Path
) -> None:
    first = learner(lora_rank=2)
    first.save(tmp_path / "adapter")
    refused = hrm("train", "rl", "--policy", "adapter", "--out", "run")
    assert (
        refused.code == 2 and "it is an adapter" in refused.err and "--lora-rank 2" in refused.err
    )
    assert not Path("run").exists()
    row = {
        "messages": [
            {"role": "user", "content": "What is 6 * 7?"},
            {"role": "assistant", "content": "42"},
        ]
    }
    Path("chats.jsonl").write_text(json.dumps(row) + "\n")
    small = (
        "--steps",
        "1",
        "--batch-size",
        "1",
        "--warmup-steps",
        "0",
        "--lora-rank",
        "2",
        "--out",
        "tuned",
    )
    done = hrm("train", "sft", "chats.jsonl", "--policy", "adapter", *small)
    assert done.code == 0, done.err
    before, after = load_file(Path("adapter", WEIGHTS)), load_file(Path("tuned", "model", WEIGHTS))
    assert before.keys() == after.keys() and any(
        not torch.equal(before[name], after[name]) for name in before
    )
    assert json.loads(Path("tuned", "model", BASE_FILE).read_text())["model"].startswith(MODEL)
