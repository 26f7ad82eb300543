"""Measurement of one size in a separate process: a recording, then the framework and the bare
engine in turn. It prints a line of JSON.

The recording is made with the shipped small policy. See `benchmarks.engine_share.networks` for how
a network of another size returns its answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.engine_share.networks import Recorded, RecordedEngine
from benchmarks.rollout_profile.measured import (
    MAX_TOKENS,
    POLICY,
    accounted,
    closed_loop,
    conversations,
    drawn,
    thread_seconds,
)
from hrm_agent.models import load_policy
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.collect import collect

Seconds = dict[str, float]


def recorded_in(folder: Path) -> Recorded:
    """Prompts and answers of all model calls of a run."""
    found: Recorded = {}
    with open_store(folder) as store:
        for trajectory in store.journal.trajectories(requests=False):
            for call in trajectory.calls:
                prompt = store.journal.path_tokens(call.id)[: -call.sampled_tokens]
                seed = call.sampled_with.seed
                assert seed is not None
                assert seed not in found
                found[seed] = (tuple(prompt), tuple(call.token_ids[-call.sampled_tokens :]))
    return found


def collected(count: int, folder: Path, engine: Any) -> list[Any]:
    """Run `collect` from an empty folder to a closed store. The seeds of a run do not depend on its
    folder.
    """
    config = CollectConfig(
        policy=POLICY, graph="tool_loop", count=count, max_tokens=MAX_TOKENS, seed=0
    )
    return asyncio.run(collect(config, folder / "run", tasks=drawn(count, 0), backend=engine))


def timed(engine: RecordedEngine, cpu: Callable[[], float], work: Callable[[], Any]) -> Seconds:
    """Seconds of a piece of work, with an empty cache as in a new run. In the result, `engine` is
    the engine's thread and `loop` the thread of the graphs.
    """
    engine.publish(0)
    steps, fed, sampled = engine.steps, engine.fed_tokens, engine.sampled_tokens
    threads, used, clock = thread_seconds(), cpu(), time.perf_counter()
    work()
    wall, used, after = time.perf_counter() - clock, cpu() - used, thread_seconds()
    parts = {part: after[part] - threads[part] for part in ("engine", "loop", "other threads")}
    counts = {
        "steps": engine.steps - steps,
        "fed": engine.fed_tokens - fed,
        "sampled": engine.sampled_tokens - sampled,
    }
    return {"CPU": used, "wall": wall, **parts, "sandbox": used - sum(parts.values()), **counts}


def measure(size: str, count: int, repeats: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, accounted() as (cpu, account):
        folder = Path(name)
        policy: Any = load_policy(POLICY)
        found = collected(count, folder / "recording", policy)
        asked = conversations(folder / "recording" / "run")
        recorded = recorded_in(folder / "recording" / "run")
        policy.close()
        found_by: dict[str, list[Seconds]] = {"whole": [], "bare": []}
        with RecordedEngine(size, policy.codec, recorded, threads) as engine:
            ways: dict[str, Callable[[Path], Any]] = {
                "whole": lambda into: collected(count, into, engine),
                "bare": lambda _: closed_loop(engine, asked),
            }
            closed_loop(engine, asked)  # reserves the memory before timing
            for repeat in range(repeats):
                for way in sorted(ways, reverse=repeat % 2 == 0):
                    found_by[way].append(
                        timed(engine, cpu, partial(ways[way], folder / str(repeat)))
                    )
            parameters = engine.capabilities().parameters
        answers = sum(len(answer) for _, answer in recorded.values())
        assert all(one["sampled"] == answers for rows in found_by.values() for one in rows)
        return {
            "size": size,
            "parameters": parameters,
            "rollouts": len(found),
            "calls": len(recorded),
            "tool calls": sum(len(each.tool_calls) for each in found),
            "prompt tokens": sum(len(prompt) for prompt, _ in recorded.values()),
            "sampled tokens": answers,
            "account": account,
            **found_by,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", required=True)
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    sys.stdout.write(
        json.dumps(measure(given.size, given.rollouts, given.repeats, given.threads)) + "\n"
    )


if __name__ == "__main__":
    main()
