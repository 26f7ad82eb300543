"""One thread of arithmetic, and the tokenizer and lessons of the small policy."""

# Fixtures import what they need: a file of arithmetic does not wait for transformers.
from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    torch = sys.modules.get("torch")
    if torch is None:  # begins with OMP_NUM_THREADS=1, see tests/conftest.py
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lessons():
    from hrm_agent.training.small_policy.traces import demonstrations

    return list(demonstrations("train", 0, 400))


@pytest.fixture(scope="session")
def tokenizer(lessons):
    from hrm_agent.training.small_policy.cold_start import build_tokenizer

    return build_tokenizer(lessons)


@pytest.fixture(scope="session")
def codec(tokenizer):
    from hrm_agent.models.codec.chat_template import ChatTemplateCodec

    return ChatTemplateCodec(tokenizer)
