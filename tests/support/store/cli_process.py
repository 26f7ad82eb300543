"""`hrm-agent` in a separate process, whose leases last less than the usual half minute."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

__all__ = ["CliProcess", "hrm_agent"]


@dataclass(frozen=True)
class CliProcess:
    """A command under way."""

    process: BaseProcess
    said: Path
    """File of all that the command has printed."""

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    def ended(self) -> tuple[int | None, str]:
        """Wait for the end of the command. Return its exit code and what it printed."""
        self.process.join(120)
        return self.process.exitcode, self.said.read_text()


@contextmanager
def hrm_agent(
    folder: Path, *words: str, lease: float = 1.0, heartbeat: float = 3600.0
) -> Iterator[CliProcess]:
    """Run a command in a folder. It is killed at the end of the block if it has not ended."""
    folder.mkdir(exist_ok=True)
    said = folder / f"said-{len(list(folder.glob('said-*')))}.txt"
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_main, args=(str(folder), str(said), words, lease, heartbeat))
    process.start()
    try:
        yield CliProcess(process, said)
    finally:
        process.kill()
        process.join()


def _main(folder: str, said: str, words: Sequence[str], lease: float, heartbeat: float) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    with Path(said).open("w", buffering=1) as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        sys.stdout = sys.stderr = out
        from hrm_agent.cli.main import main
        from hrm_agent.store.database import leases

        leases.LEASE_SECONDS, leases.HEARTBEAT_SECONDS = lease, heartbeat
        code = main(list(words))
    os._exit(code)
