"""The helpers that users have for tests of their own."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import httpx
import pytest

from hrm_agent.testing import (
    ScriptedEngine,
    block_until,
    loopback_only,
    tiny_model,
    tiny_network,
    wait_until,
)


def test_other_machines_are_out_of_reach_and_this_one_is_not() -> None:
    with loopback_only() as tried, socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        with pytest.raises(httpx.ConnectError):
            httpx.get("http://192.0.2.1:81/")
        with socket.socket() as other:
            assert other.connect_ex(("192.0.2.2", 82)) != 0
    assert tried == ["192.0.2.1:81", "192.0.2.2:82"]


async def test_an_event_is_waited_for() -> None:
    seen: list[int] = []

    async def three() -> bool:
        seen.append(len(seen))
        return len(seen) == 3

    await wait_until(three)
    assert await wait_until(lambda: seen) == [0, 1, 2]
    assert block_until(lambda: seen) == [0, 1, 2]


async def test_what_was_waited_for_in_vain_is_named() -> None:
    async def it_rains() -> bool:
        return False

    async def it_hangs() -> bool:
        await asyncio.sleep(600)
        return True

    with pytest.raises(TimeoutError, match=r"Waited 0 s in vain: it_rains"):
        await wait_until(it_rains, seconds=0)
    with pytest.raises(TimeoutError, match=r"Waited 0\.01 s in vain: it_hangs"):
        await wait_until(it_hangs, seconds=0.01)
    with pytest.raises(TimeoutError, match=r"in vain: block_until\(lambda: 1 > 2, seconds=0\)"):
        block_until(lambda: 1 > 2, seconds=0)
    with pytest.raises(TimeoutError, match=r"in vain: <function <lambda>"):
        block_until(eval("lambda: False"), seconds=0)


async def test_a_condition_s_own_time_out_is_its_own() -> None:
    def slow() -> bool:
        raise TimeoutError("of the database")

    with pytest.raises(TimeoutError, match="of the database"):
        await wait_until(slow)


def test_a_tiny_model_samples(tmp_path: Path) -> None:
    from hrm_agent.models import load_policy

    same = [tiny_model(tmp_path / name, seed=1) / "model.safetensors" for name in "ab"]
    assert same[0].read_bytes() == same[1].read_bytes()
    backend = load_policy(str(tmp_path / "a"))
    assert not isinstance(backend, ScriptedEngine) and hasattr(backend, "submit")
    backend.close()  # type: ignore[union-attr]


def test_a_tiny_network_is_a_function_of_its_arguments() -> None:
    import torch

    before = torch.random.get_rng_state()
    one, same, other = tiny_network(3), tiny_network(3), tiny_network(4)
    assert torch.equal(torch.random.get_rng_state(), before)
    weights = [network.state_dict()["model.embed_tokens.weight"] for network in (one, same, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    small = tiny_network(hidden_size=32, head_dim=8, num_hidden_layers=1, vocab_size=64)
    assert small(torch.tensor([[1, 2, 3]])).logits.shape == (1, 3, 64)
    assert len(small.model.layers) == 1 and not small.training
