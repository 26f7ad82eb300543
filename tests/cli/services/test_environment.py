"""`hrm-agent environment`: a real server in its own process, and the messages for mistakes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment.remote.address import TOKEN_VARIABLE
from hrm_agent.environment.remote.client import RemoteEnvironment
from tests.cli.conftest import Command

Serve = Callable[..., tuple[subprocess.Popen[str], list[str]]]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Function that starts a server, and returns its process and its first lines of output."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *flags: str, lines: int = 1, **variables: str
    ) -> tuple[subprocess.Popen[str], list[str]]:
        command = (
            sys.executable,
            "-m",
            "hrm_agent.cli.main",
            "environment",
            "serve",
            "--slots",
            "2",
            *flags,
        )
        process = subprocess.Popen(
            command,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        return process, [process.stdout.readline() for _ in range(lines)]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def value_of(url: str, token: str | None = None) -> str | None:
    async def run() -> str | None:
        environment = RemoteEnvironment(url, token=token)
        try:
            return (await environment.execute("6 * 7")).value
        finally:
            await environment.close()

    return asyncio.run(run())


def test_a_token_is_made_once_kept_and_found_again(serve: Serve, hrm: Command, home: Path) -> None:
    process, (line,) = serve("--port", "0", "--json")
    said = json.loads(line)
    kept = home / "config" / "hrm-agent" / "environment-token"
    assert (said["token_from"], said["slots"], said["pid"]) == (str(kept), 2, process.pid)
    assert kept.read_text().strip() == said["token"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert value_of(said["url"], said["token"]) == "42"
    status = hrm("environment", "status", said["url"], "--json").json
    assert (status["isolation"], status["slots"]) == (said["isolation"], 2)
    assert 'hrm_environment_calls_total{status="ok"} 1' in status["metrics"]
    assert said["url"] in hrm("environment", "status", said["url"]).out
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    assert process.communicate()[1] == ""

    _, again = serve("--port", "0", lines=2)
    assert str(kept) in again[1] and said["token"] not in "".join(again)


def test_a_unix_socket_and_a_token_of_the_variable(serve: Serve, home: Path) -> None:
    path = home / "socket"
    process, lines = serve("--socket", str(path), lines=2, **{TOKEN_VARIABLE: "secret"})
    assert (
        f"unix:{path}" in lines[0] and TOKEN_VARIABLE in lines[1] and "secret" not in "".join(lines)
    )
    assert value_of(f"unix:{path}", "secret") == "42"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert not path.exists()
    assert not (home / "config").exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--host", "0.0.0.0"), "--allow-remote"),
        (("--host", "no.such.host.invalid"), "is not an address"),
        (("--port", "70000"), "is not a port"),
        (("--slots", "0"), "at least 1"),
        (("--slots", "many"), "--slots"),
        (("--drain-seconds", "nan"), "not a time"),
        (("--isolation", "L9"), "is not a level"),
        (("--tokenfile", "x"), "--token-file"),
    ],
)
def test_mistakes_are_told(hrm: Command, flags: tuple[str, ...], said: str) -> None:
    outcome = hrm("environment", "serve", *flags)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err


def test_a_port_that_is_taken(hrm: Command, serve: Serve) -> None:
    _, (line,) = serve("--port", "0", "--json")
    outcome = hrm("environment", "serve", "--port", json.loads(line)["url"].rpartition(":")[2])
    assert outcome.code == 2 and "Cannot listen" in outcome.err


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("secret", 0o644, "chmod 600"),
        ("", 0o600, "is empty"),
        ("two\nlines", 0o600, "a token cannot have"),
    ],
)
def test_token_files_that_will_not_do(
    hrm: Command, home: Path, content: str, mode: int, said: str
) -> None:
    file = home / "token"
    file.write_text(content)
    file.chmod(mode)
    outcome = hrm("environment", "serve", "--port", "0", "--token-file", str(file))
    assert outcome.code == 2 and said in outcome.err and "secret" not in outcome.err


def test_status_of_nothing(hrm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    without = hrm("environment", "status", "http://127.0.0.1:1")
    assert without.code == 2 and "There is no token" in without.err
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    nobody: Any = hrm("environment", "status", "http://127.0.0.1:1", "--json")
    assert nobody.code == 2 and "Nothing listens" in json.loads(nobody.err)["error"]


def test_an_action_that_is_none(hrm: Command) -> None:
    outcome = hrm("environment", "sevre")
    assert outcome.code == 2 and "serve" in outcome.err
