"""One run at a time on a thread: a lease in the store, kept alive by a heartbeat.

A run that dies leaves its lease behind. On the same machine another process sees that the owner is gone and takes over
at once; from another machine it has to wait until the lease has run out. A clock that differs between machines by more
than the lease's length would break this, one that differs by less only lengthens or shortens the wait.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from hrm_agent.errors import RunError, StoreError
from hrm_agent.store.database import Cursor, Database

__all__ = ["Leases", "leased"]

_SECONDS = 30.0
_HEARTBEAT_SECONDS = 5.0
_RUN = "run"


class Leases:
    """The leases that this process holds on threads of one store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._held: set[str] = set()
        self._owner = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None

    @contextmanager
    def hold(self, thread_id: str, doing: str = _RUN) -> Generator[None]:
        """Hold the lease of a thread inside the block. Raises `RunError` if somebody else does.

        `doing`: in words, what it is held for. Each has a lease of its own: who talks on a thread holds one for as long
        as the conversation is open, and another while a turn of it is run.
        """
        key = thread_id if doing == _RUN else f"{thread_id} {doing}"
        with self._lock:
            if key in self._held:
                raise _taken(thread_id, doing, "this process")
            self._held.add(key)
        try:
            self._database.write(lambda cursor: self._acquire(cursor, key, thread_id, doing))
            self._beat()
            yield
        finally:
            with self._lock:
                self._held.discard(key)
            self._database.defer(lambda cursor: self._release(cursor, key))

    def _acquire(self, cursor: Cursor, key: str, thread_id: str, doing: str) -> None:
        row = cursor.execute("SELECT owner, process, expires_at FROM leases WHERE thread_id = ?", (key,)).fetchone()
        owner, process, expires_at = (str(row[0]), str(row[1]), float(row[2])) if row else (self._owner, "", 0.0)
        if owner != self._owner and expires_at > time.time() and not _is_gone(process):
            raise _taken(thread_id, doing, f"process {_readable(process)}")
        # On a server another transaction may have taken it since it was looked at: only what was seen is taken over.
        cursor.execute(
            "INSERT INTO leases (thread_id, owner, process, expires_at) VALUES (?, ?, ?, ?) ON CONFLICT (thread_id) "
            "DO UPDATE SET owner = excluded.owner, process = excluded.process, expires_at = excluded.expires_at "
            "WHERE leases.owner = ? RETURNING 1",
            (key, self._owner, _this_process(), time.time() + _SECONDS, owner),
        )
        if cursor.fetchone() is None:
            raise _taken(thread_id, doing, "another process")

    def _release(self, cursor: Cursor, key: str) -> None:
        cursor.execute("DELETE FROM leases WHERE thread_id = ? AND owner = ?", (key, self._owner))

    def _beat(self) -> None:
        """Start the heartbeat, once; it ends with the store, or with the process."""
        with self._lock:
            if self._heart is None:
                self._heart = threading.Thread(target=self._keep, name="store-leases", daemon=True)
                self._heart.start()

    def _keep(self) -> None:
        while not self._stop.wait(_HEARTBEAT_SECONDS):
            if self._held:
                expires = time.time() + _SECONDS
                with suppress(StoreError):  # tried again at the next beat
                    self._database.write(
                        lambda cursor, expires=expires: cursor.execute(
                            "UPDATE leases SET expires_at = ? WHERE owner = ?", (expires, self._owner)
                        )
                    )

    def close(self) -> None:
        self._stop.set()
        if self._heart is not None:
            self._heart.join()


def leased(cursor: Cursor) -> set[str]:
    """The threads that a live process, this one included, is running."""
    found = cursor.execute("SELECT thread_id, process FROM leases WHERE expires_at > ?", (time.time(),)).fetchall()
    return {str(thread_id) for thread_id, process in found if not _is_gone(str(process))}


def _taken(thread_id: str, doing: str, by: str) -> RunError:
    return RunError(
        f"Thread {thread_id!r} is being {doing} already, by {by}.",
        "Wait for it, use a thread of its own, or fork it: `hrm-agent fork --help`.",
    )


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def _readable(process: str) -> str:
    host, _, rest = process.partition("/")
    return f"{rest.partition('/')[0]} on {host}"


def _is_gone(process: str) -> bool:
    """True if a process of this machine does not live any more, its number given to another included."""
    host, _, rest = process.partition("/")
    number, _, started = rest.partition("/")
    return host == socket.gethostname() and _started(int(number)) != started


def _started(process: int) -> str:
    """When a process was started, as Linux counts it; empty if there is none."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc/self/stat").exists() else "unknown"
    return "" if fields[0] in "ZX" else fields[19]
