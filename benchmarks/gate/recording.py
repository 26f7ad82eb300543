"""Recorded runs of the agents, and the commands on them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gate.agents import write_graph
from benchmarks.gate.server import CountingServer

__all__ = ["command", "environment", "record"]

PROGRAM = """
import asyncio
import json
from pathlib import Path

from agent import graph

rows = [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]


async def main():
    for first in range(0, len(rows), 8):
        asked = ([("user", row["question"])] for row in rows[first : first + 8])
        await asyncio.gather(*(graph.ainvoke({"messages": each}) for each in asked))


asyncio.run(main())
"""
RUBRIC = """
import re


def right(text, task):
    a, b = re.search("what is ([0-9]+) plus ([0-9]+)", task.prompt).groups()
    return float(text.strip() == str(int(a) + int(b)))
"""
LANGCHAIN = """
from langchain_openai import ChatOpenAI


def init_chat_model(name, **options):
    return ChatOpenAI(model=name.partition(":")[2], **options)
"""
"""Part of the package langchain that opens a provider's model, where it is not installed."""


def environment(folder: Path, server: CountingServer) -> dict[str, str]:
    """Environment of a command whose models are the server's."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": server.url,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])]),
    }


def command(folder: Path, server: CountingServer, *words: str) -> dict[str, Any]:
    """Run a command in a folder and return its JSON. An exit code of 1 is a result."""
    done = subprocess.run(
        [sys.executable, "-m", "hrm_agent", *words],
        cwd=folder, env=environment(folder, server), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode > 1:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if "--json" in words and not lines:
        raise SystemExit(f"{' '.join(words)} gave no result:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1]) if lines else {}


def record(folder: Path, server: CountingServer, agent: str, runs: int) -> list[str]:
    """Record runs of an unchanged agent in `folder`, and return the words of `gate` that name them."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(server.seed)
    rows = list[dict[str, str]]()
    for number in range(runs):
        a, b = drawn.randint(100, 999), drawn.randint(100, 999)
        rows.append({"question": f"Problem {number}: what is {a} plus {b}?", "answer": str(a + b)})
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_graph(folder / "agent.py", agent, "unchanged")
    if find_spec("langchain") is None:
        (folder / "langchain").mkdir(exist_ok=True)
        (folder / "langchain" / "__init__.py").touch()
        (folder / "langchain" / "chat_models.py").write_text(LANGCHAIN)
    if agent == "stranger":
        (folder / "program.py").write_text(PROGRAM)
        (folder / "rubric.py").write_text(RUBRIC)
        words = ("record", "--store", "base/store.db", "--", sys.executable, "program.py")
        command(folder, server, *words)
        return ["base/store.db", "--rewards", "./rubric.py:right"]
    command(
        folder, server, "eval", "--graph", "./agent.py:graph", "--policy", "openai:small",
        "--tasks", "tasks.jsonl", "--rewards", "answer:last_number", "--max-tokens", "500",
        "--temperature", "0", "--out", "base",
    )  # fmt: skip
    return ["base"]
