"""Training of a policy for ARC-like puzzles from scratch. The policy tests rules on the examples,
by Python on the task's data.

    OMP_NUM_THREADS=1 python -m benchmarks.arc_policy [--out runs/arc] [--json FILE]

A puzzle is two pairs of grids, two by two, made by one of six rules, and a grid to which the rule
is applied. The policy finds the grids in its session (`session_variables`): it writes a rule as
code, tests it on the pairs, tries another one if it fails, and applies the one that fits. Each
attempt is a tool call, and its variables persist to the next.

The lessons of the cold start have errors: some apply an untested rule, and some make a call that
fails. The effect of reinforcement learning (GRPO-RoC) is measured on puzzles of another split, with
the usual graph, sandbox and verifier. The network has the small policy's architecture, half a
million weights. Everything takes some minutes of one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT, loop_system_turn
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig, SftConfig
from hrm_agent.training.config.fitted import conversations_taken
from hrm_agent.training.evaluation.evaluate import Evaluation, evaluate
from hrm_agent.training.grpo import train
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.sft import Conversation, train_sft
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.small_policy.cold_start import build_tokenizer
from hrm_agent.training.small_policy.snippets import tool_text
from hrm_agent.training.small_policy.traces import PYTHON_TOOL
from hrm_agent.training.tasks import Task
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import content_hash, derive_seed

__all__ = ["RULES", "lesson", "puzzles", "tasks"]

Grid = list[list[int]]
RULES: dict[str, str] = {
    "mirror": "[row[::-1] for row in g]",
    "flip": "g[::-1]",
    "turn": "[row[::-1] for row in g[::-1]]",
    "transpose": "[list(row) for row in zip(*g)]",
    "right": "[list(row) for row in zip(*g[::-1])]",
    "left": "[list(row) for row in zip(*g)][::-1]",
}
"""Rules by name, as code that a policy writes to transform a grid `g`."""
PAIRS, SIDE = 2, 2
"""Pairs of a puzzle, and rows and columns of its grids. Larger values make the cold start several
times as long.
"""
CONTEXT = {"session_variables": True, "max_turns": 10}
BATCH = 16
"""Lessons in a step of the cold start."""
COLD_START = SftConfig(batch_size=BATCH, optimizer="muon", average=0.98, micro_batch_tokens=2048)
REPORTED = ("rollout/correct", "rollout/correct_with_tool_error", "rollout/tool_calls")
"""Metrics reported for each step of reinforcement learning."""
GUESS_SHARE, SLIP_SHARE = 0.4, 0.3
"""Shares of lessons with errors: an untested rule is applied, the first call fails."""
EVAL_SHARE = 10
"""Number of puzzles of which one is held out."""


def applied(rule: str, grid: Grid) -> Grid:
    found: Any = eval(RULES[rule], {"g": grid})
    return found


def puzzles(split: str, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Endless puzzles of a split, each with its rule and its data: pairs of grids and the grid to
    transform.
    """
    rng = random.Random(derive_seed(seed, "arc_policy", split))
    while True:
        rule = rng.choice(list(RULES))
        shown = [_grid(rng) for _ in range(PAIRS)]
        data = {"pairs": [[grid, applied(rule, grid)] for grid in shown], "test": _grid(rng)}
        held_out = int(content_hash(data), 16) % EVAL_SHARE == 0
        if fitting(data) == [rule] and held_out == (split == "eval"):
            yield rule, data


def fitting(data: dict[str, Any]) -> list[str]:
    """Rules that explain every pair."""
    return [
        rule
        for rule in RULES
        if all(applied(rule, before) == after for before, after in data["pairs"])
    ]


def _grid(rng: random.Random) -> Grid:
    return [[rng.randrange(10) for _ in range(SIDE)] for _ in range(SIDE)]


def tasks(split: str, seed: int, count: int) -> list[Task]:
    """Tasks of `count` puzzles with their verifiers."""
    drawn = puzzles(split, seed)
    return [_task(f"{split}-{seed}-{number}", *next(drawn)) for number in range(count)]


def _task(name: str, rule: str, data: dict[str, Any]) -> Task:
    answer = repr(applied(rule, data["test"]))
    return Task(
        id=name,
        family="benchmarks.arc_policy:tasks",
        prompt=prompt_of(data),
        verify=exact_verifier(answer),
        answer=answer,
        metadata={"data": data},
    )


def prompt_of(data: dict[str, Any]) -> str:
    """Prompt of a puzzle."""
    shown = "\n".join(f"{before} -> {after}" for before, after in data["pairs"])
    return f"One rule makes the right grids:\n{shown}\nApply it to {data['test']}."


def lesson(rule: str, data: dict[str, Any], rng: random.Random) -> Conversation:
    """Solution of one puzzle: rules are tested in random order until one fits, or one is
    guessed.
    """
    head: list[BaseMessage] = [
        SystemMessage(loop_system_turn(TOOL_LOOP_PROMPT, fenced=False, variables=("data",))),
        HumanMessage(prompt_of(data)),
    ]
    order = rng.sample(list(RULES), len(RULES))
    if rng.random() < GUESS_SHARE:
        return _conversation(
            head, _apply(order[0], data, defined=False), applied(order[0], data["test"])
        )
    tested = order[: order.index(rule) + 1]
    slip = _slip(tested[0]) if rng.random() < SLIP_SHARE else []
    turns = [turn for each in tested for turn in _test(each, data)]
    return _conversation(
        head, [*slip, *turns, *_apply(rule, data, defined=True)], applied(rule, data["test"])
    )


