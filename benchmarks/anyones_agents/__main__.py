"""Agents that nobody here wrote: recorded, replayed, and a first step of reinforcement learning.

    python -m benchmarks.anyones_agents [--only NAME ...] [--packages FOLDER] [--no-train] [--quick] [--json FILE]

Agents come as packages of the registry, unchanged; the packages are installed into a temporary folder (or are in
`--packages`). Each is a program of some lines (`agents.py`). It runs under `hrm-agent record` against a server on
loopback that counts its requests; it is captured if the record has as many model calls. Then the record is replayed,
and `train rl` takes a step with the small policy in the model's place. The commands stand in the file of numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.anyones_agents.agents import AGENTS, PACKAGES
from benchmarks.anyones_agents.server import ScriptedServer, serving
from hrm_agent.store import open_store

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]
PRODUCT = (sys.executable, "-m", "hrm_agent")
RECORD = "record --store {name}.db -- python agent_{name}.py"
REPLAY = "replay --check {name}.db --graph ./agent_{name}.py:graph"
TRAIN = (
    "train rl --graph ./agent_{name}.py:graph --tasks word_problems --rewards ./brief.py:rubric --algorithm grpo "
    "--steps 1 --prompts-per-step 2 --group-size 2 --max-tokens 64 --out {name}-rl --json"
)


RUBRIC = """from hrm_agent.rewards import Rubric


def brief(text):
    return 1 / (1 + len(text) / 100)


rubric = Rubric([brief])
"""
"""A rubric of one's own that tells answers apart, which a small policy does not get right in another's prompts."""


class Place:
    """A folder with the programs, and the variables that they run with."""

    def __init__(self, folder: Path, packages: Path, server: ScriptedServer) -> None:
        self.folder, self.server = folder, server
        mine = {"PYTHONPATH": f"{packages}:{PROJECT}", "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none"}
        self.environment = {
            **os.environ,
            **mine,
            "HRM_AGENT_DRAWS": "1",
            "PYTHONHASHSEED": "0",
            "LANGSMITH_TRACING": "false",
        }

    def runs(self, command: str) -> tuple[int, str, str]:
        """Exit status and both outputs of a command of the product."""
        words = [sys.executable if word == "python" else word for word in command.split()]
        done = subprocess.run(
            [*PRODUCT, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout, done.stderr


def measured(name: str, place: Place, *, train: bool) -> Row:
    """The agent's row."""
    agent = AGENTS[name]
    (place.folder / f"agent_{name}.py").write_text(agent.program)
    row: Row = {"agent": name, "package": agent.package, "made_by": agent.made_by, **_recorded(name, place)}
    if row["on_record"]:
        row.update(_replayed(name, place))
    if train:
        row.update(_trained(name, place))
    return row


def _recorded(name: str, place: Place) -> Row:
    command, before = RECORD.format(name=name), place.server.asked
    code, _, errors = place.runs(command)
    found: Row = {"record": command, "record_exit": code, "asked": place.server.asked - before, "on_record": 0}
    path = place.folder / f"{name}.db"
    if path.exists():
        with open_store(path) as store:
            headers = store.journal.headers()
            calls = [call for header in headers for call in store.journal.with_calls(header).calls]
            found |= {"on_record": len(calls), "trajectories": [f"{h.graph} {h.status.value}" for h in headers]}
    return found | ({"record_says": _end(errors)} if code or found["on_record"] != found["asked"] else {})


def _replayed(name: str, place: Place) -> Row:
    for command in (REPLAY.format(name=name).partition(" --graph")[0], REPLAY.format(name=name)):
        code, told, errors = place.runs(command)
        if code == 0:
            return {"replay": command, "replay_exit": 0}
    return {"replay": command, "replay_exit": code, "replay_says": _end(told + errors)}


def _trained(name: str, place: Place) -> Row:
    command, before, began = TRAIN.format(name=name), place.server.asked, time.perf_counter()
    code, told, errors = place.runs(command)
    found: Row = {"train": command, "train_exit": code, "train_seconds": round(time.perf_counter() - began, 1)}
    found["train_asked_the_server"] = place.server.asked - before
    metrics = place.folder / f"{name}-rl" / "metrics.jsonl"
    steps = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    learnt = code == 0 and json.loads(told).get("nothing_learnt") is None
    return found | {"steps": len(steps), "learnt": learnt, "train_says": _end(errors)}


def _end(text: str) -> str:
    """The last lines, which say what failed."""
    return text.strip()[-1500:]


def installed(folder: Path) -> Path:
    """The packages, in a folder of their own."""
    words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder))
    subprocess.run([sys.executable, *words, *PACKAGES], check=True)
    return folder


def versions(packages: Path) -> dict[str, str]:
    """Versions of the packages that agents come from, and of what they stand on."""
    return {
        found.metadata["Name"]: found.version
        for found in distributions(path=[*sys.path, str(packages)])
        if found.metadata["Name"].startswith(("lang", "deepagents", "trustcall"))
    }


def show(rows: list[Row], known: dict[str, str]) -> None:
    """The table of the documentation."""
    table = Table("agent", "version", "captured", "replay", "first RL step")
    for row in rows:
        version = f"{row['package']} {known.get(row['package'], '')}"
        replay = "" if "replay_exit" not in row else "same" if row["replay_exit"] == 0 else "differs"
        step = "" if "steps" not in row else "taken" if row["learnt"] else "refused" if row["train_exit"] else "idle"
        table.add_row(row["made_by"], version, f"{row['on_record']} of {row['asked']}", replay, step)
    Console().print(table)


def main() -> None:
    """Run the agents one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(AGENTS), default=list(AGENTS), help="these agents")
    parser.add_argument("--packages", type=Path, help="folder with the packages; otherwise they are installed")
    parser.add_argument("--no-train", action="store_true", help="no step of reinforcement learning")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="agents that need no other package, untrained")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.only, arguments.no_train, arguments.packages = ["react", "functional"], True, PROJECT
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        packages = arguments.packages or installed(Path(folder) / "packages")
        (programs := Path(folder) / "programs").mkdir()
        (programs / "brief.py").write_text(RUBRIC)
        place = Place(programs, packages.absolute(), server)
        rows = [measured(name, place, train=not arguments.no_train) for name in arguments.only]
    known = versions(packages)
    show(rows, known)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"versions": known, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
