"""Architectures of users' models: the engine answers like a plain forward pass, or refuses them at
load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from langchain_core.messages import HumanMessage
from torch import Tensor

from hrm_agent.cli.main import main
from hrm_agent.errors import ModelError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.loading.load_weights import load_engine, load_pretrained
from hrm_agent.models.local import cache_rows
from hrm_agent.models.local.attention_survey import survey
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.packed_attention import replica
from hrm_agent.testing import tiny_network
from hrm_agent.trajectory import Sampling
from tests.models.local.test_engine import OpenEnded, ask
from tests.support.training.architectures import (
    ARCHITECTURES,
    WINDOW,
    of_architecture,
    random_model,
    saved,
)

SERVED = tuple(kind for kind in ARCHITECTURES if kind != "lfm2")
WORDS = 64
PADDED_WORDS = 1400
"""Vocabulary in memory; and in a folder, whose tokenizer has 1,022."""


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((length, seed)).integers(3, WORDS, length).tolist()


def check(model: Any, prompt: Sequence[int], done: Completion) -> None:
    answer = list(done.token_ids)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[
            0, len(prompt) - 1 : -1
        ]
    expected = logits.float().log_softmax(-1)[range(len(answer)), answer]
    torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("tied", "captured"),
    [(True, False), (False, False), (True, True)],
    ids=["tied", "untied", "captured"],
)
@pytest.mark.parametrize("kind", SERVED)
def test_answers_are_those_of_a_plain_forward_pass(
    kind: str, tied: bool, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conversations that come back, samples that copy a prompt, prompts in portions, all longer
    than a window.
    """
    monkeypatch.setattr(cache_rows, "_STEP_TOKENS", 40)
    model = of_architecture(kind, tie_word_embeddings=tied)
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    with TransformersEngine(model, OpenEnded(), name=kind, captured=captured) as engine:
        texts = [prompt_of(1), prompt_of(WINDOW - 1), prompt_of(5 * WINDOW), prompt_of(100)]
        for turn in range(3):
            fed = engine.fed_tokens
            futures = [
                ask(engine, text, 10 * turn + i, max_tokens=3 + 4 * i)
                for i, text in enumerate(texts)
            ]
            copies = [
                ask(engine, texts[3], seed, max_tokens=4)
                for seed in range(100 + 3 * turn, 103 + 3 * turn)
            ]
            answers = [future.result(60).token_ids for future in futures]
            for text, future in zip([*texts, *[texts[3]] * 3], [*futures, *copies], strict=True):
                check(model, text, future.result(60))
            new = sum(map(len, texts)) if turn == 0 else 6 * (len(texts) + 3)
            assert engine.fed_tokens - fed <= new + sum(map(len, answers)) + 3 * 4, (
                "the rest is in the cache"
            )
            texts = [
                [*text, *answer, *prompt_of(5, turn)]
                for text, answer in zip(texts, answers, strict=True)
            ]


@pytest.mark.parametrize("kind", SERVED)
def test_a_saved_model_answers_as_it_did(kind: str, tmp_path: Path) -> None:
    """The vocabulary is padded beyond the tokenizer. Padding tokens are sampled as the model would,
    and decode to nothing.
    """
    folder = saved(tmp_path, of_architecture(kind, vocab_size=PADDED_WORDS))
    model, tokenizer = load_pretrained(str(folder))
    with load_engine(str(folder), name=kind) as engine:
        prompt = engine.codec.encode([HumanMessage("What is 6 * 7?")])
        sampling = [Sampling(seed=seed, max_tokens=20) for seed in range(3)]
        done = [
            engine.submit(GenerationRequest(tuple(prompt), each)).result(60) for each in sampling
        ]
        for each in done:
            check(model, prompt, each)
            text = engine.codec.decode(each.token_ids)
            assert text == engine.codec.decode(
                [token for token in each.token_ids if token < len(tokenizer)]
            )
            assert isinstance(engine.codec.parse(text).content, str)
        assert any(token >= len(tokenizer) for each in done for token in each.token_ids)


