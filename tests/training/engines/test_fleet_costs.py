"""Measurement of iteration costs by a fleet, and their report to the scheduler. Real servers:
`tests/models/vllm`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from hrm_agent.models.engine import GenerationRequest
from hrm_agent.testing import block_until
from hrm_agent.training.engines.costs import IterationCosts
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import Placement, RolloutScheduler
from hrm_agent.trajectory import Sampling
from tests.support.vllm.fleet_stub import TOKEN_SECONDS, FleetStub, opened_on_stubs


class Told(RolloutScheduler):
    """Records the costs that each engine joins with."""

    def __init__(self, policy: str) -> None:
        super().__init__(scheduling_policy(policy))
        self.costs: list[IterationCosts | None] = []

    def join(
        self, engine: str, capacity_tokens: int, max_running: int, **options: Any
    ) -> list[Placement]:
        self.costs.append(options["costs"])
        return super().join(engine, capacity_tokens, max_running, **options)


def publish(fleet: EngineFleet, version: int) -> None:
    fleet.publish(version, {"weight": torch.zeros(1)})


def test_costs_are_measured_once_and_before_the_first_rollout(tmp_path: Path) -> None:
    scheduler, stubs = Told("expected_peak"), [FleetStub(), FleetStub()]
    with opened_on_stubs(tmp_path, scheduler, stubs) as fleet:
        answer = fleet.submit(
            GenerationRequest((5, 6, 7), Sampling(max_tokens=8), thread="r/s/0/0")
        )
        publish(fleet, 1)
        answer.result(30)
        for stub in stubs:
            measured = stub.seen.count("costs")
            first = stub.seen.index("costs")
            assert measured > 10
            assert stub.seen[:first] == [
                "reset",
                "rollout",
            ], "new weights, and the sample that proves them"
            assert stub.seen[first : first + measured + 1] == ["costs"] * measured + ["reset"]
        told = list(scheduler.costs)
        assert len(told) == 2 and all(each is not None and each.prompt_token_s > 0 for each in told)
        found = fleet.metrics()
        assert found["iteration_seconds"] > TOKEN_SECONDS / 5 and found["prompt_token_seconds"] > 0
        asked = [stub.seen.count("costs") for stub in stubs]
        publish(fleet, 2)
        stubs[0].stop()
        block_until(lambda: fleet.metrics()["engines"] == 1)
        stubs[0].start()
        block_until(lambda: fleet.metrics()["engines"] == 2)
        assert scheduler.costs == [*told, told[0]], "one that is back costs what it did"
        assert [stub.seen.count("costs") for stub in stubs] == asked


def test_where_the_policy_does_not_ask_nothing_is_measured(tmp_path: Path) -> None:
    scheduler, stub = Told("least_requests"), FleetStub()
    with opened_on_stubs(tmp_path, scheduler, [stub]) as fleet:
        publish(fleet, 1)
        assert scheduler.costs == [None]
        assert "costs" not in stub.seen and "prompt_token_seconds" not in fleet.metrics()
