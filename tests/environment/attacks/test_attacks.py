"""Every attack of the corpus, one after the other, against few slots: what one leaves, the next
finds.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from hrm_agent.environment import ExecutionResult, LocalEnvironment
from hrm_agent.environment.local.zygote_process import PURE
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks import host as host_module
from tests.environment.attacks.host import PROJECT, Host
from tests.environment.attacks.snippets import CORPUS, Call, Snippet, read_folder
from tests.environment.attacks.trial import LATE_SECONDS, judge, try_attack, warm_up

pytestmark = pytest.mark.whole

SLOTS = 2
SNIPPETS = read_folder(CORPUS)
LONG_BY_NATURE = {"memory/many_maps"}
ATTACKS = [
    pytest.param(
        snippet, id=snippet.name, marks=[pytest.mark.slow] if snippet.name in LONG_BY_NATURE else []
    )
    for snippet in SNIPPETS
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground() -> AsyncIterator[tuple[LocalEnvironment, Host]]:
    with Host() as host:
        environment = LocalEnvironment(slots=SLOTS)
        await warm_up(environment, host, SLOTS)
        yield environment, host
        await environment.close()


@pytest.mark.parametrize("snippet", ATTACKS)
@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_contained(snippet: Snippet, ground: tuple[LocalEnvironment, Host]) -> None:
    trial = await try_attack(snippet, *ground, SLOTS)
    assert trial.complaints == []


COUNTED_BY_SAMPLES = {"processes/process_count", "processes/zombies", "sessions/restless"}
"""May end as `error` where the ordinary user is root outside: the kernel does not count that one's
processes.
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("user", "over", "level", "part", "variables"),
    [
        ("own", "process", "L2", "1/6", {PURE: "1"}),
        ("ordinary", "http", "L2", "3/6", {}),
        ("own", "ray", "L2", "5/6", {}),
        *(
            pytest.param("own", "process", "L3", "1/1", pure, marks=pytest.mark.cgroup)
            for pure in ({}, {PURE: "1"})
        ),
    ],
)
def test_it_is_contained_elsewhere_too(
    user: str, over: str, level: str, part: str, variables: dict[str, str]
) -> None:
    """Each attack in one of the ways; all of them in each way: the command without `--part`."""
    command = [
        sys.executable,
        "-m",
        "tests.environment.attacks",
        "--over",
        over,
        "--late",
        str(LATE_SECONDS),
    ]
    command += ["--part", part]
    command += ["--isolation", level]
    if user == "ordinary":
        command = ["unshare", "--map-user=1000", "--map-group=1000", *command]
    done = subprocess.run(
        command,
        cwd=PROJECT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if not line.startswith("held")]
    opened = {line.split()[1] for line in told if line.startswith("OPEN")}
    known = COUNTED_BY_SAMPLES if user == "ordinary" and os.getuid() == 0 else set[str]()
    assert opened <= known and "held in" in done.stdout, "\n".join([*told, done.stderr])


def test_every_attack_says_what_it_tries_and_what_is_to_come_of_it() -> None:
    assert len(SNIPPETS) >= 80
    assert [snippet.name for snippet in SNIPPETS if not snippet.tries] == []
    assert [
        snippet.name for snippet in SNIPPETS if not all(call.stated for call in snippet.calls)
    ] == []


def test_what_changes_on_the_host_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "PATIENCE_SECONDS", 0.0)
    with Host() as host:
        host.settle()
        assert host.complaints() == []
        words = host.words()
        marks = [Path(words["SCRATCH"]) / "new", Path("/tmp") / words["MARK"]]
        for mark in marks:
            mark.touch()
        with (
            socket.create_connection(("127.0.0.1", int(words["TCP_PORT"]))),
            subprocess.Popen(["sleep", "60"]) as left,
        ):
            found = "\n".join(host.complaints())
            left.kill()
        for mark in marks:
            mark.unlink()
    for word in (
        str(marks[0]),
        str(marks[1]),
        "a connection to tcp",
        "processes, not",
        "open descriptors, not",
    ):
        assert word in found


def test_what_is_wrong_with_an_outcome_would_be_seen() -> None:
    call, good = (
        Call("1", shows=("^fine",), never=("bad",)),
        ExecutionResult(ToolStatus.OK, stdout="fine\n"),
    )
    wrong = (
        {"status": ToolStatus.INFRASTRUCTURE},
        {"stdout": ""},
        {"stderr": "bad"},
        {"value": "BREACH"},
        {"stderr": f"File {PROJECT}/x.py"},
        {"attempt": 2},
        {"duration_seconds": 600.0},
        {"stdout": "fine" * 10**6},
        {"stdout": "fine \ud800"},
        {"value_json": "{"},
    )
    with Host() as host:
        words = host.words()
        assert judge(call, good, host, words) == []
        assert [
            change
            for change in wrong
            if len(judge(call, replace(good, **change), host, words)) != 1
        ] == []
        assert judge(call, replace(good, stdout=f"fine {host.secret}"), host, words) == [
            "a secret of the host was read"
        ]
