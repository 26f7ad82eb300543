"""The child that a slot with nothing to do makes for its next call."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hrm_agent.environment import Limits, LocalEnvironment
from hrm_agent.environment.local.zygote_process import PURE
from hrm_agent.testing import block_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import LONG
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.killing import SLOT, at_depth

pytestmark = pytest.mark.whole


@pytest.fixture
async def environment() -> AsyncIterator[LocalEnvironment]:
    environment = LocalEnvironment(slots=1)
    yield environment
    await environment.close()


def waiting(environment: LocalEnvironment) -> int:
    """The process id of the child that waits."""
    return block_until(
        lambda: next((pid for pid in at_depth(SLOT, environment.pid) if _sleeps(pid)), 0)
    )


def _sleeps(pid: int) -> bool:
    try:
        return "S (sleeping)" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_the_call_is_run_by_the_child_that_waited(environment: LocalEnvironment) -> None:
    waited = waiting(environment)
    call = asyncio.create_task(environment.execute(HOLD, limits=LONG))
    assert await until_held(below=environment.pid) == {waited}
    let_go({waited})
    assert (await call).status is ToolStatus.OK


async def test_one_that_is_killed_takes_no_call_with_it(environment: LocalEnvironment) -> None:
    for _ in range(20):
        os.kill(waiting(environment), signal.SIGKILL)
        result = await environment.execute("1 + 1")
        assert (result.status, result.value, result.attempt) == (ToolStatus.OK, "2", 1)


async def test_a_request_for_a_session_is_none_for_it(environment: LocalEnvironment) -> None:
    for _ in range(3):
        waiting(environment)
        assert (await environment.execute("kept = 6", session="s")).status is ToolStatus.OK
        assert (await environment.execute("kept * 7", session="s")).value == "42"
        await environment.end_session("s")


async def test_nothing_of_what_it_rehearsed_is_seen(
    environment: LocalEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "print(sorted(globals()), [*__import__('linecache').cache])"
    waiting(environment)
    ahead = await environment.execute(code)
    monkeypatch.setenv(PURE, "1")
    never = LocalEnvironment(slots=1)
    plain = await never.execute(code)
    await never.close()
    assert ahead.stdout == plain.stdout
    assert (ahead.status, ahead.stderr, ahead.value) == (ToolStatus.OK, "", None)


async def test_the_limits_are_those_of_the_call(environment: LocalEnvironment) -> None:
    found = list[int]()
    for mebibytes in (256, 300):
        waiting(environment)
        limits = Limits(memory_bytes=mebibytes << 20)
        result = await environment.execute(
            "import resource\nresource.getrlimit(resource.RLIMIT_AS)[0]", limits=limits
        )
        found.append(int(result.value or 0))
    assert found[1] - found[0] == 44 << 20
