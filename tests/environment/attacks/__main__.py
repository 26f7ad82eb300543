"""Runs every attack of a folder against an environment, and prints what came of each.

As an ordinary user: `unshare --map-user=1000 --map-group=1000 python -m tests.environment.attacks`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from hrm_agent.environment import Environment, LocalEnvironment
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, Isolation
from hrm_agent.environment.on_ray.environment import RayEnvironment
from hrm_agent.environment.remote.client import RemoteEnvironment
from hrm_agent.environment.remote.sockets import listen_tcp
from tests.environment.attacks.host import Host
from tests.environment.attacks.snippets import CORPUS, Snippet, read_folder
from tests.environment.attacks.trial import try_attack, warm_up
from tests.support.environment.served import TOKEN, served

WAYS = ("process", "http", "ray")


@asynccontextmanager
async def opened(over: str, slots: int, isolation: Isolation) -> AsyncGenerator[Environment]:
    """An environment of this machine: in this process, behind a server,
    on a cluster of one node.
    """
    if over == "ray":
        environment = RayEnvironment(slots=slots, isolation=isolation)
        yield environment
        await environment.close()
        return
    local = LocalEnvironment(slots=slots, isolation=isolation)
    if over == "process":
        yield local
    else:
        listener = listen_tcp("127.0.0.1", 0)
        with served(local, listener):
            remote = RemoteEnvironment(f"http://127.0.0.1:{listener.getsockname()[1]}", token=TOKEN)
            yield remote
            await remote.close()
    await local.close()


async def run(
    snippets: list[Snippet], over: str, slots: int, late: float, isolation: Isolation
) -> int:
    """Exit code: 1 if any attack was not contained."""
    failed, counts, began = 0, Counter[str](), time.monotonic()
    async with _entered(Host()) as host, opened(over, slots, isolation) as environment:
        who = f"uid {os.getuid()}, {over}, isolation {environment.isolation}, {slots} slots"
        print(f"{len(snippets)} attacks, {who}", flush=True)
        await warm_up(environment, host, slots)
        for snippet in snippets:
            start = time.monotonic()
            trial = await try_attack(snippet, environment, host, slots, late)
            statuses = " ".join(dict.fromkeys(str(result.status) for result in trial.results))
            counts.update(str(result.status) for result in trial.results)
            failed += bool(trial.complaints)
            verdict = "OPEN" if trial.complaints else "held"
            print(
                f"{verdict}  {snippet.name:38} {time.monotonic() - start:6.2f} s  {statuses}",
                flush=True,
            )
            for complaint in trial.complaints:
                print(f"        {complaint}", flush=True)
            if trial.complaints:
                host.settle()  # told once; each attack would wait for it to go away
    print(
        f"{len(snippets) - failed} of {len(snippets)} held in {time.monotonic() - began:.0f} s;"
        f" {dict(counts)}"
    )
    return 1 if failed else 0


@asynccontextmanager
async def _entered(host: Host) -> AsyncGenerator[Host]:
    with host:
        yield host


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.environment.attacks", description=__doc__
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=CORPUS, help="of .py files; default: our own corpus"
    )
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--part", default="1/1", help="K/N: each Nth attack, from the Kth on [1/1]")
    parser.add_argument(
        "--over", choices=WAYS, default="process", help="how the environment is reached [process]"
    )
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument(
        "--late", type=float, default=5.0, help="seconds that a call may go on after its time [5]"
    )
    parser.add_argument(
        "--isolation", type=Isolation, default=DEFAULT_ISOLATION, help="least level [L2]"
    )
    arguments = parser.parse_args()
    snippets = [
        snippet
        for snippet in read_folder(arguments.folder.resolve())
        if arguments.only in snippet.name
    ]
    number, _, parts = arguments.part.partition("/")
    snippets = snippets[int(number) - 1 :: int(parts)]
    if not snippets:
        print(f"No attack in {arguments.folder}.", file=sys.stderr)
        return 2
    return asyncio.run(
        run(snippets, arguments.over, arguments.slots, arguments.late, arguments.isolation)
    )


if __name__ == "__main__":
    sys.exit(main())
