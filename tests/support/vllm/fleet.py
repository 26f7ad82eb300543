"""A fleet of two real servers: one that the tests have started, with faults to switch on, and one
that the fleet starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import torch

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.vllm.launch import LaunchOptions
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetOptions
from tests.support.vllm.server import OPTIONS, VllmServer

__all__ = ["FAULTY", "IN_SERVER", "opened_fleet", "set_fault"]

IN_SERVER = Path(__file__).with_name("in_server")
FAULTY = ("--worker-extension-cls", "faulty_weights.FaultyWeights")


def set_fault(server: VllmServer, name: str) -> None:
    """Switch on a fault: `none`, `stale`, `half` or `untied` from the next publish on, `nudged` at
    once.
    """
    asked = {"method": "hrm_fault", "args": [name]}
    httpx.post(
        f"http://127.0.0.1:{server.port}/collective_rpc", json=asked, timeout=60
    ).raise_for_status()


@contextmanager
def opened_fleet(
    given: VllmServer,
    python: Path,
    folder: Path,
    policy: str,
    model: Any,
    tokenizer: Any,
    own: int = 1,
    assign: str = "expected_peak",
    **other: Any,
) -> Iterator[EngineFleet]:
    """Fleet of both servers. `model` is the trainer's model, with which the servers' weights are
    compared. `other`: options of the fleet.
    """

    def score(token_ids: Any) -> list[float]:
        with torch.inference_mode():
            logprobs = model(torch.tensor([list(token_ids)])).logits[0, :-1].float().log_softmax(-1)
        return logprobs.gather(-1, torch.tensor(list(token_ids))[1:, None])[:, 0].tolist()

    options = FleetOptions(
        run=folder,
        servers=(f"vllm:{given.url}",),
        launch=LaunchOptions(policy, str(python), (*OPTIONS, "--logprobs-mode=raw_logprobs")),
        count=own,
        tokenizer=policy,
    )
    scheduler = RolloutScheduler(scheduling_policy(assign))
    fleet = EngineFleet(
        "fleet", ChatTemplateCodec(tokenizer), replace(options, **other), scheduler, score
    )
    try:
        yield fleet
    finally:
        fleet.close()
