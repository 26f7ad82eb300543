"""Third-party agents: recorded, replayed, and a first step of reinforcement learning.

    python -m benchmarks.anyones_agents [--only NAME ...] [--packages FOLDER] [--repositories FOLDER]
        [--lightning PYTHON] [--no-train] [--quick] [--json FILE]

Agents come unchanged from packages of the registry, which are installed into a temporary folder (or
are in `--packages`). A program of some lines (`agents.py`) uses each agent. The program runs under
`hrm-agent record` against a server on loopback that counts requests (an agent that is no graph runs
under `hrm-agent run`). The agent is captured if the record has as many model calls as the server
has counted. Then the record is replayed, and `train rl` takes a step with the small policy in the
model's place. The commands are in the results file.

`--repositories`: a folder with checkouts, by name, of the repositories in `agents.py`; their agents
run as well. `--lightning`: the interpreter of an environment with agent-lightning and the packages
of the agents. Its tracer runs the same programs, and its spans of model calls are counted for
comparison.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.anyones_agents.agents import AGENTS, PACKAGES, REPOSITORIES, Agent, Repository
from benchmarks.anyones_agents.server import ScriptedServer, serving
from hrm_agent.store import open_store

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]
PRODUCT = (sys.executable, "-m", "hrm_agent")
RECORD = "record --store {name}.db -- python agent_{name}.py"
RUN = "run 6*7? --graph ./agent_{name}.py:graph --store {name}.db"
REPLAY = "replay --check {name}.db --graph ./agent_{name}.py:graph"
TRAIN = (
    "train rl --graph ./agent_{name}.py:graph --tasks word_problems --rewards ./brief.py:rubric"
    " --algorithm grpo --steps 1 --prompts-per-step 2 --group-size 4 --max-tokens 64 --out"
    " {name}-rl --json"
)
TRACED = """
import json, os, runpy, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
from agentlightning.tracer.agentops import AgentOpsTracer
tracer, said = AgentOpsTracer(), ""
tracer.init_worker(0)
try:
    tracer.trace_run(runpy.run_path, sys.argv[1], run_name="__main__")
except BaseException as error:
    said = f"{type(error).__name__}: {error}"[:300]
print("traced", json.dumps([[span.name for span in tracer.get_last_trace()], said]))
"""
"""Script that runs a program under agent-lightning's tracer and reports what it has recorded."""

RUBRIC = """from hrm_agent.rewards import Rubric


def brief(text):
    return 1 / (1 + len(text) / 100)


rubric = Rubric([brief])
"""
"""Custom rubric that gives answers different rewards without asking whether they are right: with
another agent's prompts, a small policy is never right.
"""


