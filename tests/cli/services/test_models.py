"""`hrm-agent models check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.errors import to_install
from hrm_agent.models import checking
from hrm_agent.store import open_store
from hrm_agent.trajectory.lint import lint
from tests.cli.conftest import Command

FOURBIT = "builtin:trained?load=nf4&device=cpu"


def test_a_model_is_loaded_and_asked(hrm: Command) -> None:
    found = hrm("models", "check", FOURBIT, "--json")
    assert found.code == 0
    told = found.json
    assert (told["model"], told["loaded"], told["kind"]) == (FOURBIT, True, "transformers")
    assert (told["quantized"], told["trainable"], told["structured"]) == ("nf4", False, True)
    assert told["logprobs"] == "tempered" and told["token_ids"] and told["max_length"] >= 512 and told["lacks"] == []
    shown = hrm("models", "check", FOURBIT)
    assert shown.code == 0 and "structured output" in shown.out and "nf4" in shown.out


def test_without_loading_it_says_what_is_missing(hrm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "load_policy", lambda name: pytest.fail("it was loaded"))
    whole = hrm("models", "check", "builtin:trained", "--no-load", "--json")
    assert whole.code == 0 and whole.json["trainable"] and not whole.json["loaded"]
    found = checking.find_spec
    monkeypatch.setattr(checking, "find_spec", lambda name: None if name == "bitsandbytes" else found(name))
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


def test_what_the_string_shows_to_be_wrong_is_told_without_loading(hrm: Command, tmp_path: Path) -> None:
    for text, said in (
        ("vllm:foo", "names no server"),
        ("vllm:http://127.0.0.1:9/v1?timeout=soon", "is not a number of seconds"),
        (str(tmp_path), "no configuration"),
        ("a" * 300, "no model folder"),
    ):
        failed = hrm("models", "check", text, "--no-load")
        assert failed.code == 2 and said in failed.err


def test_what_train_refuses_is_not_called_trainable(hrm: Command) -> None:
    for more in ((), ("--no-load",)):
        assert not hrm("models", "check", "builtin:trained?dtype=float32", "--json", *more).json["trainable"]


def test_a_quantized_policy_is_not_trained(hrm: Command) -> None:
    failed = hrm("train", "rl", "--policy", FOURBIT, "--steps", "1", "--out", "never")
    assert failed.code == 2 and "cannot be trained" in failed.err and "Train builtin:trained." in failed.err


def test_the_whole_string_is_on_record_and_loads_again(hrm: Command) -> None:
    done = hrm("run", "What is 6 * 7?", "--policy", FOURBIT, "--max-tokens", "60", "--store", "s", "--json")
    assert done.code in (0, 1), done.err
    with open_store("s") as store:
        (trajectory,) = store.journal.trajectories()
    assert trajectory.policy == FOURBIT and {call.model for call in trajectory.calls} == {FOURBIT}
    assert trajectory.policy_calls == trajectory.calls and lint(trajectory) == []
    again = hrm("replay", trajectory.id, "--store", "s", "--json")
    assert again.code == 0 and again.json["verdict"] == "equal"
    resumed = hrm("resume", trajectory.thread_id, "--store", "s", "--json")
    assert resumed.code == done.code, resumed.err
