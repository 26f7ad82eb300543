r"""Failures that are planted, and the classes that the rules find.

    python -m benchmarks.failures

* plants: scripted policies fail in a known way, in real graphs with a real sandbox; the planted
  class against the class that is found;
* imported: the same runs as ATIF of another agent;
* real: the classes of a small trained model's failures, and the share of its right runs to which a
  rule would apply, had they been wrong (but those that compare the final text with the reference);
* cost: CPU time per run, over 1,000 runs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.failures.plants import COUNT, plants
from benchmarks.failures.recording import record
from benchmarks.learning.runs import run_command
from hrm_agent.store import open_store
from hrm_agent.training.analysis.failures.classes import UNEXPLAINED
from hrm_agent.training.analysis.failures.report import (
    RIGHT,
    ClassifiedRun,
    classified_runs,
    failure_report,
)
from hrm_agent.training.analysis.failures.rules import explain
from hrm_agent.training.records.runs import opened_runs
from hrm_agent.trajectory.formats import export_to, import_from

Row = dict[str, Any]
MODELS = (("builtin:cold-start", "tool_loop"), ("builtin:roles-cold-start", "reasoning"))
"""Policies of the part `real`, with their graphs."""


def classified(where: str) -> list[ClassifiedRun]:
    with opened_runs([where]) as (runs,):
        return classified_runs(runs, {})


def confusion(runs: list[ClassifiedRun], planted: Mapping[str, str]) -> Row:
    """Found classes by planted class. `planted`: planted class by thread."""
    table: dict[str, Counter[str]] = {}
    for each in runs:
        table.setdefault(planted[each.thread], Counter())[each.outcome] += 1
    failed = {name: found for name, found in table.items() if name != RIGHT}
    total = sum(found.total() for found in failed.values())
    hits = sum(found[name] for name, found in failed.items())
    right = table.get(RIGHT, Counter[str]())
    unchecked = Counter(
        name
        for each in runs
        for name, _ in each.unchecked
        if name == planted[each.thread] != each.outcome
    )
    return {
        "runs": len(runs),
        "planted_failures": total,
        "found": hits,
        "share": hits / total,
        "right_runs": right.total(),
        "right_runs_classed": right.total() - right[RIGHT],
        "missed": {
            name: dict(found - Counter({name: found[name]}))
            for name, found in failed.items()
            if found[name] < found.total()
        },
        "not_checkable": dict(unchecked),
        "table": {name: dict(found) for name, found in table.items()},
    }


def imported(folder: Path, planted: Mapping[str, str]) -> Row:
    """Classes of the planted runs as documents of another agent in ATIF: without the fields in which
    an own document has what ATIF lacks.
    """
    file = folder / "planted.atif"
    with open_store(folder / "store.db", read_only=True) as store:
        export_to(file, store.journal.trajectories(), "atif")
    documents = [without_own(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
    runs = folder / "imported.jsonl"
    names = {
        each.thread_id: planted[str(document["session_id"])]
        for each, document in zip(import_from(file, "atif"), documents, strict=True)
    }
    export_to(runs, import_from(file, "atif"), "jsonl")
    return confusion(classified(str(runs)), names)


def without_own(value: Any) -> Any:
    if isinstance(value, list):
        return [without_own(each) for each in value]
    if isinstance(value, dict):
        return {key: without_own(each) for key, each in value.items() if key != "hrm_agent"}
    return value


def real(folder: Path, policy: str, graph: str, count: int) -> Row:
    """Classes of a small model's failures."""
    out = folder / policy.partition(":")[2]
    words = ("--policy", policy, "--graph", graph, "--tasks", "word_problems")
    run_command(out, "eval", *words, "--count", str(count))
    runs = classified(str(out))
    report = failure_report(policy, runs, {}, examples=0)
    alarms: Counter[str] = Counter()
    right = {each.thread for each in runs if each.outcome == RIGHT}
    with opened_runs([str(out)]) as (opened,):
        for header in opened.headers({}):
            if header.thread_id in right:
                found = explain(opened.whole(header.id, requests=True))
                classes = {*found.evidence} - {"wrong_form", "lost_result"}
                alarms.update(classes)
    return {
        "runs": report.runs,
        "failed": report.failed,
        "unexplained": sum(each.outcome == UNEXPLAINED for each in runs),
        "classes": {each.name: each.runs for each in report.classes},
        "right_runs": len(right),
        "rules_that_match_right_runs": dict(alarms),
    }


def cost(store: Path, runs: int, reads: int) -> Row:
    """CPU milliseconds per run: reading a run and finding its classes."""
    passes = max(1, round(reads / runs))
    began = time.process_time()
    for _ in range(passes):
        classified(str(store))
    spent = time.process_time() - began
    return {"runs": passes * runs, "cpu_ms_per_run": 1000 * spent / (passes * runs)}


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=COUNT, help="plants of each class")
    parser.add_argument("--tasks", type=int, default=250, help="problems of a real model")
    parser.add_argument("--quick", action="store_true", help="a few runs, which say nothing")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    count = 1 if options.quick else options.count
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        planted = [
            each for each in plants(count) if not options.quick or "time" not in each.planted
        ]
        names = record(folder, planted)
        store = folder / "store.db"
        runs = classified(str(store))
        found: Row = {"plants": confusion(runs, names), "imported": imported(folder, names)}
        found["cost"] = cost(store, len(runs), len(runs) if options.quick else 1000)
        tasks = 4 if options.quick else options.tasks
        models = MODELS[:1] if options.quick else MODELS
        found["real"] = {policy: real(folder, policy, graph, tasks) for policy, graph in models}
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
