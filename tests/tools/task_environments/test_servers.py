"""Servers that this process starts end with it, and so does everything that they have started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hrm_agent.errors import RunError
from hrm_agent.tools.task_environments import servers
from hrm_agent.tools.task_environments.servers import served, server_url
from hrm_agent.tools.task_environments.source import parse_source
from hrm_agent.training.tasks.environments import placed_interpreter

APP = """
import subprocess, sys
from pathlib import Path
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
Path("pid").write_text(str(sleeper.pid))
app = None
"""
UVICORN = """
import time
def Config(app, **options): return app
class Server:
    def __init__(self, config): pass
    def run(self, sockets): time.sleep(60)
"""
KILLED = """
import os, signal, sys, time
from pathlib import Path
from hrm_agent.tools.task_environments.servers import server_url
from hrm_agent.tools.task_environments.source import parse_source
folder = Path(sys.argv[1])
assert server_url(parse_source(f"openenv:{folder}")).startswith("http://127.0.0.1:")
while not (folder / "pid").exists() or not (folder / "pid").read_text():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.whole
def test_a_killed_process_leaves_no_server_behind(tmp_path: Path) -> None:
    """The environment's own processes are in sessions of their own, as verifiers starts them."""
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").write_text(APP)
    (tmp_path / "uvicorn.py").write_text(UVICORN)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    sleeper = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    while _lives(sleeper) or any(map(_lives, _processes_in(tmp_path))):
        time.sleep(0.02)


@pytest.mark.whole
def test_a_server_has_time_to_close_its_environments(tmp_path: Path) -> None:
    closing = "import atexit\natexit.register(lambda: Path('closed').write_text('yes'))\n"
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "app.py").write_text(APP + closing)
    (tmp_path / "uvicorn.py").write_text(UVICORN)
    assert server_url(parse_source(f"openenv:{tmp_path}"))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.01)
    time.sleep(0.1)  # until it serves
    servers._close(servers._key(parse_source(f"openenv:{tmp_path}")))  # pyright: ignore[reportPrivateUsage]
    assert (tmp_path / "closed").read_text() == "yes"
    assert not _lives(Path("/proc") / (tmp_path / "pid").read_text() / "stat")


def test_a_server_that_keeps_ending_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts are counted in a row: an answered act allows new ones."""
    source = parse_source(f"openenv:{tmp_path}")
    monkeypatch.setattr(servers, "_arguments", lambda source: ["/bin/sh", "-c", "echo no luck"])

    def start() -> None:
        server_url(source)
        server = servers._servers[servers._key(source)]  # pyright: ignore[reportPrivateUsage]
        assert server.process is not None
        server.process.wait()

    for _ in range(3):
        start()
    served(source)
    for _ in range(4):
        start()
    with pytest.raises(RunError, match="ended 4 times in a row: no luck"):
        server_url(source)


def test_an_interpreter_is_the_one_of_the_runs_folder(tmp_path: Path) -> None:
    placed = placed_interpreter("env?python=./lab/python&level=2", tmp_path)
    assert placed == f"env?python={tmp_path}/lab/python&level=2"
    (tmp_path / "python3").symlink_to(sys.executable)
    command = servers._arguments(parse_source(f"openenv:env?python={tmp_path}/python3"))  # pyright: ignore[reportPrivateUsage]
    assert command[0] == str(tmp_path / "python3")
    for unchanged in ("env", "env?python=python3", "env?python=/usr/bin/python3"):
        assert placed_interpreter(unchanged, tmp_path) == unchanged


def _processes_in(folder: Path) -> list[Path]:
    found = [each for each in Path("/proc").glob("[0-9]*/cwd") if _reads(each) == str(folder)]
    return [each.parent / "stat" for each in found]


def _lives(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _reads(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
