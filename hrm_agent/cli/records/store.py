"""`hrm-agent store ACTION STORE`: maintenance of a store."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from hrm_agent.cli.common.actions import run_action
from hrm_agent.cli.common.arguments import Arguments, Parser
from hrm_agent.cli.common.formatting import sentence
from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.run_folder import DEFAULT_STORE, existing_store
from hrm_agent.errors import ConfigError, GraphError, StoreDamagedError, StoreError, nearest
from hrm_agent.import_by_name import types_by_name
from hrm_agent.store import RunStore
from hrm_agent.store.database.leases import forget_unused_leases
from hrm_agent.store.upkeep.copying import copy_store
from hrm_agent.store.upkeep.maintenance import (
    collect_values,
    count_loose_values,
    delete_runs,
    prune,
    prune_steps,
    stats,
    verify,
)
from hrm_agent.store.upkeep.migrate import check_source, migrate
from hrm_agent.store.upkeep.new_store import new_store
from hrm_agent.store.upkeep.verification import ValueCount
from hrm_agent.store.values.serializer import allowed_types, declared_types
from hrm_agent.trajectory import RunStatus

__all__ = ["ACTIONS", "run"]

ACTIONS = {
    "stats": "rows and bytes by kind",
    "verify": (
        "open every checkpoint, read every record, and compare them; exit code 1 if anything is"
        " wrong"
    ),
    "prune": "delete runs by age or status, or the checkpoints of a training's older steps",
    "delete": "delete threads with everything recorded of them",
    "vacuum": "give free space back to the file system",
    "copy": "copy a store into a new one: to another database, or under another key",
    "migrate": "copy the database of a SqliteSaver or PostgresSaver into a new store",
}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SHOWN_FINDINGS = 50


def run(words: list[str]) -> int:
    return run_action("store", "Maintain a store.", ACTIONS, _RUN, words)


def _parser(action: str, *, positional: bool = True) -> Parser:
    parser = Parser(f"store {action}", sentence(ACTIONS[action]))
    if positional:
        parser.add_argument(
            "store", nargs="?", default=DEFAULT_STORE, help=f"path or URL [{DEFAULT_STORE}]"
        )
    return parser


def _stats(words: list[str]) -> int:
    arguments = _parser("stats").read(words)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store) as store:
        found = stats(store)
        output.result({"store": store.url, **asdict(found)})
        rows = [(kind, found.rows[kind], _bytes(found.bytes[kind])) for kind in found.rows]
        output.table(("kind", "rows", "bytes"), rows, title=store.url)
        said = (
            ", ".join(f"{count} {status}" for status, count in found.by_status.items())
            or "no trajectories"
        )
        output.say(f"{found.threads} threads ({said}); {_bytes(found.size)} on disk")
    return 0


def _verify(words: list[str]) -> int:
    parser = _parser("verify")
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        metavar="MODULE:CLASS",
        help="your own types in the states",
    )
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    count = ValueCount()
    try:
        with existing_store(arguments.store) as store:
            types = {*allowed_types(types_by_name(arguments.allow)), *_types_of_graphs(store)}
            found = list(islice(verify(store, types, count), _SHOWN_FINDINGS))
            loose = 0 if found else count_loose_values(store)
    except StoreDamagedError as error:  # the damage prevents opening the store
        found = [error.message]
        loose = 0
    cut = len(found) == _SHOWN_FINDINGS
    made = len(count.made)
    refused = len(count.refused)
    told = ({"more": True} if cut else {}) | ({"unreferenced_values": loose} if loose else {})
    values = {"read": made, "refused": refused}
    output.result({"sound": not found, "findings": found, "values": values, **told})
    for finding in found:
        output.say(finding)
    more = " or more" if cut else ""
    read = f"{made} values read, {refused} could not be read"
    said = (
        f"{len(found)}{more} findings" if found else "sound: hashes, references and invariants hold"
    )
    output.say(f"{said} ({read})")
    if loose:
        output.say(
            f"{loose} unreferenced values: `hrm-agent store vacuum {arguments.store}` deletes them"
        )
    return 1 if found else 0


def _types_of_graphs(store: RunStore) -> set[tuple[str, ...]]:
    """Types that the recorded graphs declare in their states. Graphs that cannot be imported are
    left out.
    """
    from hrm_agent.runtime.execution.loading import load_graph

    names: set[str] = set()
    with suppress(StoreDamagedError):
        names = {header.graph for header in store.journal.headers(on_damage=lambda *_: None)}
    found: set[tuple[str, ...]] = set()
    for name in names:
        with suppress(GraphError):
            found |= declared_types(load_graph(name))
    return found


def _prune(words: list[str]) -> int:
    parser = _parser("prune")
    parser.add_argument(
        "--older-than", metavar="AGE", help="runs that ended longer ago: 30d, 12h, 90m"
    )
    parser.add_argument(
        "--status", nargs="+", default=[], metavar="STATUS", help="only runs with one of these"
    )
    parser.add_argument(
        "--trained", action="store_true", help="also runs that a training run judged"
    )
    parser.add_argument(
        "--keep-steps",
        type=int,
        metavar="N",
        help=(
            "delete no run, but the checkpoints of trainings' rollouts before each one's newest N"
            " steps"
        ),
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be deleted, and stop"
    )
    arguments = parser.read(words)
    by_run = arguments.older_than is not None or bool(arguments.status)
    if by_run == (arguments.keep_steps is not None):
        stands = "--keep-steps deletes no runs." if by_run else "No flag says which runs to delete."
        raise ConfigError(
            stands, "Give --older-than, --status, or both; or --keep-steps by itself."
        )
    if arguments.keep_steps is not None:
        return _prune_steps(arguments)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store, writes=not arguments.dry_run) as store:
        pruned = prune(
            store,
            older_than_seconds=(
                _seconds(arguments.older_than) if arguments.older_than is not None else None
            ),
            status=[_status(name) for name in arguments.status],
            keep_trained=not arguments.trained,
            dry_run=arguments.dry_run,
        )
    output.result(asdict(pruned))
    output.say(
        f"{len(pruned.thread_ids)} runs {'would be deleted' if arguments.dry_run else 'deleted'}"
    )
    for reason, count in pruned.kept.items():
        output.say(f"{count} kept: {reason}")
    return 0


def _prune_steps(arguments: Arguments) -> int:
    if arguments.keep_steps < 0:
        raise ConfigError(
            f"--keep-steps {arguments.keep_steps} is not a number of steps.",
            "Give 0 or more, such as --keep-steps 2.",
        )
    if arguments.trained:
        raise ConfigError(
            "--keep-steps deletes no runs, so it cannot be combined with --trained.",
            "Leave one of the two out.",
        )
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store, writes=not arguments.dry_run) as store:
        pruned = prune_steps(store, arguments.keep_steps, dry_run=arguments.dry_run)
    output.result(asdict(pruned))
    count = len(pruned.thread_ids)
    output.say(
        f"checkpoints of {count} rollouts {'would be deleted' if arguments.dry_run else 'deleted'}"
    )
    for reason, count in pruned.kept.items():
        output.say(f"{count} kept: {reason}")
    return 0


def _delete(words: list[str]) -> int:
    parser = _parser("delete", positional=False)
    parser.add_argument("threads", nargs="+", help="ids of threads or of their trajectories")
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"path or URL [{DEFAULT_STORE}]")
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store, writes=True) as store:
        freed = delete_runs(store, arguments.threads)
    output.result({"deleted": arguments.threads, "values": freed})
    output.say(
        f"{len(arguments.threads)} deleted, {freed} values collected; `hrm-agent store vacuum`"
        " frees the space"
    )
    return 0


def _vacuum(words: list[str]) -> int:
    arguments = _parser("vacuum").read(words)
    output = Output(as_json=arguments.json)
    with existing_store(arguments.store, writes=True) as store:
        before = store.database.size()
        store.database.write(forget_unused_leases)
        kept = ""
        freed = 0
        try:
            freed = collect_values(store)
        except StoreError as error:
            kept = f"{error.message} {error.hint}"
        store.database.vacuum()
        after = store.database.size()
    output.result({"before": before, "after": after, "values": freed})
    if freed or kept:
        output.say(kept or f"{freed} unreferenced values deleted")
    output.say(f"{_bytes(before)} before, {_bytes(after)} after")
    return 0


def _copy(words: list[str]) -> int:
    parser = _two("copy")
    parser.add_argument(
        "--key-file",
        help="file with the new store's key, base64; without it, the source's key if any",
    )
    parser.add_argument("--decrypt", action="store_true", help="the new store is not encrypted")
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    with (
        existing_store(arguments.source) as source,
        new_store(arguments.target, key=_key(arguments)) as target,
    ):
        counts = copy_store(source, target)
    output.result(counts)
    output.say(", ".join(f"{count} {table}" for table, count in counts.items()))
    return 0


def _key(arguments: Arguments) -> str | None:
    if arguments.decrypt:
        return ""
    if arguments.key_file is None:
        return None
    try:
        key = Path(arguments.key_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The key file cannot be read: {error}.", "`openssl rand -base64 32` makes a key."
        ) from error
    if not key:  # an empty key would mean that the store is not encrypted
        raise ConfigError(
            f"The key file {arguments.key_file} is empty.", "`openssl rand -base64 32` makes a key."
        )
    return key


def _migrate(words: list[str]) -> int:
    parser = _two("migrate")
    parser.add_argument(
        "--allow",
        nargs="+",
        default=[],
        metavar="MODULE:CLASS",
        help="your own types in the states",
    )
    arguments = parser.read(words)
    output = Output(as_json=arguments.json)
    check_source(arguments.source)
    allow = types_by_name(arguments.allow)
    with new_store(arguments.target, allow=allow) as target:
        taken = migrate(arguments.source, target, allow)
    output.result(asdict(taken))
    output.say(f"{taken.threads} threads, {taken.checkpoints} checkpoints migrated")
    return 0


def _two(action: str) -> Parser:
    parser = _parser(action, positional=False)
    parser.add_argument("source", help="path or URL of the source")
    parser.add_argument("target", help="path or URL of the new store")
    return parser


def _seconds(age: str) -> float:
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age)
    if parts is None:
        raise ConfigError(
            f"{age!r} is not an age.", "Write a number and one of s, m, h, d, w: 30d."
        )
    return float(parts[1]) * _SECONDS[parts[2]]


def _status(name: str) -> RunStatus:
    try:
        return RunStatus(name)
    except ValueError:
        known = [status.value for status in RunStatus]
        hint = nearest(name, known) or f"Statuses: {', '.join(known)}."
        raise ConfigError(f"There is no status {name!r}.", hint) from None


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


_RUN: dict[str, Callable[[list[str]], int]] = {
    "stats": _stats,
    "verify": _verify,
    "prune": _prune,
    "delete": _delete,
    "vacuum": _vacuum,
    "copy": _copy,
    "migrate": _migrate,
}
