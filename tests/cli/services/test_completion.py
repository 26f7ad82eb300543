"""Completion with the Tab key."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.cli.main import COMMANDS
from hrm_agent.cli.services.completion import words_by_command
from tests.cli.conftest import Command

pytestmark = pytest.mark.whole


def test_every_command_has_its_flags() -> None:
    words = words_by_command()
    assert {command.split()[0] for command in words} == set(COMMANDS)
    assert {"--graph", "--no-constrain", "--help"} <= set(words["run"])
    assert words["train"][:2] == ["rl", "sft"] and "--learning-rate" in words["train rl"]
    assert "verify" in words["store"] and "--token-file" in words["environment serve"]
    assert all(words.values())


def test_a_command_whose_packages_are_missing_is_offered_without_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "hrm_agent.cli.training.demo", None)
    words = words_by_command()
    assert words["demo"] == [] and words["run"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hrm-agent tra", {"train"}),
        ("hrm-agent train r", {"rl"}),
        ("hrm-agent train rl --learn", {"--learning-rate"}),
        ("hrm-agent lint --ru", {"--run"}),
    ],
)
def test_bash(line: str, offered: set[str], hrm: Command, tmp_path: Path) -> None:
    (script := tmp_path / "completion").write_text(hrm("completion", "bash").out)
    words = line.split(" ")
    program = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({' '.join(words)});"
        f' COMP_CWORD={len(words) - 1}; _hrm_agent; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_the_script(shell: str, hrm: Command, tmp_path: Path) -> None:
    script = hrm("completion", shell)
    assert script.code == 0 and "learning-rate" in script.out
    (file := tmp_path / "completion").write_text(script.out)
    subprocess.run([shell, "-n", file], check=True)


@pytest.mark.parametrize("shell", ["zsh"])
@pytest.mark.parametrize(
    "begun", ["", "autoload -U compinit && compinit -i; "], ids=["bare", "begun"]
)
def test_completion_is_registered_whether_or_not_compinit_has_run(
    shell: str, begun: str, hrm: Command, tmp_path: Path
) -> None:
    (file := tmp_path / "completion").write_text(hrm("completion", "zsh").out)
    program = f"{begun}source {shlex.quote(str(file))} && print -r -- $_comps[hrm-agent]"
    home = {**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    done = subprocess.run(
        [shell, "-f", "-c", program], capture_output=True, text=True, check=True, env=home
    )
    assert "_hrm_agent" in done.stdout and done.stderr == ""
