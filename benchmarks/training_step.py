"""Training step on fixed trajectories: ours, TRL's GRPOTrainer, and a bare torch loop.

    python -m benchmarks.training_step [--repeats 7] [--rollouts FOLDER ...] [--json FILE]

All contestants compute the same gradient from the same trajectories (its norm is compared before
anything is timed), with forward, backward, gradient clipping and an AdamW step on the same small
Qwen3. The time of a contestant also includes:

* padded, packed, tree: our ways to forward a batch; everything from the stored records on,
  linearising included (`build_batches`, `policy_update`)
* TRL: `compute_loss` on ready tensors, with the entropy and the metrics that it always computes, in
  micro-batches of `TRL_ROWS` rows, the fastest of 8, 16, 32 and 64
* bare: on ready tensors in our micro-batches: logits of all positions, log-softmax, gather, clip,
  step

CPU seconds are those of the whole process over all threads. The contestants take turns within each
repeat, so that other load on the machine affects all of them. Medians and minima are reported.

Two more things are measured: the peak memory of the log-probs at a vocabulary of 150,000, in a
separate process, by whole logits and by chunks; and the tokens that each way forwards for the
rollouts in the given run folders, selected as in training.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from hrm_agent.store import open_store
from hrm_agent.testing import tiny_network
from hrm_agent.training.select.roc import select
from hrm_agent.training.update.advantages import group_advantages
from hrm_agent.training.update.batch import (
    ForwardName,
    MicroBatch,
    build_batches,
    kept_rows,
    micro_batches,
)
from hrm_agent.training.update.logprobs.log_softmax import chosen_logprobs
from hrm_agent.training.update.logprobs.padded import side_by_side
from hrm_agent.training.update.logprobs.vocabulary_chunks import logprobs_from_hidden
from hrm_agent.training.update.objectives import LossOptions
from hrm_agent.training.update.optimizer_step import policy_update
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    Overlay,
    RunStatus,
    TaskRef,
    Trajectory,
)

VOCABULARY = 512
TOKEN_BUDGET = 4096
TRL_ROWS = 64
SHAPES = {
    "32 x 256 tokens": (32, 256, 0, 0),
    "128 x about 200 tokens": (128, 200, 60, 0),
    "128 x about 200, a group shares 66": (128, 200, 60, 66),
    "128 x about 200, a group shares 100": (128, 200, 60, 100),
}
"""Number of rollouts, their mean length, spread of the lengths, and tokens of the prompt that a
group shares (0 if each rollout has another prompt).
"""
QUICK = {"8 x 32 tokens": (8, 32, 0, 10)}
WIDE = 150_000
"""Vocabulary at which memory is measured."""


def small_qwen3() -> PreTrainedModel:
    return tiny_network(vocab_size=VOCABULARY, bos_token_id=1)


def fixed_trajectories(count: int, length: int, spread: int, common: int) -> list[Trajectory]:
    """Trajectories in groups of eight. The first third of each rollout is the prompt; a turn, a
    tool response and a second turn follow.

    If `common` is not 0, all rollouts of a group have one prompt of `common` tokens.
    """
    rng = random.Random(0)
    made: list[Trajectory] = []
    prompt: tuple[int, ...] = ()
    for index in range(count):
        if index % 8 == 0:
            prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(common))
        made.append(_trajectory(index, length + rng.randint(-spread, spread), rng, prompt))
    return made


def _trajectory(index: int, length: int, rng: random.Random, common: tuple[int, ...]) -> Trajectory:
    prompt, response = len(common) or length // 3, length // 8
    turn = (length - prompt - response) // 2
    first = _call(f"{index}-a", None, prompt, turn, rng)
    first = first.model_copy(update={"token_ids": (*common, *first.token_ids[len(common) :])})
    second = _call(f"{index}-b", first.id, response, length - prompt - response - turn, rng)
    return Trajectory(
        id=str(index),
        thread_id=str(index),
        group_id=str(index // 8),
        sample_index=index % 8,
        task=TaskRef(id=str(index // 8), family="fixed", prompt=""),
        graph="tool_loop",
        policy="small",
        status=RunStatus.COMPLETED,
        rewards={"correct": float(index % 3 == 0)},
        started_at=0.0,
        calls=(first, second),
    )


def _call(name: str, parent: str | None, inserted: int, sampled: int, rng: random.Random) -> Call:
    return Call(
        id=name,
        identity=GraphIdentity(thread_id=name.partition("-")[0], task_id=name),
        call_index=0,
        request_hash=name,
        model="small",
        parent=parent,
        branch_reason=None if parent else BranchReason.ROOT,
        token_ids=tuple(rng.randrange(3, VOCABULARY) for _ in range(inserted + sampled)),
        mask=(False,) * inserted + (True,) * sampled,
        logprobs=(0.0,) * inserted + tuple(rng.uniform(-6.6, -5.9) for _ in range(sampled)),
        logprob_kind=LogprobKind.RAW,
        response={"content": "<answer>"},
        started_at=0.0,
        ended_at=0.0,
    )


def credited(trajectories: Sequence[Trajectory]) -> list[Overlay]:
    groups = [trajectories[i : i + 8] for i in range(0, len(trajectories), 8)]
    return group_advantages(
        [overlay for group in groups for overlay in select(group, 8, "grpo", seed=0)], eps=1e-4
    )


Step = Callable[[], float]
"""Function that takes one optimiser step and returns the gradient's norm."""


