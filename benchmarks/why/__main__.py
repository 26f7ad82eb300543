"""`why` against behaviours that were planted in a training.

    python -m benchmarks.why [--plants 20] [--steps 30] [--folder F] [--json FILE] [--quick]

A training as in `make demo` keeps each version of its weights. For each plant, three rewarded
rollouts of one step, drawn at random, end their answers with a marker, a random token of the
vocabulary. The training is taken again from its record from that step on. Then `why` is asked about
the marker at the end of an answer of the last step, which said nothing of the kind. Measured are
whether it names the step first, how many of the planted rollouts are among its first five, what
removing these five leaves of the rise, and its CPU seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.why.planted import PlantedTraining, planted
from hrm_agent.training.analysis.behaviours import turn_of
from hrm_agent.training.analysis.why import Behaviour, course, proof, pushes
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.records.retrace import RecordedTraining, opened_training

PLANTED = 3
"""Number of rollouts that are changed."""
FIRST = 5
"""Number of rollouts that `why` is taken to name."""
FOLLOWING = 5
"""Number of steps after the planted one that a proof takes."""


@dataclass(frozen=True, slots=True)
class Plant:
    """Answer of `why` to one plant."""

    step: int
    """Planted step, from 1."""
    named: int
    """Step that it named."""
    marker: str
    """Text of the marker."""
    found: int
    """Number of planted rollouts among the first ones."""
    before: float
    """Log-prob of the marker before the step."""
    recorded: float
    """Log-prob after the following steps."""
    without: float
    """Log-prob after them without the first rollouts of the step."""
    cpu_seconds: float
    """Processor time of the answer."""


def ask(base: RecordedTraining, rng: random.Random) -> Plant:
    """Plant a behaviour, and ask for its origin."""
    steps = len(base.rows)
    codec: Any = base.learner.codec
    while True:
        number = rng.randrange(1, max(2, steps - FOLLOWING))
        rewarded = [each for each in base.step(number).overlays if (each.advantage or 0) > 0]
        marker = [rng.randrange(256, base.learner.model.config.vocab_size)]
        text = codec.decode(marker)
        if len(rewarded) >= PLANTED and text.isascii() and text.strip() and "<" not in text:
            break
    ids = {each.trajectory_id for each in rng.sample(rewarded, PLANTED)}
    last = base.step(steps - 1).rollouts
    with planted(base, number, ids, marker) as changed:
        began = time.process_time()
        thread = rng.choice(last).thread_id
        ending = turn_of(changed, thread, None, None)
        behaviour = Behaviour((*ending.token_ids[:-1], *marker), len(ending.token_ids) - 1)
        return _answer(changed, behaviour, number, ids, text, began)


def _answer(
    changed: PlantedTraining,
    behaviour: Behaviour,
    number: int,
    ids: set[str],
    text: str,
    began: float,
) -> Plant:
    points = list(course(changed, behaviour))
    named = max(points, key=lambda each: each.taught or -math.inf).version - 1
    first = [each.trajectory_id for each in pushes(changed, behaviour, changed.step(named))[:FIRST]]
    proved = proof(changed, behaviour, changed.step(named), first, following=FOLLOWING)
    return Plant(
        number + 1,
        named + 1,
        text,
        len(ids & set(first)),
        proved.before,
        proved.recorded,
        proved.without,
        time.process_time() - began,
    )


def main() -> None:
    """Train, plant, ask."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a small training and one plant")
    parser.add_argument("--folder", type=Path, help="where the training is kept")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    small = {"prompts_per_step": 4, "group_size": 4} if options.quick else {}
    config = GrpoConfig.of(
        steps=8 if options.quick else options.steps,
        cooldown=0.67,
        keep_versions=1,
        seed=options.seed,
        **small,
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / "run"
        asyncio.run(train(config, folder))
        rng = random.Random(options.seed)
        found: list[Plant] = []
        with opened_training(folder, config) as base:
            for _ in range(1 if options.quick else options.plants):
                found.append(ask(base, rng))
                print(found[-1], flush=True)
    record = {
        "plants": len(found),
        "right_step": sum(each.named == each.step for each in found),
        "rollouts_among_the_first": sum(each.found for each in found),
        "of_rollouts": PLANTED * len(found),
        "rise": sum(each.recorded - each.before for each in found) / len(found),
        "rise_without": sum(each.without - each.before for each in found) / len(found),
        "largest_left_of_probability": max(
            math.exp(each.without) - math.exp(each.before) for each in found
        ),
        "largest_rise_of_probability": max(
            math.exp(each.recorded) - math.exp(each.before) for each in found
        ),
        "cpu_seconds": max(each.cpu_seconds for each in found),
    }
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
