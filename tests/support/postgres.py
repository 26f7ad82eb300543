"""A PostgreSQL server for the tests, started when the first test asks for a database.

Its data are in a temporary folder. It listens on a free port of the loopback and on a socket in
that folder, and requires a password. It does not wait for the disk (`fsync` off): the tests kill
the server, never the machine, so data that it has handed to the kernel survive. As in production, a
commit is answered when its data have been handed over (`synchronous_commit` on). The server ends
with the tests, whatever ends them: the kernel interrupts it when its parent dies.

    python -m tests.support.postgres        says what to install, if there is no PostgreSQL on this machine
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path

__all__ = ["MISSING", "PostgresServer", "find_server", "free_port"]

MISSING = (
    "PostgreSQL is missing, which tests of the store run on: tests/install tests, or apt-get"
    " install postgresql."
)
USER = "hrm"
_SECONDS = 60.0
"""Longest time for a start, including recovery after a crash, in seconds."""
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "16MB",
    "min_wal_size": "8MB",
    "max_wal_size": "128MB",
    "max_connections": "100",
    "log_min_messages": "warning",
}


def find_server() -> Path | None:
    """The folder of PostgreSQL's programs, of the newest version if there are several. On Debian it
    is not in PATH.
    """
    folders = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: int(path.parent.name),
        reverse=True,
    )
    if found := shutil.which("initdb"):
        folders.insert(0, Path(found).parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class PostgresServer:
    """A server that runs from its first database until `stop`. Tests that name the server but use
    SQLite do not start it.
    """

    def __init__(self) -> None:
        self._password = secrets.token_urlsafe(16)
        self._port = 0
        self._databases = 0
        self._emptied: list[str] = []
        # The kernel's signal comes when the *thread* that started a process dies. So one thread,
        # which lives as long as this object, starts the servers.
        self._starter = ThreadPoolExecutor(1, "postgres-starter")
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """The URL of a database, on a server that runs."""
        if self._process is None:
            self._make()
            self.start()
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def create_database(self) -> str:
        """The URL of an empty database that nobody else uses. A database that `drop_database` has
        emptied is used again, if there is one.
        """
        if self._emptied:
            return self._emptied.pop()
        self._databases += 1
        name = f"test_{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Empty a database and end its connections. To use it again is ten times faster than to
        create another.
        """
        self._execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid();"
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public",
            url,
        )
        self._emptied.append(url)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = self._starter.submit(self._launch).result()
        deadline = time.monotonic() + _SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Process id of the server. On SIGQUIT it goes down at once, without a last checkpoint."""
        assert self._process is not None
        return self._process.pid

    def await_crash(self) -> None:
        """Wait until the server has gone down after a signal from elsewhere."""
        assert self._process is not None
        self._process.wait(_SECONDS)

    def stop(self) -> None:
        """Stop the server and remove all that it wrote."""
        self._end(signal.SIGQUIT)
        self._starter.shutdown()
        if self._process is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def log(self) -> str:
        """Log of the server."""
        return self._log.read_text(encoding="utf-8")

    @cached_property
    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="hrm-postgres-"))

    @cached_property
    def _programs(self) -> Path:
        if (found := find_server()) is None:
            raise RuntimeError(MISSING)
        return found

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _make(self) -> None:
        """Run `initdb`. It refuses to run as root, so root gives the folder to the user that
        Debian's package made.
        """
        programs, self._port = self._programs, free_port()
        if os.geteuid() == 0:
            shutil.chown(self._folder, *_account())
        password = self._folder / "password"
        self._run("tee", str(password), given=self._password)
        self._run(
            str(programs / "initdb"),
            *(
                "--pgdata",
                str(self._folder / "data"),
                "--username",
                USER,
                "--pwfile",
                str(password),
            ),
            *(
                "--auth",
                "scram-sha-256",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--wal-segsize",
                "1",
                "--no-sync",
            ),
        )

    def _run(self, *words: str, given: str = "") -> None:
        done = subprocess.run(
            [*self._as_owner(), *words],
            input=given,
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]} failed:\n{done.stdout}{done.stderr}")

    def _launch(self) -> subprocess.Popen[bytes]:
        settings = {
            **_SETTINGS,
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._folder),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [
            *self._as_owner(),
            str(self._programs / "postgres"),
            "-D",
            str(self._folder / "data"),
            *options,
        ]
        with self._log.open("ab") as log:
            # a separate session: an interrupt at the terminal goes to the tests alone
            return subprocess.Popen(
                command, stdout=log, stderr=log, cwd="/", start_new_session=True
            )

    def _as_owner(self) -> list[str]:
        words = ["setpriv", "--pdeathsig", "INT"]
        if os.geteuid() == 0:
            user, group = _account()
            words += ["--reuid", str(user), "--regid", str(group), "--clear-groups"]
        return [*words, "--"]

    def _answers(self) -> bool:
        import psycopg

        with suppress(psycopg.OperationalError):
            psycopg.connect(self.url(), connect_timeout=5).close()
            return True
        return False

    def _execute(self, statement: str, url: str = "") -> None:
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _account() -> tuple[int, int]:
    """User and group of a server that root starts."""
    try:
        entry = pwd.getpwnam("postgres")
    except KeyError:  # not from Debian's package
        entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def free_port() -> int:
    """A free port of the loopback below the ports that the kernel gives to outgoing connections by
    default, so that no connection takes it.
    """
    while True:
        port = 10_240 + secrets.randbelow(32_768 - 10_240)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    sys.exit(0 if find_server() else MISSING)
