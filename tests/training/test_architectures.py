"""Architectures that people bring, under the trainer: however rows are forwarded, log-probs are the
model's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.model_string import LoadOptions
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.sft import train_sft
from hrm_agent.training.update.adapters import Adapter
from hrm_agent.training.update.batch import ForwardName, MicroBatch, Row, micro_batches
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.logprobs.packed import usable_forward
from tests.models.local.test_engine import OpenEnded, ask
from tests.support.training.architectures import (
    ARCHITECTURES,
    PACKED,
    WINDOW,
    of_architecture,
    saved,
)
from tests.support.training.families import four_roles, rows_of, tool_loops
from tests.training.update.test_adapters import batch_of as batch_sampled_by

FORWARDS: tuple[ForwardName, ...] = ("padded", "packed", "tree")
ROWS = rows_of([*tool_loops(0), *four_roles(1)])


def batch_of(rows: list[Row], forward: ForwardName) -> MicroBatch:
    (batch,) = micro_batches(rows, token_budget=100_000, forward=forward)
    return batch


def plain(model: Any, batch: MicroBatch) -> Tensor:
    """Log-prob of each trained token by one plain pass over the tokens before it and itself."""
    parents = batch.parents_N.tolist()
    ids = batch.token_ids_N.tolist()
    texts: list[list[int]] = []
    for place in batch.loss_indices_K.tolist():
        text: list[int] = []
        while place >= 0:
            text.insert(0, ids[place])
            place = parents[place]
        texts.append(text)
    known: dict[tuple[int, ...], Tensor] = {}
    for text in sorted(texts, key=len, reverse=True):
        if tuple(text) not in known:
            found = model(torch.tensor([text]), use_cache=False).logits[0].float().log_softmax(-1)
            known |= {
                tuple(text[: end + 1]): found[end - 1, text[end]] for end in range(1, len(text))
            }
    return torch.stack([known[tuple(text)] for text in texts])


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_log_probs_are_those_of_plain_passes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = of_architecture(kind).requires_grad_(False)
    assert max(len(row) for row in ROWS) > 2 * WINDOW
    for asked in FORWARDS:
        forward = usable_forward(model, asked)
        assert forward == (asked if kind in PACKED else "padded")
        batch = batch_of(ROWS, forward)
        torch.testing.assert_close(
            token_logprobs(model, batch), plain(model, batch), atol=1e-4, rtol=1e-4
        )
    told = capsys.readouterr().err
    assert ("rows are padded, in place of forward = tree" in told) == (kind not in PACKED)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_gradients_through_a_window_are_those_of_padded_rows(kind: str) -> None:
    model = of_architecture(kind).double()
    weights = list(model.parameters())
    found = {
        forward: torch.autograd.grad(
            (token_logprobs(model, batch_of(ROWS, forward)) ** 2).sum(), weights
        )
        for forward in FORWARDS
    }
    for forward in FORWARDS[1:]:
        for own, expected in zip(found[forward], found["padded"], strict=True):
            torch.testing.assert_close(
                own, expected, atol=1e-5 * float(expected.abs().max()), rtol=1e-5
            )


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_adapter_is_scored_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", of_architecture(kind, vocab_size=1100))
    model, _ = load_for_answers(str(folder), LoadOptions())
    batch = batch_of(ROWS, usable_forward(model, "tree", quiet=True))
    with torch.no_grad():
        bare = token_logprobs(model, batch)
    adapter = Adapter.put_into(
        model, AdapterPart(lora_rank=4), base=str(folder), folder=str(folder), seed=0
    )
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    for name, weight in trained.items():
        torch.nn.init.normal_(weight, std=0.1) if ".lora_B." in name else None
    scored = token_logprobs(model, batch)
    assert all(
        each is not None
        for each in torch.autograd.grad(scored.sum(), list(trained.values()), allow_unused=True)
    )
    assert float((scored - bare).detach().abs().max()) > 0.1
    torch.testing.assert_close(scored, plain(model, batch), atol=1e-4, rtol=1e-4)
    adapter.save(tmp_path / "adapter")
    again, _ = load_for_answers(str(folder), LoadOptions(adapter=str(tmp_path / "adapter")))
    with torch.no_grad():
        torch.testing.assert_close(
            token_logprobs(again, batch), scored.detach(), atol=1e-6, rtol=1e-6
        )
    if kind != "lfm2":
        with TransformersEngine(again, OpenEnded(), name=kind) as engine:
            done = ask(engine, range(3, 40), max_tokens=8).result(60)
        text = torch.tensor([[*range(3, 40), *done.token_ids]])
        expected = (
            model(text, use_cache=False)
            .logits[0, 36:-1]
            .log_softmax(-1)[range(8), list(done.token_ids)]
        )
        torch.testing.assert_close(
            torch.tensor(done.logprobs), expected.detach(), atol=1e-4, rtol=1e-4
        )


def test_trainings_pad_rows_that_cannot_be_packed(
    tmp_path: Path, tokenizer: Any, codec: Any, lessons: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_step(forward: Literal["padded", "packed"]) -> dict[str, float]:
        config = SftConfig(
            steps=1, batch_size=4, learning_rate=1e-3, warmup_steps=1, forward=forward
        )
        row = train_sft(
            of_architecture("lfm2", vocab_size=len(tokenizer)), codec, lessons[:4], config
        )[0]
        return {key: row[key] for key in ("loss", "grad_norm", "tokens")}

    assert first_step("packed") == first_step("padded")
    assert capsys.readouterr().err.count("forward = packed: Lfm2ForCausalLM") == 1
    policy = str(saved(tmp_path, of_architecture("gpt_oss", vocab_size=1100)))
    ours = Learner(
        GrpoConfig.of(policy=policy, forward="tree", learning_rate=1e-3), Accelerator(cpu=True)
    )
    assert ours.forward == "padded" and "attention sinks" in capsys.readouterr().err
    row = ours.update([batch_sampled_by(ours.engine)], 1e-3)
    assert row["stepped"] and row["engine_difference"] < 2e-6
    ours.engine.close()
