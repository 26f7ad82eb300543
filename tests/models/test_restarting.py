"""Replies that are dropped when weights are published, and sampled again from the new ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any

import pytest

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.restarting import RestartingEngine
from hrm_agent.testing import block_until
from hrm_agent.training.update.trained_policy import copy_of_trained
from hrm_agent.trajectory import Sampling
from tests.support.training.builders import tiny_model

PROMPT = (5, 6, 7)
SECONDS = 60.0


class NeverEnding(ByteCodec):
    """Replies are as long as they may be."""

    end_of_turn = 100_000
    control_token_ids = frozenset((100_000,))


class Gate:
    """Holds the engine at the first token of a reply, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: int) -> None:
        self.reached.set()
        assert self.opened.wait(SECONDS)


def ask(
    engine: Any, on_token: Callable[[int], None] | None = None, seed: int = 0
) -> Future[Completion]:
    return engine.submit(
        GenerationRequest(PROMPT, Sampling(seed=seed, max_tokens=24), on_token=on_token)
    )


def opened() -> RestartingEngine:
    return RestartingEngine(TransformersEngine(tiny_model(), NeverEnding(), name="m"))


def test_what_is_under_way_is_sampled_by_the_new_weights_from_its_beginning() -> None:
    engine, gate, newer = opened(), Gate(), tiny_model(1).state_dict()
    with ThreadPoolExecutor(1) as thread:
        shown, silent, given_up = ask(engine, gate), ask(engine, seed=1), ask(engine, seed=2)
        assert gate.reached.wait(SECONDS)
        published = thread.submit(engine.publish, 1, newer)
        block_until(lambda: len(engine._dropped) == 2)
        given_up.cancel()
        assert not published.done(), "a reply that was shown ends first"
        gate.opened.set()
        published.result(SECONDS)
    assert shown.result(SECONDS).policy_version == 0
    found = silent.result(SECONDS)
    assert (found.policy_version, len(found.token_ids), engine.policy_version) == (1, 24, 1)
    assert engine.restarted == 2
    with pytest.raises(CancelledError):
        given_up.result(SECONDS)
    assert ask(engine, seed=1).result(SECONDS).token_ids == found.token_ids, (
        "the same prompt and seed, the new weights"
    )
    engine.close()


def test_a_cancelled_request_is_not_asked_again_and_a_closed_engine_says_so() -> None:
    engine, gate = opened(), Gate()
    shown, cancelled, waiting = ask(engine, gate), ask(engine, seed=1), ask(engine, seed=2)
    assert gate.reached.wait(SECONDS)
    cancelled.cancel()
    with ThreadPoolExecutor(2) as threads:
        published = threads.submit(engine.publish, 1)
        block_until(lambda: len(engine._dropped) == 1)
        closed = threads.submit(engine.close)
        block_until(lambda: engine._closing)
        gate.opened.set()
        closed.result(SECONDS)
        with pytest.raises(ModelError, match="closed"):
            published.result(SECONDS)
    for reply in (shown, waiting):
        with pytest.raises(ModelError, match="closed"):
            reply.result(SECONDS)


def test_the_engine_does_not_see_weights_that_change_until_they_are_published() -> None:
    model = tiny_model()
    frozen = model.get_input_embeddings().weight.requires_grad_(False)
    with TransformersEngine(copy_of_trained(model), NeverEnding(), name="m") as engine:
        before = ask(engine).result(SECONDS)
        for weight in (each for each in model.parameters() if each.requires_grad):
            weight.data.mul_(1.5)
        assert ask(engine).result(SECONDS).logprobs == pytest.approx(before.logprobs, abs=1e-5)
        own = dict(engine._model.named_parameters())
        assert own["model.embed_tokens.weight"].data_ptr() == frozen.data_ptr(), (
            "what is not trained is shared"
        )
        engine.publish(1, model.state_dict())
        after = ask(engine).result(SECONDS)
        assert after.policy_version == 1 and after.logprobs != pytest.approx(
            before.logprobs, abs=1e-2
        )
