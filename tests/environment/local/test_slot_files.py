"""The host's reading of a slot's reply and of the files that a snippet left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.environment import Limits
from hrm_agent.environment.local.slot_files import SlotFiles, outcome, signal_name
from hrm_agent.environment.local.slot_table import OomKills
from hrm_agent.environment.sandbox.protocol import MEMORY_ERROR, Ended, Reply
from hrm_agent.trajectory import ToolStatus

LIMITS = Limits(cpu_seconds=2.0, output_bytes=64)
OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT
DENIED, OUT_OF_MEMORY, OUTPUT_LIMIT = (
    ToolStatus.DENIED,
    ToolStatus.OUT_OF_MEMORY,
    ToolStatus.OUTPUT_LIMIT,
)
INFRASTRUCTURE = ToolStatus.INFRASTRUCTURE


@pytest.fixture
def files() -> Iterator[SlotFiles]:
    files = SlotFiles()
    yield files
    files.close()


def status_of(
    files: SlotFiles, reply: Reply, *, started: bool = True, oom: bool = False
) -> ToolStatus:
    return outcome(reply, files, LIMITS, "L2", started=started, oom_killed=lambda: oom).status


@pytest.mark.parametrize("core", [0, 0x80])
@pytest.mark.parametrize("number", range(1, 65))
def test_whatever_signal_a_process_dies_by_is_an_error_that_names_it(
    files: SlotFiles, number: int, core: int
) -> None:
    reply = Reply(1, Ended.EXITED, number | core, cpu_seconds=1.99)
    found = outcome(reply, files, LIMITS, "L2", started=True, oom_killed=lambda: False)
    assert (found.status, found.stderr) == (ERROR, f"Process ended by {signal_name(number)}\n")


def test_every_signal_has_a_name_of_its_own() -> None:
    names = [signal_name(number) for number in range(1, 65)]
    assert len(set(names)) == 64
    assert [names[number - 1] for number in (9, 31, 32, 34, 35, 63, 64)] == [
        *("SIGKILL", "SIGSYS", "signal 32", "SIGRTMIN", "SIGRTMIN+1", "SIGRTMIN+29", "SIGRTMAX")
    ]


@pytest.mark.parametrize(
    ("number", "cpu", "oom", "status"),
    [
        (signal.SIGKILL, 2.0, False, TIMEOUT),  # the kernel's own limit of CPU time
        (signal.SIGXCPU, 2.5, False, TIMEOUT),
        (signal.SIGSEGV, 2.5, False, ERROR),
        (signal.SIGKILL, 0.1, True, OUT_OF_MEMORY),
        (signal.SIGTERM, 0.1, True, ERROR),
    ],
)
def test_what_a_signal_means_is_seen_by_more_than_the_signal(
    files: SlotFiles, number: int, cpu: float, oom: bool, status: ToolStatus
) -> None:
    assert status_of(files, Reply(1, Ended.EXITED, number, cpu_seconds=cpu), oom=oom) is status


def test_exit_codes_say_success_or_failure(files: SlotFiles) -> None:
    for ended in (Ended.EXITED, Ended.ANSWERED):
        found = [status_of(files, Reply(1, ended, code << 8), oom=True) for code in range(256)]
        assert (found[0], set(found[1:])) == (OK, {ERROR})


@pytest.mark.parametrize(
    ("left", "code", "status"),
    [
        (MEMORY_ERROR, 1, OUT_OF_MEMORY),
        (MEMORY_ERROR, 0, OK),
        (MEMORY_ERROR + b"\n", 1, ERROR),
        (b"1\nx" + MEMORY_ERROR, 1, ERROR),
    ],
)
def test_a_memory_error_is_told_where_the_value_would_stand(
    files: SlotFiles, left: bytes, code: int, status: ToolStatus
) -> None:
    os.pwrite(files.descriptors[3], left, 0)
    reply = Reply(1, Ended.EXITED, code << 8)
    found = outcome(reply, files, LIMITS, "L2", started=True, oom_killed=lambda: False)
    assert found.status is status
    assert found.value is None or left != MEMORY_ERROR


@pytest.mark.parametrize(
    ("ended", "started", "status"),
    [
        (Ended.TIMEOUT, True, TIMEOUT),
        (Ended.OUT_OF_MEMORY, True, OUT_OF_MEMORY),
        (Ended.DENIED, True, DENIED),
        (Ended.BROKEN, True, ERROR),
        (Ended.TOO_MANY, True, ERROR),
        (Ended.UNWATCHED, True, ERROR),
        (Ended.GONE, False, ERROR),
        (Ended.KILLED, True, INFRASTRUCTURE),
        (Ended.NOT_STARTED, True, INFRASTRUCTURE),
        (Ended.EXITED, False, INFRASTRUCTURE),
    ],
)
def test_what_the_slot_saw_counts_whatever_the_exit_status(
    files: SlotFiles, ended: Ended, started: bool, status: ToolStatus
) -> None:
    for wait_status in (0, 9, 31, 24, 40, 91 << 8) if ended is not Ended.EXITED else (0, 9, 40):
        assert status_of(files, Reply(1, ended, wait_status), started=started, oom=True) is status


def test_kills_of_the_kernel_are_those_since_the_call_began(tmp_path: Path) -> None:
    path = tmp_path / "vmstat"
    path.write_text("nr_oom_kill 9\noom_kill 3\n")
    kills = OomKills(str(path))
    before = kills.recent()
    assert (before, kills.since(before)) == (3, False)
    path.write_text("oom_kill 4\n")
    assert kills.since(before)
    assert (OomKills("/nowhere").recent(), OomKills("/nowhere").since(0)) == (0, False)
    assert OomKills().recent() >= 0