class Place:
    """Folder with the programs, and environment variables for the programs."""

    def __init__(self, folder: Path, packages: Path, server: ScriptedServer) -> None:
        self.folder, self.server = folder, server
        self.kept = folder
        """Folder for stores and runs."""
        mine = {
            "PYTHONPATH": f"{packages}:{PROJECT}",
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": "none",
        }
        self.environment = {
            **os.environ,
            **mine,
            "HRM_AGENT_DRAWS": "1",
            "LANGSMITH_TRACING": "false",
        }

    def runs(self, command: str) -> tuple[int, str, str]:
        """Run a command of the product and return exit status, stdout and stderr."""
        words = [sys.executable if word == "python" else word for word in shlex.split(command)]
        return self._run([*PRODUCT, *words], self.environment)

    def traced(self, python: Path, program: str) -> tuple[int, str, str]:
        """Run a program under agent-lightning's tracer in its environment. Return exit status,
        stdout and stderr.
        """
        theirs = {
            **self.environment,
            "PYTHONPATH": self.environment["PYTHONPATH"].removesuffix(f":{PROJECT}"),
        }
        return self._run([str(python), "-c", TRACED, program], theirs)

    def _run(self, words: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout, done.stderr


class Checkout(Place):
    """Checkout of a repository as working directory. Outputs go to the folder of the programs."""

    def __init__(self, folder: Path, repository: Repository, programs: Place) -> None:
        self.folder, self.server, self.kept = folder, programs.server, programs.folder
        path = f"{folder / repository.source}:{programs.environment['PYTHONPATH']}"
        self.environment = {**programs.environment, "PYTHONPATH": path, "TAVILY_API_KEY": "none"}


def measured(name: str, place: Place, *, train: bool, lightning: Path | None) -> Row:
    """Row of a package's agent."""
    agent = AGENTS[name]
    (place.folder / f"agent_{name}.py").write_text(agent.program)
    row: Row = {"agent": name, "package": agent.package, "made_by": agent.made_by}
    row |= _recorded(name, (RECORD if agent.is_graph else RUN).format(name=name), place)
    if row["on_record"]:
        row |= _replayed(name, REPLAY.format(name=name), place)
    if train:
        row |= _trained(name, TRAIN.format(name=name), place)
    if lightning is not None:
        row |= _traced(f"agent_{name}.py", agent, lightning, place)
    return row


def measured_repository(repository: Repository, place: Place, *, train: bool) -> Row:
    """Row of a repository's agent, which runs in its checkout."""
    name = repository.name
    row: Row = {
        "agent": name,
        "package": f"{repository.owner}/{name} {repository.commit[:7]}",
        "made_by": "repository",
    }
    graph, out = f"--graph {repository.graph} {repository.options}", place.kept / name
    row |= _recorded(name, f"run {repository.asked} {graph} --store {out}.db", place)
    if row["on_record"]:
        row |= _replayed(name, f"replay --check {out}.db", place)
    if train:
        command = TRAIN.format(name=name).partition(" --tasks")[2]
        command = command.replace("./brief.py", f"{place.kept}/brief.py").replace(
            f"{name}-rl", f"{out}-rl"
        )
        row |= _trained(name, f"train rl {graph} --tasks{command}", place)
    return row


def _recorded(name: str, command: str, place: Place) -> Row:
    before = place.server.asked
    code, _, errors = place.runs(command)
    found: Row = {
        "record": command,
        "record_exit": code,
        "asked": place.server.asked - before,
        "on_record": 0,
    }
    path = place.kept / f"{name}.db"
    if path.exists():
        with open_store(path) as store:
            headers = store.journal.headers()
            calls = [call for header in headers for call in store.journal.with_calls(header).calls]
            found |= {
                "on_record": len(calls),
                "trajectories": [f"{h.graph} {h.status.value}" for h in headers],
            }
    return found | (
        {"record_says": _end(errors)} if code or found["on_record"] != found["asked"] else {}
    )


def _replayed(name: str, whole: str, place: Place) -> Row:
    """Replay from the record alone, or if that fails with the graph named."""
    command, code, told, errors = whole, 1, "", ""
    for command in dict.fromkeys((whole.partition(" --graph")[0], whole)):
        code, told, errors = place.runs(command)
        if code == 0:
            return {"replay": command, "replay_exit": 0}
    return {"replay": command, "replay_exit": code, "replay_says": _end(told + errors)}


def _trained(name: str, command: str, place: Place) -> Row:
    before, began = place.server.asked, time.perf_counter()
    code, told, errors = place.runs(command)
    found: Row = {
        "train": command,
        "train_exit": code,
        "train_seconds": round(time.perf_counter() - began, 1),
    }
    found["train_asked_the_server"] = place.server.asked - before
    metrics = place.kept / f"{name}-rl" / "metrics.jsonl"
    steps = (
        [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    )
    learnt = code == 0 and json.loads(told).get("nothing_learnt") is None
    return found | {"steps": len(steps), "learnt": learnt, "train_says": _end(errors)}


def _traced(program: str, agent: Agent, python: Path, place: Place) -> Row:
    """Run a program under the tracer. If the agent is a runnable and not a graph, the input that
    its users pass is added to the program's call.
    """
    if not agent.is_graph:
        path = place.folder / program
        path.write_text(
            agent.program.replace("graph.invoke({", 'graph.invoke({"input": "What is 6 times 7?", ')
        )
    before = place.server.asked
    code, told, errors = place.traced(python, program)
    line = next((line for line in reversed(told.splitlines()) if line.startswith("traced ")), "")
    names, said = json.loads(line.removeprefix("traced ")) if line else ([], _end(told + errors))
    seen = sum(name.startswith("openai.chat") for name in names)
    return {
        "lightning_asked": place.server.asked - before,
        "lightning_seen": seen,
        "lightning_says": said or code,
    }


def _end(text: str) -> str:
    """Last lines of an output, where the error stands."""
    return text.strip()[-1500:]


def installed(folder: Path) -> Path:
    """Install the packages into a separate folder."""
    words = (
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--target",
        str(folder),
    )
    subprocess.run([sys.executable, *words, *PACKAGES], check=True)
    return folder


def versions(packages: Path) -> dict[str, str]:
    """Versions of the packages of the agents, and of their dependencies."""
    return {
        found.metadata["Name"]: found.version
        for found in distributions(path=[*sys.path, str(packages)])
        if found.metadata["Name"].startswith(("lang", "deepagents", "trustcall"))
    }


def show(rows: list[Row], known: dict[str, str]) -> None:
    """Print the table of the documentation."""
    table = Table("agent", "version", "captured", "replay", "first RL step", "agent-lightning")
    for row in rows:
        version = f"{row['package']} {known.get(row['package'], '')}"
        replay = (
            "" if "replay_exit" not in row else "same" if row["replay_exit"] == 0 else "differs"
        )
        step = (
            ""
            if "steps" not in row
            else "taken"
            if row["learnt"]
            else "refused"
            if row["train_exit"]
            else "idle"
        )
        seen = (
            f"{row['lightning_seen']} of {row['lightning_asked']}"
            if "lightning_seen" in row
            else ""
        )
        table.add_row(
            row["made_by"], version, f"{row['on_record']} of {row['asked']}", replay, step, seen
        )
    Console().print(table)


def main() -> None:
    """Run the agents one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="*", choices=list(AGENTS), default=list(AGENTS), help="these agents"
    )
    parser.add_argument(
        "--packages", type=Path, help="folder with the packages; otherwise they are installed"
    )
    parser.add_argument(
        "--repositories", type=Path, help="folder with checkouts of the repositories"
    )
    parser.add_argument(
        "--lightning", type=Path, metavar="PYTHON", help="interpreter that has agent-lightning"
    )
    parser.add_argument("--no-train", action="store_true", help="no step of reinforcement learning")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument(
        "--quick", action="store_true", help="agents that need no other package, untrained"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.only, arguments.no_train, arguments.packages = (
            ["react", "functional"],
            True,
            PROJECT,
        )
    with tempfile.TemporaryDirectory() as folder, serving() as server:
        packages = arguments.packages or installed(Path(folder) / "packages")
        (programs := Path(folder) / "programs").mkdir()
        (programs / "brief.py").write_text(RUBRIC)
        place = Place(programs, packages.absolute(), server)
        train = not arguments.no_train
        rows = [
            measured(name, place, train=train, lightning=arguments.lightning)
            for name in arguments.only
        ]
        for repository in REPOSITORIES if arguments.repositories else ():
            inside = Checkout(
                arguments.repositories.absolute() / repository.name, repository, place
            )
            rows.append(measured_repository(repository, inside, train=train))
        known = versions(packages)
    show(rows, known)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"versions": known, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
