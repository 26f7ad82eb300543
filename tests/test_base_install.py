"""Base install, without the packages of any extra: it runs and records agents, and names the extra
that a command lacks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

EXTRAS = {
    "accelerate", "aiohttp", "atif", "cryptography", "diskcache", "inspect_ai", "jaxtyping",
    "llguidance", "lxml", "matplotlib", "opentelemetry", "peft", "psycopg", "pyarrow",
    "pypdfium2", "ray", "reasoning_gym", "renderers", "tiktoken", "tinycss2", "tokenizers",
    "torch", "transformers", "wordllama",
}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())

from hrm_agent.cli.main import main
from hrm_agent.errors import HrmError
from hrm_agent.store import open_store

words = ["run", "hi", "--graph", "./agent.py:graph", "--store", "runs.db", "--thread", "t"]
assert main(words) == 0
assert main(["replay", "t", "--store", "runs.db"]) == 0
assert main(["history", "--store", "runs.db"]) == 0
with open_store("runs.db", create=False) as store:
    [found] = store.journal.trajectories()
    assert found.thread_id == "t"
    main(["show", found.id, "--store", "runs.db"])
try:
    open_store("postgresql://localhost/none")
except HrmError as error:
    print("refused:", error.message, error.hint)
"""
AGENT = """
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState):
    return {"messages": [("ai", "ok")]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()
"""


def test_a_base_install_runs_records_and_replays(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "refused: A PostgreSQL store needs psycopg, which is not installed." in done.stdout
    assert "[postgres]" in done.stdout
