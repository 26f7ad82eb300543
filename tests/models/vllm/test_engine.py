"""The engine over HTTP with a server that answers as vLLM does: failures between the two."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from langchain_core.messages import AIMessage

from hrm_agent.errors import ContextLengthError, ModelError
from hrm_agent.models import using_policy
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.loading.policy_loader import load_codec
from hrm_agent.models.vllm import connection as connection_module
from hrm_agent.models.vllm import engine as engine_module
from hrm_agent.models.vllm import server as server_module
from hrm_agent.models.vllm.engine import VllmEngine, open_vllm
from hrm_agent.models.vllm.server import client_options, look_up, parse_address
from hrm_agent.store import open_store
from hrm_agent.testing import block_until
from hrm_agent.trajectory import FinishReason, LogprobKind, Recording, Sampling, recording
from tests.models.test_contract import WAYS, calls_of, graph_of
from tests.support.vllm.stub import (
    END,
    VllmStub,
    choice,
    event,
    hangs_up,
    logprob,
    says,
    says_of,
    streams,
)

PROMPT = tuple(b"the prompt")


@pytest.fixture
def stub() -> Iterator[VllmStub]:
    with VllmStub() as stub:
        yield stub


def engine_of(stub: VllmStub, options: str = "", **more: Any) -> VllmEngine:
    address = parse_address(f"vllm:{stub.url}{options}")
    return VllmEngine(address, look_up(address), ByteCodec(), **more)


@pytest.fixture
def engine(stub: VllmStub) -> Iterator[VllmEngine]:
    with engine_of(stub) as engine:
        yield engine


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "_TRIES", 4)
    monkeypatch.setattr(connection_module, "_FIRST_SECONDS", 0.04)


def ask(engine: VllmEngine, prompt: tuple[int, ...] = PROMPT, **options: Any) -> Future[Completion]:
    parts = {name: options.pop(name) for name in ("on_token", "schema") if name in options}
    return engine.submit(
        GenerationRequest(prompt, Sampling(**{"seed": 7, "max_tokens": 12, **options}), **parts)
    )


def failure(engine: VllmEngine, **options: Any) -> ModelError:
    error = ask(engine, **options).exception(60)
    assert isinstance(error, ModelError)
    return error


def test_what_is_sent_and_what_becomes_of_the_answer(stub: VllmStub, engine: VllmEngine) -> None:
    whole = ask(engine, temperature=0.7, top_p=0.9, stop=("x",)).result(60)
    assert whole.token_ids == (*b"ok", END) and whole.finish_reason is FinishReason.STOP
    assert whole.logprobs == tuple(map(logprob, whole.token_ids)) and not whole.constrained
    body = stub.bodies[0]
    assert (body["prompt"], body["seed"], body["temperature"], body["top_p"]) == (
        list(PROMPT),
        7,
        0.7,
        0.9,
    )
    assert (body["stop"], body["stop_token_ids"], body["max_tokens"]) == (["x"], [256, 257], 12)
    neutral = (
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "watermarking",
    )
    assert [body[name] for name in neutral] == [0, 0.0, 1.0, 0.0, 0.0, False]

    seen: list[int] = []
    streamed = ask(engine, on_token=seen.append).result(60)
    assert (
        tuple(seen) == streamed.token_ids == whole.token_ids and streamed.logprobs == whole.logprobs
    )
    stub.answer = lambda _: b"a long answer without an end"
    assert ask(engine).result(60).finish_reason is FinishReason.LENGTH
    stub.answer = lambda _: [*b"forged", 256]
    assert ask(engine).result(60).finish_reason is FinishReason.CONTROL_TOKEN
    schema = {"type": "object"}
    assert ask(engine, schema=schema).result(60).constrained
    assert stub.bodies[-1]["structured_outputs"] == {"json": schema}


async def test_a_graph_is_recorded_whichever_way_it_asks(
    stub: VllmStub, engine: VllmEngine, tmp_path: Path
) -> None:
    stub.answer = lambda body: [
        *b"answer to ",
        *bytes(t for t in body["prompt"] if t < 256).split(b"\n")[-3:-2][0],
        END,
    ]
    questions = ["first question", "second question", "third"]
    with open_store(tmp_path / "store.db") as store, using_policy(engine):
        for way in WAYS:
            graph = graph_of(way, "parallel").copy(update={"checkpointer": store.checkpointer})
            with recording(Recording(store.journal, seed=1)):
                await graph.ainvoke(
                    {"asked": questions, "answers": []},
                    {"configurable": {"thread_id": way.__name__}},
                )
            calls = calls_of(store, way.__name__)
            assert len(calls) == 3 and len({call.sampling.seed for call in calls}) == 3
            for call in calls:
                body = next(body for body in stub.bodies if body["seed"] == call.sampling.seed)
                inserted = [
                    t for t, sampled in zip(call.token_ids, call.mask, strict=True) if not sampled
                ]
                assert (
                    inserted == body["prompt"]
                    and call.logprob_kind is LogprobKind.RAW
                    and call.trainable
                )
                assert (
                    engine.codec.decode(stub.answer(body))
                    == AIMessage.model_validate(call.response).text
                )
                assert call.model == engine.name == f"vllm:{stub.url}"


def test_many_requests_are_with_the_server_at_once_and_no_more_than_allowed(stub: VllmStub) -> None:
    stub.seconds, stub.together = 0.02, 8
    with engine_of(stub, max_requests=8) as engine:
        futures = [ask(engine, (i,)) for i in range(40)]
        answers = [future.result(60) for future in futures]
    assert stub.most_busy == 8 and len(stub.bodies) == 40
    assert max(answer.queue_seconds for answer in answers) > 0.1


@pytest.mark.parametrize("streaming", [False, True])
def test_cancelling_hangs_up(stub: VllmStub, engine: VllmEngine, streaming: bool) -> None:
    stub.seconds, stub.answer = 0.5, lambda _: b"x" * 500
    future = ask(engine, max_tokens=400, **({"on_token": lambda _: None} if streaming else {}))
    block_until(lambda: stub.busy == 1)
    assert future.cancel()
    block_until(lambda: stub.busy == 0)
    assert stub.hung_up == 1
    with pytest.raises(CancelledError):
        future.result(60)


def test_closing_fails_what_is_pending(stub: VllmStub) -> None:
    stub.seconds = 600
    engine = engine_of(stub, max_requests=2)
    futures = [ask(engine) for _ in range(5)]
    block_until(lambda: stub.busy == 2)
    engine.close()
    engine.close()
    assert all("closed" in str(future.exception(60)) for future in futures)
    with pytest.raises(ModelError, match="closed"):
        ask(engine)
    block_until(lambda: stub.busy == 0)


def test_a_server_that_is_busy_or_cuts_the_line_is_asked_again(
    stub: VllmStub, engine: VllmEngine
) -> None:
    for trouble in (
        says({"error": {"message": "busy"}}, 503),
        says("slow down", 429, **{"Retry-After": "0.1"}),
        hangs_up,
    ):
        stub.next.extend([trouble, trouble])
        assert ask(engine).result(60).token_ids == (*b"ok", END)
    stub.next.extend([says(b"Internal Server Error", 500)] * 4)
    assert "HTTP 500): Internal Server Error" in failure(engine).message
    assert len({json.dumps(body) for body in stub.bodies}) == 1


def test_a_server_that_dies_and_comes_back(
    stub: VllmStub, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(engine).result(60).token_ids
    stub.stop()
    error = failure(engine)
    assert "does not answer" in error.message and "hrm-agent resume" in error.hint
    tries, opened = list[Any](), connection_module._Attempt

    def attempt(*parts: Any) -> Any:
        tries.append(opened(*parts))
        return tries[-1]

    monkeypatch.setattr(connection_module, "_Attempt", attempt)
    monkeypatch.setattr(connection_module, "_TRIES", 2000)
    monkeypatch.setattr(connection_module, "_LONGEST_SECONDS", 0.1)
    future = ask(engine)
    block_until(lambda: len(tries) > 2)
    assert not future.done()
    stub.start()
    assert future.result(60).token_ids == (*b"ok", END)


def test_nothing_is_asked_again_once_tokens_were_shown(stub: VllmStub, engine: VllmEngine) -> None:
    seen: list[int] = []
    stub.next.append(
        streams(lambda body: event({"choices": [choice([65], prompt=body["prompt"], reason=None)]}))
    )
    error = failure(engine, on_token=seen.append)
    assert "in the middle of an answer" in error.message and "hrm-agent resume" in error.hint
    assert seen == [65] and len(stub.bodies) == 1


def begun(*tokens: int, **other: Any) -> Any:
    return lambda body: event(
        {"choices": [choice(tokens, prompt=body["prompt"], reason=None, **other)]}
    )


HOSTILE = {
    "not JSON": (says(b"<html>welcome</html>"), "is not a vLLM server"),
    "deep JSON": (says(b"[" * 200_000), "is not a vLLM server"),
    "a list": (says([]), "is not a vLLM server"),
    "nothing": (says({}), "sent no answer"),
    "no choice": (says({"choices": []}), "did not finish"),
    "choices of text": (says({"choices": ["a"]}), "sent no answer"),
    "two choices": (says({"choices": [{}, {}]}), "sent no answer"),
    "an error": (says({"error": {"message": "engine died"}}), "engine died"),
    "another prompt": (says_of(lambda _: choice([65], prompt=[1, 2])), "saw a prompt that differs"),
    "no prompt": (says_of(lambda _: choice([65])), "does not show the prompt"),
    "no ids": (
        says_of(lambda b: choice([65], prompt=b["prompt"], token_ids=None)),
        "without an id or a log-prob",
    ),
    "odd ids": (
        says_of(lambda b: choice([65], prompt=b["prompt"], token_ids=["A"])),
        "without an id or a log-prob",
    ),
    "no log-probs": (
        says_of(lambda b: choice([65], prompt=b["prompt"], logprobs=None)),
        "without an id or a log-prob",
    ),
    "fewer log-probs": (
        says_of(lambda b: choice([1], prompt=b["prompt"], token_ids=[1, 2])),
        "without an id or",
    ),
    "NaN": (
        says_of(
            lambda b: choice([65], prompt=b["prompt"], logprobs={"token_logprobs": [float("nan")]})
        ),
        "without an id or a log-prob",
    ),
    "positive": (
        says_of(lambda b: choice([65], prompt=b["prompt"], logprobs={"token_logprobs": [3.0]})),
        "without an id or a log-prob",
    ),
    "a huge id": (
        says_of(lambda b: choice([10**30], prompt=b["prompt"])),
        "without an id or a log-prob",
    ),
    "a huge log-prob": (
        says_of(
            lambda b: choice([65], prompt=b["prompt"], logprobs={"token_logprobs": [-(10**400)]})
        ),
        "without an id or a log-prob",
    ),
    "too many": (
        says_of(lambda b: choice([65] * 13, prompt=b["prompt"])),
        "more than the 12 requested tokens",
    ),
    "aborted": (
        says_of(lambda b: choice([65], prompt=b["prompt"], reason="abort")),
        "did not finish",
    ),
    "empty": (says_of(lambda b: choice([], prompt=b["prompt"])), "did not finish"),
    "a redirection": (says(b"", 307, Location="http://127.0.0.1:1/"), "HTTP 307"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers(name: str, stub: VllmStub, engine: VllmEngine) -> None:
    misbehaviour, said = HOSTILE[name]
    stub.next.append(misbehaviour)
    assert said in failure(engine).message
    assert len(stub.bodies) == 1
    assert ask(engine).result(60).token_ids == (*b"ok", END)


def test_hostile_streams(
    stub: VllmStub, engine: VllmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "_MAX_LINE", 1000)
    monkeypatch.setattr(connection_module, "_MAX_BYTES", 100_000)
    done = b"data: [DONE]\n\n"
    cases = [
        (streams(b"data: " + b"x" * 5000), "that is too long"),
        (streams(*[b": comment\n" * 1000] * 20), "more than"),
        (streams(b"data: nonsense\n\n"), "is not a vLLM server"),
        (
            streams(begun(65), event({"error": {"message": "out of memory", "code": 500}}), done),
            "out of memory",
        ),
        (streams(begun(65), done), "did not finish"),
        (streams(*[begun(65)] * 40), "more than the 12 requested tokens"),
        (streams(begun(65, finish_reason="stop"), begun(66), done), "after the end"),
    ]
    for misbehaviour, said in cases:
        stub.next.append(misbehaviour)
        assert said in failure(engine, on_token=lambda _: None).message
    split = event({"choices": [choice([65, END], prompt=list(PROMPT))]}) + done
    stub.next.append(
        streams(b": hello\r\n\r\n", *(split[i : i + 3] for i in range(0, len(split), 3)))
    )
    assert ask(engine, on_token=lambda _: None).result(60).token_ids == (65, END)


def test_a_caller_that_fails_gets_its_own_error_and_the_line_is_cut(
    stub: VllmStub, engine: VllmEngine
) -> None:
    def broken(token: int) -> None:
        raise ZeroDivisionError

    stub.seconds = 600
    assert isinstance(ask(engine, on_token=broken).exception(60), ZeroDivisionError)
    block_until(lambda: stub.hung_up == 1)


def test_limits_of_time_and_length(stub: VllmStub) -> None:
    stub.models[0]["max_model_len"] = 16
    with engine_of(stub) as engine:
        stub.answer = lambda _: b"x" * 100
        assert len(ask(engine, max_tokens=99).result(60).token_ids) == 16 - len(PROMPT)
        assert isinstance(failure(engine, prompt=(1,) * 16), ContextLengthError)
        stub.next.append(
            says({"error": {"message": "This model's maximum context length is 8 tokens."}}, 400)
        )
        assert isinstance(failure(engine), ContextLengthError)
    with engine_of(stub, "?timeout=0.3") as engine:
        stub.next.append(streams(b"data: ", hang=True))
        error = failure(engine, on_token=lambda _: None)
        assert "within 0.3 s" in error.message and "timeout=" in error.hint
        block_until(lambda: stub.busy == 0)


def test_a_schema_that_the_server_refuses_is_left_out(stub: VllmStub, engine: VllmEngine) -> None:
    refused = says({"error": {"message": "the grammar has unsupported features"}}, 400)
    stub.next.append(refused)
    assert not ask(engine, schema={"type": "odd"}).result(60).constrained
    assert "structured_outputs" not in stub.bodies[-1]
    stub.next.append(refused)
    assert "refused the request: the grammar" in failure(engine).message


def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with VllmStub(key="hush") as stub:
        with pytest.raises(ModelError, match=r"does not accept the key.*OTHER_KEY"):
            engine_of(stub, "?key_env=OTHER_KEY")
        monkeypatch.setenv("OTHER_KEY", "hush")
        with engine_of(stub, "?key_env=OTHER_KEY") as engine:
            assert ask(engine).result(60).token_ids and "hush" not in engine.name


@pytest.mark.parametrize("key", ["hush\nhush", "hüsh"])
def test_a_key_that_cannot_be_sent_is_not_shown_either(
    stub: VllmStub, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OTHER_KEY", key)
    with pytest.raises(ModelError, match="OTHER_KEY holds characters") as caught:
        engine_of(stub, "?key_env=OTHER_KEY")
    assert "sh" not in str(caught.value)


def test_reading_recorded_tokens_sends_no_key_to_another_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def look(address: Any) -> Any:
        asked.append(client_options(address)["headers"].get("Authorization", ""))
        raise ModelError("no")

    monkeypatch.setenv("OTHER_KEY", "hush")
    monkeypatch.setattr(engine_module, "look_up", look)
    for host in ("127.0.0.1", "elsewhere.example"):
        with pytest.raises(ModelError):
            load_codec(f"vllm:http://{host}/v1?key_env=OTHER_KEY")
    assert asked == ["Bearer hush", ""]


def test_a_server_that_is_looked_up_cannot_fill_the_memory(
    stub: VllmStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_LOOK_UP_BYTES", 10_000)
    stub.models[0]["padding"] = "x" * 20_000
    with pytest.raises(ModelError, match="does not end"):
        engine_of(stub)
    packed = gzip.compress(json.dumps({"data": [{"id": "served", "root": "here"}]}).encode())

    async def bomb(request: Any) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    monkeypatch.setattr(stub, "_models", bomb)
    stub.stop()
    stub.start()
    with pytest.raises(ModelError, match="is not a vLLM server"):
        engine_of(stub)


FORKED = """
import os, sys, warnings
from hrm_agent.errors import ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.vllm.engine import VllmEngine
from hrm_agent.models.vllm.server import Served, parse_address
from hrm_agent.trajectory import LogprobKind, Sampling

