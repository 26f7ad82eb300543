"""The in-process engine compared with a plain forward pass, and under all kinds of use by callers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from hrm_agent.errors import ContextLengthError, ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local import cache_rows as rows
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.kv_cache import KVPool, KVShape, LayerKeys
from hrm_agent.testing import block_until, tiny_network
from hrm_agent.trajectory import FinishReason, LogprobKind, Sampling


class OpenEnded(ByteCodec):
    """Codec without a control token that these small models ever sample, so that tests determine
    the lengths.
    """

    end_of_turn = 100_000
    control_token_ids = frozenset((100_000,))


def ask(
    engine: TransformersEngine, prompt: Sequence[int], seed: int = 0, **sampling: Any
) -> Future[Completion]:
    return engine.submit(
        GenerationRequest(tuple(prompt), Sampling(seed=seed, **{"max_tokens": 12, **sampling}))
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng((length, seed)).integers(0, 340, length).tolist()


def raw_logprobs(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> torch.Tensor:
    """[answer, vocabulary] by one plain forward pass over the whole text."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    return logits.log_softmax(-1)[len(prompt) - 1 : -1]


def check(
    model: Any, prompt: Sequence[int], completion: Completion, temperature: float = 1.0
) -> None:
    answer = completion.token_ids
    tempered = (raw_logprobs(model, prompt, answer) / temperature).log_softmax(-1)
    plain = tempered[range(len(answer)), list(answer)]
    torch.testing.assert_close(torch.tensor(completion.logprobs), plain, atol=1e-4, rtol=1e-4)


@pytest.fixture(params=[False, True], ids=["", "captured"])
def engine(model: Any, request: pytest.FixtureRequest) -> Iterator[TransformersEngine]:
    with TransformersEngine(
        model, OpenEnded(), name="tiny", max_slots=40, captured=request.param
    ) as engine:
        yield engine


def test_an_answer_continues_from_its_first_tokens(engine: TransformersEngine) -> None:
    """Each index has its own noise, whatever is in the cache."""
    prompts = [prompt_of(length) for length in (1, 40, 7)]
    wholes = [ask(engine, prompt, seed).result() for seed, prompt in enumerate(prompts)]
    engine.publish(0)
    for count in (1, 5, 11):
        for seed, (prompt, whole) in enumerate(zip(prompts, wholes, strict=True)):
            request = GenerationRequest(tuple(prompt), Sampling(seed=seed, max_tokens=12))
            rest = engine.submit(request, whole.token_ids[:count]).result()
            assert rest.token_ids == whole.token_ids[count:]
            assert rest.finish_reason is whole.finish_reason
            assert rest.logprobs == pytest.approx(whole.logprobs[count:], abs=1e-4)
    with pytest.raises(ValueError, match="cannot continue from 12 given tokens"):
        engine.submit(request, wholes[0].token_ids)


def test_logprobs_are_those_of_a_plain_forward_pass(engine: TransformersEngine, model: Any) -> None:
    prompts = [
        prompt_of(length, i)
        for i, length in enumerate((1, 2, 7, 31, 32, 33, 64, 100, 3, 200, 5, 1))
    ]
    futures = [ask(engine, prompt, i, max_tokens=3 + 5 * i) for i, prompt in enumerate(prompts)]
    for i, (prompt, future) in enumerate(zip(prompts, futures, strict=True)):
        completion = future.result(60)
        assert len(completion.token_ids) == len(completion.logprobs) == 3 + 5 * i
        assert completion.finish_reason is FinishReason.LENGTH
        check(model, prompt, completion)
    assert engine.logprob_kind is LogprobKind.TEMPERED


def test_qwen2_runs_too() -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        vocab_size=340,
    )
    config.num_key_value_heads = 1
    model = Qwen2ForCausalLM(config).eval()
    with TransformersEngine(model, OpenEnded(), name="tiny") as engine:
        check(model, prompt_of(20), ask(engine, prompt_of(20)).result(60))


