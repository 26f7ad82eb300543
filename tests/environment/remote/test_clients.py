"""Clients with tokens of their own: what each reaches, its quota, and the file that names them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.base import ExecutionResult, SessionState, Submission
from hrm_agent.environment.remote.calls import Calls
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.clients import Client, add_client, read_clients
from hrm_agent.environment.remote.sockets import listen_tcp
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.testing import wait_until
from hrm_agent.trajectory import ToolStatus
from tests.support.environment.contract import gauge
from tests.support.environment.held import HOLD, let_go, until_held
from tests.support.environment.served import TOKEN, served

pytestmark = pytest.mark.whole


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[RemoteEnvironment, RemoteEnvironment, LocalEnvironment]]:
    """Clients `one`, with one call at a time, and `other`, of one server."""
    tokens = [add_client(tmp_path / "clients", "one", 1), add_client(tmp_path / "clients", "other")]
    local, listener = LocalEnvironment(slots=4), listen_tcp("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with served(local, listener, read_clients(tmp_path / "clients")):
        with pytest.raises(HrmError, match="token"):
            RemoteEnvironment(url, token=TOKEN)
        one, other = (RemoteEnvironment(url, token=token) for token in tokens)
        yield one, other, local
    local.shutdown()


async def test_a_client_reaches_nothing_of_another(
    two: tuple[RemoteEnvironment, RemoteEnvironment, object],
) -> None:
    one, other, _ = two
    assert (
        await one.run(Submission("x = 1", session="s", run="r", id="same"))
    ).status is ToolStatus.OK
    assert (await other.run(Submission("x", session="s", run="r"))).status is ToolStatus.DENIED
    assert (await other.run(Submission("2", run="r", id="same"))).value == "2"
    with pytest.raises(HrmError, match="belongs to another run"):
        await other.fork_session("s", "copy", run="r")
    with pytest.raises(HrmError, match="belongs to another run"):
        await other.end_session("s", run="r")
    kept = await one.run(Submission("x", session="s", run="r"))
    assert (kept.value, kept.session) == ("1", SessionState.KEPT)
    await asyncio.gather(one.close(), other.close())


async def test_a_quota_holds_calls_back_in_their_order(
    two: tuple[RemoteEnvironment, RemoteEnvironment, LocalEnvironment],
) -> None:
    one, other, local = two
    clock = "import time; time.monotonic()"
    calls = [
        asyncio.create_task(one.run(Submission(code))) for code in (f"{HOLD}0", clock, clock, clock)
    ]
    held = await until_held()
    assert (
        await one.run(Submission("3", deadline_seconds=0.01))
    ).status is ToolStatus.INFRASTRUCTURE
    assert (await other.run(Submission("2"))).value == "2"
    assert await gauge(local, "running") + await gauge(local, "waiting") == 1
    let_go(held)
    first, *behind = await asyncio.gather(*calls)
    assert first.value == "0"
    times = [float(result.value or "") for result in behind]
    assert times == sorted(times)
    assert all(result.queued_seconds > 0.01 for result in behind)
    await asyncio.gather(one.close(), other.close())


async def test_a_call_that_is_held_back_may_be_cancelled(
    two: tuple[RemoteEnvironment, RemoteEnvironment, LocalEnvironment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    came, ended, outcome = list[str](), list[str](), Calls.outcome

    async def noted(self: Calls, client: Client, submission: Submission) -> ExecutionResult:
        came.append(submission.code)
        try:
            return await outcome(self, client, submission)
        finally:
            ended.append(submission.code)

    monkeypatch.setattr(Calls, "outcome", noted)
    one, other, local = two
    first = asyncio.create_task(one.run(Submission(f"{HOLD}0")))
    held = await until_held()
    second = asyncio.create_task(one.run(Submission("1")))
    third = asyncio.create_task(one.run(Submission("2")))
    await wait_until(lambda: len(came) == 3)
    second.cancel()
    await wait_until(lambda: ended == ["1"])  # the server has heard of it
    let_go(held)
    assert [result.value for result in await asyncio.gather(first, third)] == ["0", "2"]
    assert await gauge(local, 'calls_total{status="ok"}') == 2
    await asyncio.gather(one.close(), other.close())


def test_the_command_makes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "clients"
    assert main(["environment", "token", "one", "--clients", str(file), "--calls", "3"]) == 0
    assert main(["environment", "token", "two", "--clients", str(file)]) == 0
    file.write_text(file.read_text().rstrip() + "  # without an end of line")
    assert main(["environment", "token", "three", "--clients", str(file)]) == 0
    one, two, three = (
        line for line in capsys.readouterr().out.splitlines() if line and " " not in line
    )
    assert one not in file.read_text() and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO) == 0
    clients = read_clients(file)
    found = [clients.find(token.encode()) for token in (one, two, three, "none")]
    assert [client and client.name for client in found] == ["one", "two", "three", None]
    assert main(["environment", "token", "one", "--clients", str(file)]) == 2
    assert "has a client 'one' already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file has no client"),
        ("[a", "is not TOML"),
        ("[a]", "a.token_sha256: Field required"),
        ("[a]\ntoken_sha256 = 'x'", "a.token_sha256"),
        (f"[a]\ntoken_sha256 = '{'0' * 64}'\ncalls = 0", "a.calls"),
        (f"[a]\ntoken_sha256 = '{'0' * 64}'\nsecret = 'x'", "a.secret"),
        (f"['a/b']\ntoken_sha256 = '{'0' * 64}'", "'a/b' cannot be the name"),
        (
            f"[a]\ntoken_sha256 = '{'0' * 64}'\n[b]\ntoken_sha256 = '{'0' * 64}'",
            "two clients have the same token",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_named(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "clients").write_text(text)
    with pytest.raises(ConfigError, match=told):
        read_clients(tmp_path / "clients")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_clients(tmp_path / "none")
