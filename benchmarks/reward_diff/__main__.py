"""`reward-diff` against trainings with the two rewards that it compares.

    python -m benchmarks.reward_diff [--seeds 3] [--steps 15] [--folder F] [--json FILE] [--quick]

The old reward is the verifier, and twelve others are the new one: six that can be hacked, and six
sound ones (`rewards.py`). For each seed, one policy is trained with each of the thirteen rewards, on
the same tasks. The real change of a measure is the difference of its means over the rollouts of the
last three steps. The predicted one is that of `reward-diff` on the first three steps of the training
with the old reward. Measured are the rank correlation of the two over the twelve rewards, each a
mean over seeds, the warnings about each reward, and CPU seconds. A repeated call with the same
folder resumes the trainings.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.reward_diff.rewards import HACKABLE, SOUND
from benchmarks.reward_diff.trainings import OLD, config_of, spec_of, trained
from hrm_agent.training.analysis.reward_diff import reward_difference
from hrm_agent.training.records.retrace import opened_training

MEASURES = ("accuracy", "tool_use", "length")
FIRST = 3
"""Number of first steps whose rollouts are compared."""


def predicted(folder: Path, reward: str, seed: int, steps: int, group_size: int) -> dict[str, Any]:
    """Prediction, warnings and CPU seconds of `reward-diff`."""
    began = time.process_time()
    config = config_of(OLD, seed, steps, group_size)
    with opened_training(folder, config) as training:
        found = reward_difference(training, OLD, spec_of(reward), range(min(FIRST, steps)))
    return {
        "cpu_seconds": time.process_time() - began,
        "changes": {name: found.changes[name].difference for name in MEASURES},
        "errors": {name: found.changes[name].difference_error for name in MEASURES},
        "cosine": found.cosine,
        "warnings": [asdict(each) for each in found.warnings],
    }


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation (None if all values of a side are equal). Values that agree to six
    digits share their mean rank.
    """
    ranks = np.stack([_ranks(a), _ranks(b)])
    return float(np.corrcoef(ranks)[0, 1]) if ranks.std(1).all() else None


def _ranks(values: Sequence[float]) -> np.ndarray:
    rounded = np.round(np.array(values), 6)
    below = (rounded[:, None] > rounded).sum(1)
    return below + ((rounded[:, None] == rounded).sum(1) - 1) / 2


def main() -> None:
    """Train with each reward, predict, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="two rewards, small trainings")
    parser.add_argument("--folder", type=Path, help="where the trainings are kept")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    rewards = (HACKABLE[1], SOUND[0]) if options.quick else (*HACKABLE, *SOUND)
    seeds = 1 if options.quick else options.seeds
    steps = 2 if options.quick else options.steps
    group_size = 2 if options.quick else 8
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        rows: dict[str, dict[str, Any]] = {each: {} for each in rewards}
        for seed in range(seeds):
            base = folder / f"seed-{seed}"
            old = trained(base / OLD, OLD, seed, steps, group_size)
            for reward in rewards:
                new = trained(base / reward, reward, seed, steps, group_size)
                real = {name: getattr(new, name) - getattr(old, name) for name in MEASURES}
                row = {"real": real} | predicted(base / OLD, reward, seed, steps, group_size)
                rows[reward][str(seed)] = row
                print(seed, reward, json.dumps(row), flush=True)
    print(json.dumps(record := summary(rows), indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Figures of all rewards and seeds."""
    real, foretold = (
        {
            reward: {name: fmean(row[key][name] for row in by_seed.values()) for name in MEASURES}
            for reward, by_seed in rows.items()
        }
        for key in ("real", "changes")
    )
    counts = {
        reward: [len(row["warnings"]) for row in by_seed.values()]
        for reward, by_seed in rows.items()
    }
    return {
        "rank_correlation": {
            name: rank_correlation(
                [real[each][name] for each in rows], [foretold[each][name] for each in rows]
            )
            for name in MEASURES
        },
        "hackable_with_a_warning": sum(all(counts[each]) for each in rows if each in HACKABLE),
        "sound_with_two_warnings": sum(max(counts[each]) > 1 for each in rows if each in SOUND),
        "cpu_seconds": max(
            row["cpu_seconds"] for by_seed in rows.values() for row in by_seed.values()
        ),
        "real": real,
        "predicted": foretold,
        "kinds": {
            reward: sorted({each["kind"] for row in by_seed.values() for each in row["warnings"]})
            for reward, by_seed in rows.items()
        },
    }


if __name__ == "__main__":
    main()
