"""Model strings: their meaning, their loading, and the messages for mistakes."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hrm_agent.errors import ModelError
from hrm_agent.models.loading import policy_loader
from hrm_agent.models.loading.policy_loader import load_codec, load_policy, model_folder
from hrm_agent.models.model_string import LoadOptions, parse_model


@pytest.mark.parametrize(
    ("text", "scheme", "name", "options"),
    [
        ("builtin:trained", "builtin", "trained", LoadOptions()),
        (
            "hf:Qwen/Qwen2.5-1.5B-Instruct?load=nf4",
            "hf",
            "Qwen/Qwen2.5-1.5B-Instruct",
            LoadOptions(load="nf4"),
        ),
        (
            "runs/demo/model?load=int8&dtype=bfloat16&device=cuda:1&adapter=a%26b/c+d",
            "",
            "runs/demo/model",
            LoadOptions("int8", "bfloat16", "cuda:1", "a&b/c+d"),
        ),
        (
            "vllm:http://127.0.0.1:8000/v1?model=m&timeout=5",
            "vllm",
            "http://127.0.0.1:8000/v1?model=m&timeout=5",
            None,
        ),
        ("openai:gpt-5", "openai", "gpt-5", None),
        ("scripted:what?.jsonl", "scripted", "what?.jsonl", None),
    ],
)
def test_a_string_is_taken_apart(
    text: str, scheme: str, name: str, options: LoadOptions | None
) -> None:
    found = parse_model(text)
    assert (found.text, found.scheme, found.name, found.options) == (
        text,
        scheme,
        name,
        options or LoadOptions(),
    )
    assert found.local == (scheme in ("", "builtin", "hf"))


def test_a_folder_is_a_folder_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("hf:odd", "what?load=nf4"):
        Path(name).mkdir()
        assert (parse_model(name).scheme, parse_model(name).name) == ("", name)
    assert parse_model("hf:odd?load=nf4").name == "hf:odd"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hf:x?lod=nf4", "no option 'lod'. Did you mean 'load'?"),
        ("hf:x?load=nf5", "load cannot be 'nf5'. Did you mean 'nf4'?"),
        ("hf:x?dtype=bf16", "dtype cannot be 'bf16'"),
        ("hf:x?device=cuda:x", "device cannot be 'cuda:x'"),
        ("hf:x?device=cpu:1", "device cannot be 'cpu:1'"),
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


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match="cannot be put on 'mps'"):
        load_policy("builtin:trained?device=mps")


def test_a_folder_brings_no_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder("builtin:trained"), folder)
    for file, kind in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        settings = json.loads((folder / file).read_text(encoding="utf-8")) | {
            "auto_map": {kind: "evil.Evil"}
        }
        settings |= {"model_type": "evil"} if file == "config.json" else {"tokenizer_class": "Evil"}
        (folder / file).write_text(json.dumps(settings), encoding="utf-8")
    (folder / "evil.py").write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n", encoding="utf-8"
    )
    # somebody who says yes to whatever is asked
    monkeypatch.setattr("builtins.input", lambda _: "y")
    for read in (load_policy, load_codec):
        with pytest.raises(ModelError):
            read(str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_fork_loads_its_own(tmp_path: Path) -> None:
    script = tmp_path / "said.jsonl"
    script.write_text('"yes"\n', encoding="utf-8")
    ours = load_policy(f"scripted:{script}")
    child = os.fork()
    if not child:
        os._exit(0 if load_policy(f"scripted:{script}") is not ours else 1)
    assert (
        os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        and load_policy(f"scripted:{script}") is ours
    )


def test_options_change_neither_tokens_nor_names_but_cannot_be_trained() -> None:
    text = "builtin:trained?load=nf4"
    assert load_codec(text).end_of_turn == load_codec("builtin:trained").end_of_turn
    with pytest.raises(ModelError, match=r"cannot be trained.*Train builtin:trained\."):
        model_folder(text)


@pytest.mark.parametrize(
    ("name", "installed"),
    [
        ("openai:gpt-5", "[openai]'"),
        ("anthropic:claude", "[anthropic]'"),
        ("google_genai:gemini", "[google]'"),
        ("ollama:llama", "langchain` and the provider's package"),
    ],
)
def test_a_hosted_model_without_its_package_says_what_to_install(
    name: str, installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # langchain without a provider: importing one's package fails
    models = ModuleType("langchain.chat_models")

    def init_chat_model(name: str) -> None:
        raise ImportError("Initializing it requires a package")

    monkeypatch.setattr(models, "init_chat_model", init_chat_model, raising=False)
    for found in (None, "langchain"):
        monkeypatch.setattr(policy_loader, "find_spec", lambda asked, found=found: found)
        monkeypatch.setitem(sys.modules, "langchain", ModuleType("langchain"))
        monkeypatch.setitem(sys.modules, "langchain.chat_models", models)
        with pytest.raises(ModelError) as raised:
            load_policy(name)
        assert installed in raised.value.hint
