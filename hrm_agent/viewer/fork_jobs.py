"""Forks and replays that a page requested, each as a command in a separate process.

So the viewer's process never writes to a store and never imports a user's graph. Before a fork, a
plan lists what will run again. The digest of the plan ensures that the fork is the planned one. An
edit is passed by the command's standard input: no shell reads it, and it may have any length.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, cast

from hrm_agent.basics.guarded_loop import LoopGuard
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.basics.worker_process import signal_group
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.runtime.time_travel.read_history import trajectory_id_of
from hrm_agent.store.browse.state import checkpoint_links
from hrm_agent.viewer.json_text import NotThere, foreign, short
from hrm_agent.viewer.projections.groups import Damaged
from hrm_agent.viewer.projections.trajectory.moments import moments_at, thread_named

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["ForkJobs", "fork_plan"]

_AT_ONCE, _KEPT, _MOST_FORKS = 2, 100, 16
_MOST_MOMENTS = 400
"""Maximum number of moments, from the chosen moment on, whose nodes and tools a plan names."""
_TOLD = 200_000
"""Number of bytes at the end of a command's output that are kept."""
_LONGEST_NAME = 10_000
_LONG = 300
"""Maximum characters of an edit shown in a command line."""
_SECONDS_TO_END = 5.0
_EDIT_KEYS = {"messages", "tools", "values", "as_node"}

Request = Mapping[str, Any]


@dataclass(slots=True)
class _Job:
    id: str
    kind: str
    process: subprocess.Popen[bytes]
    started: float
    lines: list[str] = field(default_factory=list[str])
    complaint: str = ""
    ended: float | None = None

    def data(self) -> dict[str, Any]:
        code = self.process.returncode if self.ended is not None else None
        result = self._result() if code in (0, 1) else None
        rows: Any = (result or {}).get("trajectories")
        listed = cast("list[Any]", rows) if isinstance(rows, list) else []
        found = [
            cast("dict[str, Any]", row).get("thread") for row in listed if isinstance(row, dict)
        ]
        threads = [thread for thread in found if isinstance(thread, str)]
        failed = self.ended is not None and (code not in (0, 1) or (code == 1 and result is None))
        return {
            "job": self.id,
            "kind": self.kind,
            "state": "running" if self.ended is None else "failed" if failed else "done",
            "threads": threads,
            "trajectories": [trajectory_id_of(thread) for thread in threads],
            "result": foreign(result),
            "error": self._error() if failed else None,
            "seconds": (self.ended or time.monotonic()) - self.started,
        }

    def _result(self) -> dict[str, Any] | None:
        """Last line of the command's output that is a JSON object (None if there is none)."""
        for line in reversed(self.lines):
            with suppress(ValueError, RecursionError):
                found: Any = json.loads(line)
                if isinstance(found, dict):
                    return cast("dict[str, Any]", found)
        return None

    def _error(self) -> dict[str, str]:
        for line in reversed(self.complaint.splitlines()):
            with suppress(ValueError, RecursionError):
                found: Any = json.loads(line)
                if isinstance(found, dict):
                    told = cast("dict[str, Any]", found)
                    return {"message": str(told.get("error")), "hint": str(told.get("hint", ""))}
        said = self.complaint.strip().splitlines()[-1:] or [
            f"It ended with exit code {self.process.returncode}."
        ]
        return {"message": said[0], "hint": ""}


