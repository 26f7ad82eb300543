"""Servers that this process starts end with it, and so does everything that they have started."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