def test_the_survey_says_what_layers_ask_for() -> None:
    def layers(kind: str) -> list[tuple[int | None, bool, float | None]]:
        found = survey(replica(of_architecture(kind)))
        assert found.objection is None
        return [(each.window, each.sinks, each.softcap) for each in found.layers]

    assert layers("llama") == [(None, False, None)] * 2
    assert layers("mistral") == [(WINDOW, False, None)] * 2
    assert layers("gemma3_text") == [(WINDOW, False, None)] * 2 + [(None, False, None)]
    assert layers("gpt_oss") == [(WINDOW, True, None), (None, True, None)]
    assert {cap for _, _, cap in layers("gemma2")} == {1.0}
    latent = survey(replica(of_architecture("deepseek_v3"))).layers[0].keys
    assert (latent.heads, latent.key_size, latent.value_size) == (4, 16, 12)
    assert len({each.keys for each in survey(replica(of_architecture("gemma4_text"))).layers}) == 2


def test_memory_that_is_not_read_beyond_a_window_changes_nothing() -> None:
    """Keys before the window of every row are left out of a step, whatever their values."""
    model = of_architecture("mistral")
    with TransformersEngine(model, OpenEnded(), name="mistral") as engine:
        text = prompt_of(100)
        ask(engine, text, max_tokens=1).result(60)
        pool = engine._rows.pool
        for layer in range(2):
            for stored in pool.layer(layer):
                stored[:, :, : 100 - WINDOW - 40] = float("nan")
        check(model, text, ask(engine, text, max_tokens=5).result(60))


def mixing_tokens(model: Any) -> Any:
    """The model with an MLP that adds to each token a little of the one before it."""
    model.model.layers[1].mlp.register_forward_hook(
        lambda _, __, output: output + 0.1 * output.roll(1, 1)
    )
    return model


def counting_places(model: Any) -> Any:
    """The model with rotary positions that are counted along the sequence."""
    model.model.rotary_emb.register_forward_pre_hook(
        lambda _, given, named: (
            given,
            {**named, "position_ids": torch.arange(given[0].shape[1])[None]},
        ),
        with_kwargs=True,
    )
    return model


def biased(model: Any) -> Any:
    """The model with an attention that asks for something more."""
    attention = model.model.layers[0].self_attn
    attention.register_forward_pre_hook(
        lambda _, given, named: (given, {**named, "position_bias": torch.zeros(1)}),
        with_kwargs=True,
    )
    return model


LLAMA = ARCHITECTURES["llama"]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "convolutions": (
        lambda: of_architecture("lfm2"),
        "in 2 of its 3 layers something other than attention mixes tokens",
    ),
    "a shift": (
        lambda: mixing_tokens(of_architecture("llama")),
        "something other than attention mixes its tokens",
    ),
    "places": (
        lambda: counting_places(of_architecture("llama")),
        "depends on their place in the sequence",
    ),
    "an argument": (
        lambda: biased(of_architecture("llama")),
        "LlamaAttention asks for position_bias in attention",
    ),
    "two calls": (
        lambda: random_model("diffllama", **LLAMA),
        "DiffLlamaAttention attends more than once a layer",
    ),
    "chunks": (
        lambda: random_model(
            "llama4_text", **LLAMA, head_dim=8, attention_chunk_size=16, num_local_experts=2
        ),
        "has a mask that is neither causal nor a sliding window",
    ),
    "other code": (
        lambda: random_model("falcon", **LLAMA),
        "it does not let its attention be replaced",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_model_that_packed_steps_would_answer_for_wrongly_is_refused(what: str) -> None:
    make, reason = REFUSED[what]
    with pytest.raises(
        ModelError,
        match=rf"cannot answer in this process.*{reason}.*Serve the model by vLLM.*vllm:http",
    ):
        TransformersEngine(make(), OpenEnded(), name=what)


def test_commands_refuse_a_model_in_one_paragraph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(folder: Path, *command: str) -> str:
        assert main([*command, str(folder)]) == 2
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return said.strip().splitlines()[-1]

    run = ("run", "Hi", "--store", str(tmp_path / "s.db"), "--policy")
    convolutions = saved(tmp_path / "lfm2", of_architecture("lfm2", vocab_size=PADDED_WORDS))
    other = saved(tmp_path / "other", tiny_network())
    written = json.loads((other / "config.json").read_text())
    for command in (("models", "check"), run):
        said = refusal(convolutions, *command)
        assert (
            said.startswith("hrm-agent: Lfm2ForCausalLM cannot answer in this process")
            and "vllm:http" in said
        )
        for kind, why in (
            ("zyx9", "does not know that architecture"),
            ("t5", "has no causal language model of that"),
        ):
            (other / "config.json").write_text(json.dumps({**written, "model_type": kind}))
            said = refusal(other, *command)
            assert said.startswith(
                f"hrm-agent: The model {str(other)!r} has model_type {kind!r} in its config.json"
            )
            assert why in said and "vllm:http" in said
