"""The command line, called in this process, in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import open_store
from tests.support.lent import lend
from tests.support.trajectory.samples import make_trajectory


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Outcome]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker("whole")


SCRIPT = (
    (
        '<reason>compute</reason><tool_call>{"name": "python", "arguments": {"code": "6 *'
        ' 7"}}</tool_call>'
    ),
    r"<reason>done</reason><answer>\boxed{42}</answer>",
)


@pytest.fixture
def hrm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: LocalEnvironment,
) -> Command:
    """Function that runs `hrm-agent WORDS`, and returns its exit code and output."""
    monkeypatch.chdir(tmp_path)
    lend(environment, monkeypatch)

    def run(*words: str) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def scripted(tmp_path: Path) -> str:
    """A policy that calls the tool once and then answers 42."""
    (tmp_path / "script.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in SCRIPT))
    return f"scripted:{tmp_path / 'script.jsonl'}"


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with the sound sample trajectory in it."""
    sample = make_trajectory()
    with open_store(tmp_path / "sample.db") as opened:
        opened.journal.write_trajectory(sample)
        for call in sample.calls:
            opened.journal.write_call(call)
        for tool_call in sample.tool_calls:
            opened.journal.write_tool_call(tool_call)
    return str(tmp_path / "sample.db")
