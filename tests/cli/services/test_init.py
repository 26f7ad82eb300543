"""The project written by `init` runs unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.cli.conftest import Command

PROJECT = Path(__file__).parents[3]
PARTS = (
    "--tasks",
    "./tasks.py:tasks",
    "--graph",
    "./agent.py:graph",
    "--rewards",
    "./rewards.py:rubric",
)


def ended(*words: str, cwd: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=kept | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_files_are_told_and_its_code_is_clean(hrm: Command, tmp_path: Path) -> None:
    """`tests/test_docs.py` runs its own test, as docs/guide.md says."""
    made = hrm("init", "mine", "--json")
    assert made.code == 0 and made.json["folder"] == str(tmp_path / "mine")
    files = {str(path.relative_to("mine")) for path in Path("mine").rglob("*") if path.is_file()}
    assert (
        files == set(made.json["files"]) and {".gitignore", ".github/workflows/test.yml"} <= files
    )
    assert not [path for path in files if "PROJECT" in Path("mine", path).read_text()]
    for check in (["check"], ["format", "--check"]):
        ended("-m", "ruff", *check, "--no-cache", ".", cwd=tmp_path / "mine")


def test_a_changed_agent_fails_its_test(hrm: Command, tmp_path: Path) -> None:
    assert hrm("init", "mine").code == 0
    agent = Path("mine/agent.py")
    agent.write_text(agent.read_text().replace('"tools" if calls and', '"tools" if not calls and'))
    with pytest.raises(AssertionError, match="1 failed"):
        ended("-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path / "mine")


def test_it_is_evaluated_and_trained(
    hrm: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert hrm("init", "mine").code == 0
    monkeypatch.chdir("mine")
    tasks = {
        row["answer"]
        for rows in json.loads(ended("-c", PRINTED, cwd=tmp_path / "mine")).values()
        for row in rows
    }
    assert len(tasks) == 20
    call = (
        '<tool_call>{"name": "python", "arguments": {"code": "1070 * 0.96 ** 3 + 241"}}</tool_call>'
    )
    answers = [call, r"<answer>\boxed{1187.67}</answer>"] + [r"<answer>\boxed{598}</answer>"] * 3
    Path("script.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    done = hrm(
        "eval",
        *PARTS,
        "--policy",
        "scripted:script.jsonl",
        "--count",
        "1",
        "--out",
        "runs/e",
        "--json",
    )
    assert done.code == 0 and done.json["pass_at_1"] == 1.0, done.err
    assert done.json["problems"] == 1
    dry = hrm("train", "rl", "--config", "train.toml", "--dry-run")
    assert dry.code == 0 and tomllib.loads(dry.out)["rewards"] == "./rewards.py:rubric", dry.err


PRINTED = "import json, tasks; print(json.dumps(tasks.tasks))"


def test_its_wheel_is_one_package_that_registers_the_tasks(hrm: Command, tmp_path: Path) -> None:
    assert hrm("init", "mine").code == 0
    ended(
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "built"),
        cwd=tmp_path / "mine",
    )
    (wheel,) = (tmp_path / "built").iterdir()
    with zipfile.ZipFile(wheel) as opened:
        assert {name.split("/")[0] for name in opened.namelist()} == {
            "mine",
            "mine-0.1.0.dist-info",
        }
        registered = opened.read("mine-0.1.0.dist-info/entry_points.txt").decode()
    assert registered.split() == ["[hrm_agent.tasks]", "mine", "=", "mine.tasks:tasks"]


@pytest.mark.parametrize(
    "name", ["1st", "my-agent", "../mine", "class", "mine_", "_mine", "café", "", "mine\n"]
)
def test_a_name_that_no_package_can_have(name: str, hrm: Command, tmp_path: Path) -> None:
    refused = hrm("init", "--", name)
    assert refused.code == 2 and "letters, digits and _" in refused.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "langgraph", "hrm_agent"])
def test_a_name_of_an_installed_module(name: str, hrm: Command, tmp_path: Path) -> None:
    refused = hrm("init", name)
    assert refused.code == 2 and f"Try my_{name}" in refused.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_a_folder_stays(hrm: Command) -> None:
    Path("empty").mkdir()
    assert hrm("init", "empty").code == 0
    again = hrm("init", "empty")
    assert again.code == 2 and "is not empty" in again.err
    Path("file").write_text("mine")
    refused = hrm("init", "file")
    assert (
        refused.code == 2
        and "cannot be written" in refused.err
        and Path("file").read_text() == "mine"
    )
