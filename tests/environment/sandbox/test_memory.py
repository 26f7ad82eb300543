"""Readings of processes in /proc: a snippet chooses none of them."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hrm_agent.environment.sandbox.memory import Tree, figure

HOSTILE_NAMES = [
    b"VmHWM: x",
    b"VmHWM: 99999999",
    b"\nVmHWM:\t9 kB",
    b") R 1 1 1",
    b") Z 0 (",
    b"Pss: 1",
    b"\xff\xfe\xff",
    b"Threads:\t1",
    b"\\nVmHWM:\\t1",
    b"",
]


@contextmanager
def process_named(name: bytes) -> Iterator[int]:
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(15, ctypes.c_char_p(name), 0, 0, 0)
        os.write(told, b"x")
        signal.pause()
        os._exit(0)
    os.read(ready, 1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_changes_nothing_of_what_is_seen(name: bytes) -> None:
    proc = os.open("/proc", os.O_PATH)
    with process_named(name) as pid:
        tree = Tree(proc, pid)
        assert 2**20 < tree.peak_bytes() < 2**34
        assert tree._held_bytes(pid) > 2**16  # pyright: ignore[reportPrivateUsage]
        assert tree._cpu_seconds(pid) < 60  # pyright: ignore[reportPrivateUsage]
        assert not tree.is_still()
        tree.stop()
        while not tree.is_still():  # as soon as the kernel has stopped it
            os.sched_yield()
        tree.close()
    os.close(proc)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"Name:\tVmHWM: 7\nVmHWM:\t 12 kB\n", 12),
        (b"Name:\tVmHWM: 7\n", 0),
        (b"VmHWM: 5 kB", 5),
        (b"VmHWM: x\n", 0),
        (b"VmHWM:", 0),
        (b"VmHWM:\n7 kB", 0),
        (b"VmHWM: -5 kB", 0),
        ("VmHWM: \u0663".encode(), 0),
        (b"", 0),
    ],
)
def test_a_figure_is_what_follows_its_name_at_the_beginning_of_a_line(
    text: bytes, found: int
) -> None:
    assert figure(text, b"VmHWM:") == found
