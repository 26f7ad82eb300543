"""Loss, gradient and advantages equal those of TRL's GRPOTrainer on the same fixed trajectories, at
any temperature.

Its old log-probs are set to those of the record, which differ from the model's, so that both clip
bounds are active.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.training.update.batch import build_batches
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.objectives import clipped_surrogate
from hrm_agent.trajectory import Trajectory
from tests.support.training.builders import tiny_model
from tests.support.training.trl_oracle import TRL_EPS, kept, rollouts, trainer_of, trl_inputs

if TYPE_CHECKING:
    from trl.trainer.grpo_trainer import GRPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")


@pytest.fixture(scope="module", params=[0.5, 1.0, 2.0])
def temperature(request: pytest.FixtureRequest) -> float:
    return request.param


@pytest.fixture(scope="module")
def recorded_rollouts(temperature: float) -> list[Trajectory]:
    return rollouts(temperature)


@pytest.fixture(scope="module")
def trainer(
    recorded_rollouts: list[Trajectory],
    temperature: float,
    tmp_path_factory: pytest.TempPathFactory,
) -> GRPOTrainer:
    return trainer_of(recorded_rollouts, temperature, tmp_path_factory.mktemp("trl"))


def test_advantages_loss_and_gradient_equal_trls(recorded_rollouts, trainer):
    inputs = trl_inputs(recorded_rollouts, trainer)
    overlays = group_advantages(kept(recorded_rollouts), eps=TRL_EPS)
    assert torch.allclose(
        torch.tensor([o.advantage for o in overlays]), inputs["advantages"], atol=1e-6
    )

    trl_loss = trainer.compute_loss(trainer.model, inputs)
    trainer.model.zero_grad()
    trl_loss.backward()
    trl_gradients = {
        name.removeprefix("module."): p.grad for name, p in trainer.model.named_parameters()
    }

    model = tiny_model()
    batches = build_batches(recorded_rollouts, overlays, token_budget=64)
    total = sum(batch.trained_tokens for batch in batches)
    assert total == int(inputs["num_items_in_batch"])
    assert len(batches) > 1, "the case must split the batch"
    losses, clipped = [], torch.zeros(2)
    for batch in batches:
        loss, metrics = clipped_surrogate(
            token_logprobs(model, batch), batch.old_logprobs_K, batch.weights_K, total
        )
        loss.backward()
        losses.append(float(loss.detach()))
        clipped += torch.stack([metrics["clip_fraction_low"], metrics["clip_fraction_high"]])
    assert clipped.min() > 0, "both bounds must be active"
    assert sum(losses) == pytest.approx(float(trl_loss.detach()), abs=1e-6)
    logged = trainer._metrics["train"]
    assert clipped.tolist() == pytest.approx(
        [logged[f"clip_ratio/{side}_mean"][-1] for side in ("low", "high")]
    )
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, trl_gradients[name], atol=1e-6), name
