"""`hrm-agent lint`: checks all invariants of the record."""

from __future__ import annotations

import sys
from collections import Counter

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import stored_trajectories
from hrm_agent.cli.main import main
from hrm_agent.errors import RunError, StoreError
from hrm_agent.trajectory import BranchReason, RunStatus, Trajectory
from hrm_agent.trajectory.forest import training_roots
from hrm_agent.trajectory.lint import INVARIANTS, Finding, lint
from hrm_agent.trajectory.words import thoughts_of

__all__ = ["run"]


def run(words: list[str]) -> int:
    """Return 1 if anything is found."""
    parser = Parser(
        "lint",
        "Check every invariant of stored trajectories; docs/trajectory-format.md lists them.",
    )
    parser.add_argument(
        "store", help="a store, a run's folder, or an exported .jsonl or .parquet file"
    )
    parser.add_argument("--run", metavar="RUN", help="only the trajectories of this run")
    arguments = parser.read(words)
    checked = 0
    findings = list[tuple[str, Finding]]()
    damaged = dict[str, str]()
    silent = 0
    broken = Counter[str]()
    trained = 0

    def on_damage(id_: str, error: StoreError) -> None:
        damaged[id_] = error.message

    for trajectory in stored_trajectories(arguments.store, arguments.run, on_damage):
        checked += 1
        findings += [(trajectory.id, finding) for finding in lint(trajectory)]
        sampled = (
            trajectory.run_id and trajectory.group_id and trajectory.status is RunStatus.COMPLETED
        )
        silent += bool(sampled) and not trajectory.calls
        trained += bool(trajectory.policy_calls)
        broken.update(_why_broken(trajectory))
    if arguments.run is not None and not (checked or damaged):
        raise RunError(
            f"There is no run {arguments.run!r} in {arguments.store}.",
            f"`hrm-agent history --store {arguments.store}` lists all runs.",
        )
    output = Output(as_json=arguments.json)
    rows = [{"trajectory": trajectory, **finding._asdict()} for trajectory, finding in findings]
    counts = {"trajectories": checked, "invariants": len(INVARIANTS), "findings": rows}
    output.result(counts | ({"damaged": damaged} if damaged else {}))
    if rows:
        output.table(
            ("trajectory", "invariant", "where", "finding"), [tuple(row.values()) for row in rows]
        )
    for each, reason in damaged.items():
        output.say(f"trajectory {each}: {reason}", style="red")
    unread = f", {len(damaged)} that cannot be read" if damaged else ""
    output.say(
        f"{checked} trajectories, {len(INVARIANTS)} invariants, {len(findings)} findings{unread}"
    )
    if silent:
        output.say(
            f"{silent} completed rollouts asked no model, which is allowed, and nothing can be"
            " learned from them: their graph may share a cache."
        )
    for why, count in broken.most_common():
        output.say(
            f"{count} of {trained} rollouts broke into several training sequences, because {why}."
        )
    return 1 if findings or damaged else 0


_DROPPED = "the chat template drops earlier thoughts (?thoughts=keep keeps them)"
_BREAKS = {
    BranchReason.TEMPLATE: "the chat template rewrites earlier turns",
    BranchReason.REWRITTEN: "earlier messages were edited, or others were put before them",
}


def _why_broken(trajectory: Trajectory) -> set[str]:
    """Reasons why conversations of a run were split into several training sequences."""
    by_id = {call.id: call for call in trajectory.calls}
    found: set[str] = set()
    for root in training_roots(trajectory):
        before = by_id.get(root.branch_of or "")
        why = _BREAKS.get(root.branch_reason or BranchReason.ROOT)
        if before is None or why is None:
            continue
        dropped = root.branch_reason is BranchReason.TEMPLATE and thoughts_of(before.response)
        found.add(_DROPPED if dropped and "thoughts=keep" not in root.model else why)
    return found


if __name__ == "__main__":
    sys.exit(main(["lint", *sys.argv[1:]]))
