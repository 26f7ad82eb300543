"""`hrm-agent export`: trajectories to files that other programs read."""

from __future__ import annotations

import json
from pathlib import Path

from hrm_agent.cli.arguments import Parser
from hrm_agent.cli.output import Output
from hrm_agent.cli.source import stored_trajectories
from hrm_agent.errors import ConfigError
from hrm_agent.trajectory.export import write_jsonl, write_parquet

__all__ = ["run"]

_WRITERS = {"jsonl": write_jsonl, "parquet": write_parquet}


def run(words: list[str]) -> int:
    parser = Parser("export", "Write trajectories to JSON lines or Parquet; docs/trajectory-format.md explains both.")
    parser.add_argument("store", nargs="?", help="a store, a run's folder, or a file exported before")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write; its suffix names the format")
    parser.add_argument("--format", choices=sorted(_WRITERS), help="the format, where the suffix does not say it")
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of a JSONL line and stop")
    arguments = parser.read(words)
    if arguments.schema:
        from hrm_agent.trajectory.json_schema import trajectory_schema

        print(json.dumps(trajectory_schema(), indent=2))
        return 0
    if arguments.store is None or arguments.out is None:
        raise ConfigError("export needs a store and a file.", "Write `hrm-agent export STORE --out FILE.jsonl`.")
    name = arguments.format or arguments.out.suffix.removeprefix(".")
    if name not in _WRITERS:
        raise ConfigError(f"{arguments.out} names no format.", f"Add --format {' or '.join(sorted(_WRITERS))}.")
    count = _WRITERS[name](stored_trajectories(arguments.store, arguments.run), arguments.out)
    output = Output(as_json=arguments.json)
    output.result({"file": str(arguments.out), "format": name, "trajectories": count})
    output.say(f"{count} trajectories in {arguments.out}")
    return 0