class ForkJobs:
    """Started commands. Thread-safe."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._held, self._watched = socket.socketpair()
        """Socket pair. The commands watch its second end. They stop when the first end is closed,
        which the kernel does even if this process is killed.
        """

    def plan(self, place: Place, request: Request) -> dict[str, Any]:
        """Plan of a fork. Raises `ConfigError` for an invalid edit, and `NotThere` for a missing
        checkpoint.
        """
        given = _only(request, "thread", "checkpoint", "edit")
        return place.read(lambda: fork_plan(place, given))

    def fork(self, place: Place, request: Request) -> dict[str, Any]:
        """Start a planned fork. Raises `RunError` if the plan has changed, so that its digest
        differs.
        """
        given = _only(request, "thread", "checkpoint", "edit", "digest", "count")
        asked = {name: given[name] for name in given if name not in ("digest", "count")}
        planned = place.read(lambda: fork_plan(place, asked))
        if _name(given.get("digest")) != planned["digest"]:
            raise RunError(
                "The fork differs from its plan.",
                "Request the plan again, since it may have changed.",
            )
        count = given.get("count", 1)
        if type(count) is not int or not 1 <= count <= _MOST_FORKS:
            raise ConfigError(
                f"count={str(count)[:40]} is out of range.", f"From 1 to {_MOST_FORKS}."
            )
        edit = _edit_of(given)
        words = [
            f"--at={given['checkpoint']}",
            "--run",
            f"--count={count}",
            *(["--edit=-"] if any(edit.values()) else []),
        ]
        return self._start("fork", place, words, str(given["thread"]), json.dumps(edit))

    def replay(self, place: Place, request: Request) -> dict[str, Any]:
        """Start a replay of a trajectory."""
        id_ = _name(_only(request, "id").get("id"))
        if id_ is None:
            raise ConfigError("The request names no trajectory.", 'Send {"place": ..., "id": ...}.')
        return self._start("replay", place, [], id_, "")

    def all(self) -> dict[str, Any]:
        """All jobs, newest first."""
        with self._lock:
            return {"jobs": [job.data() for job in reversed(self._jobs.values())]}

    def close(self) -> None:
        """End the running jobs. Their threads can be resumed."""
        with self._lock:
            self._closed = True
            running = [job.process for job in self._jobs.values() if job.ended is None]
        for process in running:
            signal_group(process.pid, signal.SIGTERM)
        until = time.monotonic() + _SECONDS_TO_END
        for process in running:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                signal_group(process.pid)
                process.wait()
        self._held.close()
        self._watched.close()

    def _start(
        self, kind: str, place: Place, words: Sequence[str], name: str, text: str
    ) -> dict[str, Any]:
        where, environment = _address(place)
        watched = self._watched.fileno()
        command = [sys.executable, "-m", "hrm_agent.viewer.job_process", str(watched), kind, *words]
        with self._lock:
            if self._closed:
                raise RunError("The server is ending.", "Start it again.")
            if sum(job.ended is None for job in self._jobs.values()) >= _AT_ONCE:
                raise RunError(f"{_AT_ONCE} jobs are running already.", "Wait until one has ended.")
            process = subprocess.Popen(
                [*command, f"--store={where}", "--json", "--", name],
                pass_fds=(watched,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
            job = _Job(secrets.token_hex(6), kind, process, time.monotonic())
            self._jobs[job.id] = job
            for old in [id_ for id_, each in self._jobs.items() if each.ended is not None][:-_KEPT]:
                del self._jobs[old]
        threading.Thread(
            target=self._follow, args=(job, text.encode()), name=f"job-{job.id}", daemon=True
        ).start()
        return {"job": job.id}

    def _follow(self, job: _Job, text: bytes) -> None:
        """Write the edit to the command, and keep the end of its output. The job counts as running
        until the command has ended.
        """
        told = bytearray()
        complained = bytearray()
        try:
            with LoopGuard("view-jobs"):
                self._hear(job.process, text, told, complained)
        finally:
            with self._lock:
                job.lines = bytes(told).decode("utf-8", "replace").splitlines()
                job.complaint = bytes(complained).decode("utf-8", "replace")
                job.ended = time.monotonic()

    def _hear(
        self, process: subprocess.Popen[bytes], text: bytes, told: bytearray, complained: bytearray
    ) -> None:
        streams = [(process.stdout, told), (process.stderr, complained)]
        readers = [threading.Thread(target=_read, args=stream, daemon=True) for stream in streams]
        for reader in readers:
            reader.start()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.write(text)
            with suppress(OSError):
                process.stdin.close()
        process.wait()
        for reader in readers:
            reader.join(_SECONDS_TO_END)


def _read(stream: IO[bytes] | None, kept: bytearray) -> None:
    while stream is not None and (piece := stream.read(1 << 16)):
        kept += piece
        del kept[:-_TOLD]


def _address(place: Place) -> tuple[str, dict[str, str]]:
    """Store argument and environment of a command. A password is passed in the environment, not
    among the arguments.
    """
    environment = dict(os.environ)
    if place.address == place.where:
        return place.where, environment
    from psycopg.conninfo import conninfo_to_dict

    password = conninfo_to_dict(place.address).get("password")
    return place.where, environment | ({"PGPASSWORD": str(password)} if password else {})


def fork_plan(place: Place, request: Request) -> dict[str, Any]:
    """Plan of a fork: what runs again, its effects, the command and a digest."""
    thread = _name(request.get("thread"))
    checkpoint = _name(request.get("checkpoint"))
    if thread is None or checkpoint is None:
        raise ConfigError(
            "The request names no moment.",
            'Send {"place": ..., "thread": ..., "checkpoint": ..., "edit": {...}}.',
        )
    edit = _edit_of(request)
    store = place.store()
    damaged = Damaged()
    header, thread_id = thread_named(store, thread)
    links = checkpoint_links(store, thread_id)
    at = next((number for number, link in enumerate(links) if link.id == checkpoint), None)
    if at is None:
        raise NotThere(
            f"Thread {thread_id!r} has no checkpoint {checkpoint[:80]!r}.", "It was deleted since."
        )
    chosen = range(at, min(at + _MOST_MOMENTS, len(links)))
    here, *later = moments_at(store, thread_id, header, links, chosen, damaged) or [None]
    after = {checkpoint}
    nodes = list(here.next) if here is not None else []
    tools = list[str]()
    isolation = list[str]()
    for moment in later:
        if moment is not None and moment.parent in after:
            after.add(moment.checkpoint_id)
            nodes += moment.ran.nodes
            tools += [call.name for call in moment.ran.tool_calls]
            isolation += [call.isolation for call in moment.ran.tool_calls if call.isolation]
    plan: dict[str, Any] = {
        "runs_again": [short(node) for node in dict.fromkeys(nodes)],
        "model": short(header.policy) if header is not None else None,
        "tools": [short(name) for name in dict.fromkeys(tools)],
        "isolation": isolation[-1] if isolation else None,
        "command": _command(place, thread_id, checkpoint, edit),
    }
    told = json.dumps([place.id, place.where, thread_id, checkpoint, edit, plan], sort_keys=True)
    model = (
        f"The model {plan['model']} is asked again"
        if plan["model"]
        else "The graph's models are asked again"
    )
    last_time = ", ".join(plan["tools"])
    ran = (
        f", and the tools that it calls run again ({last_time} the last time)"
        if last_time
        else ", and any tools that it calls run"
    )
    effects = (
        f"{model}{ran}, with all that they do outside: calls that cost money, files, messages. The"
        " nodes' own code runs, too. The thread that is forked does not change."
    )
    return {**plan, "effects": effects, "digest": hashlib.sha256(told.encode()).hexdigest()}


def _command(place: Place, thread: str, checkpoint: str, edit: Mapping[str, Any]) -> str:
    flags = {"messages": "--message", "tools": "--tool", "values": "--set"}
    words: list[str] = []
    for kind, flag in flags.items():
        for name, value in edit[kind].items():
            text = json.dumps(value) if kind == "values" else value
            words += [flag, f"{name}={text}"]
    words += ["--as-node", edit["as_node"]] if edit["as_node"] else []
    if sum(map(len, words)) > _LONG or any("\n" in word or "\0" in word for word in words):
        words = ["--edit", "edit.json"]
    return shlex.join(
        ["hrm-agent", "fork", thread, "--at", checkpoint, "--run", "--store", place.where, *words]
    )


def _only(request: Request, *known: str) -> dict[str, Any]:
    for name in request:
        if name not in known and name != "place":
            raise ConfigError(
                f"There is no value {name[:80]!r}.", f"Known: place, {', '.join(known)}."
            )
    return {name: value for name, value in request.items() if name in known}


def _name(value: Any) -> str | None:
    """`value` if it is a text that can be looked up in a store and used as a word of a command
    (None otherwise).
    """
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or "\0" in value:
        return None
    return value if replace_surrogates(value) == value else None


def _edit_of(request: Request) -> dict[str, Any]:
    """Complete edit of a request. Raises `ConfigError` for an invalid one."""
    given: Any = request.get("edit") or {}
    if not isinstance(given, dict):
        raise ConfigError(
            "The edit is not an object.",
            f"Send an object with some of {', '.join(sorted(_EDIT_KEYS))}.",
        )
    table_of = cast("dict[str, Any]", given)
    if unknown := table_of.keys() - _EDIT_KEYS:
        raise ConfigError(
            f"An edit has no {min(unknown)[:80]!r}.", f"Known: {', '.join(sorted(_EDIT_KEYS))}."
        )
    edit: dict[str, Any] = {
        name: table_of.get(name) or {} for name in ("messages", "tools", "values")
    }
    for name, table in edit.items():
        items = list(cast("dict[str, Any]", table).values()) if isinstance(table, dict) else [None]
        if not isinstance(table, dict) or (
            name != "values" and not all(isinstance(item, str) for item in items)
        ):
            raise ConfigError(
                f"The value {name!r} of the edit is not a table of texts.",
                f'Send {{"{name}": {{"ID": "TEXT"}}}}.',
            )
    as_node = table_of.get("as_node") or None
    if as_node is not None and not isinstance(as_node, str):
        raise ConfigError(
            "The value 'as_node' of the edit is not a text.", "Name a node of the graph."
        )
    return {**edit, "as_node": as_node}
