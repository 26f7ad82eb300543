"""`hrm-agent import`: trajectories of a file into a store.

The file is read twice. First every trajectory is checked against what is on record, and nothing is written if a line
cannot be read or if a trajectory is there already and differs. Then they are written one by one, each with its calls
first and its own fields last: whoever is interrupted has some of them whole, and none by half, and the same command
goes on. A trajectory that is on record as it stands in the file is passed over.
"""

from __future__ import annotations

from array import array
from collections import Counter
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import Call, Trajectory
from hrm_agent.trajectory.formats import FORMATS, Origin, import_from

__all__ = ["run"]


def run(words: list[str]) -> int:
    arguments = _parser().read(words)
    origin = Origin(arguments.policy, arguments.raw_logprobs)
    next(import_from(arguments.file, arguments.format, origin), None)  # a file that is none makes no store
    with open_store(arguments.store) as store:
        for trajectory in import_from(arguments.file, arguments.format, origin):
            _is_on_record(store, trajectory)
        counts: Counter[str] = Counter()
        for trajectory in import_from(arguments.file, arguments.format, origin):
            counts[_take(store, trajectory)] += 1
            counts["untrainable"] += not trajectory.trainable
            counts["without_lineage"] += len(store.journal.trajectory(trajectory.id).calls) < len(trajectory.calls)
    _say(Output(as_json=arguments.json), arguments.store, counts)
    return 0


def _parser() -> Parser:
    parser = Parser("import", "Read trajectories into a store; docs/formats.md says what each format keeps.")
    parser.add_argument("file", type=Path, help="a file of `hrm-agent export`, TRL, verifiers, inspect, or in ATIF")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]")
    back = [name for name, one in FORMATS.items() if one.read is not None]
    parser.add_argument("--format", metavar="NAME", help=f"one of {', '.join(back)} [seen from the file]")
    parser.add_argument("--policy", metavar="NAME", help="the model, where the file does not name it [imported]")
    parser.add_argument(
        "--raw-logprobs",
        action="store_true",
        help="take log-probs as raw (temperature 1, no top-p) where the file does not say",
    )
    return parser


def _take(store: RunStore, trajectory: Trajectory) -> str:
    """Write a trajectory, if it is not there; returns what was done."""
    if _is_on_record(store, trajectory):
        return "present"
    for call in trajectory.calls:
        if _stored(store.journal.write_call(call)) != _stored(call):
            raise _differs(store, trajectory, f"call {call.id}")
    for tool_call in trajectory.tool_calls:
        store.journal.write_tool_call(tool_call)
    store.journal.write_trajectory(trajectory)
    return "imported"


def _is_on_record(store: RunStore, trajectory: Trajectory) -> bool:
    """True if the store has this trajectory as it is; raises `StoreError` if it has another by its id or thread."""
    found = store.journal.find_trajectory(trajectory.id) or store.journal.find_trajectory(trajectory.thread_id)
    if found is None:
        return False
    if (field := _first_difference(found, trajectory)) is not None:
        raise _differs(store, trajectory, field)
    return True


def _first_difference(found: Trajectory, given: Trajectory) -> str | None:
    """The field in which two trajectories differ. What a fork inherited is the other run's to compare."""
    for name in Trajectory.model_fields:
        if name not in ("calls", "tool_calls") and getattr(found, name) != getattr(given, name):
            return name
    if [_stored(call) for call in found.own_calls] != [_stored(call) for call in given.own_calls]:
        return "calls"
    ours = [
        [tool_call for tool_call in one.tool_calls if tool_call.identity.thread_id == one.thread_id]
        for one in (found, given)
    ]
    return "tool_calls" if ours[0] != ours[1] else None


def _stored(call: Call) -> Call:
    """A call with its log-probs as the 32-bit numbers that a store keeps."""
    return call.model_copy(update={"logprobs": tuple(array("f", call.logprobs))})


def _differs(store: RunStore, trajectory: Trajectory, where: str) -> StoreError:
    return StoreError(
        f"{store.url} has trajectory {trajectory.id} already, and it differs in {where}; nothing of it was written.",
        "Name another store with --store.",
    )


def _say(output: Output, store: str, counts: Counter[str]) -> None:
    names = ("imported", "present", "without_lineage", "untrainable")
    output.result({"store": store, **{name: counts[name] for name in names}})
    output.say(f"{counts['imported']} trajectories imported into {store}, {counts['present']} were there already")
    if counts["without_lineage"]:
        output.say(
            f"{counts['without_lineage']} are forks without the calls that they inherited: only checkpoints hold those"
        )
    if counts["untrainable"]:
        output.say(f"{counts['untrainable']} cannot be trained on; `hrm-agent show` says why")
