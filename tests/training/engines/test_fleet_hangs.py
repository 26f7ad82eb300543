"""Servers that are reachable but do not answer: abandoned like dead ones, and their requests sent
elsewhere.
"""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.vllm.server import ServerSilentError
from hrm_agent.models.vllm.weights import Watched
from hrm_agent.testing import block_until
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetServer
from hrm_agent.trajectory import Sampling
from tests.support.vllm.fleet_stub import FleetStub, opened_on_stubs
from tests.support.vllm.stub import Misbehaviour, streams
from tests.training.engines.test_fleet_proof import publish

PATIENCE = 1.0

pytestmark = pytest.mark.whole


def begins_and_stalls() -> Misbehaviour:
    """Misbehaviour: headers and the beginning of an answer, then nothing more."""
    return streams(b'{"choices": [{"ind', hang=True)


def scheduler() -> RolloutScheduler:
    return RolloutScheduler(scheduling_policy("static_rollouts"))


def asked(fleet: EngineFleet, count: int) -> list[tuple[int, ...]]:
    """Submit `count` rollouts, each with its own seed, and return the sampled token IDs."""
    sent = [
        fleet.submit(
            GenerationRequest((5, 6, 7), Sampling(max_tokens=8, seed=k), thread=f"r/s/0/{k}")
        )
        for k in range(count)
    ]
    found = [answer.result(60).token_ids for answer in sent]
    for k in range(count):
        fleet.rollout_ended(f"r/s/0/{k}")
    return found


def by_seed(body: dict[str, int]) -> list[int]:
    return [*str(body["seed"]).encode(), 257]


@pytest.mark.parametrize("how", ["no_answer", "half_an_answer", "no_workers"])
def test_a_server_that_hangs_is_left_and_its_requests_go_elsewhere_with_their_seeds(
    how: str, tmp_path: Path
) -> None:
    stubs = [FleetStub(), FleetStub()]
    for stub in stubs:
        stub.answer = by_seed
    with opened_on_stubs(tmp_path, scheduler(), stubs, patience=PATIENCE) as fleet:
        publish(fleet, 1)
        first, second = stubs
        sent_before = [len(stub.bodies) for stub in stubs]
        if how == "no_workers":
            first.faults.add("hangs")
            first.next.extend([streams(hang=True)] * 64)
        else:
            first.next.append(streams(hang=True) if how == "no_answer" else begins_and_stalls())
        assert asked(fleet, 8) == [(*str(k).encode(), 257) for k in range(8)]
        assert fleet.metrics()["lost"] >= 1 and fleet.metrics()["asked_again"] >= 1
        seeds = Counter(
            body["seed"] for body in second.bodies[sent_before[1] :] if body["prompt"] == [5, 6, 7]
        )
        assert set(seeds.values()) == {1}, "nobody is asked twice for one seed"
        first.faults.clear()
        first.next.clear()
        block_until(lambda: fleet.metrics()["engines"] == 2, seconds=30)


def test_a_server_that_is_only_slow_is_not_left(tmp_path: Path) -> None:
    """Requests take longer than the patience, but the server reports progress."""
    stub = FleetStub()
    with opened_on_stubs(tmp_path, scheduler(), [stub], patience=PATIENCE) as fleet:
        publish(fleet, 1)
        stub.seconds, stub.answer = PATIENCE / 3, lambda _: [*b"slow one", 257]
        stub.counts = True
        assert asked(fleet, 1) == [tuple(b"slow one")]
        assert fleet.metrics()["lost"] == 0


def test_a_server_that_hangs_while_it_is_given_weights_is_left(tmp_path: Path) -> None:
    stubs = [FleetStub(), FleetStub()]
    with opened_on_stubs(tmp_path, scheduler(), stubs, patience=PATIENCE) as fleet:
        publish(fleet, 1)
        stubs[0].faults.add("hangs")
        publish(fleet, 2)
        assert fleet.metrics()["engines"] == 1 and len(asked(fleet, 4)) == 4


def test_a_look_that_had_to_wait_for_a_publish_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, renewed, over = threading.Event(), threading.Event(), threading.Event()
    real = FleetServer.watch

    def watch(server: FleetServer, *, digest: bool) -> Watched:
        if not threading.current_thread().name.startswith("engine "):
            return real(server, digest=digest)
        if waits.is_set():
            over.set()
            return real(server, digest=digest)
        waits.set()
        renewed.wait(60)
        raise ServerSilentError("said nothing", "wait")

    with opened_on_stubs(tmp_path, scheduler(), [FleetStub()]) as fleet:
        publish(fleet, 1)
        monkeypatch.setattr(FleetServer, "watch", watch)
        assert waits.wait(60)
        publish(fleet, 2)
        renewed.set()
        assert over.wait(60)
        assert fleet.metrics()["lost"] == 0 and fleet.metrics()["engines"] == 1
