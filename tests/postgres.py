"""A PostgreSQL server of the tests' own, started when the first test asks for it.

It lies in a temporary folder, listens on a free port of the loopback and on a socket in that folder, and lets nobody in
without a password. It commits as a server in production does (`fsync` on), since what a commit survives is tested; only
its buffers are small. It goes down with the tests, whatever ends them: the kernel interrupts it when its parent dies.

    python -m tests.postgres        says what to install, if there is no PostgreSQL on this machine
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
from pathlib import Path

__all__ = ["MISSING", "PostgresServer", "find_server", "free_port"]

MISSING = "PostgreSQL is missing, which the store's tests run on: apt-get install postgresql"
USER = "hrm"
_SECONDS = 60.0
"""How long a start may take, a recovery after a crash included."""
_SETTINGS = {
    "shared_buffers": "16MB",
    "min_wal_size": "8MB",
    "max_wal_size": "128MB",
    "max_connections": "100",
    "log_min_messages": "warning",
}


def find_server() -> Path | None:
    """The folder of PostgreSQL's programs, the newest where there are several. Debian keeps them off the PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    if found := shutil.which("initdb"):
        folders.insert(0, Path(found).parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class PostgresServer:
    """A server that runs until `stop`. Databases are made in it with `create_database`."""

    def __init__(self) -> None:
        programs = find_server()
        if programs is None:
            raise RuntimeError(MISSING)
        self._programs: Path = programs
        self._folder = Path(tempfile.mkdtemp(prefix="hrm-postgres-"))
        self._password = secrets.token_urlsafe(16)
        self._port = free_port()
        self._databases = 0
        # The kernel's signal comes when the *thread* dies that started a process, so that one thread starts them all.
        self._starter = ThreadPoolExecutor(1, "postgres-starter")
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._make()
            self.start()
        except BaseException:
            self.stop()
            raise

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self._port}/{database}"

    def create_database(self) -> str:
        """The URL of a new, empty database."""
        self._databases += 1
        name = f"test_{self._databases}"
        self._execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database, whoever is still connected to it."""
        self._execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._process = self._starter.submit(self._launch).result()
        deadline = time.monotonic() + _SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def crash(self) -> None:
        """Take the server down at once, without a last checkpoint: what `pg_ctl stop -m immediate` does."""
        self._end(signal.SIGQUIT)

    def restart(self) -> None:
        """Crash and recover: every connection breaks; what was committed is there."""
        self.crash()
        self.start()

    def stop(self) -> None:
        """Stop the server and remove all that it wrote."""
        self._end(signal.SIGQUIT)
        self._starter.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self._folder / "log"

    def _make(self) -> None:
        """`initdb`. It refuses to run as root; root hands the folder to the user that Debian's package made."""
        if os.geteuid() == 0:
            shutil.chown(self._folder, *_account())
        password = self._folder / "password"
        self._run("tee", str(password), given=self._password)
        self._run(
            str(self._programs / "initdb"),
            *("--pgdata", str(self._folder / "data"), "--username", USER, "--pwfile", str(password)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--wal-segsize", "1", "--no-sync"),
        )

    def _run(self, *words: str, given: str = "") -> None:
        done = subprocess.run(
            [*self._as_owner(), *words], input=given, capture_output=True, text=True, cwd="/", check=False
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
        command = [*self._as_owner(), str(self._programs / "postgres"), "-D", str(self._folder / "data"), *options]
        with self._log.open("ab") as log:
            # In a session of its own: an interrupt at the terminal is the tests' to handle.
            return subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)

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

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
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
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


if __name__ == "__main__":
    sys.exit(0 if find_server() else MISSING)
