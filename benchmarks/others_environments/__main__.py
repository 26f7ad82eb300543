"""Environments of other projects as tasks: are the rewards those of the project itself?

    python -m benchmarks.others_environments [--openenv PYTHON] [--dipg PYTHON] [--verifiers PYTHON]
        [--only NAME ...] [--episodes N] [--folder F] [--exchanges FILE] [--json FILE] [--quick]

The interpreters have the packages: `openenv-core` or `openenv`; `openenv-dipg-safety`; `verifiers`
0.4 with `textarena`, `nltk` and `uv`. A scripted policy plays episodes with random answers. Then
the same actions are evaluated by the projects themselves: by OpenEnv's own client, and by an
evaluation of verifiers with its own harness. Compared are the returns.

Each environment is also interrupted: every run is stopped at its second answer and taken up again,
and in one more run the server is killed in the middle of an episode. `--exchanges` writes messages
of OpenEnv's server, by which the tests check the parser. Without interpreters only the quick form
runs, with a server of the tests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from rich.console import Console
from rich.table import Table

from benchmarks.others_environments.worlds import (
    World,
    guesses,
    letters,
    medical_cases,
    sums,
    sums_taskset,
    texts,
    verdicts,
    word_list,
)
from hrm_agent.environment import LocalEnvironment
from hrm_agent.errors import ModelError
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.tools.task_environments.play import acts_of
from hrm_agent.tools.task_environments.servers import server_url
from hrm_agent.tools.task_environments.source import parse_source
from hrm_agent.training.rollout.eligibility import fault_of
from hrm_agent.training.rollout.rollout import group_episodes
from hrm_agent.training.tasks import load_tasks
from hrm_agent.trajectory import Trajectory, content_hash
from tests.support.tools.openenv_server import GuessServer, serving

Row = dict[str, Any]
HERE = Path(__file__).parent
COLUMNS = ("origin", "episodes", "equal", "per_second", "resumed_equal", "fault", "load_seconds")


def worlds(options: argparse.Namespace, folder: Path) -> list[World]:
    """Environments whose interpreters are given."""
    found: list[World] = []
    if options.openenv:
        subprocess.run(
            [str(Path(options.openenv).parent / "openenv"), "init", "echo_env"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        spec = f"openenv:{folder}/echo_env?python={options.openenv}&reply=message&steps=3&high=40"
        found.append(World("echo", "openenv init", spec, texts, alike=True))
    if options.dipg:
        os.environ["DIPG_DATASET_PATH"] = str(medical_cases(folder / "cases.jsonl"))
        spec = f"openenv:med_safety_gym?python={options.dipg}&app=med_safety_gym.app:app"
        spec += "&reply=llm_response&low=-200&high=200"
        found.append(World("medical", "openenv-dipg-safety", spec, verdicts, alike=True))
    if options.verifiers:
        os.environ["PATH"] = f"{Path(options.verifiers).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ["NLTK_DATA"] = str(word_list(folder / "nltk_data"))
        python = f"python={interpreter(folder, options.verifiers)}"
        spec = f"verifiers:textarena?{python}&game=Hangman-v0&low=-1"
        found.append(World("hangman", "verifiers, textarena", spec, letters))
        spec = f"verifiers:sums-env?{python}&num_tasks=5"
        found.append(World("sums", "verifiers (vf-init)", spec, sums))
    return found


def interpreter(folder: Path, python: str) -> Path:
    """Write an interpreter that finds the taskset of the trial."""
    script = folder / "python"
    tasksets = sums_taskset(folder / "tasksets")
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tasksets} exec {python} "$@"\n')
    script.chmod(0o755)
    return script


def script_of(world: World, stop_at: int | None = None, kill: bool = False) -> Any:
    """Policy whose answers follow from the conversation. `stop_at`: number of the answer at which
    the model fails. `kill`: kill the server before the second answer.
    """

    def script(messages: Sequence[BaseMessage], seed: int | None) -> str:
        number = sum(isinstance(message, AIMessage) for message in messages)
        if number == stop_at:
            raise ModelError("The model is gone.")
        if kill and number == 1:
            end_servers()
        said = [message.text for message in messages]
        known = content_hash(world.name, said, seed if world.alike else 0)
        return world.answers(random.Random(known), messages)

    return script


def end_servers() -> None:
    """Kill the servers that this process has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == os.getpid() and any(word.endswith(b"foreign/serve.py") for word in words):
                os.kill(int(entry.name), signal.SIGKILL)


async def played(
    folder: Path, script: Any, episodes: Sequence[Episode], concurrency: int = 4
) -> list[Trajectory]:
    """Trajectories of episodes."""
    environment = LocalEnvironment(slots=1)
    engine: ScriptedEngine

    def asked(messages: Sequence[BaseMessage]) -> str:
        # the newest request is the asked one if episodes run one by one
        return script(messages, engine.requests[-1].sampling.seed)

    with open_store(folder / "store.db") as store, ScriptedEngine(asked) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        try:
            return await runner.run_all(episodes, concurrency=concurrency)
        finally:
            await environment.close()


