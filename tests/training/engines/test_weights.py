"""Weights that are sent to other processes, by gloo; with real servers it is in
`tests/models/vllm`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hrm_agent.errors import ModelError
from hrm_agent.models.vllm.in_server.hrm_agent_group import Offer
from hrm_agent.models.vllm.server import ServerGoneError
from hrm_agent.models.vllm.weights import EXTENSION_FOLDER
from hrm_agent.training.engines.weights import WeightsBroadcast

RECEIVER = Path(__file__).parents[2] / "support" / "vllm" / "weights_receiver.py"
URL = "http://127.0.0.1:8000/v1"
ENDS_SECONDS = 60.0


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "first": torch.randn(7, 5, generator=generator),
        "half": torch.randn(9, generator=generator).to(torch.bfloat16),
        "turned": torch.randn(4, 6, generator=generator).T,
        "single": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "counts": torch.arange(11),
        "several pieces": torch.randn(17_000_003, generator=generator),
    }


def facts_of(tensors: dict[str, Tensor]) -> dict[str, list[object]]:
    held = {
        name: tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        for name, tensor in tensors.items()
    }
    return {
        name: [
            list(tensor.shape),
            str(tensor.dtype),
            hashlib.sha256(held[name].tobytes()).hexdigest(),
        ]
        for name, tensor in tensors.items()
    }


@contextmanager
def receiver(rank: int, fate: str, offer: str) -> Iterator[subprocess.Popen[bytes]]:
    """Process of the receiving worker, killed on exit."""
    process = subprocess.Popen(
        [sys.executable, RECEIVER, str(rank), fate],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(EXTENSION_FOLDER), "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(offer.encode())
        process.stdin.close()
        process.stdin = None
        yield process
    finally:
        process.kill()
        process.communicate()


def answer_of(process: subprocess.Popen[bytes]) -> Any:
    """Wait for the worker and return its answer. Raise `ServerGoneError` if it failed."""
    said, errors = process.communicate(timeout=ENDS_SECONDS)
    if process.returncode:
        raise ServerGoneError(f"The worker ended by {process.returncode}: {errors.decode()[-300:]}")
    return json.loads(said)


def is_closed(offer: str) -> bool:
    """True if nothing listens at the trainer's address and no sending thread is left."""
    told = Offer.of(offer)
    with socket.socket() as asked:
        refused = asked.connect_ex((told.host, told.port)) != 0
    return refused and not [each for each in threading.enumerate() if each.name == "weights"]


def test_every_worker_has_every_tensor_as_often_as_it_asks() -> None:
    tensors = some_tensors()
    wanted, weights = facts_of(tensors), WeightsBroadcast(tensors)
    tensors["first"].add_(1)  # the trainer learns on, and a server comes back
    for count in (2, 1):
        with ExitStack() as stack:
            offer = stack.enter_context(weights.offered(URL, [""] * count))
            workers = [
                stack.enter_context(receiver(rank, "takes", offer)) for rank in range(1, count + 1)
            ]
            assert [answer_of(worker) for worker in workers] == [wanted] * count
        assert is_closed(offer)


def transfer(weights: WeightsBroadcast, fate: str, offers: list[str]) -> Any:
    with weights.offered(URL, [""]) as offer, receiver(1, fate, offer) as worker:
        offers.append(offer)
        if fate == "stops":
            os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
            (sending,) = [each for each in threading.enumerate() if each.name == "weights"]
            sending.join(ENDS_SECONDS)
            assert not sending.is_alive()
            os.kill(worker.pid, signal.SIGCONT)  # what it waits for does not come any more
        return answer_of(worker)


def test_a_worker_that_dies_in_the_middle_ends_the_transfer_at_once() -> None:
    weights, offers = WeightsBroadcast(some_tensors(), seconds=600), list[str]()
    with pytest.raises(
        ServerGoneError,
        match=(
            r"ended by -9.*sent to it from 127\.0\.0\.1.*(closed by peer|reset by peer|Broken pipe)"
        ),
    ) as raised:
        transfer(weights, "dies", offers)
    assert "--weights-address" in raised.value.hint and is_closed(offers[0])


def test_a_worker_that_is_silent_is_waited_for_and_not_for_ever() -> None:
    weights, offers = WeightsBroadcast(some_tensors(), seconds=5), list[str]()
    with pytest.raises(ServerGoneError, match=r"(?is)ended by 1.*sent to it from .*timed out"):
        transfer(weights, "stops", offers)
    assert is_closed(offers[0])


def test_a_server_that_answers_without_taking_is_left_to_the_proof() -> None:
    with WeightsBroadcast(some_tensors()).offered(URL, [""]) as offer:
        assert not is_closed(offer)
    assert is_closed(offer)


def test_a_server_that_refuses_before_its_workers_come_says_where_they_were_to_come() -> None:
    weights = WeightsBroadcast(some_tensors())
    said = r"it fell\. Weights were sent to it .*workers did not join"
    with pytest.raises(ServerGoneError, match=said), weights.offered(URL, [""]):
        raise ServerGoneError("it fell.")


def test_an_address_of_another_machine_is_refused() -> None:
    weights = WeightsBroadcast(some_tensors(), "192.0.2.1")
    said = r"cannot be offered at 192\.0\.2\.1: Cannot assign"
    with pytest.raises(ModelError, match=said) as raised, weights.offered(URL, [""]):
        pass
    assert "--weights-address" in raised.value.hint
