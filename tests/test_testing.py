"""The helpers that users have for tests of their own."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest

from hrm_agent.testing import ScriptedEngine, loopback_only, tiny_model, wait_until


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
    await wait_until(lambda: True)
    assert seen == [0, 1, 2]
    with pytest.raises(TimeoutError):
        await wait_until(lambda: False, seconds=0)


def test_a_tiny_model_samples(tmp_path: Path) -> None:
    from hrm_agent.models import load_policy

    same = [tiny_model(tmp_path / name, seed=1) / "model.safetensors" for name in "ab"]
    assert same[0].read_bytes() == same[1].read_bytes()
    backend = load_policy(str(tmp_path / "a"))
    assert not isinstance(backend, ScriptedEngine) and hasattr(backend, "submit")
    backend.close()  # type: ignore[union-attr]
