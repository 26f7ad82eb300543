"""Trainings that kill themselves, and results that must be the same after they are resumed.

As a program it reads lines `{"folder": ..., "config": ..., "kills": {name: [event, count]},
"environment": ...}`, makes a run for each kill, in `FOLDER/NAME/run`, and answers with the exit
codes by name. It is a separate process so that its forks have no threads of torch.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from hrm_agent.store import open_store
from hrm_agent.training import checkpoints
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train

Kills = Mapping[str, tuple[str, int]]
"""Name of a kill -> the event (`step`, `rollout`, or `sync` of a checkpoint's file) and the number
of its occurrence, from 1.
"""
Weights = dict[str, torch.Tensor]


def killed_runs(config: GrpoConfig, folder: Path, kills: Kills) -> Path:
    """Run a training that kills itself for each of `kills`, and return the folder."""
    assert _exit_codes(config, folder, kills) == dict.fromkeys(kills, -signal.SIGKILL)
    return folder


def finished_run(config: GrpoConfig, folder: Path, name: str) -> Path:
    """Run or resume the training in `FOLDER/NAME/run` to its end, and return that folder."""
    assert _exit_codes(config, folder, {name: ("", 0)}) == {name: 0}
    return folder / name / "run"


def _exit_codes(config: GrpoConfig, folder: Path, kills: Kills) -> dict[str, int]:
    asked = {"config": config.model_dump(mode="json"), "kills": kills, "folder": str(folder)}
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps({**asked, "environment": dict(os.environ)}) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    """Process that forks a child for every killed training, so that torch is imported once."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.begin", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # ends it
    return server


def forked(config: GrpoConfig, folder: Path, event: str = "", count: int = 0) -> int:
    """Run a training in a child that kills itself at the `count`-th such event (0: it ends
    normally). Return the child's exit code.
    """
    if (child := os.fork()) == 0:
        try:
            _run_until(config, folder, event, count)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # pytest must not go on in the child
        os._exit(0)  # the training had fewer such events
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run_until(config: GrpoConfig, folder: Path, event: str, count: int) -> None:
    left = count

    def happened(what: str) -> None:
        nonlocal left
        left -= what == event
        if left == 0 < count:
            os.kill(os.getpid(), signal.SIGKILL)

    original: Callable[[Path], None] = checkpoints._sync

    def counted(path: Path) -> None:
        happened("sync")
        original(path)

    checkpoints._sync = counted
    asyncio.run(
        train(
            config,
            folder,
            on_rollout=lambda _: happened("rollout"),
            on_step=lambda _: happened("step"),
        )
    )


def sampled_tokens(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    """Tokens that each call added, by thread."""
    with open_store(folder / "store.db") as store:
        return {
            t.thread_id: [call.token_ids for call in t.calls] for t in store.journal.trajectories()
        }


def assert_same_weights(
    folder: Path,
    other: Path,
    *,
    atol: float,
    file: str = "model.safetensors",
    model: str = "model",
) -> Weights:
    """The weights of the run in `folder`. `model`: folder of the compared model in each run.

    After a kill, rollouts continue in other batches than in an undisturbed run. Compare weights
    with a tolerance then.
    """
    ours, theirs = (load_file(each / model / file) for each in (folder, other))
    assert ours.keys() == theirs.keys()
    for name, weights in ours.items():
        torch.testing.assert_close(weights, theirs[name], rtol=0, atol=atol)
    return ours


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a training prints is no answer
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.clear()
        os.environ.update(asked["environment"])
        codes = {
            name: forked(
                GrpoConfig.model_validate(asked["config"]),
                Path(asked["folder"], name, "run"),
                *kill,
            )
            for name, kill in asked["kills"].items()
        }
        print(json.dumps(codes), file=answers, flush=True)
