"""SmolLM2-135M in bfloat16 on one GPU: sampling, steps of training, and a reinforcement learning
that is killed and resumed.

    python -m benchmarks.gpu_training --pack FOLDER                # once, where the weights are
    python -m benchmarks.gpu_training [--policy FOLDER] [--tasks jsonl:FILE] [--minutes 8]
                                      [--device cuda] [--json FILE]

`--pack` writes the weights in bfloat16, in files of at most 60 MB, for machines to which only small
files can be brought. The folder is a policy of its own.

* Sampling: the engine without and with CUDA graphs, and `generate` of transformers, 8 answers of
  each prompt of the tool loop.
* A training step by each way to forward a batch, on rollouts of about 1,000 tokens.
* `train rl` with the tool loop, in a process of its own, until `--minutes` have passed since the
  start. The process is killed after its first steps and started again. A step that is taken twice,
  or missing, is an error.

The share is the operations that the work needs (`benchmarks/real_size/arithmetic.py`) over those
which the GPU reaches in a large matrix product, so for a step it is the model FLOP utilisation by
that measure. The default tasks imitate GSM8K. `--quick` takes the shipped small policy, and a few
small pieces of work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine import settle
from benchmarks.real_size.arithmetic import Network, measured_rates, prompts_and_steps
from benchmarks.real_size.clock import seconds
from benchmarks.real_size.prompts import prompts_of
from benchmarks.real_size.sampling import by_engine, by_generate
from benchmarks.real_size.training import step_of
from benchmarks.training_step import credited, fixed_trajectories
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.metrics import METRICS_FILE, read_metrics

FORMAT = "bfloat16"
STEPS = ("padded, masters", "packed, masters", "tree, masters")
SHARD = "60MB"
KILLED_AFTER = 2
"""Number of steps after which the training is killed."""
PATIENCE = 300.0
"""Seconds that the first steps may take."""
Row = dict[str, Any]


def pack(policy: str, folder: Path) -> None:
    """Write a policy in bfloat16 and in small files."""
    model, tokenizer = load_pretrained(model_folder(policy), dtype=FORMAT)
    model.save_pretrained(folder, max_shard_size=SHARD)
    tokenizer.save_pretrained(folder)


def sampling(options: argparse.Namespace, rates: Row) -> list[Row]:
    folder = model_folder(options.policy)
    model, _ = load_pretrained(folder, dtype=options.dtype, device=options.device)
    prompts = prompts_of(folder, options.requests)
    tokens = options.tokens
    first, further = prompts_and_steps(Network.of(model.config), prompts, tokens)
    work = {"prompts": prompts, "threads": None}
    found: dict[str, Row] = {}
    for way, captured in (("engine", False), ("engine, CUDA graphs", True)):
        engine, answer = by_engine(model, {**work, "captured": captured})
        with engine:
            found[way] = timed(answer, tokens, options.device)
    found["generate"] = timed(by_generate(model, work), tokens, options.device)
    for row in found.values():
        row["tokens_s"] = len(prompts) * tokens / row["wall"]
        row["share"] = (first + further) / row["wall"] / rates["flop_s"]
    return [{"part": "sampling", "way": way, **row} for way, row in found.items()]


def training(options: argparse.Namespace, rates: Row) -> list[Row]:
    trajectories = fixed_trajectories(*options.shape)
    rows: list[Row] = []
    for way in STEPS:
        work = {
            "policy": options.policy,
            "folder": model_folder(options.policy),
            "way": way,
            "format": options.dtype,
            "device": options.device,
        }
        step, operations = step_of(work, trajectories, credited(trajectories))
        row = timed(lambda _, step=step: step(), 0, options.device)
        counted = sum(len(call.token_ids) for each in trajectories for call in each.calls)
        row["tokens_s"] = counted / row["wall"]
        row["share"] = operations / row["wall"] / rates["flop_s"]
        rows.append({"part": "step", "way": way, **row})
    return rows


def timed(work: Any, argument: int, device: str) -> Row:
    """Seconds of work that has run once before, and the peak of the device's memory."""
    work(min(argument, 4))
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()

    def settled() -> None:
        work(argument)
        settle()

    settle()
    row: Row = dict[str, Any](seconds(settled))
    row["peak_gib"] = None if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
    return row


