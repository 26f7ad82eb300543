"""Answers held to a schema: valid for any weights, reproducible by seed, and without effect on
other answers.
"""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import torch
from langchain_core.messages import HumanMessage

from hrm_agent.models import PolicyModel, policy, using_policy
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local import constrained_decoding as structured
from hrm_agent.models.local.constrained_decoding import Schemas
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.trajectory import FinishReason, MemoryJournal, Recording, Sampling, recording
from tests.models.conftest import make_model

VERDICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["accept", "revise"]},
        "hint": {"type": "string", "maxLength": 12},
        "checks": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["verdict", "hint", "checks", "count"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> Iterator[TransformersEngine]:
    with TransformersEngine(make_model("qwen3"), tokenizer, name="random", threads=1) as opened:
        yield opened


def ask(
    engine: TransformersEngine,
    seed: int,
    schema: Mapping[str, Any] | None = None,
    temperature: float = 1.0,
    max_tokens: int = 250,
) -> Any:
    prompt = tuple(engine.codec.encode([HumanMessage("the sum")]))
    sampling = Sampling(seed=seed, temperature=temperature, max_tokens=max_tokens)
    return engine.submit(GenerationRequest(prompt, sampling, schema=schema))


def test_random_weights_answer_in_valid_json_and_leave_the_others_alone(
    engine: TransformersEngine,
) -> None:
    alone = [ask(engine, seed, max_tokens=30).result(60).token_ids for seed in range(6)]
    held = [ask(engine, seed, VERDICT, (1.0, 0.0, 0.3, 4.0)[seed % 4]) for seed in range(16)]
    free = [ask(engine, seed, max_tokens=30) for seed in range(6)]
    answers: list[Completion] = [future.result(120) for future in held]
    for answer in answers:
        said = json.loads(engine.codec.decode(answer.token_ids))
        jsonschema.validate(said, VERDICT)
        assert list(said) == list(VERDICT["properties"]), "in the order of the schema"
        assert answer.constrained and answer.finish_reason is FinishReason.STOP
    assert len({engine.codec.decode(answer.token_ids) for answer in answers}) > 8
    assert [future.result(60).token_ids for future in free] == alone
    assert not any(future.result().constrained for future in free)
    assert ask(engine, 4, VERDICT).result(60).token_ids == answers[4].token_ids
    check_logprobs(engine, answers[0])


def check_logprobs(engine: TransformersEngine, answer: Completion) -> None:
    """Check that the log-probs are the model's own, over the whole vocabulary."""
    prompt = engine.codec.encode([HumanMessage("the sum")])
    with torch.inference_mode():
        logits = make_model("qwen3")(input_ids=torch.tensor([[*prompt, *answer.token_ids]])).logits[
            0
        ]
    own = torch.log_softmax(logits.float(), -1)[len(prompt) - 1 : -1]
    expected = own.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)
    assert expected.min() < -8, "the schema made it say what it would hardly have said"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "banana"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"enum": ["x" * 70_000]},
        {"type": "string", "allOf": [{"pattern": f".*{letter}.*"} for letter in "abcdefghijkl"]},
    ],
    ids=["wrong", "remote", "huge", "tangled"],
)
def test_a_schema_that_cannot_be_enforced_is_not(
    engine: TransformersEngine, schema: dict[str, Any]
) -> None:
    answer = ask(engine, 1, schema, max_tokens=4).result(60)
    assert not answer.constrained
    assert answer.token_ids == ask(engine, 1, max_tokens=4).result(60).token_ids


def test_a_schema_that_takes_too_long_holds_up_nobody(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(engine, 1, VERDICT, max_tokens=1).result(60)  # reading the vocabulary is not timed
    monkeypatch.setattr(structured, "COMPILE_SECONDS", 0.2)
    slow = {
        "type": "object",
        "properties": {f"property {i}": {"type": "number"} for i in range(1200)},
    }
    assert len(json.dumps(slow)) < structured._LONGEST
    compile_, compiled = Schemas._matcher, threading.Event()
    monkeypatch.setattr(
        Schemas, "_matcher", lambda *args: compiled.wait(60) and compile_(*args[:2], "{}")
    )
    late = ask(engine, 2, slow, max_tokens=3)
    assert len(ask(engine, 3, max_tokens=3).result(60).token_ids) > 0
    assert not late.result(60).constrained
    assert not compiled.is_set(), "nobody waited for it"
    compiled.set()
    engine.schemas.compile(slow).result(60)
    assert ask(engine, 2, slow, max_tokens=3).result(60).constrained, "it serves later ones"


def test_a_vocabulary_that_takes_long_does_not_cost_an_answer_its_schema(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine reads the vocabulary for seconds, and the first schema is still enforced."""
    read, told = Schemas._read_vocabulary, threading.Event()
    monkeypatch.setattr(structured, "COMPILE_SECONDS", 1e9)
    monkeypatch.setattr(Schemas, "_read_vocabulary", lambda self: told.wait(60) and read(self))
    waited: list[float | None] = []

    def wait(futures: list[Any], seconds: float | None = None) -> None:
        waited.append(seconds)
        told.set()
        concurrent.futures.wait(futures, 60)

    monkeypatch.setattr(structured, "wait", wait)
    with TransformersEngine(make_model("llama"), tokenizer, name="slow", threads=1) as engine:
        assert ask(engine, 1, VERDICT, max_tokens=4).result(60).constrained
    assert waited == [None, 1e9], "the schema's own time begins when the vocabulary has been read"


def test_without_the_library_an_answer_is_free_and_the_engine_says_why(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(structured, "find_spec", lambda name: None)
    with TransformersEngine(make_model("llama"), tokenizer, name="bare", threads=1) as bare:
        told = bare.capabilities()
        assert not told.structured and "pip install" in told.lacks[0].hint
        assert not ask(bare, 1, VERDICT, max_tokens=4).result(60).constrained


def test_the_record_says_that_a_schema_chose(engine: TransformersEngine) -> None:
    """The schema is that of `policy(schema=...)`. It is ignored if tools are offered, and under a
    trainer.
    """
    journal = MemoryJournal()
    small = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    small["additionalProperties"] = False
    asking = policy(schema=small, max_tokens=30)
    with recording(Recording(journal, 5)):
        with using_policy(engine):
            message = asking.invoke("Judge.")
            tooled = asking.bind_tools([lookup]).invoke("Judge with a tool.")
        with using_policy(engine, constrain=False):
            trained = asking.invoke("Judge freely.")
    jsonschema.validate(json.loads(message.text), small)
    calls = [
        journal.find_call(said.response_metadata["call_id"]) for said in (message, tooled, trained)
    ]
    assert [call and call.constrained for call in calls] == [True, False, False]
    assert [call and call.trainable for call in calls] == [False, True, True]
    assert isinstance(asking, PolicyModel) and asking.answer_schema == small


def lookup(name: str) -> str:
    """Look a name up."""
    return name
