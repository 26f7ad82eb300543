"""Continued training of an adapter from a folder: initial state, what is kept, its reference, and
refusals.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.adapter_folder import BASE_FILE
from hrm_agent.models.loading.policy_loader import load_policy, model_folder
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.update.learner import Learner
from hrm_agent.training.update.logprobs import token_logprobs
from tests.training.update.test_adapters import (
    ADAPTER_FILES,
    IN_4_BITS,
    MODEL,
    batch_of,
    learner,
    weights_of,
)

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module", params=[MODEL, IN_4_BITS])
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapter that has been trained."""
    folder = tmp_path_factory.mktemp("adapter") / "model"
    first = learner(policy=request.param, lora_targets=("q_proj", "down_proj"), lora_alpha=6.0)
    first.update([batch_of(first.engine)], 0.02)
    first.save(folder)
    first.engine.close()
    return folder


def going_on(folder: Path, **keys: Any) -> Learner:
    return Learner(
        GrpoConfig.of(policy=str(folder), **{"lora_rank": 4, "seed": 5, **keys}), Accelerator()
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_begins_with_the_weights_on_record_and_is_kept_as_an_adapter_of_the_same_model(
    begun: Path, dtype: str, tmp_path: Path
) -> None:
    ours = going_on(begun, dtype=dtype)
    ours.save(tmp_path / "unchanged")
    before, same = (load_file(each / WEIGHTS) for each in (begun, tmp_path / "unchanged"))
    assert (
        len(before) == 8
        and before.keys() == same.keys()
        and all(torch.equal(before[n], same[n]) for n in before)
    )
    assert any(each.abs().max() > 1e-3 for name, each in before.items() if "lora_B" in name)

    frozen = weights_of(ours.model, trained=False)
    row = ours.update([batch_of(ours.engine)], 0.02)
    assert row["stepped"] and row["engine_difference"] < (0.03 if dtype == "bfloat16" else 2e-6)
    assert all(
        torch.equal(each, frozen[name])
        for name, each in weights_of(ours.model, trained=False).items()
    )
    ours.save(tmp_path / "after")
    after = load_file(tmp_path / "after" / WEIGHTS)
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert {file.name for file in (tmp_path / "after").iterdir()} == ADAPTER_FILES
    bases = [
        json.loads((each / BASE_FILE).read_text())["model"] for each in (begun, tmp_path / "after")
    ]
    assert bases[0].partition("?")[0] == bases[1].partition("?")[0] == MODEL
    assert all(("load=nf4" in base) == ("load=nf4" in bases[0]) for base in bases)
    configs = [
        json.loads((each / "adapter_config.json").read_text())
        for each in (begun, tmp_path / "after")
    ]
    for key in ("r", "lora_alpha"):
        assert configs[0][key] == configs[1][key]
    assert (
        {*configs[0]["target_modules"]}
        == {*configs[1]["target_modules"]}
        == {"q_proj", "down_proj"}
    )
    if dtype == "float32":
        served: Any = load_policy(str(tmp_path / "after"))
        again, sampled = batch_of(served), batch_of(ours.engine)
        assert torch.equal(again.token_ids_N, sampled.token_ids_N)
        torch.testing.assert_close(again.old_logprobs_K, sampled.old_logprobs_K, rtol=0, atol=1e-5)
    ours.engine.close()


def test_the_reference_is_the_policy_that_the_run_starts_from_also_when_it_is_resumed(
    begun: Path, tmp_path: Path
) -> None:
    ours, start = going_on(begun, kl_coef=0.1, lora_dropout=0.2), going_on(begun)
    batch = batch_of(ours.engine)
    ours.update([batch], 0.02)
    ours.write(tmp_path)
    resumed = going_on(begun, kl_coef=0.1, lora_dropout=0.2)
    resumed.read(tmp_path, 1)
    with torch.no_grad():
        expected = token_logprobs(start.model.eval(), batch)
        for each in (ours, resumed):
            reference = each.reference
            assert reference is not None
            each.model.train()
            torch.testing.assert_close(
                token_logprobs(reference, batch), expected, rtol=0, atol=1e-6
            )
            assert each.model.training
            own = token_logprobs(each.model.eval(), batch)
            assert (own - expected).abs().max() > 1e-3, (
                "the weights under training are in force again"
            )
    first, second = (each.update([batch], 0.02)["kl_reference"] for each in (ours, resumed))
    assert first == second > 1e-4
    mine, theirs = weights_of(ours.model, trained=True), weights_of(resumed.model, trained=True)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    ours.engine.close()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"lora_rank": 8}, r"lora_rank = 8, but the adapter in .* has 4\..*Set lora_rank to 4"),
        ({"lora_alpha": 8.0}, r"lora_alpha = 8, but the adapter in .* has 6\."),
        (
            {"lora_targets": ("q_proj",)},
            r"lora_targets = q_proj, but the adapter in .* has down_proj, q_proj\.",
        ),
    ],
)
def test_another_adapter_than_the_one_on_record_is_refused(
    begun: Path, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        going_on(begun, **keys)


def test_a_kind_that_is_not_trained_here_is_said(begun: Path, tmp_path: Path) -> None:
    shutil.copytree(begun, tmp_path / "other")
    file = tmp_path / "other" / "adapter_config.json"
    config = json.loads(file.read_text())
    for changed, said in (
        ({"use_dora": True}, "use_dora"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
    ):
        file.write_text(json.dumps(config | changed))
        with pytest.raises(ModelError, match=rf"not trained here \({said}\).*Merge it"):
            going_on(tmp_path / "other")
    file.write_text("{}")
    with pytest.raises(ModelError, match="has no rank"):
        going_on(tmp_path / "other")
    file.write_text(json.dumps(config))
    (tmp_path / "other" / WEIGHTS).unlink()
    with pytest.raises(ModelError, match="has no weights"):
        going_on(tmp_path / "other")


@pytest.mark.whole
def test_a_run_goes_on_from_the_adapter_of_another_run(tmp_path: Path) -> None:
    first = learner()
    first.update([batch_of(first.engine)], 0.02)
    first.save(tmp_path / "adapter")
    first.engine.close()
    config = GrpoConfig.of(
        policy=str(tmp_path / "adapter"),
        steps=1,
        prompts_per_step=2,
        group_size=4,
        algorithm="grpo",
        seed=0,
        lora_rank=4,
        kl_coef=0.01,
        context={"max_turns": 4, "max_tokens": 96},
    )
    asyncio.run(train(config, tmp_path / "run"))
    (row,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (
        row["stepped"]
        and row["engine_difference"] < 1e-5
        and row["kl_reference"] == pytest.approx(0.0, abs=1e-5)
    )
    files = {file.name for file in (tmp_path / "run" / "model").iterdir()}
    assert files == ADAPTER_FILES | {"manifest.json"}
    whole = sum(file.stat().st_size for file in Path(model_folder(MODEL)).iterdir())
    assert sum(file.stat().st_size for file in (tmp_path / "run" / "model").iterdir()) < whole / 10
