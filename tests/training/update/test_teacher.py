"""A teacher's log-probs of what the policy sampled, in the weights of its tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.select.roc import RocOptions, select
from hrm_agent.training.update.advantages import by_group
from hrm_agent.training.update.batch import ForwardName, build_batches
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import OptimOptions, policy_update
from hrm_agent.training.update.teachers import ServerTeacher
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import Verdict
from tests.support.training.builders import sampled_call, tiny_model, trajectory

RUNS = [
    trajectory(0, 1.0, calls=(sampled_call("a", [3, 4, 20, 21], 2),)),
    trajectory(1, 0.0, calls=(sampled_call("b", [3, 4, 22, 23, 24], 2),)),
]


def log_probs(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize(("outcome_coef", "teacher_coef"), [(0.0, 1.0), (1.0, 0.5)])
def test_the_gradient_equals_a_computation_in_double_precision(
    outcome_coef: float, teacher_coef: float
) -> None:
    overlays = by_group(select(RUNS, 2, "grpo", seed=0), "dr_grpo")
    model, teacher = tiny_model(), tiny_model(1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    metrics = policy_update(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        build_batches(RUNS, overlays, token_budget=64),
        loss=LossOptions(teacher_coef=teacher_coef, outcome_coef=outcome_coef),
        optim=OptimOptions(max_grad_norm=1e9),
        teacher=partial(token_logprobs, teacher),
    )

    double, double_teacher = tiny_model().double(), tiny_model(1).double()
    loss = torch.zeros((), dtype=torch.float64)
    divergence = 0.0
    for run, overlay in zip(RUNS, overlays, strict=True):
        tokens = [*run.calls[0].token_ids]
        ours, theirs = log_probs(double, tokens), log_probs(double_teacher, tokens)
        for i in range(2, len(tokens)):
            own = ours[i - 1, tokens[i]]
            apart = (theirs[i - 1, tokens[i]] - own).detach()
            divergence -= float(apart) / 5
            weight = outcome_coef * float(overlay.advantage or 0) + teacher_coef * apart
            loss = loss - weight * own / 5
    loss.backward()
    assert metrics["kl_teacher"] == pytest.approx(divergence, abs=1e-5)
    for name, parameter in double.named_parameters():
        step = before[name] - model.get_parameter(name).detach()
        assert parameter.grad is not None
        torch.testing.assert_close(step.double(), parameter.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_a_group_of_equal_rewards_is_trained_on_and_without_a_teacher_it_is_not() -> None:
    equal = [each.model_copy(update={"rewards": {"correct": 1.0}}) for each in RUNS]
    for taught, verdict in ((True, Verdict.KEPT), (False, Verdict.GROUP_REJECTED)):
        judged = select(equal, 2, "grpo", seed=0, options=RocOptions(taught=taught))
        assert {each.verdict for each in judged} == {verdict}


def test_another_vocabulary_is_refused_with_a_token_that_differs(tmp_path: Path) -> None:
    folder = model_folder("builtin:cold-start")
    model, tokenizer = load_pretrained(folder)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    described = json.loads(file.read_text())
    added = {**described["added_tokens"][-1], "id": len(tokenizer), "content": "<more>"}
    described["added_tokens"].append(added)
    file.write_text(json.dumps(described))
    policy = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    )
    assert callable(policy.teacher("builtin:trained"))
    with pytest.raises(
        ModelError, match=r"vocabularies differ\. The text '<more>' is token \d+ of"
    ):
        policy.teacher(str(tmp_path))
    with pytest.raises(ModelError, match="names a provider, whose weights are not here"):
        policy.teacher("openai:gpt-5")


@pytest.mark.parametrize("forward", ["padded", "packed", "tree"])
def test_a_server_is_asked_for_whole_sequences_and_answers_as_a_model_here(
    forward: ForwardName,
) -> None:
    model = tiny_model(1)
    asked: list[list[int]] = []

    def logprobs(token_ids: list[int]) -> list[float]:
        asked.append(token_ids)
        given = log_probs(model, token_ids).detach()
        return [float(given[i - 1, token]) for i, token in enumerate(token_ids) if i]

    overlays = by_group(select(RUNS, 2, "grpo", seed=0))
    batches = build_batches(RUNS, overlays, token_budget=64, forward=forward)
    teacher = ServerTeacher(logprobs, "vllm:there")
    for batch in batches:
        torch.testing.assert_close(
            teacher(batch), token_logprobs(model, batch).detach(), rtol=0, atol=1e-5
        )
    sequences = [list(tokens) for tokens in asked]
    assert sequences and all(
        not any(each != other and other[: len(each)] == each for other in sequences)
        for each in sequences
    ), "no sequence is asked for as the beginning of another one"
    warm = replace(batches[0], temperatures_K=batches[0].temperatures_K * 0.5)
    with pytest.raises(ModelError, match=r"the policy samples at 0\.5"):
        teacher(warm)


def test_coefficients_need_a_teacher() -> None:
    with pytest.raises(ConfigError, match="teacher_coef has no effect here: teacher is not set"):
        GrpoConfig.of(teacher_coef=0.5)
    assert GrpoConfig.of(teacher="builtin:trained", outcome_coef=0.0).loss.outcome_coef == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"temperature": 0.5}, "does not go with temperature = 0.5"),
        ({"engine": "vllm", "servers": ("vllm:http://x/v1",)}, "is one of the servers"),
    ],
)
def test_a_server_that_cannot_teach_is_refused_before_anything_is_sampled(
    keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(teacher="vllm:http://x/v1?timeout=5", **keys)
