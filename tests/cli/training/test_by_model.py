"""Training commands report the settings that they derive from the model, store them with the run,
and reuse them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.models.cached.gguf_file import folder_of_gguf
from hrm_agent.testing import tiny_model
from tests.cli.conftest import Command
from tests.support.models.gguf_files import write_gguf
from tests.support.training.english import without_defaults, write_conversations

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(without_defaults(tiny_model(tmp_path / "model", **SIZES)))


def kept(run: str) -> dict[str, Any]:
    return tomllib.loads(Path(run, "config.toml").read_text())


def test_a_fine_tuning_is_fitted_to_model_and_data_and_goes_on_as_it_began(
    hrm: Command, model: str
) -> None:
    data = write_conversations(Path("chats.jsonl"))
    words = ("train", "sft", str(data), "--policy", model, "--out", "run")
    done = hrm(*words, "--lora-rank", "2", "--out", "adapter", "--dry-run")
    assert tomllib.loads(done.out)["learning_rate"] == 1e-4 and not Path("adapter").exists()
    done = hrm(*words)
    assert (
        done.code == 0
        and "Learning rate 2e-5: all " in done.out
        and "--learning-rate sets another" in done.out
    )
    assert (
        "6 steps for 3 passes over 32 conversations (--steps)" in done.out
        and "times the usual" not in done.err
    )
    chosen = (
        "learning_rate",
        "steps",
        "batch_size",
        "warmup_steps",
        "micro_batch_tokens",
        "matrix_learning_rate",
    )
    assert [kept("run")[key] for key in chosen] == [2e-5, 6, 16, 1, 8192, "none"]
    file = Path("run/config.toml")
    # as it once was chosen
    file.write_text(file.read_text().replace("learning_rate = 2e-05", "learning_rate = 4e-05"))
    for command in (words, ("resume", "run")):
        again = hrm(*command)
        assert (
            again.code == 0
            and "has taken its 6 steps already" in again.out
            and kept("run")["learning_rate"] == 4e-5
        )
    refused = hrm(*words, "--learning-rate", "2e-5")
    assert refused.code == 2 and "learning_rate: 4e-05 there, 2e-05 now" in refused.err


def test_a_rate_that_would_ruin_the_model_is_warned_of_and_taken(hrm: Command, model: str) -> None:
    data = write_conversations(Path("chats.jsonl"))
    done = hrm(
        "train",
        "sft",
        str(data),
        "--policy",
        model,
        "--steps",
        "1",
        "--learning-rate",
        "3e-3",
        "--out",
        "run",
    )
    assert (
        done.code == 0
        and "The learning rate 3e-3 is 150 times the usual for this model, 2e-5" in done.err
    )
    assert kept("run")["learning_rate"] == 3e-3


@pytest.mark.whole
def test_reinforcement_learning_is_fitted_too(hrm: Command, model: str) -> None:
    small = (
        "--steps",
        "1",
        "--prompts-per-step",
        "1",
        "--group-size",
        "2",
        "--context",
        "max_turns=1",
    )
    done = hrm("train", "rl", "--policy", model, *small, "--out", "run")
    assert done.code == 0, done.err
    assert (
        "Learning rate 5e-6: all " in done.out
        and "answers of at most 512 tokens (--max-tokens)" in done.out
    )
    config = kept("run")
    assert (config["optim"]["learning_rate"], config["max_tokens"]) == (5e-6, 512)
    assert config["loss"]["micro_batch_tokens"] == 4096
    assert "has taken its 1 steps already" in hrm("resume", "run").out
    assert (
        "has taken its 1 steps already"
        in hrm("train", "rl", "--policy", model, *small, "--out", "run").out
    )


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_dry_run_shows_what_the_built_in_policies_bring_along(kind: str, hrm: Command) -> None:
    shown = tomllib.loads(hrm("train", kind, "--dry-run").out)
    found = shown["optim"]["learning_rate"] if kind == "rl" else shown["learning_rate"]
    assert found == (5e-4 if kind == "rl" else 3e-3) and shown.get("steps") == (
        30 if kind == "rl" else 400
    )
    unknown = tomllib.loads(hrm("train", kind, "--policy", "no-such-folder", "--dry-run").out)
    assert unknown.get("optim", unknown)["learning_rate"] == "none"


@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_dry_run_converts_no_gguf_file(
    kind: str, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("cache").resolve()))
    write_gguf(Path("tiny.gguf"))
    shown = tomllib.loads(hrm("train", kind, "--policy", "gguf:tiny.gguf", "--dry-run").out)
    assert shown.get("optim", shown)["learning_rate"] == "none" and not Path("cache").exists()
    folder_of_gguf(Path("tiny.gguf"))
    shown = tomllib.loads(hrm("train", kind, "--policy", "gguf:tiny.gguf", "--dry-run").out)
    assert shown.get("optim", shown)["learning_rate"] == {"rl": 5e-6, "sft": 2e-5}[kind]


@pytest.mark.parametrize(("kind", "keys"), [("rl", 3), ("sft", 6)])
def test_the_help_says_what_depends_on_the_model(
    kind: str, keys: int, hrm: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        hrm("train", kind, "--help-all")
    assert " ".join(capsys.readouterr().out.split()).count("[by model]") == keys