def test_a_conversation_goes_on_in_place(engine: TransformersEngine, model: Any) -> None:
    text = prompt_of(40)
    for turn in range(4):
        fed = engine.fed_tokens
        completion = ask(engine, text, turn).result(60)
        check(model, text, completion)
        new = 40 if turn == 0 else 8
        assert engine.fed_tokens - fed == new + len(completion.token_ids) - 1
        text += [*completion.token_ids, *prompt_of(7, turn)]


def test_many_conversations_go_on_in_place_at_once(engine: TransformersEngine, model: Any) -> None:
    texts = [prompt_of(20 + i, i) for i in range(30)]
    for turn in range(3):
        fed = engine.fed_tokens
        futures = [
            ask(engine, text, 100 * turn + i, max_tokens=4 + i % 9) for i, text in enumerate(texts)
        ]
        answers = [future.result(60).token_ids for future in futures]
        for text, future in zip(texts, futures, strict=True):
            check(model, text, future.result())
        if turn:
            assert engine.fed_tokens - fed == sum(len(answer) for answer in answers) + 5 * len(
                texts
            )
        texts = [
            [*text, *answer, *prompt_of(5, i)]
            for i, (text, answer) in enumerate(zip(texts, answers, strict=True))
        ]


def test_samples_of_one_prompt_feed_it_once(engine: TransformersEngine, model: Any) -> None:
    prompt = prompt_of(90)
    futures = [ask(engine, prompt, seed) for seed in range(16)]
    for future in futures:
        check(model, prompt, future.result(60))
    assert len({future.result().token_ids for future in futures}) > 8
    assert engine.fed_tokens == 90 + 15 + 16 * 11


def test_more_requests_than_rows_all_end(model: Any) -> None:
    with TransformersEngine(model, OpenEnded(), name="tiny", max_slots=3) as engine:
        prompts = [prompt_of(5 + i % 4, i % 7) for i in range(30)]
        for prompt, future in [
            (prompt, ask(engine, prompt, i)) for i, prompt in enumerate(prompts)
        ]:
            check(model, prompt, future.result(60))


def test_little_memory_means_few_rows_not_failure(model: Any) -> None:
    with TransformersEngine(model, OpenEnded(), name="tiny", kv_bytes=600_000) as engine:
        short = [ask(engine, prompt_of(10, i), i) for i in range(20)]
        long = ask(engine, prompt_of(200), max_tokens=100)
        later = [ask(engine, prompt_of(10, i), i) for i in range(20)]
        check(model, prompt_of(200), long.result(60))
        for i, (one, other) in enumerate(zip(short, later, strict=True)):
            check(model, prompt_of(10, i), one.result(60))
            assert one.result().token_ids == other.result(60).token_ids


