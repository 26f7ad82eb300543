"""Servers that sample with other weights than they were given, whatever happened to them: noticed
within the step.

The servers are stubs whose workers have halves of the bytes that came; real ones are in
`tests/models/vllm`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hrm_agent.errors import ModelError
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.vllm import connection
from hrm_agent.testing import block_until
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetServer
from hrm_agent.trajectory import Sampling
from tests.support.vllm.fleet_stub import FleetStub, opened_on_stubs
from tests.support.vllm.stub import hangs_up


def publish(fleet: EngineFleet, version: int) -> None:
    """Publish a version that differs from the previous one by far less than a log-prob shows."""
    fleet.publish(version, {"weight": torch.full((8,), 1.0 + version * 2**-20)})


def rolled_out(fleet: EngineFleet, step: int) -> None:
    """Sample a step of four rollouts, and check the servers before learning from it."""
    threads = [f"r/step-{step}/{k}" for k in range(4)]
    asked = [
        fleet.submit(GenerationRequest((5, 6, 7), Sampling(max_tokens=4), thread=thread))
        for thread in threads
    ]
    for answer, thread in zip(asked, threads, strict=True):
        answer.result(60)
        fleet.rollout_ended(thread)
    fleet.vouch()


def fault(name: str) -> Callable[[FleetStub], None]:
    return lambda stub: stub.faults.add(name)


def has_old_weights_again(stub: FleetStub) -> None:
    stub.held = [{"weight": "of the start"}, {"weight": "of the start"}]


def has_one_worker_written_over(stub: FleetStub) -> None:
    stub.held[1] = {"weight": "of nobody"}


def is_given_anothers(stub: FleetStub) -> None:
    stub.taken += 1


BEFORE = [
    (fault("ignores"), "It differs in: weight"),
    (fault("half"), "It differs in: weight"),
    (fault("ignores_once"), "It differs in: weight"),
    (fault("keeps_cache"), "from a cache of its former weights"),
    (fault("turns"), "while it was proved, its weights changed"),
    (fault("unknown"), r"Not all weights.*can be compared.*all: this kernel.*--unproved-weights"),
]
AFTER = [
    (has_old_weights_again, "Something has written over its weights"),
    (has_one_worker_written_over, "Something has written over its weights"),
    (FleetStub.start_again, "It was started again, or given weights"),
    (is_given_anothers, "It was started again, or given weights"),
]


@pytest.mark.parametrize(("happens", "said"), BEFORE)
def test_a_publish_that_is_not_taken_as_it_was_given_stops_the_run(
    happens: Callable[[FleetStub], None], said: str, tmp_path: Path
) -> None:
    stub = FleetStub()
    with opened_on_stubs(
        tmp_path, RolloutScheduler(scheduling_policy("least_requests")), [stub]
    ) as fleet:
        publish(fleet, 1)
        rolled_out(fleet, 1)
        happens(stub)
        with pytest.raises(ModelError) as raised:
            publish(fleet, 2)
        assert re.search(f"(?s){said}", f"{raised.value.message} {raised.value.hint}")


@pytest.mark.parametrize("steps", [0, 1], ids=["before_the_first_request", "after_a_step"])
@pytest.mark.parametrize(("happens", "said"), AFTER)
def test_what_becomes_of_a_server_after_its_proof_stops_the_step(
    happens: Callable[[FleetStub], None], said: str, steps: int, tmp_path: Path
) -> None:
    stub = FleetStub()
    with opened_on_stubs(
        tmp_path, RolloutScheduler(scheduling_policy("least_requests")), [stub]
    ) as fleet:
        publish(fleet, 1)
        for step in range(steps):
            rolled_out(fleet, step)
        stub.answer = lambda _: happens(stub) or [*b"ok", 257]
        with pytest.raises(
            ModelError,
            match=rf"(?s)not what it was proved to be with version 1: {said}.*answered \d+ req",
        ):
            rolled_out(fleet, 2)
        with pytest.raises(ModelError, match="not what it was proved"):
            fleet.submit(GenerationRequest((5, 6, 7), Sampling(max_tokens=4), thread="r/step-2/9"))


@pytest.mark.parametrize("seen_by", ["its_watcher", "the_last_look"])
def test_a_server_that_comes_back_answers_with_old_weights_and_drops_a_request_is_looked_at(
    seen_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, may_look = FleetStub(), threading.Event()
    real = FleetServer.look

    def look(server: FleetServer) -> str | None:
        may_look.wait(60)
        return real(server)

    may_look.set()
    monkeypatch.setattr(connection, "_FIRST_SECONDS", 0.01)
    with opened_on_stubs(
        tmp_path, RolloutScheduler(scheduling_policy("least_requests")), [stub]
    ) as fleet:
        monkeypatch.setattr(FleetServer, "look", look)
        publish(fleet, 1)
        rolled_out(fleet, 1)
        may_look.clear()
        stub.start_again()
        asked = [
            GenerationRequest((5, 6, 7), Sampling(max_tokens=4), thread=f"r/step-2/{k}")
            for k in range(2)
        ]
        try:
            fleet.submit(asked[0]).result(60)
            stub.next.extend([hangs_up] * 5)  # each is tried again as often
            dropped = fleet.submit(asked[1])
            block_until(lambda: fleet.metrics()["engines"] == 0)
            if seen_by == "the_last_look":
                with pytest.raises(
                    ModelError, match=r"not what it was proved to be.*answered 1 req"
                ):
                    fleet.vouch()
        finally:
            may_look.set()
        with pytest.raises(ModelError, match=r"not what it was proved to be.*answered 1 req"):
            dropped.result(60)


@pytest.mark.parametrize("happens", [FleetStub.start_again, is_given_anothers])
def test_a_server_that_has_changed_and_answered_nothing_is_proved_anew(
    happens: Callable[[FleetStub], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = FleetStub()
    with opened_on_stubs(
        tmp_path, RolloutScheduler(scheduling_policy("least_requests")), [stub]
    ) as fleet:
        publish(fleet, 1)
        right = [dict(each) for each in stub.held]
        happens(stub)
        block_until(lambda: fleet.metrics()["lost"] == 1 and fleet.metrics()["engines"] == 1)
        assert stub.held == right
        rolled_out(fleet, 1)
    assert (
        "no other engine is present, so its rollouts wait for one, at most 30 s"
        in capsys.readouterr().err
    )


def test_what_cannot_be_looked_at_is_said_and_taken_where_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = FleetStub()
    stub.faults.add("unknown")
    scheduler = RolloutScheduler(scheduling_policy("least_requests"))
    with opened_on_stubs(tmp_path, scheduler, [stub], unproved=True) as fleet:
        publish(fleet, 1)
        rolled_out(fleet, 1)
    assert "all: this kernel. They are taken on trust" in capsys.readouterr().err