def drawn(world: World, count: int, stage: str) -> list[Episode]:
    """Episodes of an environment."""
    tasks = load_tasks(world.spec, split="eval", seed=0, count=count)
    samples = -(-count // len(tasks))
    return group_episodes(
        tasks,
        samples,
        run_id=f"{world.name}-{stage}",
        stage="trial",
        seed=0,
        graph="tool_loop",
        context={"max_turns": 30},
    )[:count]


def measured(world: World, count: int, folder: Path, own: bool) -> Row:
    """Row of an environment."""
    began = time.perf_counter()
    episodes = drawn(world, count, "whole")
    loaded = time.perf_counter() - began
    at_a_time = 1 if world.alike else 4
    done = asyncio.run(played(folder, script_of(world), episodes, at_a_time))
    seconds = max(each.ended_at or 0 for each in done) - min(each.started_at for each in done)
    returns = [each.rewards.get("environment_return") for each in done]
    row: Row = {
        "world": world.name,
        "origin": world.origin,
        "episodes": len(done),
        "acts": sum(len(acts_of(each)) for each in done),
        "returns": returns,
        "per_second": round(len(done) / seconds, 2),
        "load_seconds": round(loaded, 1),
    }
    if own:
        row["own"] = own_returns(world, done)
        row["equal"] = sum(a == b for a, b in zip(returns, row["own"], strict=True))
    stopped = drawn(world, count, "stopped")
    for episode in stopped:
        try:
            asyncio.run(played(folder, script_of(world, stop_at=1), [episode]))
        except ModelError:
            continue
    again = asyncio.run(played(folder, script_of(world), stopped, at_a_time))
    row["resumed_equal"] = sum(
        a.rewards == b.rewards and heard(a) == heard(b) for a, b in zip(done, again, strict=True)
    )
    if not parse_source(world.spec).url:
        (lost,) = asyncio.run(
            played(folder, script_of(world, kill=True), drawn(world, 1, "killed"))
        )
        why = fault_of(lost)
        # an episode of one act is over before the server is killed
        row["fault"] = str(why[0]) if why else f"none, {len(acts_of(lost))} act"
        row["fault_rewards"] = dict(lost.rewards)
    return row


def heard(trajectory: Trajectory) -> list[str]:
    """Texts of an environment in a run."""
    return [message["content"] for act in acts_of(trajectory) for message in act["messages"]]


def own_returns(world: World, done: Sequence[Trajectory]) -> list[float | None]:
    """Returns of the recorded actions by the project's own evaluation."""
    source = parse_source(world.spec)
    arguments = [each.task.metadata["inputs"]["environment"]["arguments"] for each in done]
    sent = [[act["sent"] for act in acts_of(each)] for each in done]
    if source.kind == "verifiers":
        command = [source.python, str(HERE / "own_verifiers.py")]
        given: Any = {
            "taskset": source.place,
            "arguments": source.arguments,
            "episodes": [
                {"index": each["index"], "answers": [act["message"] for act in acts]}
                for each, acts in zip(arguments, sent, strict=True)
            ],
        }
    else:
        command = [source.python, str(HERE / "own_openenv.py"), server_url(source)]
        given = [
            {"reset": each, "actions": [{source.reply: act["reply"]} for act in acts]}
            for each, acts in zip(arguments, sent, strict=True)
        ]
    ended = subprocess.run(
        command, input=json.dumps(given), capture_output=True, text=True, check=True
    )
    return json.loads(ended.stdout.splitlines()[-1])


async def exchanged(url: str, messages: Sequence[Any]) -> list[list[str]]:
    """Messages sent to a server with its answers, as texts."""
    import aiohttp

    found: list[list[str]] = []
    async with aiohttp.ClientSession() as client, client.ws_connect(f"{url}/ws") as socket:
        for message in messages:
            await socket.send_str(json.dumps(message))
            found.append([json.dumps(message), await socket.receive_str()])
        async with client.get(f"{url}/schema") as response:
            found.append(["schema", await response.text()])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the trial."""
    parser = argparse.ArgumentParser()
    for name in ("openenv", "dipg", "verifiers", "folder", "exchanges", "json"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--episodes", type=int, default=12)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        found = [
            world
            for world in worlds(options, folder)
            if options.only is None or world.name in options.only
        ]
        if not found:
            with serving(GuessServer(most=2)) as server:
                world = World("guess", "tests", f"openenv:{server.url}?steps=3&high=3", guesses)
                rows = [measured(world, 4, folder, own=False)]
        else:
            rows = [measured(world, options.episodes, folder, own=True) for world in found]
        if options.exchanges and options.openenv:
            steps = [{"type": "reset", "data": {"seed": 1}}]
            steps += [{"type": "step", "data": {"message": text}} for text in ("hello", 1)]
            url = server_url(parse_source(found[0].spec))
            taped = asyncio.run(exchanged(url, steps))
            Path(options.exchanges).write_text(json.dumps(taped, indent=1) + "\n")
    table = Table("environment", *COLUMNS)
    for row in rows:
        table.add_row(row["world"], *(str(row.get(name, "")) for name in COLUMNS))
    Console(width=120).print(table)
    if options.json:
        Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
