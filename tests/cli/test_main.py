"""Command lookup, and the form of error messages."""

from __future__ import annotations

import errno
import io
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

from hrm_agent import __version__
from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.main import COMMANDS, _explain, main, module_of
from hrm_agent.cli.records import lint as lint_command
from hrm_agent.errors import StoreError, StoreFullError, to_install
from hrm_agent.store import open_store
from tests.cli.conftest import Command

LISTED = re.compile(r"^  (?:-h, )?(--[\w.-]+)(?:, (--no-[\w.-]+))?", re.MULTILINE)
"""Flags of an option in a help page."""


def test_help_names_every_command_and_every_command_exists(hrm: Command) -> None:
    shown = hrm("--help")
    assert shown.code == 0
    for name in COMMANDS:
        assert f"  {name} " in shown.out
        assert find_spec(module_of(name)) is not None
    assert hrm().out == shown.out


def test_help_needs_neither_torch_nor_langgraph_nor_pydantic() -> None:
    program = (
        "import sys; from hrm_agent.cli.main import main; main(['--help']);"
        "print(sorted({'torch', 'langgraph', 'pydantic', 'rich', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "command", [*(c for c in COMMANDS if c != "train"), "train rl", "train sft"]
)
def test_every_command_has_a_help_page(command: str, hrm: Command) -> None:
    with pytest.raises(SystemExit) as ended:
        hrm(*command.split(), "--help")
    assert ended.value.code == 0


WITH_ACTIONS = {name: getattr(import_module(module_of(name)), "ACTIONS", {}) for name in COMMANDS}