served = Served("m", "t", 100, LogprobKind.RAW)
engine = VllmEngine(parse_address("vllm:http://127.0.0.1:9/v1"), served, ByteCodec())
child = os.fork()
if not child:
    try:
        engine.submit(GenerationRequest((1,), Sampling(max_tokens=1)))
    except ModelError:
        sys.exit(7)
    sys.exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.whole
def test_a_fork_neither_asks_nor_hangs_at_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "7", done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vllm:", "names no server"),
        ("vllm:127.0.0.1:8000", "names no server"),
        ("vllm:ftp://a/v1", "names no server"),
        ("vllm:http://a:99999/v1", "names no server"),
        ("vllm:http://..../v1", "names no server"),
        ("vllm:http://xn--/v1", "names no server"),
        ("vllm:http://[v1.x]/v1", "names no server"),
        ("vllm:http://a/\0", "names no server"),
        ("vllm:http://me:hush@a/v1", "contains a password"),
        ("vllm:http://a/v1?api_key=hush", "VLLM_API_KEY"),
        ("vllm:http://a/v1?modle=b", "Did you mean 'model'"),
        ("vllm:http://a/v1?timeout=nan", "is not a number of seconds"),
    ],
)
def test_addresses_that_cannot_be(name: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_address(name)
    assert said in str(caught.value) and "hush" not in str(caught.value)


def test_what_is_served_is_asked_once(stub: VllmStub) -> None:
    def served(options: str = "") -> Any:
        return look_up(parse_address(f"vllm:http://127.0.0.1:{stub.port}{options}"))

    stub.models.append({"id": "tuned", "root": "an/adapter", "parent": "served"})
    assert (served().model, served().tokenizer, served().max_length) == (
        "served",
        "no/such-folder",
        4096,
    )
    tuned = served("/v1/?model=tuned&tokenizer=here")
    assert (tuned.model, tuned.tokenizer, tuned.max_length) == ("tuned", "here", 4096)
    assert served("?model=tuned").tokenizer == "no/such-folder"
    with pytest.raises(ModelError, match=r"serves no model 'tunde'.*Did you mean 'tuned'"):
        served("?model=tunde")
    stub.mode = "processed_logprobs"
    assert served().logprob_kind is LogprobKind.SAMPLED
    stub.mode = "raw_logits"
    with pytest.raises(ModelError, match="--logprobs-mode raw_logprobs"):
        served()
    stub.models[:] = [{"object": "model"}]
    with pytest.raises(ModelError, match="lists no model"):
        served()
    stub.stop()
    with pytest.raises(ModelError, match="does not answer"):
        served()
    stub.start()


def test_opening_by_its_string(stub: VllmStub, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'no/such-folder' cannot be loaded.*\?tokenizer=PATH"):
        open_vllm(f"vllm:{stub.url}")
    tokenizer.save_pretrained(tmp_path)
    stub.tokenize = lambda text: tokenizer.encode(text, add_special_tokens=False)
    with open_vllm(f"vllm:{stub.url}?tokenizer={tmp_path}") as engine:
        stub.answer = lambda _: engine.codec.encode_answer("the sum")
        assert engine.codec.decode(ask(engine).result(60).token_ids) == "the sum"
        assert load_codec(engine.name).decode(engine.codec.encode_answer("the sum")) == "the sum"
        told = engine.capabilities()
        assert (told.kind, told.logprobs, told.max_length, told.lacks) == (
            "vllm",
            LogprobKind.RAW,
            4096,
            (),
        )
    stub.tokenize = lambda text: [1, 2, 3]
    with pytest.raises(ModelError, match="is not the tokenizer of the server"):
        open_vllm(f"vllm:{stub.url}?tokenizer={tmp_path}")


async def test_callers_on_other_loops_do_not_wait_for_each_other(
    stub: VllmStub, engine: VllmEngine
) -> None:
    stub.together = 10
    answers = await asyncio.gather(*(asyncio.wrap_future(ask(engine, (i,))) for i in range(10)))
    assert all(answer.token_ids == (*b"ok", END) for answer in answers)