def _test(rule: str, data: dict[str, Any]) -> list[BaseMessage]:
    fits = all(applied(rule, before) == after for before, after in data["pairs"])
    code = f"rule = lambda g: {RULES[rule]}\nall(rule(a) == b for a, b in data['pairs'])"
    return _call(f"Is it {rule}?", code, str(fits))


def _slip(rule: str) -> list[BaseMessage]:
    code = f"rule = lambda g: {RULES[rule]}\nall(rule(a) == b for a, b in pairs)"
    return _call(f"Is it {rule}?", code, tool_text(code))


def _apply(rule: str, data: dict[str, Any], *, defined: bool) -> list[BaseMessage]:
    code = (
        "rule(data['test'])" if defined else f"rule = lambda g: {RULES[rule]}\nrule(data['test'])"
    )
    return _call(
        "It fits." if defined else f"It looks like {rule}.", code, repr(applied(rule, data["test"]))
    )


def _call(thought: str, code: str, shown: str) -> list[BaseMessage]:
    call: Any = {"name": "python", "args": {"code": code}, "id": "call"}
    return [
        AIMessage(f"<reason>{thought}</reason>", tool_calls=[call]),
        ToolMessage(shown, tool_call_id="call", name="python"),
    ]


def _conversation(head: list[BaseMessage], turns: list[BaseMessage], answer: Grid) -> Conversation:
    return Conversation(
        (*head, *turns, AIMessage(f"<answer>\\boxed{{{answer}}}</answer>")), (PYTHON_TOOL,)
    )


def cold_start(out: Path, seed: int, config: SftConfig) -> float:
    """Train a policy from scratch and return its loss."""
    rng, drawn = random.Random(seed), puzzles("train", seed + 1)
    lessons = [lesson(*next(drawn), rng) for _ in range(conversations_taken(config))]
    tokenizer = build_tokenizer(lessons[:1500])
    model = new_model(tokenizer, seed)
    rows = train_sft(
        model,
        ChatTemplateCodec(tokenizer),
        lessons,
        config,
        progress=_told("loss", "accuracy", every=25),
    )
    save_policy(
        model, tokenizer, out, f"# ARC toy, cold start\n\n{config.model_dump_json(indent=2)}\n"
    )
    return rows[-1]["loss"]


def _told(*names: str, every: int = 1) -> Callable[[dict[str, Any]], None]:
    def tell(row: dict[str, Any]) -> None:
        if int(row["step"]) % every == 0:
            print(f"step {row['step']}", *(f"{name} {row[name]:.3f}" for name in names), flush=True)

    return tell


async def measured(policy: str, folder: Path, stage: str, count: int) -> Evaluation:
    """Evaluate a policy on held-out puzzles, at temperature 1."""
    config = CollectConfig(policy=policy, context=CONTEXT, max_tokens=128)
    return evaluate(await collect(config, folder, stage=stage, tasks=tasks("eval", 0, count)))


async def main(out: Path, lessons: int, steps: int, count: int, seed: int) -> dict[str, Any]:
    began = time.process_time()
    start = out / "cold-start"
    recipe = SftConfig(
        steps=lessons,
        batch_size=BATCH,
        optimizer="muon",
        average=0.98,
        micro_batch_tokens=2048,
        seed=seed,
    )
    if not (start / "README.md").exists():
        cold_start(start, seed, recipe)
    learned = time.process_time()
    run = out / "run"
    before = await measured(str(start), run, "before", count)
    config = GrpoConfig.of(
        policy=str(start), tasks="benchmarks.arc_policy:tasks", context=CONTEXT, max_tokens=128, steps=steps,
        prompts_per_step=12, group_size=6, seed=seed,
    )  # fmt: skip
    model = await train(
        config,
        run,
        on_step=_told("rollout/correct", "rollout/correct_with_tool_error", "rollout/tool_calls"),
    )
    after = await measured(str(model), run, "after", count)
    return {
        "cold_start": _figures(before),
        "trained": _figures(after),
        "cpu_seconds": {"cold start": learned - began, "rest": time.process_time() - learned},
    }


def _figures(found: Evaluation) -> dict[str, Any]:
    """Figures of an evaluation that are compared."""
    return {
        "solved": found.pass_at_1,
        "interval": found.interval,
        "tool errors among the solved": found.correct_with_tool_error,
        "calls": found.mean_tool_calls,
        "statuses": found.tool_statuses,
    }


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the run, which is resumed; else it is thrown away"
    )
    parser.add_argument(
        "--lessons", type=int, default=300, help=f"steps of the cold start, {BATCH} lessons each"
    )
    parser.add_argument("--steps", type=int, default=12, help="steps of reinforcement learning")
    parser.add_argument("--count", type=int, default=100, help="held-out puzzles")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


if __name__ == "__main__":
    asked = _asked()
    with TemporaryDirectory() as scratch:
        out = asked.out or Path(scratch)
        found = asyncio.run(main(out, asked.lessons, asked.steps, asked.count, asked.seed))
    print(json.dumps(found, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found))