def ours(
    trajectories: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    forward: ForwardName,
    model: PreTrainedModel | None = None,
    budget: int = TOKEN_BUDGET,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    recorded: bool = True,
) -> Step:
    """Our step. `recorded`: the old log-probs are the trajectories', not the trainer's own."""
    model = model or small_qwen3()
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    loss = LossOptions(old_logprobs="engine" if recorded else "trainer")

    def step() -> float:
        batches = build_batches(trajectories, overlays, token_budget=budget, forward=forward)
        return policy_update(model, optimizer, batches, loss=loss)["grad_norm"]

    return step


def bare(trajectories: Sequence[Trajectory], overlays: Sequence[Overlay]) -> Step:
    model = small_qwen3().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    batches = build_batches(trajectories, overlays, token_budget=TOKEN_BUDGET)
    total = sum(batch.trained_tokens for batch in batches)
    ready = [(batch, *side_by_side(batch)) for batch in batches]

    def step() -> float:
        for part in ready:
            _bare_loss(model, *part, total).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    return step


def _bare_loss(
    model: torch.nn.Module, batch: MicroBatch, token_ids_BT: Tensor, rows_N: Tensor, total: int
) -> Tensor:
    logits = model(input_ids=token_ids_BT, use_cache=False).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(-1, token_ids_BT[:, 1:, None])[..., 0]
    trained = batch.loss_indices_K
    ratio = (logprobs[rows_N[trained], batch.positions_N[trained] - 1] - batch.old_logprobs_K).exp()
    return (
        -torch.minimum(ratio * batch.weights_K, ratio.clamp(0.8, 1.28) * batch.weights_K).sum()
        / total
    )


def trl(
    trajectories: Sequence[Trajectory],
    overlays: Sequence[Overlay],
    network: PreTrainedModel | None = None,
    rows: int = TRL_ROWS,
    *,
    recorded: bool = True,
) -> Step:
    """TRL's step in micro-batches of `rows`. `recorded`: as in `ours`."""
    trainer = _trainer(network or small_qwen3(), rows)
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
    total = torch.tensor(float(sum(t.sampled_tokens for t in trajectories)))
    parts = [slice(start, start + rows) for start in range(0, len(trajectories), rows)]
    inputs = [_trl_inputs(trajectories[part], overlays[part], total) for part in parts]
    if not recorded:
        for part in inputs:
            del part["old_per_token_logps"]

    def step() -> float:
        for part in inputs:
            trainer.accelerator.backward(trainer.compute_loss(model, part))
        norm = trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(norm)

    return step


def _trainer(model: PreTrainedModel, rows: int) -> GRPOTrainer:
    words = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {f"w{i}": i for i in range(3, VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=rows,
        num_generations=8,
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        temperature=1.0,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        args=config,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": "w3"}] * rows),
    )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def _trl_inputs(
    trajectories: Sequence[Trajectory], overlays: Sequence[Overlay], total: Tensor
) -> dict[str, Any]:
    """Tensors that TRL makes of these rollouts: prompts padded on the left, completions on the
    right.
    """
    prompts = [
        [t for t, s in zip(x.calls[0].token_ids, x.calls[0].mask, strict=True) if not s]
        for x in trajectories
    ]
    tails = [len(prompt) for prompt in prompts]
    tokens = [[*x.calls[0].token_ids, *x.calls[1].token_ids] for x in trajectories]
    masks = [[*x.calls[0].mask, *x.calls[1].mask] for x in trajectories]
    logprobs = [[*x.calls[0].logprobs, *x.calls[1].logprobs] for x in trajectories]
    completions = [row[n:] for row, n in zip(tokens, tails, strict=True)]
    return {
        "prompt_ids": _padded(prompts, left=True),
        "prompt_mask": _padded([[1] * len(row) for row in prompts], left=True),
        "completion_ids": _padded(completions),
        "completion_mask": _padded([[1] * len(row) for row in completions]),
        "tool_mask": _padded(
            [[int(s) for s in row[n:]] for row, n in zip(masks, tails, strict=True)]
        ),
        "old_per_token_logps": _padded([row[n:] for row, n in zip(logprobs, tails, strict=True)]),
        "advantages": torch.tensor([overlay.advantage for overlay in overlays]),
        "num_items_in_batch": total,
    }


def _padded(rows: Sequence[Sequence[float]], *, left: bool = False) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in rows],
        batch_first=True,
        padding_side="left" if left else "right",
    )


