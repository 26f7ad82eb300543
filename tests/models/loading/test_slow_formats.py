"""Notice for weights in a format in which the CPU computes slowly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hrm_agent.models.loading import slow_formats
from hrm_agent.models.loading.slow_formats import slowness, tell_of_slow_format
from tests.support.training.builders import tiny_model


@pytest.fixture(autouse=True)
def every_process_anew() -> Iterator[None]:
    slow_formats._tell.cache_clear()
    yield
    slow_formats._tell.cache_clear()


def model(dtype: torch.dtype) -> Any:
    return tiny_model().to(dtype)


def test_the_notice_names_the_ratio_and_the_way_out_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_formats, "_LARGE", 1)
    monkeypatch.setattr(slow_formats, "slowness", lambda dtype: 6.8)
    tell_of_slow_format(model(torch.bfloat16))
    tell_of_slow_format(model(torch.bfloat16))
    told = capsys.readouterr().err
    assert told.count("hrm-agent: this CPU takes 7 times as long in bfloat16") == 1
    assert "?dtype=float32" in told and "--dtype float32" in told


@pytest.mark.parametrize(
    ("dtype", "ratio", "large"),
    [(torch.float32, 6.8, 1), (torch.bfloat16, 0.7, 1), (torch.bfloat16, 6.8, 10**9)],
    ids=["float32", "a CPU with instructions for it", "a small model"],
)
def test_nothing_is_said_otherwise(
    dtype: torch.dtype,
    ratio: float,
    large: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(slow_formats, "_LARGE", large)
    monkeypatch.setattr(slow_formats, "slowness", lambda dtype: ratio)
    tell_of_slow_format(model(dtype))
    assert capsys.readouterr().err == ""


def test_the_ratio_is_of_the_times_of_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slow_formats._seconds(torch.bfloat16) > 0
    seconds = {torch.bfloat16: 6.0, torch.float32: 2.0}
    monkeypatch.setattr(slow_formats, "_seconds", seconds.__getitem__)
    assert slowness.__wrapped__(torch.bfloat16) == 3.0
