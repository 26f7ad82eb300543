"""`hrm-agent view` as a process: its output, its end, refusals at its start, and its cost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from hrm_agent.store import open_store
from tests.cli.conftest import Command
from tests.support.trajectory.samples import make_trajectory
from tests.support.viewer.process import viewing


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    with open_store(tmp_path / "runs" / "store.db") as store:
        store.journal.write_trajectory(make_trajectory())
    return tmp_path / "runs"


@pytest.mark.whole
def test_it_shows_the_runs_of_this_folder_and_ends_at_ctrl_c_whoever_listens(runs: Path) -> None:
    before = {path.name for path in runs.iterdir()}
    with viewing(runs.parent) as view, ExitStack() as listeners:
        assert view.said == {"url": f"{view.base}/#token={view.token}", "fork_token": None}
        assert view.base.startswith("http://127.0.0.1:") and len(view.token) > 40
        assert [place["id"] for place in json.load(view.ask("about"))["places"]] == ["store.db"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{view.base}/api/v1/about")
        assert listeners.enter_context(view.ask("events")).readline() == b": listening\n"
        view.process.send_signal(signal.SIGINT)
        assert view.process.wait(60) == 0
    assert {path.name for path in runs.iterdir()} == before, "nothing was written"


@pytest.mark.whole
def test_memory_stays_where_it_is_with_many_listeners(runs: Path) -> None:
    with (
        viewing(runs.parent) as view,
        ExitStack() as listeners,
        open_store(runs / "store.db") as store,
    ):
        streams = [listeners.enter_context(view.ask("events")) for _ in range(20)]
        list_path = "trajectories?place=store.db"

        def round_(number: int) -> None:
            """Make a change of which every page is notified and about which it asks."""
            trajectory = make_trajectory().model_copy(
                update={"id": f"{number}", "thread_id": f"{number}", "answer": "word " * 2000}
            )
            store.journal.write_trajectory(trajectory)
            for stream in streams:
                while not stream.readline().startswith(b"data:"):
                    pass
                with view.ask(list_path) as answer:
                    answer.read()

        process = psutil.Process(view.process.pid)
        round_(0)
        before = process.memory_info().rss
        for number in range(1, 5):
            round_(number)
        assert process.memory_info().rss - before < 30e6
        assert process.num_threads() < 20


@pytest.mark.whole
def test_a_copy_is_written_and_another_one_in_its_place(runs: Path, hrm: Command) -> None:
    copy = runs.parent / "copy.html"
    for _ in range(2):
        done = hrm("view", str(runs), "--export", str(copy), "--limit", "5", "--json")
        assert done.code == 0
        said = json.loads(done.out)
        assert said == {"file": str(copy), "bytes": copy.stat().st_size, "left_out": {}}
    shown = hrm("view", str(runs), "--export", str(copy))
    assert shown.code == 0 and "copy.html: " in shown.out
    refused = hrm("view", str(runs), "--export", str(runs.parent))
    assert refused.code == 2 and "cannot be written: " in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.db"], "There is nothing at nothing.db."),
        ([], "There is nothing at runs."),
        ([".", "--port", "70000"], "is not a port"),
        ([".", "--host", "0.0.0.0"], "can be reached from other machines"),
        ([".", "--host", "no such host"], "not an address to listen on"),
        ([".", "--run", "r"], "--run and --limit can only be used with --export"),
        ([".", "--export", "copy", "--limit", "0"], "at least 1"),
        ([".", "--token-file", "t"], "Add --environment URL"),
        ([".", "--environment", "ftp://x"], "not the address of an environment"),
        ([".", "--environment", "http://127.0.0.1:1", "--token-file", "t"], "no token file t"),
        ([".", "--allow-forks"], "no flag '--allow-forks'"),
    ],
)
def test_what_it_refuses(
    words: list[str], said: str, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = hrm("view", *words)
    assert refused.code == 2 and said in refused.err


def test_help_is_there_at_once() -> None:
    """Neither the server nor the code that reads stores is imported for it."""
    heavy = {"aiohttp", "langgraph", "numpy", "torch"}
    program = (
        "import sys\nfrom hrm_agent.cli.main import main\n"
        "try: main(['view', '--help'])\nexcept SystemExit: pass\n"
        f"print(sorted({heavy!r} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
    assert "--allow-fork" in done.stdout
