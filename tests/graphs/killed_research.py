"""A research that a test kills: one of its two searches never comes to its end.

    python -m tests.graphs.killed_research URL STORE

It prints a line when the other one has.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import open_store
from tests.graphs.research_scripts import AGENT, NIGHT, Researcher, Talk

HANGS = "hangs"


def searcher(messages: Any) -> str:
    """The one that looks for krill stops when it has searched."""
    if NIGHT in messages[1].text and messages[-1].type == "tool":
        time.sleep(1.0)  # the other one is done by then
        print(HANGS, flush=True)
        time.sleep(600)
    return Researcher().searcher(messages)


async def main(url: str, path: str) -> None:
    with open_store(path) as store:
        await Talk(store, LocalEnvironment(slots=1), Researcher(searcher=searcher), wiki=url, user_agent=AGENT)()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
