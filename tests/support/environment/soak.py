"""A long run of mixed calls, and the resources that it leaves behind:
`python -m tests.support.environment.soak --calls 100000`.

Several clients make calls in parallel: printing, numpy, errors, cells of sessions, long output,
files, and attacks of the corpus. Each answer is checked. Between rounds, when nothing runs,
resources are counted: processes, descriptors, memory files, temporary files, memory of this process
and of its descendants. After the warm-up none of these may grow.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

from hrm_agent.environment import ExecutionResult, Limits, LocalEnvironment
from hrm_agent.trajectory import ToolStatus
from tests.environment.attacks.host import (
    PATIENCE_SECONDS,
    Host,
    descendants,
    open_descriptors,
    resident_bytes,
)
from tests.environment.attacks.snippets import CORPUS, DEFAULTS, Call, read_folder
from tests.environment.attacks.trial import warm_up

__all__ = ["Report", "Sample", "sample", "soak"]

CLIENTS, SLOTS = 8, 4
ROUNDS = 20
WARM_ROUNDS = 6
"""Number of rounds in which growth is due to caches that fill."""
REST_SECONDS = 0.25
"""Pause between the end of a round and the count, in which ended processes disappear."""
ATTACK_SHARE = 0.02
ATTACK_SECONDS = 0.7
"""Longest time limit of an attack. Slower ones are left to the corpus' own test."""
PATIENT = Limits(wall_seconds=300, cpu_seconds=300)
"""Limits of harmless calls. They are long, since an attack may keep the machine busy."""
MIB = 2**20


@dataclass(slots=True)
class Sample:
    """Resources in use while nothing runs."""

    processes: int
    descriptors: int
    memory_files: int
    temporary_files: int
    threads: int
    host_mib: float
    """Resident memory of this process, in MiB."""
    below_mib: float
    """Memory of the processes that the soak has started, in MiB, without pages of files. Memory
    that processes share counts once.
    """


ALLOWED = Sample(0, 0, 0, 0, 0, 12.0, 24.0)
"""Largest growth allowed from the warm-up to the end."""


