"""Share of runs in which `hrm-agent blame` names the step whose answer was made wrong on purpose.

    python -m benchmarks.blame [--runs 200] [--forks 6] [--seed 0] [--folder F] [--json FILE]

The trained small policy solves word problems with the graph of four roles. Of each right run, the
answer of one role is replaced by a wrong one, and the run goes on from there:

* plan: the last subgoal is left out;
* solve: one value is another number of as many digits;
* critique: one value is missing, which the critic noted, but it accepts;
* synthesize: the final text has another number.

The roles take turns. Runs that end right all the same are left out. The rest is blamed by forks
that the same policy samples, at temperature 1. Reported are the share in which the step with the
largest fall of value is the one that was changed, and the share in which it is among the two
largest, with Wilson's 95 % interval, all together and by role.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.graphs.reasoning.plan import FAILED
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.runtime.settings import RolloutSettings
from hrm_agent.runtime.time_travel.fork import Edit, fork, history
from hrm_agent.runtime.time_travel.history import History
from hrm_agent.store import RunStore
from hrm_agent.training.analysis.blame import Blame, BlamedRun, blame
from hrm_agent.training.config.commands import CollectConfig
from hrm_agent.training.rollout.rollout import group_episodes, open_run
from hrm_agent.training.rollout.scoring import scoring_by
from hrm_agent.training.small_policy.traces import wrong_number
from hrm_agent.training.tasks import load_tasks, verifier_of
from hrm_agent.trajectory import Trajectory, derive_seed
from hrm_agent.trajectory.decisions import decisions

Row = dict[str, Any]
POLICY = "builtin:trained"
ROLES = ("plan", "solve", "critique", "synthesize")
CANDIDATES = 1.5
"""Runs that are sampled for each run that is blamed."""


def changed(found: History, role: str, rng: random.Random) -> tuple[str, Edit] | None:
    """Moment after the last answer of a role, with the edit that makes the answer wrong (None if
    the role's answer cannot be made wrong so).
    """
    led_to = [moment for moment in found.lineage() if role in moment.ran.nodes]
    if role == "critique":
        led_to = [each for each in led_to if each.values["verdict"].get("action") == "revise"]
    if not led_to:
        return None
    moment = led_to[-1]
    values = moment.values
    if role == "plan":
        if len(values["plan"]) < 2:
            return None
        edit = Edit(values={"plan": values["plan"][:-1]}, as_node=role)
    elif role == "solve":
        name = list(values["results"])[-1]
        wrong = wrong_number(str(values["results"][name]), rng)
        edit = Edit(values={"results": {**values["results"], name: wrong}}, as_node=role)
    elif role == "critique":
        edit = Edit(values={"verdict": {"action": "accept"}}, as_node=role)
    else:
        text = str(values["messages"][-1].text)
        digits = "".join(each for each in text if each.isdigit())
        edit = Edit(messages={-1: text.replace(digits, wrong_number(digits, rng))}, as_node=role)
    return moment.index, edit


def without_a_value(found: History) -> tuple[str, Edit]:
    """Moment after the last solver, with the edit by which its value is missing."""
    moment = [each for each in found.lineage() if "solve" in each.ran.nodes][-1]
    results = moment.values["results"]
    edit = Edit(values={"results": {**results, list(results)[-1]: FAILED}}, as_node="solve")
    return moment.index, edit


async def gone_on(
    runner: EpisodeRunner, places: list[tuple[Trajectory, str, tuple[str, Edit]]], seed: int
) -> list[Trajectory]:
    """Runs that go on from edited moments. Each is given as (origin, word for its name, place)."""
    store = runner.store
    episodes = [
        episode
        for origin, word, (at, edit) in places
        for episode in fork(
            store,
            origin.thread_id,
            at,
            edit=edit,
            name=f"{origin.thread_id}/{word}",
            graph=origin.graph,
            seed=derive_seed(seed, origin.thread_id, word),
            verify=verifier_of(origin.task, store.folder),
            policy=POLICY,
        )
    ]
    return await runner.run_all(episodes)


async def planted(
    runner: EpisodeRunner, right: list[Trajectory], wanted: int, seed: int
) -> list[tuple[str, Trajectory]]:
    """Runs that ended wrong after the answer of a role was changed, each with the role."""
    rng = random.Random(derive_seed(seed, "planted"))

    def read(each: Trajectory) -> History:
        return history(runner.store, each.thread_id, branches=False)

    by_role = {role: right[number :: len(ROLES)] for number, role in enumerate(ROLES)}
    flawed = [(each, "flawed", without_a_value(read(each))) for each in by_role["critique"]]
    by_role["critique"] = await gone_on(runner, flawed, seed)
    places = [
        (each, role, place)
        for role, origins in by_role.items()
        for each in origins
        if (place := changed(read(each), role, rng)) is not None
    ]
    ended = await gone_on(runner, places, seed)
    wrong = {role: list[Trajectory]() for role in ROLES}
    for (_, role, _), each in zip(places, ended, strict=True):
        if each.outcome < 0.5:
            wrong[role].append(each)
    each_role = -(-wanted // len(ROLES))
    return [(role, each) for role, found in wrong.items() for each in found[:each_role]]


def expected(each: Trajectory) -> str:
    """Checkpoint before the decision whose answer was changed: the last inherited one."""
    before = [
        decision.checkpoint_id
        for decision in decisions(each)
        if decision.calls[-1].identity.thread_id != each.thread_id
    ]
    return before[-1]


def indices(store: RunStore, each: Trajectory) -> dict[str, str]:
    """Index of each moment of a run by its checkpoint."""
    found = history(store, each.thread_id, branches=False, values=False)
    return {moment.checkpoint_id: moment.index for moment in found.lineage()}


def ranked(store: RunStore, found: Blame, each: Trajectory) -> int:
    """Rank of the changed step among the falls of value, from 1."""
    index = indices(store, each)[expected(each)]
    falls = sorted(zip(found.differences, (m.index for m in found.moments), strict=True))
    return next(rank for rank, (_, at) in enumerate(falls, 1) if at == index)


async def measured(folder: Path, runs: int, forks: int, seed: int) -> Row:
    """Shares by role, with the cost."""
    began = time.process_time()
    settings = RolloutSettings(temperature=1.0)
    async with open_run(folder, POLICY, settings) as runner:
        tasks = load_tasks("word_problems", split="eval", seed=seed, count=round(CANDIDATES * runs))
        episodes = group_episodes(
            tasks, 1, run_id=folder.name, stage="right", seed=seed, graph="reasoning"
        )
        right = [each for each in await runner.run_all(episodes) if each.outcome > 0.5]
        chosen = await planted(runner, right, runs, seed)
        blamed = [
            BlamedRun(
                each,
                indices(runner.store, each),
                {},
                verifier_of(each.task, runner.store.folder),
            )
            for _, each in chosen
        ]
        async with scoring_by(CollectConfig(), runner.store) as score:
            found = await blame(runner, blamed, score, forks=forks, seed=seed)
        ranks: dict[str, list[int]] = defaultdict(list)
        for (role, each), result in zip(chosen, found, strict=True):
            ranks[role].append(ranked(runner.store, result, each))
    every = [rank for of_role in ranks.values() for rank in of_role]
    return {
        "runs": len(every),
        "forks": forks,
        "cpu_seconds": round(time.process_time() - began),
        "all": _shares(every),
        **{role: _shares(ranks[role]) for role in ROLES},
    }


def _shares(ranks: list[int]) -> Row:
    first = sum(rank == 1 for rank in ranks)
    return {
        "runs": len(ranks),
        "first": first / len(ranks) if ranks else None,
        "interval": wilson_interval(first, len(ranks)),
        "first_two": sum(rank <= 2 for rank in ranks) / len(ranks) if ranks else None,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--forks", type=int, default=6, help="forks of each moment")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the runs are kept [deleted]")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary) / "blame").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        record = asyncio.run(measured(folder, options.runs, options.forks, options.seed))
    print(json.dumps(record, indent=2))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
