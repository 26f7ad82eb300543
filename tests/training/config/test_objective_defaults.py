"""Defaults of each objective, options without effect, and how often a rollout is divided by its
tokens.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hrm_agent.config import build_config, changed_keys, nested_model, read_config_text, to_toml
from hrm_agent.errors import ConfigError
from hrm_agent.models.model_facts import ModelFacts, ModelSize
from hrm_agent.models.own_defaults import OwnDefaults
from hrm_agent.training.config.commands import DemoConfig, FineTuneConfig, GrpoConfig, SftConfig
from hrm_agent.training.config.fitted import fit_sft
from hrm_agent.training.config.rules import UNIONS, with_values
from hrm_agent.training.small_policy.architecture import SMALL_DEFAULTS
from hrm_agent.training.small_policy.trained import REINFORCEMENT
from hrm_agent.training.update.advantages import credit_by_name
from hrm_agent.training.update.objectives import Counts, LossOptions, TrainedTokens, policy_loss
from hrm_agent.training.update.schedule import Schedule, refuse_other_course
from hrm_agent.trajectory import Overlay, Verdict
from tests.support.training.builders import sampled_call, trajectory


@pytest.mark.parametrize(
    ("objective", "clips", "aggregation"),
    [
        ("clipped", (0.2, 0.28), "token"),
        ("cispo", (None, 4.0), "token"),
        ("gspo", (3e-4, 4e-4), "sequence"),
    ],
)
def test_an_objective_has_the_clips_and_the_mean_of_its_own_paper(
    objective: str, clips: tuple[float | None, float], aggregation: str
) -> None:
    config = build_config(GrpoConfig, {"loss": {"objective": objective}}, "flags")
    loss = config.loss
    assert (loss.taken("clip_low"), loss.taken("clip_high"), loss.taken("aggregation")) == (
        *clips,
        aggregation,
    )
    printed = config.model_dump(mode="json")["loss"]
    assert (printed["clip_low"], printed["clip_high"], printed["aggregation"]) == (
        *clips,
        aggregation,
    )
    assert f'aggregation = "{aggregation}"' in to_toml(config, "train rl")
    assert changed_keys(config, config.model_dump(mode="json"), "config.toml") == ""
    own = build_config(
        GrpoConfig, {"loss": {"objective": objective, "aggregation": "constant"}}, "flags"
    )
    assert own.loss.taken("aggregation") == "constant"
    assert own.but(objective="clipped").loss.taken("clip_high") == 0.28, (
        "what was not given is not kept"
    )


def test_one_step_a_batch_is_told_where_it_makes_objectives_equal() -> None:
    for objective in ("cispo", "gspo"):
        said = GrpoConfig.of(objective=objective).same_as_clipped
        assert (
            f"objective = {objective} has the gradient of clipped" in said
            and "--mini-batches" in said
        )
        for moving in (
            {"mini_batches": 2},
            {"epochs": 2},
            {"old_logprobs": "engine"},
            {"source": ("x",)},
        ):
            assert GrpoConfig.of(objective=objective, **moving).same_as_clipped == ""
    assert GrpoConfig().same_as_clipped == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"constant": 100.0}, "constant has no effect here: the aggregation is token"),
        ({"constant": 100.0, "objective": "gspo"}, "the aggregation is sequence"),
        ({"fall": "cosine"}, "fall has no effect here: without cooldown"),
        ({"least_rate": 0.1}, "least_rate has no effect here"),
        ({"dual_clip": 3.0}, "dual_clip has no effect here: each batch is trained on once"),
        (
            {"advantages": "dr_grpo", "advantage_eps": 1e-3},
            "advantage_eps has no effect here: dr_grpo divides",
        ),
        ({"advantages": "rloo", "advantage_eps": 1e-3}, "rloo divides by no deviation"),
        (
            {"max_staleness": 1},
            "max_staleness has no effect here: all tokens of a step were sampled with its weights",
        ),
        (
            {"selection": "lowest", "penalty_eps": 0.1},
            "penalty_eps has no effect here: selection = lowest",
        ),
        (
            {"objective": "cispo", "clip_low": 0.1, "epochs": 2},
            "clip_low has no effect here: the objective is cispo",
        ),
        (
            {"objective": "gspo", "clip_low": 0.2},
            r"clip_low has no effect here.*Leave it out, or at 0.0003",
        ),
        (
            {"credit": "even", "aggregation": "sequence"},
            "credit = even does not go with aggregation = sequence",
        ),
        (
            {"credit": "even", "objective": "gspo"},
            "credit = even does not go with aggregation = sequence",
        ),
    ],
)
def test_what_has_no_effect_or_acts_twice_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(**given)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[loss]\nconstant = 100.0", "the aggregation is token"),
        ("[loss]\ndual_clip = 3.0", "each batch is trained on once"),
        ("[optim]\nleast_rate = 0.1", "without cooldown"),
        ('[loss]\nadvantages = "dr_grpo"\nadvantage_eps = 1e-3', "dr_grpo divides"),
        ("[loss]\nmax_staleness = 1", "all tokens of a step were sampled with its weights"),
    ],
)
def test_a_file_cannot_hold_it_either_and_a_run_on_record_gets_the_default(
    written: str, said: str
) -> None:
    values = read_config_text(written, "train rl", "own.toml")
    with pytest.raises(ConfigError, match=rf"has no effect here: {said}"):
        build_config(GrpoConfig, values, "own.toml")
    kept = build_config(GrpoConfig, values, "config.toml", on_record=True)
    assert kept in (GrpoConfig(), GrpoConfig.of(advantages="dr_grpo"))


def test_every_key_of_a_union_is_a_key_of_a_configuration() -> None:
    known = {*FineTuneConfig.model_fields, *GrpoConfig.model_fields}
    for field in GrpoConfig.model_fields.values():
        part = nested_model(field.annotation)
        known |= set(part.model_fields) if part is not None else set()
    for union in UNIONS:
        listed = {key for keys in union.keys.values() for key in keys}
        assert listed and listed <= known
        assert callable(union.kind) or union.kind in known


def test_what_acts_is_taken() -> None:
    GrpoConfig.of(constant=100.0, aggregation="constant", credit="even")
    GrpoConfig.of(fall="cosine", least_rate=0.1, cooldown=0.5, dual_clip=3.0, epochs=2)
    GrpoConfig.of(max_staleness=1, versions_behind=2, correction="token", advantage_eps=1e-3)
    with pytest.raises(
        ConfigError, match="matrix_learning_rate has no effect here: the optimizer is adamw"
    ):
        SftConfig(matrix_learning_rate=0.1)
    with pytest.raises(ConfigError, match="fall has no effect here"):
        SftConfig(fall="cosine")


@pytest.mark.parametrize(
    "kept",
    [
        {"objective": "cispo", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token"},
        {"credit": "even", "aggregation": "sequence"},
        {"constant": 100.0, "dual_clip": 3.0, "max_staleness": 1},
    ],
)
def test_runs_of_earlier_versions_go_on(kept: dict[str, Any]) -> None:
    config = build_config(GrpoConfig, {"loss": kept}, "config.toml", on_record=True)
    assert config.loss.objective == kept.get("objective", "clipped")
    assert config.loss.credit == kept.get("credit", "whole_trajectory")


LENGTHS = (2, 6, 3)
ADVANTAGES = (1.0, -0.5, -0.5)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("credit", ["whole_trajectory", "even", "per_role"])
def test_a_rollout_weighs_what_the_definition_says(credit: str, aggregation: str) -> None:
    """Against float64 sums written from the definitions: by tokens a rollout weighs n, by all
    others 1.
    """
    rollouts = [
        trajectory(i, calls=(sampled_call(f"c{i}", range(1, 3 + n), inserted=2),))
        for i, n in enumerate(LENGTHS)
    ]
    overlays = [
        Overlay(
            run_id="r",
            step=0,
            trajectory_id=each.id,
            group_id="g",
            reward=0.0,
            verdict=Verdict.KEPT,
            reason="",
            advantage=advantage,
            penalty_error=0.0,
            penalty_format=0.0,
        )
        for each, advantage in zip(rollouts, ADVANTAGES, strict=True)
    ]
    by_call = credit_by_name(credit)(rollouts, overlays)
    sequences_K = torch.tensor([i for i, n in enumerate(LENGTHS) for _ in range(n)])
    lengths_K = torch.tensor([float(n) for n in LENGTHS for _ in range(n)])
    weights_K = torch.tensor([by_call[f"c{i}"] for i in sequences_K.tolist()])
    logprobs_K = torch.full((sum(LENGTHS),), -1.0, requires_grad=True)
    given = TrainedTokens(logprobs_K, logprobs_K.detach(), weights_K, sequences_K, lengths_K)
    total, rows, constant = float(sum(LENGTHS)), float(len(LENGTHS)), 4.0
    loss, _ = policy_loss(
        given, Counts(total, rows), LossOptions(aggregation=aggregation, constant=constant)
    )  # pyright: ignore[reportArgumentType]
    loss.backward()
    assert logprobs_K.grad is not None
    found = [-float(logprobs_K.grad[sequences_K == i].sum()) for i in range(len(LENGTHS))]
    by_tokens = {"token": 1 / total, "constant": 1 / (rows * constant)}
    mean = total / rows
    if credit == "even" and aggregation != "sequence":
        expected = [a * mean * by_tokens[aggregation] for a in ADVANTAGES]
    elif aggregation == "sequence":
        # twice: refused by the configuration
        shares = [mean / n if credit == "even" else 1.0 for n in LENGTHS]
        expected = [a * share / rows for a, share in zip(ADVANTAGES, shares, strict=True)]
    else:
        expected = [
            a * n * by_tokens[aggregation] for a, n in zip(ADVANTAGES, LENGTHS, strict=True)
        ]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_run_with_the_defaults_can_be_prolonged_and_the_demo_cools_down() -> None:
    for config in (GrpoConfig(), GrpoConfig.of(steps=2)):
        optim = config.optim
        for steps in (config.steps + 1, 10 * config.steps):
            schedule = Schedule(
                steps, optim.warmup_steps, optim.cooldown, optim.fall, optim.least_rate
            )
            refuse_other_course(schedule, config.steps, config.steps, "run")
    for own in (SMALL_DEFAULTS, OwnDefaults()):
        sft = with_values(
            SftConfig(),
            fit_sft(
                SftConfig(), ModelFacts(own, ModelSize), adapter=False, conversations=99
            ).values,
        )
        assert sft.steps is not None and sft.warmup_steps is not None
        refuse_other_course(
            Schedule(900, sft.warmup_steps, sft.cooldown, sft.fall), sft.steps, sft.steps, "run"
        )
    demo = DemoConfig().train.optim.cooldown, REINFORCEMENT.optim.cooldown
    named = build_config(DemoConfig, {"train": {"steps": 3}}, "flags").train.optim.cooldown
    assert (*demo, named) == (0.67, 0.67, 0.67)
