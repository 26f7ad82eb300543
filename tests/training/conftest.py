"""One thread of arithmetic, and the tokenizer and lessons of the small policy."""

from __future__ import annotations

import pytest
import torch

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.small_policy.cold_start import build_tokenizer
from hrm_agent.training.small_policy.traces import demonstrations


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lessons():
    return list(demonstrations("train", 0, 400))


@pytest.fixture(scope="session")
def tokenizer(lessons):
    return build_tokenizer(lessons)


@pytest.fixture(scope="session")
def codec(tokenizer):
    return ChatTemplateCodec(tokenizer)
