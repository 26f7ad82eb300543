"""`hrm-agent train rl` and `hrm-agent train sft`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hrm_agent.cli.common.arguments import Parser, add_config, config_from, print_config
from hrm_agent.cli.common.output import Output, progress
from hrm_agent.cli.common.run_folder import run_folder
from hrm_agent.config import compare_on_resume, save_config
from hrm_agent.errors import ConfigError, RunError, TaskError, nearest

if TYPE_CHECKING:
    from hrm_agent.training.configs import GrpoConfig, SftConfig

__all__ = ["ACTIONS", "reinforce", "run", "watched"]

ACTIONS = {
    "rl": "reinforcement learning on recorded graph runs: grpo, grpo-random, grpo-roc",
    "sft": "supervised fine-tuning on conversations",
}
_HELP = "\n".join(
    [
        "usage: hrm-agent train {rl,sft} [OPTIONS]",
        "",
        *(f"  {name:4} {text}" for name, text in ACTIONS.items()),
        "",
        "`hrm-agent train rl --help` lists the options.",
    ]
)
_WATCHED = ("rollout/correct", "rollout/correct_with_tool_error", "select/groups_rejected", "loss")
"""Metrics shown while a run goes on; metrics.jsonl has all of them."""


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_HELP)
        return 0
    if words[0] not in _KINDS:
        raise ConfigError(f"There is no training {words[0]!r}.", nearest(words[0], _KINDS) or "Write rl or sft.")
    return _KINDS[words[0]](words[1:])


def _rl(words: list[str]) -> int:
    from hrm_agent.training.configs import GrpoConfig

    parser = Parser("train rl", "Reinforcement learning on recorded graph runs.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="run folder; one on record is resumed [a new one]")
    add_config(parser, GrpoConfig)
    arguments = parser.read(words)
    config = config_from(arguments, GrpoConfig, "train rl")
    if arguments.dry_run:
        print_config(config, "train rl", as_json=arguments.json)
        return 0
    reinforce(config, run_folder(arguments.out, config.algorithm), Output(as_json=arguments.json))
    return 0


def reinforce(config: GrpoConfig, folder: Path, output: Output) -> None:
    """Train, or go on, in `folder`."""
    from hrm_agent.training.configs import FREE_ON_RESUME
    from hrm_agent.training.grpo import train
    from hrm_agent.training.metrics import read_metrics

    compare_on_resume(config, "train rl", folder, free=FREE_ON_RESUME)
    save_config(config, "train rl", folder)
    with progress(config.algorithm, config.steps) as advance:
        model = asyncio.run(train(config, folder, on_step=lambda row: advance(watched(row), int(row["step"]) + 1)))
    output.result({"folder": str(folder), "model": str(model), "last": read_metrics(folder / "metrics.jsonl")[-1]})
    output.say(f"Trained {config.steps} steps; the policy is {model}, the metrics are {folder / 'metrics.jsonl'}.")
    output.say(f"Next: hrm-agent eval --policy {model}, hrm-agent history --store {folder}")


def watched(row: Mapping[str, float | None]) -> str:
    """The metrics of a step that are shown while a run goes on."""
    shown = {name.rpartition("/")[2]: row.get(name) for name in _WATCHED}
    return ", ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)


def _sft(words: list[str]) -> int:
    from hrm_agent.training.configs import SftConfig

    parser = Parser("train sft", "Supervised fine-tuning on conversations: each answer in them is learnt.")
    parser.add_argument(
        "data", type=Path, help='JSONL file, a line: {"messages": [{"role": ..., "content": ...}, ...]}'
    )
    parser.add_argument("--policy", default="builtin:cold-start", help="where to start [builtin:cold-start]")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of the run [a new one]")
    add_config(parser, SftConfig)
    arguments = parser.read(words)
    config = config_from(arguments, SftConfig, "train sft")
    if arguments.dry_run:
        print_config(config, "train sft", as_json=arguments.json)
        return 0
    folder = run_folder(arguments.out, "sft")
    if (folder / "model").exists():
        raise RunError(f"{folder} holds a trained model already.", "Name another folder with --out.")
    save_config(config, "train sft", folder)
    model = _fine_tune(config, arguments.policy, arguments.data, folder)
    output = Output(as_json=arguments.json)
    output.result({"folder": str(folder), "model": str(model)})
    output.say(f"The policy is {model}, the metrics are {folder / 'metrics.jsonl'}.")
    output.say(f"Next: hrm-agent eval --policy {model}, hrm-agent train rl --policy {model}")
    return 0


def _fine_tune(config: SftConfig, policy: str, data: Path, folder: Path) -> Path:
    from hrm_agent.models.codec.chat_template import ChatTemplateCodec
    from hrm_agent.models.local.load_weights import load_pretrained
    from hrm_agent.models.policy_loader import model_folder
    from hrm_agent.training.sft import read_chats, save_policy, train_sft

    if not data.is_file():
        raise TaskError(f"There is no file {data}.", 'Name a JSONL file; a line: {"messages": [...]}.')
    conversations = read_chats(data)
    if not conversations:
        raise TaskError(f"{data} holds no conversation.", 'A line: {"messages": [...]}.')
    model, tokenizer = load_pretrained(model_folder(policy))
    with progress("sft", config.steps) as advance:
        train_sft(
            model,
            ChatTemplateCodec(tokenizer),
            conversations,
            config,
            metrics_path=folder / "metrics.jsonl",
            progress=lambda row: advance(f"loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}"),
        )
    card = f"# {folder.name}\n\n{policy}, fine-tuned by {config.steps} steps on {data.name} (`hrm-agent train sft`).\n"
    save_policy(model, tokenizer, folder / "model", card)
    return folder / "model"


_KINDS: dict[str, Callable[[list[str]], int]] = {"rl": _rl, "sft": _sft}
