"""A research run that a test kills: one of its two searches never ends.

    python -m tests.support.graphs.killed_research URL STORE

It prints a line when the other search has ended.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import open_store
from tests.support.graphs.research_scripts import AGENT, NIGHT, Researcher, Talk

HANGS = "hangs"
CALLS = 5
"""Number of calls on record at the kill: one of the planner, three of the search that ends, one of
the other search.
"""


async def main(url: str, path: str) -> None:
    with open_store(path) as store:

        def searcher(messages: Any) -> str:
            """Hang in the search for krill once it has searched and all calls of the other search
            are on record.
            """
            if NIGHT in messages[1].text and messages[-1].type == "tool":
                while len(store.journal.trajectory("talk").calls) < CALLS:
                    time.sleep(0.02)
                print(HANGS, flush=True)
                time.sleep(600)
            return Researcher().searcher(messages)

        await Talk(
            store,
            LocalEnvironment(slots=1),
            Researcher(searcher=searcher),
            wiki=url,
            user_agent=AGENT,
        )()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