def test_long_prompts_are_fed_in_portions(
    engine: TransformersEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_STEP_TOKENS", 40)
    prompts = [prompt_of(length, length) for length in (250, 30, 121, 33, 5, 80, 81)]
    futures = [ask(engine, prompt, i, max_tokens=40) for i, prompt in enumerate(prompts)]
    samples = [ask(engine, prompts[0], 50 + i) for i in range(4)]
    for prompt, future in zip([*prompts, *prompts[:1] * 4], [*futures, *samples], strict=True):
        check(model, prompt, future.result(60))
    assert engine.fed_tokens == sum(map(len, prompts)) + 7 * 39 + 4 + 4 * 11


def test_a_long_request_makes_room_among_running_ones(
    engine: TransformersEngine, model: Any
) -> None:
    running = [ask(engine, prompt_of(6 + i), i, max_tokens=60) for i in range(20)]
    running[0].result(60)
    long = [ask(engine, prompt_of(150, i), i, max_tokens=100) for i in range(10)]
    for i, future in enumerate(running):
        check(model, prompt_of(6 + i), future.result(60))
    for i, future in enumerate(long):
        check(model, prompt_of(150, i), future.result(60))


def test_tokens_of_a_seed_do_not_depend_on_the_company(engine: TransformersEngine) -> None:
    alone = [
        ask(engine, prompt_of(12 + seed, 1), seed, max_tokens=20).result(60).token_ids
        for seed in range(6)
    ]
    company = [ask(engine, prompt_of(1 + i, 2), 1000 + i, max_tokens=5 + i % 30) for i in range(64)]
    among = [ask(engine, prompt_of(12 + seed, 1), seed, max_tokens=20) for seed in range(6)]
    assert [future.result(60).token_ids for future in among] == alone
    assert all(len(future.result(60).token_ids) == 5 + i % 30 for i, future in enumerate(company))


def test_a_text_that_makes_the_logits_not_finite_fails_and_others_go_on() -> None:
    model: Any = tiny_network(1, vocab_size=340, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("inf")
    with TransformersEngine(model, OpenEnded(), name="broken") as engine:
        prompts = [[7, *prompt_of(5)], [each for each in prompt_of(9) if each != 7]]
        broken, sound = [
            ask(engine, prompt, seed, max_tokens=4) for seed, prompt in enumerate(prompts)
        ]
        with pytest.raises(ModelError, match="logits of 'broken' are not finite"):
            broken.result(60)
        if 7 not in sound.result(60).token_ids[:-1]:
            check(model, prompts[1], sound.result(60))


def test_temperature_zero_takes_the_most_probable_token(
    engine: TransformersEngine, model: Any
) -> None:
    prompt = prompt_of(15)
    first, second = (ask(engine, prompt, seed, temperature=0).result(60) for seed in (1, 2))
    assert first.token_ids == second.token_ids
    best = raw_logprobs(model, prompt, first.token_ids).argmax(-1)
    assert first.token_ids == tuple(best.tolist())
    check(model, prompt, first)


def test_logprobs_are_at_each_requests_own_temperature(
    engine: TransformersEngine, model: Any
) -> None:
    temperatures = (0.5, 1.0, 2.0, 0.0, 1.0, 0.7)
    prompts = [prompt_of(9 + i, i) for i in range(len(temperatures))]
    together = [
        ask(engine, prompt, i, temperature=t)
        for i, (prompt, t) in enumerate(zip(prompts, temperatures, strict=True))
    ]
    for i, (prompt, temperature, future) in enumerate(
        zip(prompts, temperatures, together, strict=True)
    ):
        completion = future.result(60)
        check(model, prompt, completion, temperature or 1.0)
        assert (
            completion.token_ids
            == ask(engine, prompt, i, temperature=temperature).result(60).token_ids
        )


def test_top_p_stays_in_the_nucleus_and_logprobs_are_of_all_tokens(
    engine: TransformersEngine, model: Any
) -> None:
    prompt = prompt_of(15)
    for seed in range(8):
        completion = ask(engine, prompt, seed, top_p=0.3, temperature=1.5).result(60)
        check(model, prompt, completion, 1.5)
        tempered = (raw_logprobs(model, prompt, completion.token_ids) / 1.5).softmax(-1)
        for probs, token in zip(tempered, completion.token_ids, strict=True):
            more_probable = probs[probs > probs[token] + 1e-5].sum()
            assert more_probable < 0.3


def test_sampling_follows_the_distribution(engine: TransformersEngine, model: Any) -> None:
    prompt = prompt_of(6)
    futures = [ask(engine, prompt, seed, max_tokens=1) for seed in range(3000)]
    counts = np.bincount([future.result(60).token_ids[0] for future in futures], minlength=340)
    probs = raw_logprobs(model, prompt, [0])[0].exp().numpy()
    assert 0.5 * np.abs(counts / 3000 - probs).sum() < 0.12
    top = int(probs.argmax())
    assert abs(counts[top] / 3000 - probs[top]) < 5 * np.sqrt(probs[top] / 3000)


def test_control_tokens_end_an_answer(codec: ChatTemplateCodec, own_model: Any) -> None:
    (other,) = codec.control_token_ids - {codec.end_of_turn}
    with TransformersEngine(own_model, codec, name="tiny") as engine:
        answers = [
            ask(engine, prompt_of(9, seed % 5), seed, temperature=4.0, max_tokens=200)
            for seed in range(60)
        ]
        seen = set[FinishReason]()
        for future in answers:
            completion = future.result(60)
            seen.add(completion.finish_reason)
            assert codec.control_token_ids.isdisjoint(completion.token_ids[:-1])
            ended = {codec.end_of_turn: FinishReason.STOP, other: FinishReason.CONTROL_TOKEN}
            assert completion.finish_reason is ended.get(
                completion.token_ids[-1], FinishReason.LENGTH
            )
    assert seen >= {FinishReason.STOP, FinishReason.CONTROL_TOKEN}


def test_stop_strings_end_an_answer_and_are_kept(codec: ChatTemplateCodec, own_model: Any) -> None:
    with TransformersEngine(own_model, codec, name="tiny") as engine:
        free = ask(engine, prompt_of(9), 3, max_tokens=30).result(60)
        text = codec.decode(free.token_ids)
        stop = text[len(text) // 2 :][:2]
        stopped = ask(engine, prompt_of(9), 3, max_tokens=30, stop=("never said", stop)).result(60)
    assert stopped.finish_reason is FinishReason.STOP
    assert free.token_ids[: len(stopped.token_ids)] == stopped.token_ids
    assert stop in codec.decode(stopped.token_ids)
    assert stop not in codec.decode(stopped.token_ids[:-1])


def test_tokens_are_shown_as_they_are_sampled(engine: TransformersEngine) -> None:
    seen: list[tuple[int, str]] = []
    request = GenerationRequest(
        tuple(prompt_of(5)),
        Sampling(seed=1, max_tokens=9),
        on_token=lambda token: seen.append((token, threading.current_thread().name)),
    )
    completion = engine.submit(request).result(60)
    assert tuple(token for token, _ in seen) == completion.token_ids
    assert {thread for _, thread in seen} == {"engine tiny"}


def test_an_observer_that_fails_fails_its_own_request_only(
    engine: TransformersEngine, model: Any
) -> None:
    def fail(token: int) -> None:
        raise ZeroDivisionError(token)

    beside = ask(engine, prompt_of(6), max_tokens=60)
    failing = engine.submit(GenerationRequest(tuple(prompt_of(5)), Sampling(seed=1), on_token=fail))
    with pytest.raises(ZeroDivisionError):
        failing.result(60)
    check(model, prompt_of(6), beside.result(60))


def test_an_answer_ends_where_the_model_does(engine: TransformersEngine) -> None:
    completion = ask(engine, prompt_of(310), max_tokens=500).result(60)
    assert (len(completion.token_ids), completion.finish_reason) == (10, FinishReason.LENGTH)


def test_prompts_that_cannot_be_answered_are_refused(engine: TransformersEngine) -> None:
    for prompt, message in (([], "empty"), ([5, 340], "340.*339")):
        with pytest.raises(ModelError, match=message):
            ask(engine, prompt).result(60)


def test_a_prompt_that_fills_the_context_window_is_told_apart(engine: TransformersEngine) -> None:
    assert len(ask(engine, prompt_of(319)).result(60).token_ids) == 1
    with pytest.raises(ContextLengthError, match=r"320 tokens.*at most 320"):
        ask(engine, prompt_of(320)).result(60)
    assert not isinstance(ask(engine, []).exception(60), ContextLengthError)


def test_a_cancelled_request_gives_its_row_back_at_once(own_model: Any) -> None:
    started, cancelled = threading.Event(), threading.Event()
    with TransformersEngine(own_model, OpenEnded(), name="tiny", max_slots=1) as engine:
        endless = engine.submit(
            GenerationRequest(
                (1, 2),
                Sampling(seed=1, max_tokens=300),
                on_token=lambda _: (started.set(), cancelled.wait(60)),
            )
        )
        waiting = ask(engine, [3, 4])
        queued = ask(engine, [5, 6])
        assert started.wait(60)
        assert queued.cancel()
        assert endless.cancel()
        cancelled.set()
        assert len(waiting.result(60).token_ids) == 12
        assert waiting.result().queue_seconds > 0
        assert engine.sampled_tokens < 2 + 12, (
            "the endless one is given no token after that at which it stood"
        )
        with pytest.raises(CancelledError):
            endless.result()


def test_a_failure_in_the_loop_fails_what_is_pending_and_nothing_later(
    own_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TransformersEngine(own_model, OpenEnded(), name="tiny", max_slots=2) as engine:
        forward, failure = engine._forward, RuntimeError("out of memory")

        def failing(step: Any) -> torch.Tensor:
            raise failure

        monkeypatch.setattr(engine, "_forward", failing)
        futures = [ask(engine, prompt_of(5, i)) for i in range(5)]
        assert all(future.exception(60) is failure for future in futures)
        monkeypatch.setattr(engine, "_forward", forward)
        check(own_model, prompt_of(5), ask(engine, prompt_of(5)).result(60))


def test_an_engine_that_cannot_recover_answers_everybody_and_closes(
    own_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TransformersEngine(own_model, OpenEnded(), name="tiny", max_slots=2) as engine:
        failure = RuntimeError("out of memory")

        def failing(step: Any) -> torch.Tensor:
            raise failure

        def shrink() -> None:
            raise RuntimeError("device lost")

        monkeypatch.setattr(engine, "_forward", failing)
        monkeypatch.setattr(engine._rows, "shrink", shrink)
        futures = ask_until_refused(engine)
        assert futures[0].exception(60) is failure
        assert all(
            future.exception(60) is failure or "closed" in str(future.exception())
            for future in futures
        )
        engine._loop.join(60)
        with pytest.raises(ModelError, match=r"closed.*device lost"):
            ask(engine, prompt_of(5))
        with pytest.raises(ModelError, match=r"closed.*device lost"):
            engine.publish(1)


def ask_until_refused(engine: TransformersEngine) -> list[Future[Completion]]:
    futures: list[Future[Completion]] = []
    with contextlib.suppress(ModelError):
        for i in range(5):
            futures.append(ask(engine, prompt_of(5, i)))
    return futures


def test_publishing_changes_weights_version_and_cache(own_model: Any) -> None:
    with TransformersEngine(own_model, OpenEnded(), name="tiny") as engine:
        prompt = prompt_of(30)
        before = ask(engine, prompt, 1).result(60)
        assert before.policy_version == 0
        with torch.no_grad():
            for parameter in own_model.parameters():
                parameter.mul_(1.1)
        engine.publish(1)
        after = ask(engine, prompt, 1).result(60)
        assert (after.policy_version, engine.policy_version) == (1, 1)
        assert after.logprobs != before.logprobs
        check(own_model, prompt, after)


@contextlib.contextmanager
def held_up(engine: TransformersEngine) -> Iterator[Future[Completion]]:
    """A request that keeps the engine's loop in its first token until the block ends."""
    reached, freed = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        reached.set()
        freed.wait(60)

    sampling = Sampling(seed=0, max_tokens=60)
    slow = engine.submit(GenerationRequest(tuple(prompt_of(150, 0)), sampling, on_token=hold))
    reached.wait(60)
    try:
        yield slow
    finally:
        freed.set()


def test_the_memory_of_the_cache_can_be_freed(engine: TransformersEngine, model: Any) -> None:
    """Answers afterwards are the same, and an answer that is being sampled keeps its cache."""
    pool, first = engine._rows.pool, engine._rows.pool.rows * engine._rows.pool.length
    prompts = [prompt_of(150, i) for i in range(40)]

    def answers() -> list[Completion]:
        return [future.result(60) for future in [ask(engine, p, i) for i, p in enumerate(prompts)]]

    before = answers()
    assert pool.rows * pool.length > 4 * first
    engine.free_cache()
    assert pool.rows * pool.length == first
    for prompt, after, was in zip(prompts, answers(), before, strict=True):
        assert after.token_ids == was.token_ids
        check(model, prompt, after)
    freeing = threading.Thread(target=engine.free_cache)
    with held_up(engine) as slow:
        freeing.start()
        block_until(lambda: engine._freeing)
    freeing.join(60)
    assert slow.result(60).token_ids[:12] == before[0].token_ids
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        engine.free_cache()


def test_the_loop_of_an_engine_does_not_wait_for_itself(engine: TransformersEngine) -> None:
    asked: list[type[Exception]] = []

    def call(_: object) -> None:
        for waiting in (engine.free_cache, lambda: engine.publish(1)):
            try:
                waiting()
            except RuntimeError as error:
                asked.append(type(error))

    sampling = Sampling(max_tokens=1)
    engine.submit(GenerationRequest((5, 6), sampling, on_token=call)).result(60)
    assert len(asked) == 2


def test_the_cache_is_resized_once_for_all_that_wait(
    engine: TransformersEngine, model: Any
) -> None:
    """Conversations that come back need no further row."""
    pool = engine._rows.pool
    prompts = [prompt_of(20 + 3 * i, i) for i in range(39)]
    with held_up(engine):
        before = pool.resized
        futures = [ask(engine, p, i, max_tokens=20) for i, p in enumerate(prompts)]
    first = [future.result(60) for future in futures]
    assert (pool.resized, pool.rows) == (before + 1, 40)
    for prompt, answer in zip(prompts, first, strict=True):
        again = [*prompt, *answer.token_ids, 7, 8]
        check(model, again, ask(engine, again, 1, max_tokens=4).result(60))
    assert pool.resized == before + 1


def test_a_longer_request_may_arrive_while_others_get_their_rows(
    engine: TransformersEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed: Any = engine._place
    longer = prompt_of(300, 1)
    late: list[Future[Completion]] = []

    def place(job: Any) -> bool:
        if not late:
            late.append(ask(engine, longer, 1))
        return placed(job)

    monkeypatch.setattr(engine, "_place", place)
    check(model, prompt_of(20), ask(engine, prompt_of(20)).result(60))
    check(model, longer, late[0].result(60))


def test_rows_are_moved_alike_by_index_and_one_by_one() -> None:
    layer = LayerKeys(heads=2, key_size=4, value_size=4)
    shape = KVShape((layer, layer), torch.float32, torch.device("cpu"))
    moved: list[list[torch.Tensor]] = []
    for by_index in (False, True):
        pool: Any = KVPool(shape, max_rows=8, max_length=16, max_bytes=1 << 20)
        pool._by_index = by_index
        for index, block in enumerate(pool._blocks):
            block.copy_(torch.arange(block.numel()).reshape(block.shape) + index)
        was = [block.clone() for block in pool._blocks]
        pool.move([])
        pool.move([(0, 3, 16), (3, 0, 16), (5, 1, 16)])
        for block, before in zip(pool._blocks, was, strict=True):
            assert torch.equal(block[[3, 0, 1]], before[[0, 3, 5]])
        moved.append(pool._blocks)
    for one, other in zip(*moved, strict=True):
        assert torch.equal(one, other)


def test_a_cache_that_cannot_grow_fails_its_requests_and_no_later_one(
    engine: TransformersEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool: Any = engine._rows.pool
    made = pool._block
    calls = itertools.count()

    def block(heads: int, size: int) -> torch.Tensor:
        if next(calls) == 1:
            raise MemoryError("no room for the second block")
        return made(heads, size)

    monkeypatch.setattr(pool, "_block", block)
    with pytest.raises(MemoryError, match="no room"):
        ask(engine, prompt_of(150, 1), 1).result(60)
    check(model, prompt_of(150, 2), ask(engine, prompt_of(150, 2), 2).result(60))


def test_publishing_a_state_dict_waits_for_requests_under_way(own_model: Any) -> None:
    weights = {key: value * 1.1 for key, value in own_model.state_dict().items()}
    del weights["lm_head.weight"]
    started = threading.Event()
    with TransformersEngine(own_model, OpenEnded(), name="tiny") as engine:
        expected = ask(engine, prompt_of(8), 5, max_tokens=60).result(60)
        slow = engine.submit(
            GenerationRequest(
                tuple(prompt_of(8)),
                Sampling(seed=5, max_tokens=60),
                on_token=lambda _: (started.set(), time.sleep(0.002)),
            )
        )
        assert started.wait(60)
        engine.publish(7, weights)
        assert slow.done()
        assert (slow.result().token_ids, slow.result().policy_version) == (expected.token_ids, 0)
        after = ask(engine, prompt_of(8), 5).result(60)
        assert after.policy_version == 7
        check(own_model, prompt_of(8), after)


def test_publishing_other_weights_is_refused_and_changes_nothing(own_model: Any) -> None:
    with TransformersEngine(own_model, OpenEnded(), name="tiny") as engine:
        weights = dict(own_model.state_dict())
        first = {key: value.clone() for key, value in weights.items()}
        weights["extra"] = torch.zeros(1)
        with pytest.raises(ModelError, match="extra"):
            engine.publish(1, weights)
        with pytest.raises(ModelError, match="missing"):
            engine.publish(1, {})
        assert engine.policy_version == 0
        assert all(torch.equal(value, first[key]) for key, value in own_model.state_dict().items())


def test_the_model_itself_is_left_as_it_was(own_model: Any) -> None:
    own_model.train()
    with TransformersEngine(own_model, OpenEnded(), name="tiny") as engine:
        ask(engine, prompt_of(5)).result(60)
        assert own_model.training
        assert own_model.config._attn_implementation != engine._model.config._attn_implementation
        assert (
            engine._model.get_input_embeddings().weight is own_model.get_input_embeddings().weight
        )
        loss = own_model(torch.tensor([prompt_of(5)]), labels=torch.tensor([prompt_of(5)])).loss
        loss.backward()


def test_closing_fails_what_is_pending(own_model: Any) -> None:
    engine = TransformersEngine(own_model, OpenEnded(), name="tiny", max_slots=1)

    def until_closing(_: int) -> None:
        while not engine._closing:
            time.sleep(0.01)

    first = GenerationRequest(
        tuple(prompt_of(5)), Sampling(seed=0, max_tokens=300), on_token=until_closing
    )
    futures = [
        engine.submit(first),
        *(ask(engine, prompt_of(5, i), max_tokens=300) for i in (1, 2)),
    ]
    engine.close()
    engine.close()
    for future in futures:
        assert isinstance(future.exception(60), ModelError)
    with pytest.raises(ModelError, match="closed"):
        ask(engine, prompt_of(5))
    with pytest.raises(ModelError, match="closed"):
        engine.publish(1)


def test_an_idle_engine_uses_no_processor_and_wakes_up(engine: TransformersEngine) -> None:
    ask(engine, prompt_of(5)).result(60)
    assert engine._loop.ident is not None
    clock, looks = time.pthread_getcpuclockid(engine._loop.ident), deque[float](maxlen=20)

    def rests() -> bool:
        looks.append(time.clock_gettime(clock))
        return looks.count(looks[0]) == looks.maxlen

    block_until(rests)
    assert ask(engine, prompt_of(5)).result(60)


def test_submitting_from_many_threads(engine: TransformersEngine, model: Any) -> None:
    futures: list[tuple[list[int], Future[Completion]]] = []

    def submit(worker: int) -> None:
        for i in range(6):
            prompt = prompt_of(4 + i, worker)
            futures.append((prompt, ask(engine, prompt, worker)))

    threads = [threading.Thread(target=submit, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(futures) == 48
    for prompt, future in futures:
        check(model, prompt, future.result(60))
