"""Hierarchical agent called from a program. It solves two word problems, with the policy that comes
with the package or any other.

    python -m examples.word_maths
    python -m examples.word_maths --policy openai:gpt-5

Every run is a thread in the store whose path is printed. `hrm-agent show tank --store
runs/word_maths.db` shows the conversation of the roles. If the program is run again, it reads the
stored answers instead of calling the model.

The small policy that comes with the package knows only problems of these kinds
(`hrm_agent.training.tasks.word_problems`), also with unseen numbers. With it the program takes some
10 seconds.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from hrm_agent.errors import HrmError
from hrm_agent.models import DEFAULT_POLICY
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.runtime.settings import RunSettings
from hrm_agent.store import open_store
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import TaskRef, Trajectory

STORE = "runs/word_maths.db"
TANK = "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L."
FARM = "A farm keeps 123 hens and 145 cows. How many legs do they have?"
PROBLEMS = {
    "tank": (f"{TANK} Return exactly: 'Answer: <liters>'.", "1279.43"),
    "farm": (FARM, "826"),
}
"""Name of the thread -> (question, answer)."""


async def solve(policy: str) -> list[Trajectory]:
    """Solve both problems, one after the other."""
    with open_store(STORE) as store:
        async with EpisodeRunner.open(store, policy, RunSettings(temperature=0.0)) as runner:
            return [
                await runner.run(
                    Episode(
                        TaskRef(id=name, family="examples", prompt=question, answer=answer),
                        thread_id=name,
                        graph="reasoning",
                        verify=exact_verifier(answer),
                    )
                )
                for name, (question, answer) in PROBLEMS.items()
            ]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Two word problems for the hierarchical agent")
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    try:
        found = asyncio.run(solve(parser.parse_args(words).policy))
    except HrmError as error:
        raise SystemExit(str(error)) from None
    for trajectory in found:
        calls = Counter(call.identity.checkpoint_ns.partition(":")[0] for call in trajectory.calls)
        right = "right" if trajectory.rewards.get("correct") else "wrong"
        print(f"{trajectory.thread_id}: {trajectory.answer} ({right}), {dict(calls)} in {STORE}")


if __name__ == "__main__":
    main()