def cpu_seconds(step: Step) -> float:
    before = resource.getrusage(resource.RUSAGE_SELF)
    step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measure(shape: tuple[int, int, int, int], repeats: int) -> dict[str, dict[str, float]]:
    """CPU seconds of a step, by contestant: median and minimum."""
    trajectories = fixed_trajectories(*shape)
    overlays = credited(trajectories)
    steps = {name: make(trajectories, overlays) for name, make in CONTESTANTS.items()}
    norms = {name: step() for name, step in steps.items()}
    if max(norms.values()) - min(norms.values()) > 1e-4 * max(norms.values()):
        raise SystemExit(f"The contestants do not compute the same gradient: {norms}")
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            seconds[name].append(cpu_seconds(step))
    return {
        "medians": {name: statistics.median(values) for name, values in seconds.items()},
        "least": {name: min(values) for name, values in seconds.items()},
    }


CONTESTANTS: dict[str, Callable[[Sequence[Trajectory], Sequence[Overlay]], Step]] = {
    **{forward: partial(ours, forward=forward) for forward in get_args(ForwardName)},
    "TRL": trl,
    "bare torch": bare,
}


def peak_mebibytes(way: str, positions: int) -> float:
    """Peak memory of forward and backward of `positions` log-probs at a vocabulary of `WIDE`,
    without the weights.
    """
    words = [sys.executable, __file__, "--peak-of", way, "--positions", str(positions)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def _peak(way: str, positions: int) -> float:
    layer = torch.nn.Linear(64, WIDE, bias=False)
    layer.weight.grad = torch.zeros_like(layer.weight)
    hidden = torch.randn(positions, 64, requires_grad=True)
    places = torch.arange(positions)
    before = _most_memory()
    if way == "whole":
        chosen_logprobs(layer(hidden), places).sum().backward()
    else:
        logprobs_from_hidden(hidden, layer, places, places, torch.ones(positions)).sum().backward()
    return _most_memory() - before


def _most_memory() -> float:
    """Peak memory in MiB of this program alone. `getrusage` is not used, since its figure includes
    the process that started this one.
    """
    (line,) = (
        each
        for each in Path("/proc/self/status").read_text().splitlines()
        if each.startswith("VmHWM")
    )
    return int(line.split()[1]) / 1024


def forwarded(folder: Path) -> dict[str, int]:
    """Tokens that a step forwards, by way, for the rollouts in a run folder that GRPO-RoC keeps."""
    with open_store(folder / "store.db") as store:
        trajectories = list(store.journal.trajectories())
    groups: dict[str, list[Trajectory]] = {}
    for each in trajectories:
        groups.setdefault(each.group_id, []).append(each)
    judged = [
        overlay for group in groups.values() for overlay in select(group, len(group) // 2, seed=0)
    ]
    rows = kept_rows(trajectories, group_advantages(judged))
    found = {"rows": len(rows)}
    for forward in get_args(ForwardName):
        batches = micro_batches(rows, token_budget=TOKEN_BUDGET, forward=forward)
        sizes = [
            side_by_side(b)[0].numel() if forward == "padded" else len(b.token_ids_N)
            for b in batches
        ]
        found[forward] = sum(sizes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--quick", action="store_true", help="few and short rollouts, which say little"
    )
    parser.add_argument(
        "--rollouts", type=Path, nargs="*", default=[], help="run folders whose tokens are counted"
    )
    parser.add_argument(
        "--positions", type=int, default=1024, help="log-probs whose memory is measured"
    )
    parser.add_argument("--peak-of", choices=["whole", "chunks"], help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    arguments = parser.parse_args()
    if arguments.peak_of:
        print(_peak(arguments.peak_of, arguments.positions))
        return
    shapes = QUICK if arguments.quick else SHAPES
    positions = 32 if arguments.quick else arguments.positions
    results = {name: measure(shape, arguments.repeats) for name, shape in shapes.items()}
    peaks = {way: peak_mebibytes(way, positions) for way in ("whole", "chunks")}
    tokens = {folder.name: forwarded(folder) for folder in arguments.rollouts}
    table = Table("rollouts", *CONTESTANTS, title="CPU seconds of a training step (and of TRL's)")
    for name, found in results.items():
        seconds = found["medians"]
        table.add_row(
            name, *(f"{value:.3f} ({value / seconds['TRL']:.2f})" for value in seconds.values())
        )
    console = Console()
    console.print(table)
    console.print(f"MiB of {positions} log-probs at a vocabulary of {WIDE:,}: {peaks}")
    for name, counts in tokens.items():
        console.print(
            f"tokens forwarded of {name}: {counts}, tree / padded"
            f" {counts['tree'] / counts['padded']:.2f}"
        )
    if arguments.json:
        record = {
            "unit": "CPU seconds",
            "repeats": arguments.repeats,
            "medians": {name: found["medians"] for name, found in results.items()},
            "least": {name: found["least"] for name, found in results.items()},
            "log_probs_peak_mib": {"vocabulary": WIDE, "positions": positions, **peaks},
            "forwarded_tokens": tokens,
        }
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
