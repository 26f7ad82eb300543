"""Detection or refusal of effects of replayed nodes outside of the record.

A replay runs the nodes' own code again. Calls of models and tools are answered from the record, but
a node that writes a file, opens a connection or starts a process does so again. Python reports such
an operation before it is done (audit events, PEP 578), so that a replay can list or refuse it.

Detected are operations of the interpreter in the task of a node, in threads that it starts, and in
thread executors that it gives work to. Not detected are compiled libraries that open files and
connections themselves (a database driver in C), writes to files and connections that were open
before, and other processes. This reports effects; it is no sandbox.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, thread
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from multiprocessing import util
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

__all__ = ["Effect", "EffectRefused", "Effects", "note_effect", "watching"]

MOST_LISTED = 20
"""Maximum number of different effects that are listed for one replay."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EXECUTOR_WORKER = getattr(thread, "_worker", None)
"""Main function of an executor's threads, which run work of many contexts."""
_OWN = ("__pycache__", os.devnull)
"""Paths that do not count: the interpreter's cache of compiled modules, and the null device."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Operation of a node."""

    node: str
    """Name of the node, in the innermost graph."""
    what: str
    """Operation that it did, or was about to do: `opens notes.txt for writing`."""


class EffectRefused(GraphBubbleUp):
    """Stops a graph, without retries, at an operation that is refused."""


@dataclass(slots=True)
class Effects:
    """Effects of one replay."""

    refuse: bool = False
    """Refuse effects: the replay ends at the first."""
    found: list[Effect] = field(default_factory=list[Effect])
    """Different effects in their order; with `refuse` those that were refused."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, effect: Effect) -> None:
        with self._lock:
            if effect not in self.found and len(self.found) < MOST_LISTED:
                self.found.append(effect)
        if self.refuse:
            raise EffectRefused(f"node {effect.node}: it {effect.what}")


_watching: ContextVar[Effects | None] = ContextVar("hrm_agent_replay_effects", default=None)


@contextmanager
def watching(effects: Effects) -> Generator[None]:
    """Note in `effects` the operations of nodes that run inside the block."""
    _install()
    token = _watching.set(effects)
    try:
        yield
    finally:
        _watching.reset(token)


def note_effect(effect: Effect) -> None:
    """Note an operation that the interpreter does not report. Raises `EffectRefused` if it is
    refused.
    """
    effects = _watching.get()
    if effects is not None:
        effects.note(effect)


@functools.cache
def _install() -> None:
    """Install an audit hook, once per process, since it cannot be removed. It does nothing outside
    of `watching`.

    Executors and threads are wrapped too, since they do not copy the context of their work. So is
    `multiprocessing`, since Python does not report a process that it spawns.
    """
    sys.addaudithook(_hook)
    processes: Any = util
    processes.spawnv_passfds = _spawning(processes.spawnv_passfds)
    ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)
    threading.Thread.start = _starting(threading.Thread.start)


def _spawning(spawn: Callable[..., int]) -> Any:
    @functools.wraps(spawn)
    def spawn_watched(path: Any, *given: Any) -> int:
        _hook("subprocess.Popen", (os.fsdecode(path),))
        return spawn(path, *given)

    return spawn_watched


def _submitting(submit: Callable[..., Future[Any]]) -> Any:
    @functools.wraps(submit)
    def submit_watched(
        self: ThreadPoolExecutor, fn: Any, /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if _watching.get() is None:
            return submit(self, fn, *args, **kwargs)
        return submit(self, copy_context().run, fn, *args, **kwargs)

    return submit_watched


def _starting(start: Callable[[threading.Thread], None]) -> Any:
    @functools.wraps(start)
    def start_watched(self: Any) -> None:
        if _watching.get() is not None and getattr(self, "_target", None) is not _EXECUTOR_WORKER:
            context = copy_context()
            run = self.run

            def run_watched() -> None:
                with suppress(EffectRefused):  # it is listed; a thread's error reaches no caller
                    context.run(run)

            self.run = run_watched
        start(self)

    return start_watched


def _hook(event: str, given: tuple[Any, ...]) -> None:
    describe = _EVENTS.get(event)
    effects = _watching.get() if describe is not None else None
    if describe is None or effects is None:
        return
    config = var_child_runnable_config.get() or {}
    node = str((config.get("metadata") or {}).get("langgraph_node", ""))
    if node and (what := describe(given)):
        effects.note(Effect(node, what))


def _opens(given: tuple[Any, ...]) -> str:
    path, _, flags = given
    writes = isinstance(flags, int) and flags & _WRITING and not isinstance(path, int)
    return f"opens {_named(path)} for writing" if writes and not _is_own(path) else ""


def _changes(word: str) -> Callable[[tuple[Any, ...]], str]:
    return lambda given: "" if _is_own(given[0]) else f"{word} {_named(given[0])}"


def _named(path: Any) -> str:
    """Path as text. A number is an open file."""
    return str(path) if isinstance(path, int) else os.fsdecode(path)


def _is_own(path: Any) -> bool:
    return any(own in _named(path) for own in _OWN)


def _starts(given: tuple[Any, ...]) -> str:
    program = given[0]
    return f"starts the process {program!s}"


def _connects(given: tuple[Any, ...]) -> str:
    return f"connects to {given[1]}" if len(given) > 1 else "sends to a socket"


def _opens_database(given: tuple[Any, ...]) -> str:
    name = os.fsdecode(given[0])
    return "" if name == ":memory:" or "mode=ro" in name else f"opens the database {name}"


_EVENTS: dict[str, Callable[[tuple[Any, ...]], str]] = {
    "open": _opens,
    "sqlite3.connect": _opens_database,
    "subprocess.Popen": _starts,
    "os.system": _starts,
    "os.exec": _starts,
    "os.posix_spawn": _starts,
    "os.fork": lambda _: "forks its process",
    "os.forkpty": lambda _: "forks its process",
    "os.kill": lambda given: f"sends a signal to process {given[0]}",
    "socket.connect": _connects,
    "socket.sendto": _connects,
    "socket.sendmsg": _connects,
    "socket.bind": lambda given: f"listens at {given[1]}",
    **{
        f"os.{name}": _changes(f"does {name} of")
        for name in ("chmod", "chown", "link", "symlink", "truncate", "utime")
    },
    **{
        f"os.{name}": _changes(f"does {name} of") for name in ("mkdir", "remove", "rename", "rmdir")
    },
}
"""Audit event -> description of its effect; empty if it has none."""
