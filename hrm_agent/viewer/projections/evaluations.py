"""Several runs side by side, as `hrm-agent eval --compare` shows them."""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.errors import ConfigError
from hrm_agent.training.evaluation.samples import Problem, Sample, problem_of, samples_of
from hrm_agent.training.evaluation.side_by_side import side_by_side
from hrm_agent.trajectory import Trajectory
from hrm_agent.viewer.json_text import NotThere, short

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["MOST_RUNS", "evaluations", "evaluations_key"]

MOST_RUNS = 16
"""Maximum number of runs in one comparison."""
_MOST_TRAJECTORIES = 20_000
"""Maximum number of trajectories of one run."""
_MOST_DIFFERING = 500
_PROMPT = 200
_RESAMPLES = 2_000
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class _Read:
    """Samples of a run, with facts for the page."""

    samples: list[Sample]
    prompts: dict[Problem, str]
    """Beginning of each prompt."""
    trajectories: dict[Problem, str]
    """Id of the first trajectory of each problem."""
    damaged: int
    """Number of trajectories that cannot be read."""


_known: BoundedMap[tuple[str, str], tuple[Hashable, _Read]] = BoundedMap(32)


def evaluations_key(runs: Sequence[tuple[str, str]]) -> str:
    """Query value `runs` for runs given as (place, run), as the page writes it."""
    return json.dumps(list(map(list, runs)), separators=(",", ":"), ensure_ascii=False)


def evaluations(places: Sequence[Place], runs: str) -> dict[str, Any]:
    """`GET evaluations`: runs side by side. `runs`: JSON list of pairs (place, run), the first of
    which is the baseline.
    """
    named = _named(runs)
    by_id = {place.id: place for place in places}
    read: list[_Read] = []
    for place, run in named:
        if place not in by_id:
            raise NotThere(f"There is no place {short(place)!r}.", "The page of runs lists all.")
        read.append(_read(by_id[place], run))
    names = [run or f"{place}: single runs" for place, run in named]
    prompts: dict[Problem, str] = {}
    for each in read:
        prompts |= each.prompts
    found = side_by_side(
        [each.samples for each in read], names, prompts=prompts, resamples=_RESAMPLES
    )
    rows = [
        {
            **asdict(row),
            "certain": row.certain,
            "name": short(row.name),
            "place": place,
            "run": run,
            "damaged": each.damaged,
        }
        for row, each, (place, run) in zip(found.evaluations, read, named, strict=True)
    ]
    differing = [
        {
            "id": short(each.id),
            "prompt": each.prompt,
            "right": each.right,
            "trajectories": [
                one.trajectories.get(Problem(each.id, each.prompt_hash)) for one in read
            ],
        }
        for each in found.differing[:_MOST_DIFFERING]
    ]
    return {
        "evaluations": rows,
        "problems": found.problems,
        "test": found.test,
        "differing": differing,
        "differing_total": len(found.differing),
    }


def _named(text: str) -> list[tuple[str, str]]:
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    pairs = cast("list[Any]", found) if isinstance(found, list) else []
    named = [
        (str(pair[0]), str(pair[1]))
        for pair in pairs
        if isinstance(pair, list)
        and len(cast("list[Any]", pair)) == 2
        and all(isinstance(each, str) for each in cast("list[Any]", pair))
    ]
    if not 2 <= len(named) <= MOST_RUNS or len(named) != len(pairs):
        raise ConfigError(
            f"runs is not a list of 2 to {MOST_RUNS} pairs of a place and a run.",
            'Write runs=[["PLACE","RUN"],["PLACE","RUN"]].',
        )
    return named


def _read(place: Place, run: str) -> _Read:
    """Samples of a run. They are read again when the place has changed."""
    key = (place.address, run)
    mark = place.mark()
    with _lock:
        known = _known.get(key)
    if known is not None and known[0] == mark:
        return known[1]
    found = place.read(lambda: _read_now(place, run))
    with _lock:
        _known[key] = (mark, found)
    return found


def _read_now(place: Place, run: str) -> _Read:
    store = place.store()
    count = store.journal.count_trajectories(run)
    if not count:
        raise NotThere(f"There is no run {short(run)!r} in {place.where}.", "")
    if count > _MOST_TRAJECTORIES:
        raise ConfigError(
            f"The run {short(run)!r} has {count:,} trajectories; a page compares at most"
            f" {_MOST_TRAJECTORIES:,}.",
            "Compare it on a terminal: `hrm-agent eval --compare`.",
        )
    damaged: list[str] = []
    prompts: dict[Problem, str] = {}
    trajectories: dict[Problem, str] = {}

    def noted(each: Trajectory) -> Trajectory:
        problem = problem_of(each)
        prompts.setdefault(problem, each.task.prompt[:_PROMPT])
        trajectories.setdefault(problem, each.id)
        return each

    stored = store.journal.trajectories(
        run_id=run, requests=False, on_damage=lambda id_, _: damaged.append(id_)
    )
    return _Read(samples_of(map(noted, stored)), prompts, trajectories, len(damaged))