@dataclass(slots=True)
class Report:
    """Outcome of a soak."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    kinds: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    samples: list[Sample] = field(default_factory=list[Sample])
    seconds: float = 0.0

    @property
    def growth(self) -> Sample:
        """Growth since the warm-up: the minimum of the last three samples less the maximum of the
        second half of the warm-up.
        """
        warm = self.samples[WARM_ROUNDS // 2 : WARM_ROUNDS]
        last = self.samples[-3:]
        names = [each.name for each in fields(Sample)]
        return Sample(
            *(min(getattr(s, n) for s in last) - max(getattr(s, n) for s in warm) for n in names)
        )

    @property
    def leaks(self) -> list[str]:
        """Resources that have grown by more than `ALLOWED`."""
        pairs = zip(fields(Sample), astuple(self.growth), astuple(ALLOWED), strict=True)
        return [f"{each.name}: {grown:+.1f}" for each, grown, allowed in pairs if grown > allowed]


class _Client:
    """Client that makes calls one after the other, and checks each result."""

    def __init__(
        self, environment: LocalEnvironment, name: str, attacks: list[Call], host: Host
    ) -> None:
        self._environment = environment
        self._name = name
        self._attacks = attacks
        self._host = host
        self._chance = random.Random(name)
        self._session = 0
        self._cells = 0
        self._total = 0

    async def make(self, calls: int, report: Report) -> None:
        for number in range(calls):
            report.statuses[str((result := await self._one(number, report)).status)] += 1
            if result.attempt != 1:
                report.wrong.append(f"run {result.attempt} times")
        await self._end_session()

    async def _one(self, number: int, report: Report) -> ExecutionResult:
        if self._chance.random() < ATTACK_SHARE:
            return await self._attack(report)
        kinds = (self._print, self._numpy, self._error, self._cell, self._output, self._files)
        kind = self._chance.choices(kinds, (40, 8, 14, 30, 4, 4))[0]
        report.kinds[kind.__name__.strip("_")] += 1
        code, expected, session = await kind(number)
        result = await self._environment.execute(code, session=session, limits=PATIENT)
        if (result.status, result.stdout, result.value) != expected:
            report.wrong.append(
                f"{code!r} came to {result.status} {result.stdout[:80]!r} {result.stderr[-200:]!r}"
            )
        return result

    async def _print(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        return (
            f"print('{self._name} {number}')\n{number} * 3",
            _ok(f"{self._name} {number}\n", str(number * 3)),
            None,
        )

    async def _numpy(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        return (
            f"import numpy as np\nprint(int(np.arange({number}).sum()))",
            _ok(f"{sum(range(number))}\n"),
            None,
        )

    async def _error(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        return (
            f"print({number})\nraise ValueError({number})",
            (ToolStatus.ERROR, f"{number}\n", None),
            None,
        )

    async def _cell(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        if self._cells == 20:
            await self._end_session()
        start = "total = 0\n" if self._cells == 0 else ""
        self._cells, self._total = self._cells + 1, self._total + number
        return (
            f"{start}total += {number}\ntotal",
            _ok("", str(self._total)),
            f"{self._name} {self._session}",
        )

    async def _output(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        size = PATIENT.output_bytes
        cut = (
            f"{'x' * (size // 2)}\n[... {100_000 + 1 - size} of 100001 bytes cut"
            f" ...]\n{'x' * (size // 2 - 1)}\n"
        )
        return "print('x' * 100_000)", _ok(cut), None

    async def _files(
        self, number: int
    ) -> tuple[str, tuple[ToolStatus, str, str | None], str | None]:
        code = (
            "import os\nfor i in range(50): open(f'/tmp/{i}', 'w').write('x' *"
            " 10_000)\nlen(os.listdir('/tmp'))"
        )
        return code, _ok("", "50"), None

    async def _attack(self, report: Report) -> ExecutionResult:
        call = self._chance.choice(self._attacks)
        report.kinds["attack"] += 1
        result = await self._environment.execute(
            call.filled(self._host.words()), limits=call.limits
        )
        if result.status not in call.outcomes | {ToolStatus.TIMEOUT} or "BREACH" in result.stdout:
            what = call.code.partition("\n")[0]
            report.wrong.append(
                f"{what} came to {result.status}: {result.stdout[:200]} {result.stderr[-200:]}"
            )
        return result

    async def _end_session(self) -> None:
        if self._cells:
            await self._environment.end_session(f"{self._name} {self._session}")
        self._session, self._cells, self._total = self._session + 1, 0, 0


def _ok(stdout: str, value: str | None = None) -> tuple[ToolStatus, str, str | None]:
    return ToolStatus.OK, stdout, value


def _attacks() -> list[Call]:
    """Attacks of one light call that end soon, without a session and with the default memory."""
    calls = [snippet.calls[0] for snippet in read_folder(CORPUS) if len(snippet.calls) == 1]
    short = [
        call
        for call in calls
        if call.limits.wall_seconds <= ATTACK_SECONDS or ToolStatus.OK in call.outcomes
    ]
    light = [call for call in short if call.session is None and not call.heavy]
    return [call for call in light if call.limits.memory_bytes == DEFAULTS["memory"] * MIB]


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Folder for all files that `tempfile` makes, so that they can be counted."""
    with tempfile.TemporaryDirectory(prefix="hrm-soak-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def sample(folder: Path, known: set[int]) -> Sample:
    """Count the resources in use. `known` are earlier descendants of this process, such as other
    tests' servers, which are not counted.
    """
    gc.collect()
    below = descendants(os.getpid()) - known
    links = [_link(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]
    return Sample(
        processes=len(below),
        descriptors=open_descriptors(),
        memory_files=sum("memfd:" in link for link in links),
        temporary_files=sum(1 for _ in folder.rglob("*")),
        threads=threading.active_count(),
        host_mib=resident_bytes() / MIB,
        below_mib=sum(map(_own_bytes, below)) / MIB,
    )


def _link(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:
        return ""


def _own_bytes(pid: int) -> int:
    """Anonymous and shared memory. Pages of files are left out, since a process's share of them
    depends on which other processes map the file.
    """
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return (
            sum(
                int(kib)
                for kib in re.findall(r"^Pss_(?:Anon|Shmem):\s+(\d+)", rollup, re.MULTILINE)
            )
            * 1024
        )
    return 0


async def soak(calls: int, *, rounds: int = ROUNDS, show: bool = False) -> Report:
    """Make `calls` calls in total by `CLIENTS` clients, in rounds."""
    report, start, before = Report(), time.monotonic(), descendants(os.getpid())
    with _temporary_folder() as folder, Host() as host:
        environment = LocalEnvironment(slots=SLOTS)
        await warm_up(environment, host, SLOTS)
        attacks = _attacks()
        clients = [
            _Client(environment, f"client {number}", attacks, host) for number in range(CLIENTS)
        ]
        for number in range(rounds):
            await asyncio.gather(
                *(client.make(calls // rounds // CLIENTS, report) for client in clients)
            )
            await asyncio.sleep(REST_SECONDS)
            report.samples.append(sample(folder, before))
            if show:
                print(
                    f"{number + 1:3} {time.monotonic() - start:7.1f} s  {report.samples[-1]}",
                    flush=True,
                )
        report.wrong += [f"the host: {complaint}" for complaint in host.complaints()]
        await environment.close()
        if left := await _left(before | {host.victim.pid}):
            report.wrong.append(f"after the end, {len(left)} processes are left")
        report.wrong += [f"after the end, {path} is left" for path in _files(folder, host)]
    report.seconds = time.monotonic() - start
    return report


def _files(folder: Path, host: Host) -> list[Path]:
    """Temporary files, without the host's own."""
    return [path for path in folder.rglob("*") if not path.is_relative_to(host.scratch)]


async def _left(known: set[int]) -> set[int]:
    """Unknown processes below this one, a moment after the end."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (left := descendants(os.getpid()) - known) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return left


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.environment.soak", description=__doc__
    )
    parser.add_argument("--calls", type=int, default=100_000)
    report = asyncio.run(soak(parser.parse_args().calls, show=True))
    made = sum(report.statuses.values())
    print(
        f"{made:,} calls in {report.seconds:.0f} s, {made / report.seconds:.0f} a second:"
        f" {dict(report.statuses)}"
    )
    print(f"kinds: {dict(report.kinds)}")
    print(f"grown since the warm-up: {report.growth}")
    for line in report.wrong[:20]:
        print(f"WRONG  {line}")
    for line in report.leaks:
        print(f"LEAK  {line}")
    print(f"{len(report.wrong)} wrong, {len(report.leaks)} leaks")
    return 1 if report.wrong or report.leaks else 0


if __name__ == "__main__":
    sys.exit(main())
