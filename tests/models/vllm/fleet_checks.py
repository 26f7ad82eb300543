"""Two real servers as the engine of a training: their weights, and a step in which one dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ModelError
from hrm_agent.models import GenerationRequest
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.store import open_store
from hrm_agent.testing import block_until
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import Row
from hrm_agent.trajectory import Sampling, Trajectory
from tests.support.processes import children_that_run
from tests.support.vllm.fleet import opened_fleet, set_fault
from tests.support.vllm.server import OPTIONS, VllmServer

__all__ = ["check_a_fleet", "check_a_training_on_servers"]

POLICY = "builtin:cold-start"
QUESTION = "Tom has 12 apples and buys 30 more. How many does he have?"


def changed(model: Any, seed: int) -> dict[str, torch.Tensor]:
    """Change the weights by a random step, and return them by name."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 3e-3 * torch.randn(weight.shape, generator=generator)
    return dict(model.named_parameters())


def asked(fleet: EngineFleet, count: int, **sampling: Any) -> list[Any]:
    prompt = tuple(fleet.codec.encode([HumanMessage(QUESTION)]))
    sent = [Sampling(seed=seed, **{"max_tokens": 64, **sampling}) for seed in range(count)]
    return [
        fleet.submit(GenerationRequest(prompt, each, thread=f"r/s/0/{each.seed}")) for each in sent
    ]


def end_of(fleet: EngineFleet, count: int) -> None:
    for seed in range(count):
        fleet.rollout_ended(f"r/s/0/{seed}")


def check_a_fleet(server: VllmServer, python: Path, folder: Path) -> None:
    policy = model_folder(POLICY)
    model, tokenizer = load_pretrained(policy, dtype="float32")
    with opened_fleet(
        server, python, folder / "sent", policy, model, tokenizer, own=0, collective=True
    ) as fleet:
        check_weights_that_are_sent(fleet, server, model)
        check_weights_that_are_written_over_are_noticed(fleet, server)
    with opened_fleet(server, python, folder, policy, model, tokenizer) as fleet:
        for version in range(1, 11):
            fleet.publish(version, changed(model, version))
            assert fleet.metrics()["proof_largest"] < 1e-4
        found = fleet.metrics()
        assert found["iteration_seconds"] > 0 and found["prompt_token_seconds"] > 0
        check_faults_are_caught(fleet, server, model)
        check_requests_under_way_end_with_the_weights_they_began_with(fleet, model)
        check_a_killed_server_loses_nothing_and_comes_back(fleet, model)


def check_faults_are_caught(fleet: EngineFleet, server: VllmServer, model: Any) -> None:
    version = 10
    for fault, named in (("stale", r"model\.layers\.0"), ("untied", r"lm_head\.weight \(tied")) * 2:
        version += 1
        set_fault(server, fault)
        with pytest.raises(
            ModelError, match=rf"(?s)version {version}: log-probs differ by .*{named}"
        ):
            fleet.publish(version, changed(model, version))
        set_fault(server, "none")
        fleet.publish(version, dict(model.named_parameters()))
        assert fleet.metrics()["engines"] == 2


def check_weights_that_are_sent(fleet: EngineFleet, server: VllmServer, model: Any) -> None:
    """Check weights sent by a collective. At the end, the server has those of `model`."""
    fleet.publish(50, changed(model, 50))
    assert fleet.metrics()["proof_largest"] < 1e-4
    set_fault(server, "stale")
    with pytest.raises(ModelError, match=r"(?s)version 51: log-probs differ by .*model\.layers\.0"):
        fleet.publish(51, changed(model, 51))
    set_fault(server, "none")
    fleet.publish(52, dict(model.named_parameters()))
    assert {answer.result(300).policy_version for answer in asked(fleet, 4)} == {52}
    end_of(fleet, 4)


def check_weights_that_are_written_over_are_noticed(fleet: EngineFleet, server: VllmServer) -> None:
    fleet.vouch()
    set_fault(server, "nudged")
    asked(fleet, 1)[0].result(300)
    with pytest.raises(
        ModelError, match="not what it was proved to be with version 52: Something has written over"
    ):
        fleet.vouch()


def check_requests_under_way_end_with_the_weights_they_began_with(
    fleet: EngineFleet, model: Any
) -> None:
    prompt = fleet.codec.encode([HumanMessage(QUESTION)])
    old, before = (
        fleet.policy_version,
        {name: weight.clone() for name, weight in model.state_dict().items()},
    )
    answers = asked(fleet, 12, max_tokens=400)
    fleet.publish(old + 1, changed(model, 77))
    answers += asked(fleet, 16)[12:]
    wait(answers, 300)
    for version, weights in ((old + 1, dict(model.state_dict())), (old, before)):
        model.load_state_dict(weights)
        found = [answer.result() for answer in answers if answer.result().policy_version == version]
        assert len(found) >= 4
        for each in found:
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *each.token_ids]])).logits[
                    0, len(prompt) - 1 : -1
                ]
            exact = logits.float().log_softmax(-1)[range(len(each.token_ids)), list(each.token_ids)]
            assert float((torch.tensor(each.logprobs) - exact).abs().max()) < 1e-4
    end_of(fleet, 16)
    fleet.publish(old + 2, changed(model, 78))


def check_a_killed_server_loses_nothing_and_comes_back(fleet: EngineFleet, model: Any) -> None:
    own = fleet.servers[0]
    assert own.pid is not None
    answers = asked(fleet, 24, max_tokens=400, temperature=2.0)
    os.killpg(own.pid, signal.SIGKILL)
    wait(answers, 300)
    assert len([answer.result() for answer in answers]) == 24
    end_of(fleet, 24)
    version = fleet.policy_version + 1
    fleet.publish(version, changed(model, version))
    block_until(lambda: fleet.metrics()["engines"] == 2, seconds=600)
    assert own.took == version, "one that is back has the weights in force"
    assert {answer.result(300).policy_version for answer in asked(fleet, 4)} == {version}


def check_a_training_on_servers(server: VllmServer, python: Path, folder: Path) -> None:
    """Two steps; in the second one of the two servers is stopped: it is there,
    and answers nothing.
    """
    stopped: list[int] = []
    rows: list[Row] = []

    def stop_one(trajectory: Trajectory) -> None:
        if "/step-1/" not in trajectory.thread_id or stopped:
            return
        for child in children_that_run("vllm.entrypoints.openai.api_server"):
            if str(server.port) not in child.cmdline():
                stopped.append(child.pid)
                os.killpg(child.pid, signal.SIGSTOP)

    config = GrpoConfig.of(
        steps=2,
        policy=POLICY,
        prompts_per_step=4,
        group_size=4,
        engine="vllm",
        servers=(f"vllm:{server.url}",),
        server_count=1,
        server_python=str(python),
        server_options=(*OPTIONS, "--logprobs-mode=raw_logprobs"),  # as the other server
    )
    asyncio.run(train(config, folder, on_rollout=stop_one, on_step=rows.append))
    assert len(stopped) == 1 and rows[1]["engines"]["lost"] == 1
    with open_store(folder / "store.db") as store:
        headers = list(store.journal.headers("run_id = ?", (folder.name,)))
        assert Counter(header.thread_id.split("/")[1] for header in headers) == {
            "step-0": 32,
            "step-1": 32,
        }
        calls = [
            call for header in headers for call in store.journal.trajectory(header.id).own_calls
        ]
    assert len({call.id for call in calls}) == len(calls)
    assert {call.policy_version for call in calls if "/step-1/" in call.identity.thread_id} == {1}
    assert all(row["engine_difference"] < 1e-4 for row in rows)
