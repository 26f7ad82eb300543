"""Model strings: what they name, how it is loaded, and what is said of a slip."""

from __future__ import annotations

from pathlib import Path

import pytest

from hrm_agent.errors import ModelError
from hrm_agent.models.load import load_codec, load_policy, model_folder
from hrm_agent.models.strings import LoadOptions, parse_model


@pytest.mark.parametrize(
    ("text", "scheme", "name", "options"),
    [
        ("builtin:trained", "builtin", "trained", LoadOptions()),
        ("hf:Qwen/Qwen2.5-1.5B-Instruct?load=nf4", "hf", "Qwen/Qwen2.5-1.5B-Instruct", LoadOptions(load="nf4")),
        (
            "runs/demo/model?load=int8&dtype=bfloat16&device=cuda:1&adapter=a%26b/c+d",
            "",
            "runs/demo/model",
            LoadOptions("int8", "bfloat16", "cuda:1", "a&b/c+d"),
        ),
        ("vllm:http://127.0.0.1:8000/v1?model=m&timeout=5", "vllm", "http://127.0.0.1:8000/v1?model=m&timeout=5", None),
        ("openai:gpt-5", "openai", "gpt-5", None),
        ("scripted:what?.jsonl", "scripted", "what?.jsonl", None),
    ],
)
def test_a_string_is_taken_apart(text: str, scheme: str, name: str, options: LoadOptions | None) -> None:
    found = parse_model(text)
    assert (found.text, found.scheme, found.name, found.options) == (text, scheme, name, options or LoadOptions())
    assert found.local == (scheme in ("", "builtin", "hf"))


def test_a_folder_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hf:odd", "what?load=nf4"):
        Path(name).mkdir()
        assert (parse_model(name).scheme, parse_model(name).name) == ("", name)
    assert parse_model("hf:odd?load=nf4").name == "hf:odd"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hf:x?lod=nf4", "no option 'lod'. Did you mean 'load'?"),
        ("hf:x?load=nf5", "load is not 'nf5'. Did you mean 'nf4'?"),
        ("hf:x?dtype=bf16", "dtype is not 'bf16'"),
        ("hf:x?device=cuda:x", "device is not 'cuda:x'"),
        ("hf:x?device=cpu:1", "device is not 'cpu:1'"),
        ("hf:x?load=nf4&load=int8", "twice"),
        ("hf:x?load=", "no value"),
        ("hf:x?load", "no value"),
        ("openai:gpt-5?load=nf4", "a hosted model takes none"),
        ("builtin:trained?adapter=nowhere&color=red", "no option 'color'"),
    ],
)
def test_a_slip_is_named_before_anything_is_loaded(text: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_policy(text)
    assert said in str(caught.value)


def test_options_change_neither_tokens_nor_names_but_cannot_be_trained() -> None:
    text = "builtin:trained?load=nf4"
    assert load_codec(text).end_of_turn == load_codec("builtin:trained").end_of_turn
    with pytest.raises(ModelError, match=r"cannot be trained.*Train builtin:trained\."):
        model_folder(text)
