"""Models that take other rotary factors for long texts: an answer depends on its own text, and on
none beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PhimoeConfig, PhimoeForCausalLM

from hrm_agent.errors import ContextLengthError, ModelError
from hrm_agent.models.engine import Completion
from hrm_agent.models.local import cache_rows
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.long_rope import LongRope, depends_on_length, dynamic_limit
from tests.models.local.test_engine import OpenEnded, ask
from tests.support.training.longrope import SIZES, SWITCH, expected_logprobs, longrope_model

LENGTHS = (1, SWITCH - 9, SWITCH, SWITCH + 1, 100)


def phimoe() -> Any:
    factors = {
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "short_mscale": 1.1,
        "long_mscale": 1.4,
    }
    table = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": SWITCH,
        **factors,
    }
    config = PhimoeConfig(
        **SIZES,
        num_local_experts=4,
        max_position_embeddings=192,
        rope_parameters={**table, "factor": 8.0},
    )
    torch.manual_seed(0)
    return PhimoeForCausalLM(config).eval()


@pytest.fixture(params=[longrope_model, phimoe], ids=["Phi-3", "PhiMoE"])
def network(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
def engine(network: Any) -> Iterator[TransformersEngine]:
    with TransformersEngine(network, OpenEnded(), name="longrope", max_slots=40) as engine:
        yield engine


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((length, seed)).integers(3, 60, length).tolist()


def check(model: Any, prompt: Sequence[int], done: Completion) -> None:
    expected = expected_logprobs(model, [*prompt, *done.token_ids], len(prompt))
    torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-5, rtol=1e-5)


def test_an_answer_is_the_same_alone_and_beside_longer_ones(
    engine: TransformersEngine, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # prompts are fed in portions, whose positions are short ones
    monkeypatch.setattr(cache_rows, "_STEP_TOKENS", 40)
    alone = [
        ask(engine, prompt_of(length), seed, max_tokens=12).result(60)
        for seed, length in enumerate(LENGTHS)
    ]
    engine.publish(1)
    beside = [
        ask(engine, prompt_of(length), seed, max_tokens=12) for seed, length in enumerate(LENGTHS)
    ]
    for length, one, future in zip(LENGTHS, alone, beside, strict=True):
        assert future.result(60).token_ids == one.token_ids
        check(network, prompt_of(length), one)
        check(network, prompt_of(length), future.result())


def test_a_conversation_and_its_copies_grow_beyond_the_switch(
    engine: TransformersEngine, network: Any
) -> None:
    text = prompt_of(8)
    for turn in range(4):
        samples = [ask(engine, text, 10 * turn + i, max_tokens=6) for i in range(2)]
        for future in samples:
            check(network, text, future.result(60))
        text += [*samples[0].result().token_ids, *prompt_of(3, turn)]
    assert len(text) > SWITCH + 6
    fed = engine.fed_tokens
    ask(engine, text, 1, max_tokens=1).result(60)
    assert engine.fed_tokens - fed < 6, "what was fed with the long factors is found again"


def test_a_switch_costs_its_text_once(engine: TransformersEngine) -> None:
    ask(engine, prompt_of(SWITCH - 2), max_tokens=12).result(60)
    assert engine.fed_tokens == (SWITCH - 2) + 2 + (SWITCH + 1) + 8


def test_dynamic_factors_are_used_up_to_the_length_from_which_they_change() -> None:
    table = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model: Any = LlamaForCausalLM(
        LlamaConfig(**SIZES, max_position_embeddings=32, rope_parameters=table)
    ).eval()
    assert (dynamic_limit(model), depends_on_length(model)) == (32, True)
    with TransformersEngine(model, OpenEnded(), name="dynamic") as engine:
        done = [ask(engine, prompt_of(length), max_tokens=40) for length in (3, 30)]
        for length, future in zip((3, 30), done, strict=True):
            assert len(future.result(60).token_ids) == 32 - length
            check(model, prompt_of(length), future.result())
        with pytest.raises(ContextLengthError):
            ask(engine, prompt_of(32)).result(60)


def test_factors_that_change_at_several_lengths_are_refused() -> None:
    model = longrope_model()
    assert LongRope.of(model) is not None and dynamic_limit(model) is None
    table = model.config.rope_parameters
    model.config.rope_parameters = {
        "full_attention": table,
        "sliding_attention": {**table, "original_max_position_embeddings": 48},
    }
    with pytest.raises(ModelError, match=r"different lengths.*24, 48"):
        LongRope.of(model)


def test_ordinary_factors_are_left_alone(model: Any) -> None:
    assert LongRope.of(model) is None and not depends_on_length(model)
