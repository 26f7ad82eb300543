"""Runs every attack of a folder against a local environment, and prints what came of each."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from pathlib import Path

from hrm_agent.environment import LocalEnvironment
from tests.environment.attacks.host import Host
from tests.environment.attacks.snippets import CORPUS, Snippet, read_folder
from tests.environment.attacks.trial import try_attack, warm_up


async def run(snippets: list[Snippet], slots: int, late: float) -> int:
    """Exit code: 1 if one was not contained."""
    failed, counts, began = 0, Counter[str](), time.monotonic()
    with Host() as host:
        environment = LocalEnvironment(slots=slots)
        print(f"{len(snippets)} attacks, isolation {environment.isolation}, {slots} slots", flush=True)
        await warm_up(environment, host, slots)
        for snippet in snippets:
            start = time.monotonic()
            trial = await try_attack(snippet, environment, host, slots, late)
            statuses = " ".join(dict.fromkeys(str(result.status) for result in trial.results))
            counts.update(str(result.status) for result in trial.results)
            failed += bool(trial.complaints)
            verdict = "OPEN" if trial.complaints else "held"
            print(f"{verdict}  {snippet.name:38} {time.monotonic() - start:6.2f} s  {statuses}", flush=True)
            for complaint in trial.complaints:
                print(f"        {complaint}", flush=True)
        await environment.close()
    print(f"{len(snippets) - failed} of {len(snippets)} held in {time.monotonic() - began:.0f} s; {dict(counts)}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.environment.attacks", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=CORPUS, help="of .py files; default: our own corpus")
    parser.add_argument("--only", default="", help="attacks with this in their name")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--late", type=float, default=5.0, help="seconds that a call may go on after its time [5]")
    arguments = parser.parse_args()
    snippets = [snippet for snippet in read_folder(arguments.folder.resolve()) if arguments.only in snippet.name]
    if not snippets:
        print(f"No attack in {arguments.folder}.", file=sys.stderr)
        return 2
    return asyncio.run(run(snippets, arguments.slots, arguments.late))


if __name__ == "__main__":
    sys.exit(main())