def reinforcement(options: argparse.Namespace, ends: float) -> Row:
    """Training by `train rl`, killed after its first steps, resumed, and stopped at the time
    `ends`.
    """
    with tempfile.TemporaryDirectory() as name:
        run = Path(name, "run")
        words = [
            *(sys.executable, "-m", "hrm_agent", "train", "rl", "--out", str(run)),
            *("--policy", model_folder(options.policy), "--tasks", options.tasks),
            *("--steps", str(options.steps), "--dtype", options.dtype),
            *("--prompts-per-step", str(options.prompts_per_step), "--max-tokens", "256"),
            *("--context", "max_turns=3", *options.tool_format),
        ]
        environment = dict(os.environ)
        if options.device == "cpu":
            environment |= {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
        log = Path(name, "log")
        began = time.monotonic()
        first = attempt(words, environment, log, run, KILLED_AFTER, began + PATIENCE)
        killed = time.monotonic()
        whole = attempt(words, environment, log, run, options.steps, max(ends, killed + 60))
        numbers = [row["step"] for row in whole]
        if not first or len(whole) <= len(first) or numbers != list(range(len(numbers))):
            raise SystemExit(
                f"The training took {len(first)} steps, then {numbers}:\n{log.read_text()[-2000:]}"
            )
        after = whole[len(first) :]
        sampled = sum(row["rollout/count"] * row["rollout/sampled_tokens"] for row in after)
        return {
            "steps": len(whole),
            "steps before the kill": len(first),
            "seconds to the first steps": killed - began,
            "tokens_s": sampled / sum(row["rollout_seconds"] for row in after),
            "rollout seconds": [row["rollout_seconds"] for row in whole],
            "update seconds": [row["update_seconds"] for row in whole],
            "reward": [row["rollout/reward_mean"] for row in whole],
            "engine difference": [row["engine_difference"] for row in whole],
        }


def attempt(
    words: Sequence[str],
    environment: dict[str, str],
    log: Path,
    run: Path,
    steps: int,
    ends: float,
) -> list[Row]:
    """Metrics of a training that is killed once it has taken so many steps, or at the time `ends`,
    unless it ends by itself.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            words, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    while process.poll() is None and time.monotonic() < ends:
        if steps <= len(read_metrics(run / METRICS_FILE)):
            break
        time.sleep(0.2)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return read_metrics(run / METRICS_FILE)


def show(rows: Sequence[Row], trained: Row, rates: Row, device: str) -> None:
    table = Table("part", "way", "s", "tok/s", "share", "peak GiB", title=device)
    for row in rows:
        peak = "" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
        figures = (f"{row['wall']:.2f}", f"{row['tokens_s']:,.0f}", f"{row['share']:.3f}", peak)
        table.add_row(row["part"], row["way"], *figures)
    console = Console()
    console.print(table)
    console.print(f"a large product: {rates['flop_s'] / 1e12:,.1f} TFLOP/s")
    console.print(f"train rl: {json.dumps(trained)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="write the weights, and stop")
    parser.add_argument("--policy", default="smollm2-135m", help="model string or folder")
    parser.add_argument("--tasks", default="reasoning_gym:gsm_symbolic")
    parser.add_argument("--minutes", type=float, default=8.0, help="time of everything together")
    parser.add_argument("--requests", type=int, default=256, help="answers, 8 of each prompt")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of an answer")
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts of a measured step")
    parser.add_argument("--prompts-per-step", type=int, default=32, help="of the training")
    parser.add_argument("--steps", type=int, default=1000, help="most steps of the training")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default=FORMAT, help="number format of the weights")
    parser.add_argument("--quick", action="store_true", help="the shipped small policy")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    options.shape = (options.rollouts, 1_000, 250, 200)
    options.tool_format = ("tool_format=fenced",)
    if options.quick:
        options.policy, options.tasks, options.tool_format = (
            "builtin:cold-start",
            "word_problems",
            (),
        )
        options.requests, options.tokens, options.shape = 16, 4, (16, 60, 10, 12)
        options.prompts_per_step, options.steps = 2, KILLED_AFTER + 1
    return options


def main() -> None:
    began = time.monotonic()
    options = _options()
    if options.pack:
        pack(options.policy, options.pack)
        return
    if options.device != "cpu" and not torch.cuda.is_available():
        Console().print("No GPU was found. Run the short form on a CPU: --quick --device cpu.")
        return
    rates = measured_rates(options.dtype, options.device)
    rows = [*sampling(options, rates), *training(options, rates)]
    if options.device != "cpu":
        torch.cuda.empty_cache()  # for the training's process
    trained = reinforcement(options, began + 60 * options.minutes)
    device = "CPU" if options.device == "cpu" else torch.cuda.get_device_name()
    show(rows, trained, rates, device)
    if options.json:
        found = {"device": device, "torch": torch.__version__, "rates": rates}
        found |= {"rows": rows, "training": trained}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
