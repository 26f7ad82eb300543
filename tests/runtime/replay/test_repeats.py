"""The model that would be asked is the one that gave a recorded answer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hrm_agent.models.loading.policy_loader import time_of_weights
from hrm_agent.runtime.replay.repeats import is_named, other_options
from hrm_agent.trajectory import AskedModel, Call, SentSampling


def call(model: str, sent: SentSampling | None = None) -> Call:
    return Call.model_construct(model=model, sampling_sent=sent)


def test_options_that_are_not_all_on_record_are_not_equal() -> None:
    sent = SentSampling(temperature=0.5, other={"top_k": 3}, hashes={"base_url": "a"})
    asked = AskedModel("small", sent)
    assert other_options(call("small", sent), asked) == []
    other = sent.model_copy(update={"other": {"top_k": 4}, "hashes": {}})
    assert other_options(call("small", other), asked) == ["base_url", "top_k"]
    # a record of an earlier version
    assert other_options(call("small", sent.model_copy(update={"hashes": None})), asked) is None
    assert other_options(call("small"), asked) is None


def test_a_folder_is_another_policy_once_its_files_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
    assert is_named(call("./old"), AskedModel(f"{tmp_path}/old"))
    assert not is_named(call("./old"), AskedModel(f"{tmp_path}/new"))
    before = time_of_weights("./old")
    assert before > 0 and time_of_weights("openai:weak") == time_of_weights("./none") == 0
    later = before + 60
    os.utime("old/model.safetensors", (later, later))
    assert time_of_weights("./old") == pytest.approx(later)
