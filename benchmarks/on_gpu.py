"""Speed of the in-process engine and of a training step on one GPU, at the size of a real small
model.

    python -m benchmarks.on_gpu [--requests 256] [--rollouts 64] [--device cuda] [--json FILE]

A Qwen3 of 596 million random weights in bfloat16, with a vocabulary of 151,936.

* Sampling, as in `benchmarks/engine.py`: the engine, `generate` of transformers on the whole batch,
  and as the floor the forward passes alone. None of the three uses CUDA graphs: each kernel is
  launched separately.
* A training step, as in `benchmarks/training_step.py`, by each way to forward a batch: rollouts of
  about 1,500 tokens, whose groups share prompts of 300 tokens. The gradients' norms are compared
  first.

Every way runs once before it is timed. `--quick` takes the shipped policy's size and runs on a CPU,
too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine import (
    ANSWER,
    PROMPT,
    VOCABULARY,
    make_prompts,
    run_engine,
    run_floor,
    run_generate,
    settle,
)
from benchmarks.training_step import credited, fixed_trajectories, ours
from hrm_agent.testing import tiny_network
from hrm_agent.training.update.batch import ForwardName

LAYERS = 28
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": LAYERS,
    "layer_types": ["full_attention"] * LAYERS,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
}
SMALL = {"vocab_size": VOCABULARY + 12, "bos_token_id": 1}
BUDGET = 16_384
"""Maximum tokens of a micro-batch."""
Row = dict[str, Any]


def network(device: str, quick: bool) -> Any:
    """Network created on the device, since a CPU takes a minute for the large one."""
    with torch.device(device):
        model: Any = tiny_network(**(SMALL if quick else LARGE))
    return model.to(device, torch.float32 if quick else torch.bfloat16)


def sampling(device: str, requests: int, quick: bool) -> list[Row]:
    model, prompts = network(device, quick), make_prompts(requests)
    floor = run_floor(model, requests, "first", PROMPT + ANSWER // 2)
    run_generate(model, prompts)
    return [floor, *run_engine(model, prompts, None), run_generate(model, prompts)]


def training(device: str, rollouts: int, quick: bool) -> list[Row]:
    length, common = (60, 12) if quick else (1_500, 300)
    trajectories = fixed_trajectories(rollouts, length, length // 4, common)
    overlays, norms, rows = credited(trajectories), list[float](), list[Row]()
    for forward in get_args(ForwardName):
        step = ours(trajectories, overlays, forward, network(device, quick), BUDGET)
        norms.append(step())
        peak = _fresh_peak(device)
        settle()
        start = time.perf_counter()
        step()
        settle()
        rows.append({"way": forward, "seconds": time.perf_counter() - start, "peak_gib": peak()})
    if max(norms) - min(norms) > 0.02 * max(norms):  # bfloat16 has three digits
        raise SystemExit(f"The ways do not compute the same gradient: {norms}")
    return rows


def _fresh_peak(device: str) -> Any:
    if device == "cpu":
        return lambda: None
    torch.cuda.reset_peak_memory_stats()
    return lambda: torch.cuda.max_memory_allocated() / 2**30


def show(sampled: Sequence[Row], trained: Sequence[Row]) -> None:
    table = Table("way", "tok/s")
    for row in sampled:
        table.add_row(row["way"], f"{row['tok_s']:,.0f}")
    Console().print(table)
    table = Table("forward", "seconds", "peak GiB")
    for row in trained:
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        table.add_row(row["way"], f"{row['seconds']:.2f}", peak)
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.on_gpu", description="Engine and trainer on one GPU"
    )
    parser.add_argument(
        "--requests", type=int, default=256, help="conversations at once, 16 of each prompt"
    )
    parser.add_argument(
        "--rollouts", type=int, default=64, help="rollouts of the training step, in groups of 8"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny network, on a CPU where there is no GPU"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and not arguments.quick:
        Console().print("No GPU was found. Run the short form on a CPU: --quick.")
        return
    device = arguments.device if torch.cuda.is_available() else "cpu"
    requests, rollouts = (16, 16) if arguments.quick else (arguments.requests, arguments.rollouts)
    sampled = sampling(device, requests, arguments.quick)
    trained = training(device, rollouts, arguments.quick)
    show(sampled, trained)
    if arguments.json:
        name = torch.cuda.get_device_name() if device != "cpu" else "CPU"
        found = {
            "device": name,
            "torch": torch.__version__,
            "sampling": sampled,
            "training": trained,
        }
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