@pytest.mark.parametrize(
    "words",
    [
        "",
        *COMMANDS,
        *(f"{name} {action}" for name, actions in WITH_ACTIONS.items() for action in actions),
    ],
)
def test_help_fits_a_terminal_of_80_columns(
    words: str, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer lines would be broken anywhere by the terminal. No word is broken."""

    def shown(columns: int) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
            main([*words.split(), "--help-all" if words else "--help"])
        return out.getvalue().splitlines()

    narrow = shown(80)
    assert [line for line in narrow if len(line) > 80] == []
    # Choices that go on below the first ones begin anew after a bar; a wide terminal has them in
    # one word.
    assert set(re.split(r"[\s|]+", " ".join(narrow))) == set(
        re.split(r"[\s|]+", " ".join(shown(1000)))
    )


def help_of(words: str, flag: str) -> str:
    with redirect_stdout(io.StringIO()) as out, suppress(SystemExit):
        main([*words.split(), flag])
    return out.getvalue()


@pytest.mark.parametrize("words", ["train rl", "train sft", "demo", "collect", "eval"])
def test_help_shows_the_usual_flags_and_help_all_every_flag(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Parser] = []
    monkeypatch.setattr(Parser, "read", lambda parser, *_, **__: made.append(parser) or sys.exit(0))
    help_of(words, "--help")
    monkeypatch.undo()
    (parser,) = made
    every = {flag for action in parser._actions for flag in action.option_strings if len(flag) > 2}
    short, whole = (
        {flag for found in LISTED.findall(help_of(words, asked)) for flag in found if flag}
        for asked in ("--help", "--help-all")
    )
    assert every <= whole, "a flag that no help lists"
    rare = {action.option_strings[0] for action, _ in parser.rare}
    usual = sum("config:" in action.dest for action in parser._actions) - len(rare)
    assert rare and not rare & short
    assert 10 <= usual <= 23
    assert f"{len(rare)} further flags: `hrm-agent {words} --help-all`." in help_of(words, "--help")
    assert "further flags" not in help_of(words, "--help-all")


def test_what_needs_packages_for_training_says_so() -> None:
    program = (
        "import sys; sys.modules['accelerate'] = None; from hrm_agent.cli.main import main;"
        " sys.exit(max(main(words) for words in (['demo'], ['train', 'rl'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    said = f"The package accelerate is needed, but not installed. Run `{to_install('train')}`."
    assert " ".join(done.stderr.split()).count(said) == 2


def test_version(hrm: Command) -> None:
    said = hrm("--version").out
    assert said.startswith(f"hrm-agent {__version__}, python 3.")
    assert f"langgraph {metadata.version('langgraph')}, torch {metadata.version('torch')}" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lnt"], "There is no command 'lnt'. Did you mean 'lint'?"),
        (["zzz"], "`hrm-agent --help` lists the commands."),
        (["lint"], "the following arguments are required: store"),
        (["lint", "x", "--rnu", "y"], "hrm-agent lint has no flag '--rnu'. Did you mean '--run'?"),
        (["lint", "x", "y"], "hrm-agent lint has no argument 'y'"),
        (["lint", "nowhere.db"], "There is no store at nowhere.db."),
        (["show", "x", "--store", "nowhere"], "There is no store at nowhere."),
        (["history", "--limit", "many"], "invalid int value: 'many'"),
        (["train", "rll"], "There is no training 'rll'. Did you mean 'rl'?"),
        (["eval", "a", "b"], "Records are compared by `hrm-agent eval --compare A B C`."),
        (["run", "What", "is", "6?"], "A task of several words goes in quotes."),
        (["record", "python", "x.py"], "`hrm-agent record -- python theirs.py`"),
        (["show", "x", "--store", "nowhere.db"], "Stores beside it: mine.db, folder."),
        (["replay", "--check", "nowhere.db"], "Stores beside it: mine.db, folder."),
        (["eval", "model"], "`hrm-agent eval --policy model` asks it."),
        (["replay", "--check", "agent.py"], "Name a store or a run folder."),
        (["replay", "--check", "legs"], "one run alone is replayed by `hrm-agent replay legs`"),
        (
            ["history", "mine.db"],
            "mine.db is a store, not a thread. `hrm-agent history --store mine.db`",
        ),
        (["show", "folder"], "folder is a store, not a thread."),
        (["diff", "a", "mine.db"], "mine.db is a store, not a thread."),
        (["view", "agent.py"], "agent.py is not a store."),
        (["run", "x", "--graph", "./agnt.py:graph"], "There is no file agnt.py in "),
        (["run", "x", "--graph", "./agnt.py:graph"], "Did you mean 'agent.py'?"),
        (["eval", "--rewards", "./agnt.py:rubric"], "Did you mean 'agent.py'?"),
        (["eval", "--tasks", "./agnt.py:tasks"], "Did you mean 'agent.py'?"),
        (["run", "x", "--policy", "openai:"], "'openai:' names no model."),
        (
            ["train", "rl", "--policy", "vllm:http://h:1/v1"],
            "--engine vllm --servers 'vllm:http://h:1/v1'",
        ),
        (
            ["export", "mine.db", "--out", "agent.py/x.jsonl"],
            "agent.py cannot be used: File exists.",
        ),
    ],
)
def test_a_mistake_is_one_paragraph_and_exit_code_2(
    words: list[str], said: str, hrm: Command
) -> None:
    Path("agent.py").write_text("")
    for name in ("folder", "model"):
        Path(name).mkdir()
    Path("model/config.json").write_text("{}")
    for name in ("mine.db", "folder/store.db"):
        open_store(name).close()
    done = hrm(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert (
        done.err.startswith(("hrm-agent: ", "hrm-agent "))
        and "hrm-agent: hrm-agent" not in done.err
    )
    assert (
        done.err.replace(
            "hrm-agent: loading torch; the first time this takes up to a minute\n", ""
        ).count("\n")
        == 1
    )


def test_errors_as_json(hrm: Command) -> None:
    done = hrm("lint", "nowhere.db", "--json")
    assert done.code == 2
    assert json.loads(done.err)["error"] == "There is no store at nowhere.db."


def test_debug_lets_the_error_through(hrm: Command) -> None:
    with pytest.raises(StoreError):
        hrm("lint", "nowhere.db", "--debug")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "Interrupted. What was recorded is kept."),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "The disk is full"),
        (sqlite3.OperationalError("database or disk is full"), 2, "What was committed is intact"),
        (BrokenPipeError(), 0, ""),
        (
            ZeroDivisionError("division by zero"),
            1,
            "Unexpected ZeroDivisionError: division by zero",
        ),
    ],
)
def test_what_becomes_of_other_errors(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(lint_command, "run", failing)
    if isinstance(error, BrokenPipeError):
        monkeypatch.setattr(sys, "stderr", io.StringIO())  # main closes it
    assert main(["lint", "x"]) == code
    assert said in capsys.readouterr().err


def test_what_failed_side_by_side_is_told_as_if_alone() -> None:
    full = StoreFullError("The disk is full.", "Free some space.")
    group = ExceptionGroup("", [ExceptionGroup("", [ValueError("odd"), full])])
    assert _explain(group) == ("The disk is full.", "Free some space.", 2)
    group = ExceptionGroup(
        "", [ExceptionGroup("", [ValueError("odd")]), ExceptionGroup("", [KeyError("even"), full])]
    )
    assert _explain(group)[0] == "The disk is full."
    assert (
        "disk is full"
        in _explain(ExceptionGroup("", [ValueError("odd"), OSError(errno.ENOSPC, "no space")]))[0]
    )
    assert _explain(ExceptionGroup("", [ValueError("odd")]))[0] == "Unexpected ValueError: odd"
