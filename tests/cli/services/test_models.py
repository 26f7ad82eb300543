"""`hrm-agent models`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.errors import to_install
from hrm_agent.models.cached.folders import Card, fill_folder, models_cache
from hrm_agent.models.loading import checking
from hrm_agent.store import open_store
from hrm_agent.testing import tiny_model
from hrm_agent.trajectory.lint import lint
from hrm_agent.viewer.projections.trajectory.tokens import token_texts
from tests.cli.conftest import Command
from tests.support.models.gguf_files import write_gguf

FOURBIT = "builtin:trained?load=nf4&device=cpu"


def test_a_model_is_loaded_and_asked(hrm: Command) -> None:
    found = hrm("models", "check", FOURBIT, "--json")
    assert found.code == 0
    told = found.json
    assert (told["model"], told["loaded"], told["kind"]) == (FOURBIT, True, "transformers")
    assert (told["quantized"], told["trainable"], told["structured"]) == ("nf4", False, True)
    assert (
        told["logprobs"] == "tempered"
        and told["token_ids"]
        and told["max_length"] >= 512
        and told["lacks"] == []
    )
    shown = hrm("models", "check", FOURBIT)
    assert shown.code == 0 and "structured output" in shown.out and "nf4" in shown.out


def test_without_loading_it_says_what_is_missing(
    hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "load_policy", lambda name: pytest.fail("it was loaded"))
    whole = hrm("models", "check", "builtin:trained", "--no-load", "--json")
    assert whole.code == 0 and whole.json["trainable"] and not whole.json["loaded"]
    found = checking.find_spec
    monkeypatch.setattr(
        checking, "find_spec", lambda name: None if name == "bitsandbytes" else found(name)
    )
    lacking = hrm("models", "check", "hf:Qwen/Qwen2.5-1.5B-Instruct?load=nf4", "--no-load")
    assert lacking.code == 1
    assert f"bitsandbytes is not installed: `{to_install('quant')}`." in lacking.out


def test_what_cannot_be_had_is_an_error(hrm: Command) -> None:
    for words, said in (
        (("builtin:trained?lod=nf4",), "Did you mean 'load'?"),
        (("nowhere/to/be/found",), "no model folder"),
        (("builtin:traind",), "Did you mean 'trained'?"),
    ):
        failed = hrm("models", "check", *words)
        assert failed.code == 2 and said in failed.err
    assert hrm("models", "chek").code == 2


def test_a_model_that_is_not_fetched_yet(
    hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for words in (
        ("run", "Hello", "--policy", "smollm2-135m?dtype=bfloat16"),
        ("models", "check", "smollm2-135m", "--no-load"),
        ("train", "rl", "--policy", "smollm2-135m", "--out", "never"),
    ):
        failed = hrm(*words)
        assert failed.code == 2 and "Run `hrm-agent models get smollm2-135m`." in failed.err
    assert "Did you mean 'smollm2-135m'?" in hrm("models", "get", "smolm2-135m").err
    assert "smollm2-135m" in hrm("models", "check", "smolm2-135m").err
    (tmp_path / "smollm2-135m").mkdir()
    assert "has no configuration" in hrm("models", "check", "smollm2-135m").err, (
        "a folder of that name is the folder"
    )


def test_a_model_that_is_in_the_cache(
    hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def fill(part: Path) -> Card:
        tiny_model(part)
        return Card("Tiny", "hub", "a test", "Apache-2.0")

    folder = models_cache() / "smollm2-135m"
    fill_folder(folder, fill, lambda: False)
    there = hrm("models", "get", "smollm2-135m")
    assert (
        there.code == 0 and f"is there already, in {folder}" in there.out and "a test" in there.out
    )
    assert not hrm("models", "get", "smollm2-135m", "--json").json["new"]
    found = hrm("models", "check", "smollm2-135m", "--json")
    assert (
        found.code == 0
        and found.json["trainable"]
        and found.json["origin"] == f"Tiny (a test), in {folder}"
    )
    spelled, why = token_texts("smollm2-135m?dtype=float32", None)
    assert spelled is not None and why is None, "a viewer shows its tokens"
    (folder / "config.json").write_text("{}")
    damaged = hrm("models", "check", "smollm2-135m?dtype=float32")
    assert (
        damaged.code == 2
        and "was changed" in damaged.err
        and "hrm-agent models get smollm2-135m" in damaged.err
    )


def test_a_gguf_file_that_cannot_be_read(
    hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "other.gguf", architecture="plamo2")
    write_gguf(tmp_path / "half.gguf", without=["blk.0.ffn_up.weight"])
    (tmp_path / "page.gguf").write_text("<html>")
    for name in ("other", "half", "page", "none"):
        failed = hrm("models", "check", f"gguf:{name}.gguf")
        said = [line for line in failed.err.splitlines() if "converting" not in line]
        assert failed.code == 2 and len(said) == 1 and f"{name}.gguf" in said[0]


def test_what_the_string_shows_to_be_wrong_is_told_without_loading(
    hrm: Command, tmp_path: Path
) -> None:
    for text, said in (
        ("vllm:foo", "names no server"),
        ("vllm:http://127.0.0.1:9/v1?timeout=soon", "is not a number of seconds"),
        (str(tmp_path), "no readable configuration"),
        ("a" * 300, "no model folder"),
    ):
        failed = hrm("models", "check", text, "--no-load")
        assert failed.code == 2 and said in failed.err


def test_what_train_refuses_is_not_called_trainable(hrm: Command) -> None:
    for more in ((), ("--no-load",)):
        assert not hrm("models", "check", "builtin:trained?dtype=float32", "--json", *more).json[
            "trainable"
        ]


def test_a_quantized_policy_is_not_trained(hrm: Command) -> None:
    failed = hrm("train", "rl", "--policy", FOURBIT, "--steps", "1", "--out", "never")
    assert (
        failed.code == 2
        and "cannot be trained" in failed.err
        and "Train builtin:trained." in failed.err
    )


def test_the_whole_string_is_on_record_and_loads_again(hrm: Command) -> None:
    done = hrm(
        "run", "What is 6 * 7?", "--policy", FOURBIT, "--max-tokens", "60", "--store", "s", "--json"
    )
    assert done.code in (0, 1), done.err
    with open_store("s") as store:
        (trajectory,) = store.journal.trajectories()
    assert trajectory.policy == FOURBIT and {call.model for call in trajectory.calls} == {FOURBIT}
    assert trajectory.policy_calls == trajectory.calls and lint(trajectory) == []
    again = hrm("replay", trajectory.id, "--store", "s", "--json")
    assert again.code == 0 and again.json["verdict"] == "equal"
    resumed = hrm("resume", trajectory.thread_id, "--store", "s", "--json")
    assert resumed.code == done.code, resumed.err
