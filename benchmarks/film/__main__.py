"""`film` against sampling each run in full.

    python -m benchmarks.film [--tasks 8] [--steps 30] [--run RUN] [--json FILE] [--quick]

A training as in `make demo`, or RUN, has kept each version of its weights. Held-out tasks are run
under each version, once as `film` does it and once in full. Measured are the sampled tokens, the CPU
seconds of this process, and whether both give the same tokens in all calls of all runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from bisect import bisect_right
from pathlib import Path

from hrm_agent.training.analysis.films.film import Film, Reel, film
from hrm_agent.training.analysis.films.tasks import film_episodes
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training
from hrm_agent.trajectory import Trajectory


def measured(training: RecordedTraining, tasks: int, *, in_full: bool) -> tuple[Film, float]:
    """Film of held-out tasks, and its CPU seconds."""
    episodes = film_episodes(training, held_out_tasks=tasks)
    began = time.process_time()
    made = asyncio.run(film(training, episodes, in_full=in_full))
    return made, time.process_time() - began


def run_at(reel: Reel, version: int) -> Trajectory:
    """Run of a reel's task under a version."""
    return reel.scenes[bisect_right([each.version for each in reel.scenes], version) - 1].run


def answers(run: Trajectory) -> list[tuple[tuple[int, ...], str]]:
    """Tokens and role of all calls, in any order."""
    return sorted((call.token_ids, call.identity.role) for call in run.calls)


def main() -> None:
    """Train, film, run in full, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a small training and two tasks")
    parser.add_argument("--run", type=Path, help="folder of a recorded training")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    small = {"prompts_per_step": 2, "group_size": 4} if options.quick else {"prompts_per_step": 6}
    config = GrpoConfig.of(
        steps=2 if options.quick else options.steps, keep_versions=1, seed=options.seed, **small
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.run
        if folder is None:
            folder = Path(temporary) / "run"
            asyncio.run(train(config, folder))
        with opened_training(folder, None if options.run else config) as training:
            tasks = 2 if options.quick else options.tasks
            made, seconds = measured(training, tasks, in_full=False)
            whole, whole_seconds = measured(training, tasks, in_full=True)
    pairs = [
        (answers(run_at(ours, version)), answers(run_at(theirs, version)))
        for ours, theirs in zip(made.reels, whole.reels, strict=True)
        for version in made.versions
    ]
    record = {
        "versions": len(made.versions),
        "tasks": len(made.reels),
        "equal_runs": sum(ours == theirs for ours, theirs in pairs),
        "of_runs": len(pairs),
        "flips": sum(len(scene.flips) for reel in made.reels for scene in reel.scenes),
        "sampled_tokens": made.sampled_tokens,
        "sampled_tokens_in_full": whole.sampled_tokens,
        "checked_tokens": made.checked_tokens,
        "cpu_seconds": seconds,
        "cpu_seconds_in_full": whole_seconds,
    }
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
