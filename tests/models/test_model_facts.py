"""Facts of a model before it is loaded, and the default limit of an answer's length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ModelError
from hrm_agent.models import policy, using_policy
from hrm_agent.models.loading.load_weights import load_engine
from hrm_agent.models.model_facts import facts_of
from hrm_agent.models.own_defaults import usual_answer
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.settings import RunSettings
from hrm_agent.store import RunStore
from hrm_agent.testing import tiny_model
from hrm_agent.trajectory import Call, Recording, Sampling, recording
from tests.support.training.english import without_defaults

CONFIG: Any = {
    "metadata": {
        "thread_id": "t",
        "langgraph_checkpoint_ns": "ask:1",
        "langgraph_node": "ask",
        "langgraph_step": 1,
    }
}


class LongAnswers(ScriptedEngine):
    """A script of a model that takes 8,192 tokens."""

    usual_answer = usual_answer(8192)


def asked(store: RunStore, engine: Any, settings: RunSettings | None = None, **own: Any) -> Call:
    """The record of one call that is made, or found."""
    sampling = (settings or RunSettings()).runner_options()["sampling"]
    with using_policy(engine, sampling), recording(Recording(store.journal, 7)):
        policy(**own).invoke([HumanMessage("6 * 7?")], CONFIG)
    return store.journal.calls_of_task("t", "1")[-1]


@pytest.mark.parametrize(
    ("context", "tokens"),
    [(8192, 2048), (131_072, 2048), (4096, 2048), (1024, 512), (3, 1), (1, 1), (None, 512)],
)
def test_an_answer_has_half_of_the_context_and_2048_tokens_at_most(
    context: int | None, tokens: int
) -> None:
    assert usual_answer(context) == tokens


@pytest.mark.parametrize("name", ["cold-start", "trained", "roles-cold-start"])
def test_the_built_in_policies_bring_their_own(name: str) -> None:
    facts = facts_of(f"builtin:{name}")
    assert (facts.answer, facts.own.train_rl.max_tokens, facts.measure().parameters) == (
        512,
        256,
        524_800,
    )


def test_a_model_of_any_other_folder_is_measured_and_brings_none(tmp_path: Path) -> None:
    folder = without_defaults(tiny_model(tmp_path / "model", max_position_embeddings=600))
    facts = facts_of(str(folder))
    assert facts.own.model_dump(exclude_none=True) == {"run": {}, "train_rl": {}, "train_sft": {}}
    assert facts.measure() is facts.measure(), "a model is built once for it"
    engine = load_engine(str(folder), name="m")
    with engine:
        assert engine.usual_answer == facts.answer == 300 == facts.measure().context // 2  # type: ignore[operator]
        assert engine.capabilities().parameters == facts.measure().parameters


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"train_sft": {"learning_rat": 1e-3}},
            "an invalid value in hrm_agent.train_sft.learning_rat",
        ),
        (
            {"run": {"max_tokens": 0}},
            "an invalid value in hrm_agent.run.max_tokens: Input should be greater than",
        ),
        (7, "an invalid value in hrm_agent"),
    ],
)
def test_defaults_that_mean_nothing_are_refused(given: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hrm_agent": given}))
    with pytest.raises(ModelError, match=said):
        facts_of(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "own", "tokens"),
    [
        (RunSettings(), {}, 2048),
        (RunSettings(), {"max_tokens": 1500}, 1500),
        (RunSettings(), {"budget": 1500}, 1500),
        (RunSettings(), {"max_tokens": 4096}, 4096),
        (RunSettings(), {"budget": 4096}, 2048),
        (RunSettings(), {"max_tokens": 1500, "budget": 40}, 40),
        (RunSettings(max_tokens=100), {"max_tokens": 1500}, 100),
        (RunSettings(max_tokens=4000), {"max_tokens": 3000}, 3000),
    ],
)
def test_without_a_limit_an_answer_ends_at_the_models_own_and_the_record_says_at_which(
    settings: RunSettings, own: dict[str, Any], tokens: int, store: RunStore
) -> None:
    with LongAnswers(["word " * 2000]) as engine:
        call = asked(store, engine, settings, **own)
        sent = engine.requests[0].sampling
    assert call.sampling is not None and call.sampling.max_tokens == sent.max_tokens == tokens
    assert call.sampling.seed == sent.seed and call.sampled_tokens == tokens


def test_a_request_is_the_same_whatever_the_model_and_records_of_earlier_versions_are_found(
    store: RunStore,
) -> None:
    """Earlier versions ended each answer at 512 tokens if no limit was given."""
    with ScriptedEngine(["word " * 900], name="one") as engine:
        before = asked(store, engine, max_tokens=4096)
    assert (
        before.sampling is not None and before.sampling.max_tokens == Sampling().max_tokens == 512
    )
    with LongAnswers([]) as engine:
        assert asked(store, engine, max_tokens=4096) == before
        assert engine.requests == [], "the answer is on record"
