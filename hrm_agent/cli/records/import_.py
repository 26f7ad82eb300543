"""`hrm-agent import`: imports trajectories of files into a store.

Files are read twice. In the first pass, every trajectory is checked by the linter and compared
with the record. If a line cannot be read, or a trajectory is invalid or differs from the recorded
one, nothing is written. In the second pass, trajectories are written one by one, each with its
calls first and its own fields last. So after an interrupt, each trajectory is complete or missing,
and the same command continues. A trajectory that is already recorded unchanged is skipped.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from itertools import islice
from pathlib import Path

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.errors import StoreError
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import Call, ToolCall, Trajectory
from hrm_agent.trajectory.formats import FORMATS, Origin, import_from, missing_parts
from hrm_agent.trajectory.formats.shared.json_documents import printable
from hrm_agent.trajectory.lint import lint

__all__ = ["run"]


def run(words: list[str]) -> int:
    parser = Parser(
        "import", "Read trajectories into a store; docs/formats.md says what each format keeps."
    )
    parser.add_argument(
        "file",
        type=Path,
        nargs="+",
        help=(
            "a file of `hrm-agent export`, TRL, verifiers, inspect, in ATIF, or traces: OTLP in JSON"
            " or protobuf, runs of LangSmith, observations of Langfuse, spans of Phoenix"
        ),
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"store or run folder [{DEFAULT_STORE}]"
    )
    back = [name for name, one in FORMATS.items() if one.read is not None]
    parser.add_argument(
        "--format", metavar="NAME", help=f"one of {', '.join(back)} [seen from the file]"
    )
    parser.add_argument(
        "--policy", metavar="NAME", help="the model, where the file does not name it [imported]"
    )
    parser.add_argument(
        "--raw-logprobs",
        action="store_true",
        help="take log-probs as raw (temperature 1, no top-p) where the file does not say",
    )
    arguments = parser.read(words)
    origin = Origin(arguments.policy, arguments.raw_logprobs)
    # an invalid file must not create a store; of one file, its first trajectory is enough
    checked = import_from(arguments.file, arguments.format, origin)
    deque(islice(checked, 1 if len(arguments.file) == 1 else None), maxlen=0)
    with open_store(arguments.store) as store:
        for trajectory in import_from(arguments.file, arguments.format, origin):
            if not _is_on_record(store, trajectory):
                id_ = printable(trajectory.id[:80])
                if not (trajectory.id.strip() and trajectory.thread_id.strip()):
                    raise StoreError(
                        f"Trajectory {id_!r} has no id or no thread_id.", "Export the run again."
                    )
                if found := next(iter(lint(trajectory)), None):
                    raise StoreError(
                        f"Trajectory {id_} is invalid ({found.name}):"
                        f" {printable(found.message[:500])}.",
                        "docs/trajectory-format.md lists all invariants. `hrm-agent lint` checks"
                        " a file of ours.",
                    )
                _refuse_foreign(store, trajectory)
        counts: Counter[str] = Counter()
        missing = Counter[str]()
        origin.notes.clear()
        for trajectory in import_from(arguments.file, arguments.format, origin):
            missing += missing_parts(trajectory)
            counts[_take(store, trajectory)] += 1
            counts["untrainable"] += not trajectory.trainable
            # count forks of which the store does not return all calls
            counts["without_lineage"] += len(
                store.journal.trajectory(trajectory.id, requests=False).calls
            ) < len(trajectory.calls)
    output = Output(as_json=arguments.json)
    names = ("imported", "present", "without_lineage", "untrainable")
    lacks = {
        name: dict(found)
        for name, found in (("missing", missing), ("notes", origin.notes))
        if found
    }
    output.result({"store": arguments.store, **{name: counts[name] for name in names}, **lacks})
    output.say(
        f"{counts['imported']} trajectories imported into {arguments.store}, {counts['present']}"
        " were there already"
    )
    if counts["without_lineage"]:
        output.say(
            f"{counts['without_lineage']} are forks without the calls that they inherited: only"
            " checkpoints hold those"
        )
    if counts["untrainable"]:
        output.say(f"{counts['untrainable']} cannot be trained on; `hrm-agent show` says why")
    for note, count in origin.notes.items():
        output.say(f"{count} {note}")
    for part, count in missing.items():
        output.say(f"not in the files: {part} ({count})")
    return 0


def _take(store: RunStore, trajectory: Trajectory) -> str:
    """Write a trajectory if it is missing. Returns `imported` or `present`."""
    if _is_on_record(store, trajectory):
        return "present"
    for call in (*trajectory.own_calls, *_own_failed(trajectory)):
        if _stored(store.journal.write_call(call)) != _stored(call):
            raise _differs(store, trajectory, f"call {call.id}")
    for tool_call in trajectory.own_tool_calls:
        store.journal.write_tool_call(tool_call)
    store.journal.write_trajectory(trajectory)
    return "imported"


def _is_on_record(store: RunStore, trajectory: Trajectory) -> bool:
    """True if the store has this trajectory unchanged. Raises `StoreError` if the store has a
    different trajectory with this id or thread.
    """
    found = store.journal.find_trajectory(trajectory.id) or store.journal.find_trajectory(
        trajectory.thread_id
    )
    if found is None:
        return False
    if (field := _first_difference(found, trajectory)) is not None:
        raise _differs(store, trajectory, field)
    return True


def _first_difference(found: Trajectory, given: Trajectory) -> str | None:
    """First field in which two trajectories differ. Calls that a fork inherited are not compared
    here, but with the source run.
    """
    for name in Trajectory.model_fields:
        if name not in ("calls", "tool_calls", "failed_calls") and getattr(found, name) != getattr(
            given, name
        ):
            return name
    if [_stored(call) for call in found.own_calls] != [_stored(call) for call in given.own_calls]:
        return "calls"
    if [*map(_stored, _own_failed(found))] != [*map(_stored, _own_failed(given))]:
        return "failed_calls"
    return "tool_calls" if found.own_tool_calls != given.own_tool_calls else None


def _own_failed(trajectory: Trajectory) -> list[Call]:
    return [
        call for call in trajectory.failed_calls if call.identity.thread_id == trajectory.thread_id
    ]


def _refuse_foreign(store: RunStore, trajectory: Trajectory) -> None:
    """Raise `StoreError` for an inherited call of a fork that the recorded source run does not
    have.

    Inherited calls are never written, since a file would then add calls to a recorded run. If the
    source run is missing in this store, its calls cannot be compared. Calls of another thread in a
    trajectory that is no fork are found by the linter.
    """
    held: dict[str, dict[str, Call | ToolCall] | None] = {}
    """Recorded calls of each thread by their ids (None if the store has no run on the thread)."""
    for call in (*trajectory.calls, *trajectory.tool_calls):
        thread = call.identity.thread_id
        if thread == trajectory.thread_id:
            continue
        if thread not in held:
            origin = store.journal.find_trajectory(thread)
            held[thread] = None if origin is None else _own(origin)
        known = held[thread]
        if known is not None and known.get(call.id) != (
            _stored(call) if isinstance(call, Call) else call
        ):
            raise StoreError(
                f"Fork {trajectory.id} has call {call.id} of thread {thread}, but {store.url} does"
                " not have this call.",
                "Name another store with --store.",
            )


def _own(trajectory: Trajectory) -> dict[str, Call | ToolCall]:
    calls = {call.id: _stored(call) for call in trajectory.own_calls}
    return {**calls, **{tool_call.id: tool_call for tool_call in trajectory.own_tool_calls}}


def _stored(call: Call) -> Call:
    """Call with its log-probs rounded to 32 bits, as in a store."""
    return call.model_copy(update={"logprobs": tuple(array("f", call.logprobs))})


def _differs(store: RunStore, trajectory: Trajectory, where: str) -> StoreError:
    return StoreError(
        f"{store.url} has trajectory {trajectory.id} already, but it differs in {where}. Nothing"
        " of it was written.",
        "Name another store with --store.",
    )
