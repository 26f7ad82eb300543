"""Defaults of a training by the model: rates by size and adapter, batches and steps by the data,
and reports of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.models.model_facts import ModelFacts, ModelSize, facts_of
from hrm_agent.models.own_defaults import OwnDefaults
from hrm_agent.training.config.commands import DemoConfig, GrpoConfig, SftConfig, TrainingStage
from hrm_agent.training.config.fitted import (
    Fitted,
    decided,
    fit,
    fit_grpo,
    fit_sft,
    left_open,
    with_recorded,
)
from hrm_agent.training.config.rules import with_values
from hrm_agent.training.small_policy.architecture import SMALL_DEFAULTS
from hrm_agent.training.small_policy.trained import REINFORCEMENT

MILLION = 10**6
BILLION = 10**9
SMOLLM = ModelSize(135 * MILLION, 8192, 2_801_664)


def facts(size: ModelSize = SMOLLM) -> ModelFacts:
    return ModelFacts(OwnDefaults(), lambda: size)


def rl(size: ModelSize = SMOLLM, **keys: Any) -> Fitted:
    return fit_grpo(GrpoConfig.of(**keys), facts(size))


def sft(
    conversations: int | None = 32, size: ModelSize = SMOLLM, *, adapter: bool = False, **keys: Any
) -> Fitted:
    return fit_sft(SftConfig(**keys), facts(size), adapter=adapter, conversations=conversations)


@pytest.mark.parametrize(
    ("parameters", "rates"),
    [
        (135 * MILLION, (5e-6, 5e-5, 2e-5, 1e-4)),
        (BILLION - 1, (5e-6, 5e-5, 2e-5, 1e-4)),
        (8 * BILLION, (2e-6, 2e-5, 1e-5, 1e-4)),
        (14 * BILLION, (1e-6, 1e-5, 1e-5, 1e-4)),
        (None, (1e-6, 1e-5, 1e-5, 1e-4)),
    ],
)
def test_a_pretrained_model_is_trained_by_the_rates_of_its_size(
    parameters: int | None, rates: tuple[float, ...]
) -> None:
    size = ModelSize(parameters)
    both = rl(size), rl(size, lora_rank=8), sft(size=size), sft(size=size, adapter=True)
    assert tuple(fitted.values["learning_rate"] for fitted in both) == rates
    assert not any(fitted.warning for fitted in both)


def test_the_built_in_policies_are_trained_as_ever_and_so_is_what_comes_of_them() -> None:
    small = facts_of("builtin:cold-start")
    assert (
        small.own
        == facts_of("builtin:trained").own
        == facts_of("builtin:roles-cold-start").own
        == SMALL_DEFAULTS
    )
    config = fit(GrpoConfig.of(lora_rank=4))
    figures = config.optim.learning_rate, config.max_tokens, config.loss.micro_batch_tokens
    assert figures == (5e-4, 256, 4096)
    muon = fit_sft(SftConfig(optimizer="muon"), small, adapter=False, conversations=3)
    assert muon.values == {
        "learning_rate": 3e-3, "matrix_learning_rate": 0.02, "steps": 400, "batch_size": 64, "warmup_steps": 30,
        "micro_batch_tokens": 8192,
    }  # fmt: skip
    assert fit(DemoConfig().train) == REINFORCEMENT and left_open(REINFORCEMENT) == []


@pytest.mark.parametrize(
    ("conversations", "batch", "steps", "warmup"),
    [(1, 1, 3, 1), (15, 15, 3, 1), (32, 16, 6, 1), (1000, 16, 188, 19), (10_000, 16, 1875, 30)],
)
def test_a_fine_tuning_passes_three_times_over_what_it_is_given(
    conversations: int, batch: int, steps: int, warmup: int
) -> None:
    values = sft(conversations).values
    assert (values["batch_size"], values["steps"], values["warmup_steps"]) == (batch, steps, warmup)
    assert values["micro_batch_tokens"] == 1024 and "matrix_learning_rate" not in values


def test_what_follows_from_the_conversations_stays_open_until_they_are_known() -> None:
    config = with_values(SftConfig(), sft(None).values)
    assert left_open(config) == ["steps", "batch_size", "warmup_steps"]
    with pytest.raises(
        ValueError, match="steps has no value yet: fit the configuration to its model first"
    ):
        decided(config.steps, "steps")
    assert sft(None, steps=40).values["warmup_steps"] == 4


def test_what_is_given_is_taken_and_what_follows_follows_from_it() -> None:
    values = sft(optimizer="muon", learning_rate=4e-5, steps=100).values
    assert values["matrix_learning_rate"] == pytest.approx(2e-4) and values["warmup_steps"] == 10
    assert values.keys() & {"learning_rate", "steps"} == set()
    config = GrpoConfig.of(learning_rate=1e-5, max_tokens=99, micro_batch_tokens=77)
    assert fit_grpo(config, facts()) == Fitted({}, (), "") and fit(config) is config


@pytest.mark.parametrize(
    ("size", "answer", "micro_batch"),
    [
        (SMOLLM, 2048, 1024),
        (ModelSize(8 * BILLION, 1000, 20 << 20), 500, 512),
        (ModelSize(), 512, 4096),
    ],
)
def test_lengths_follow_from_context_and_size(
    size: ModelSize, answer: int, micro_batch: int
) -> None:
    values = rl(size).values
    assert (values["max_tokens"], values["micro_batch_tokens"]) == (answer, micro_batch)


def test_it_is_said_what_was_chosen_why_and_how_to_choose_otherwise() -> None:
    first, second = sft().lines
    assert (
        first == "Learning rate 2e-5: all 135 M weights of a pretrained model; --learning-rate sets"
        " another."
    )
    assert (
        "16 conversations a step (--batch-size), 6 steps for 3 passes over 32 conversations"
        " (--steps)" in second
    )
    assert (
        "1 conversation a step (--batch-size), 3 steps for 3 passes over 1 conversation ("
        in sft(1).lines[1]
    )
    assert rl(lora_rank=8, max_tokens=9, micro_batch_tokens=9).lines == (
        (
            "Learning rate 5e-5: an adapter on the 135 M weights of a pretrained model;"
            " --learning-rate sets another."
        ),
    )
    own = fit_grpo(GrpoConfig(), facts_of("builtin:trained")).lines
    assert own[0] == "Learning rate 5e-4: the default of this model; --learning-rate sets another."
    assert "answers of at most 256 tokens (--max-tokens)" in own[1]


@pytest.mark.parametrize(
    ("fitted", "said"),
    [
        (
            rl(learning_rate=5e-4),
            "5e-4 is 100 times the usual for this model, 5e-6: such steps can ruin a pretrained",
        ),
        (rl(learning_rate=4e-4), ""),
        (
            rl(learning_rate=5e-8),
            "5e-8 is 1/100 of the usual for this model, 5e-6: so small steps change next to",
        ),
        (rl(learning_rate=6e-8), ""),
        (rl(lora_rank=8, learning_rate=5e-4), ""),
        (sft(learning_rate=3e-3), "3e-3 is 150 times the usual for this model, 2e-5"),
        (rl(stages=(TrainingStage(steps=1, learning_rate=1e-3),)), "1e-3 is 200 times the usual"),
    ],
)
def test_a_rate_far_from_the_usual_one_is_remarked_on(fitted: Fitted, said: str) -> None:
    assert (said in fitted.warning) if said else fitted.warning == ""


def test_a_run_that_goes_on_takes_what_is_on_record() -> None:
    recorded = with_values(SftConfig(batch_size=4), sft(100, batch_size=4).values)
    again = with_recorded(SftConfig(batch_size=4, learning_rate=1e-5), recorded)
    assert again == recorded.model_copy(update={"learning_rate": 1e-5})
    # of an earlier version
    before = GrpoConfig.of(learning_rate=5e-4, max_tokens=256, micro_batch_tokens=4096)
    assert with_recorded(GrpoConfig(), before) == before


def test_the_configurations_of_the_repository_train_the_built_in_policies_as_ever() -> None:
    from hrm_agent.config import build_config, read_config_file

    folder = Path(__file__).parents[3] / "configs"
    demo = build_config(
        DemoConfig, read_config_file(folder / "demo.toml", "demo"), "demo.toml"
    ).train
    assert fit(demo) == demo and (demo.optim.learning_rate, demo.max_tokens) == (5e-4, 256)
    for name in ("rl", "laptop"):
        config = build_config(
            GrpoConfig, read_config_file(folder / f"{name}.toml", "train rl"), name
        )
        assert (
            json.loads(fit(config).model_dump_json())["max_tokens"] == 256
            and config.policy == "builtin:cold-start"
        )
