"""An environment by one word: here, on a server, on Ray; and never one that isolates less than is
accepted.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.on_ray import environment as on_ray
from hrm_agent.environment.open import open_environment, opened_environment, parse_where
from hrm_agent.environment.remote.address import TOKEN_VARIABLE
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.errors import ConfigError, HrmError
from tests.support.environment.served import TOKEN, served


class Lesser(LocalEnvironment):
    """Local environment that reports L1, as on a machine without namespaces. It is as strong as
    usual.
    """

    isolation = "L1"


@pytest.fixture(params=[LocalEnvironment, Lesser], ids=["as strong", "weaker"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """The URL of a server on this machine, and its level."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    environment = request.param(slots=1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "server"))
        listener.listen()
        with served(environment, listener):
            yield f"unix:{tmp_path / 'server'}", environment.isolation
    environment.shutdown()


async def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    async with opened_environment() as environment:
        assert isinstance(environment, LocalEnvironment)
        assert (await environment.execute("6 * 7")).value == "42"
    with pytest.raises(HrmError, match="closed"):
        await environment.execute("1")
    assert capsys.readouterr().err == ""


async def test_a_server(server: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    url, level = server
    if level == "L1":
        with pytest.raises(HrmError, match="L1"):
            open_environment(url)
    async with opened_environment(url, isolation=Isolation(level)) as environment:
        assert isinstance(environment, RemoteEnvironment)
        assert (await environment.execute("6 * 7")).value == "42"
    said = capsys.readouterr().err
    assert (
        said == "" if level == "L2" else f"runs on {url} under isolation L1, less than L2" in said
    )


async def test_a_wrong_token(server: tuple[str, str]) -> None:
    with pytest.raises(HrmError, match="token"):
        open_environment(server[0], isolation=Isolation.L0, token="another")


@pytest.mark.parametrize(
    ("where", "address"),
    [("ray", None), ("ray:auto", "auto"), ("ray:10.0.0.1:6379", "10.0.0.1:6379")],
)
def test_ray(where: str, address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        """Cluster whose isolation level is that of its weakest node."""

        isolation = "L1"

        def __init__(self, *asked: Any, **options: Any) -> None:
            self.asked = (*asked, options)

    monkeypatch.setattr(on_ray, "RayEnvironment", Cluster)
    opened: Any = open_environment(where, isolation=Isolation.L1)
    assert opened.asked == (address, {"isolation": Isolation.L1})
    with pytest.raises(
        HrmError, match=f"{where} isolates model-written code at level L1, which is less than L2"
    ):
        open_environment(where)


@pytest.mark.parametrize(
    "where", ["", "here", "http://", "https://", "unix:", "ray:", "rays", "ftp://host", "host:80"]
)
def test_what_is_no_place(where: str) -> None:
    with pytest.raises(ConfigError, match="is not an environment") as raised:
        open_environment(where)
    assert "http://HOST:PORT" in raised.value.hint
    assert "ray:ADDRESS" in raised.value.hint


def test_a_token_has_no_place_in_a_url() -> None:
    with pytest.raises(ConfigError, match="has a user name, a password"):
        parse_where("http://user:secret@host:80")
