"""`hrm-agent lint`: checks every invariant of the record."""

from __future__ import annotations

import sys

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import stored_trajectories
from hrm_agent.cli.main import main
from hrm_agent.errors import RunError
from hrm_agent.trajectory.lint import INVARIANTS, Finding, lint

__all__ = ["run"]


def run(words: list[str]) -> int:
    """1 if anything is found."""
    parser = Parser("lint", "Check every invariant of stored trajectories; docs/trajectory-format.md lists them.")
    parser.add_argument("store", help="a store, a run's folder, or an exported .jsonl or .parquet file")
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    arguments = parser.read(words)
    checked, findings = 0, list[tuple[str, Finding]]()
    for trajectory in stored_trajectories(arguments.store, arguments.run):
        checked += 1
        findings += [(trajectory.id, finding) for finding in lint(trajectory)]
    if arguments.run is not None and not checked:
        raise RunError(
            f"There is no run {arguments.run!r} in {arguments.store}.",
            f"`hrm-agent history --store {arguments.store}` lists what there is.",
        )
    _report(Output(as_json=arguments.json), checked, findings)
    return 1 if findings else 0


def _report(output: Output, checked: int, findings: list[tuple[str, Finding]]) -> None:
    rows = [{"trajectory": trajectory, **finding._asdict()} for trajectory, finding in findings]
    output.result({"trajectories": checked, "invariants": len(INVARIANTS), "findings": rows})
    if rows:
        output.table(("trajectory", "invariant", "where", "finding"), [tuple(row.values()) for row in rows])
    output.say(f"{checked} trajectories, {len(INVARIANTS)} invariants, {len(findings)} findings")


if __name__ == "__main__":
    sys.exit(main(["lint", *sys.argv[1:]]))
