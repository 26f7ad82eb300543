"""Agents traced by the usual libraries, and recorded: is the imported trace the record?

    python -m benchmarks.traces_in [--libraries PYTHON] [--exporters NAME ...] [--agents NAME ...]
        [--folder F] [--json FILE] [--quick]

Each program of `program.py` is an agent of LangGraph that another library traces: `exporters` are
LangSmith's and Langfuse's clients, and OpenTelemetry's SDK with the instrumentations of four
projects. Their own exporters send to receivers on this machine. The same run is recorded by
`hrm-agent record`. Then `hrm-agent import` reads what was received, and calls, texts and tools are
compared. `--libraries` is the interpreter of an environment with these libraries, and without it
they are installed into a temporary one.

Langfuse has no server here, so its export is made from the spans that its client sent, with the
fields that its documentation lists (`langfuse_export`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.traces_in.agents import AGENTS
from benchmarks.traces_in.compared import compared
from benchmarks.traces_in.program import EXPORTERS
from benchmarks.traces_in.receiver import langfuse_rows, receiving, write_otlp
from hrm_agent.store import open_store
from hrm_agent.trajectory import Trajectory
from tests.support.serving.providers import ProviderServer

Row = dict[str, Any]
PROJECT = Path(__file__).parents[2]
LIBRARIES = (
    "langchain>=1",
    "langfuse>=5",
    "openinference-instrumentation-langchain>=0.1.80",
    "openinference-instrumentation-openai>=0.1.66",
    "opentelemetry-instrumentation-langchain>=0.62",
    "opentelemetry-instrumentation-openai>=0.62",
    "opentelemetry-instrumentation-openai-v2==2.4b0",
    "opentelemetry-util-genai==0.4b0",  # later ones lack a module that openai-v2 imports
)
FORMATS = {
    "langsmith": "langsmith",
    "langfuse": "langfuse",
    "langfuse_export": "langfuse",
    "openinference_langchain": "phoenix",
}
"""Exporter -> format of the import, if it is not `otel`."""
COLUMNS = (
    "calls",
    "answers",
    "requests",
    "roles",
    "usage",
    "tools",
    "arguments",
    "results",
    "outcomes",
    "final",
)


def main() -> None:
    """Trace, record, import, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--libraries", type=Path, help="interpreter with the tracing libraries")
    names = [*EXPORTERS, "langfuse_export"]
    parser.add_argument("--exporters", nargs="+", choices=names, default=names)
    parser.add_argument("--agents", nargs="+", choices=list(AGENTS), default=list(AGENTS))
    parser.add_argument("--folder", type=Path, help="where traces and stores are kept")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument(
        "--quick", action="store_true", help="one agent, with the libraries of this environment"
    )
    options = parser.parse_args()
    if options.quick:
        options.exporters, options.agents = ["langsmith"], ["two_roles"]
        options.libraries = Path(sys.executable)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        python = options.libraries or installed(Path(temporary) / "libraries")
        for exporter in [name for name in options.exporters if name in EXPORTERS]:
            for agent in options.agents:
                place = folder / exporter / agent
                place.mkdir(parents=True, exist_ok=True)
                files = traced(python, exporter, agent, place)
                rows.append(row_of(exporter, agent, place, files))
                if exporter == "langfuse" and "langfuse_export" in options.exporters:
                    export = place / "observations.jsonl"
                    export.write_text(
                        "".join(f"{json.dumps(one)}\n" for one in langfuse_rows(files))
                    )
                    rows.append(row_of("langfuse_export", agent, place, [export]))
    show(rows)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"rows": rows}, indent=1))


def installed(folder: Path) -> Path:
    """Interpreter of a new environment: that of this one, and the libraries."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    mine = next(path for path in sys.path if path.endswith("site-packages"))
    theirs = next((folder / "lib").glob("python*")) / "site-packages"
    (theirs / "base.pth").write_text(f"{mine}\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *LIBRARIES], check=True)
    return python


def traced(python: Path, exporter: str, agent: str, place: Path) -> list[Path]:
    """Run an agent, traced and recorded. Return the files of the trace."""
    program = [str(python), "-m", "benchmarks.traces_in.program", exporter, agent, str(place)]
    record = [str(python), "-m", "hrm_agent", "record", "--store", str(place / "recorded.db")]
    calls = 2 if agent == "parallel_tools" else 1
    with ProviderServer(cost=0.25, text=answer, calls=calls) as server, receiving() as receiver:
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "OPENAI_API_KEY": "none",
            "RECEIVER": receiver.url,
            "LANGSMITH_TRACING": "false",
        }
        done = subprocess.run(
            [*record, "--", *program],
            env=environment,
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{exporter} {agent}: {done.stderr[-1500:]}", file=sys.stderr)
        files = write_otlp(receiver, place)
        if receiver.runs:
            runs = place / "runs.jsonl"
            runs.write_text("".join(f"{json.dumps(one)}\n" for one in receiver.runs.values()))
            files.append(runs)
    return [*files, *place.glob("console.json")]


def answer(body: Row) -> str:
    """Text that depends on what the model was asked."""
    messages = body["messages"]
    return f"Answer {len(messages)}, für {str(messages[0]['content'])[:16]!r}.\n\tZeile 2"


def row_of(exporter: str, agent: str, place: Path, files: list[Path]) -> Row:
    """Import files, and compare."""
    store = place / f"imported-{exporter}.db"
    store.unlink(missing_ok=True)
    words = ["import", *map(str, files), "--format", FORMATS.get(exporter, "otel")]
    done = subprocess.run(
        [sys.executable, "-m", "hrm_agent", *words, "--store", str(store), "--json"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    row = {"exporter": exporter, "agent": agent, "rc": done.returncode}
    if done.returncode:
        return {**row, "error": done.stderr[-500:]}
    told = json.loads(done.stdout)
    missing = {name: told.get(name, {}) for name in ("missing", "notes")}
    return {**row, **compared(stored(place / "recorded.db"), stored(store)), **missing}


def stored(path: Path) -> list[Trajectory]:
    """Trajectories of a store."""
    with open_store(str(path), create=False) as store:
        return list(store.journal.trajectories())


def show(rows: list[Row]) -> None:
    """Print the comparison: of each, how many are in the record and in the import."""
    table = Table("exporter", "agent", *COLUMNS)
    for row in rows:
        if "error" in row:
            table.add_row(row["exporter"], row["agent"], row["error"])
            continue
        cells: list[str] = []
        for name in COLUMNS:
            value = row[name]
            whole = row["tools" if name in ("arguments", "results", "outcomes") else "calls"][0]
            whole = row["runs"][0] if name == "final" else whole
            cells.append(
                f"{value[1]} of {value[0]}" if isinstance(value, list) else f"{value}/{whole}"
            )
        table.add_row(row["exporter"], row["agent"], *cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
