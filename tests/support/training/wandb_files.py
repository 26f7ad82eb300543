"""Contents of the file that wandb writes for a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hrm_agent.training.trackers.wandb_file import wandb_records


def history(path: Path) -> dict[int, dict[str, float]]:
    """Numbers by step. Raises if a step occurs twice."""
    found: dict[int, dict[str, float]] = {}
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            step = int(items["_step"])
            assert step not in found
            found[step] = {name: value for name, value in items.items() if not name.startswith("_")}
    return found


def config(path: Path) -> dict[str, Any]:
    """Configuration of the run."""
    (run,) = [
        record.run for record in wandb_records(path) if record.WhichOneof("record_type") == "run"
    ]
    return {item.key: json.loads(item.value_json) for item in run.config.update}
