"""`hrm-agent`: finds the command, runs it, and turns errors into readable messages.

A command's module is imported only once the command is known, so that `hrm-agent --help` answers at
once. Each command is a module of this package with a function `run(arguments) -> exit code`.

Exit codes: 0 done; 1 a negative result (findings, a failed run) or an error in this program; 2 an
error that the user can fix; 130 interrupted.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from keyword import iskeyword
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO

from hrm_agent import __version__
from hrm_agent.basics.frozen_heap import begin_program
from hrm_agent.basics.unicode import for_terminal
from hrm_agent.errors import ConfigError, HrmError, StoreFullError, nearest, to_install

__all__ = ["COMMANDS", "COMMAND_GROUPS", "command_list", "fitted", "main", "module_of"]

COMMAND_GROUPS: Mapping[str, Mapping[str, str]] = {
    "runs": {
        "run": "run one task through a graph, node by node",
        "record": (
            "run any program, and record the graphs that it invokes: `record -- python theirs.py`"
        ),
        "chat": "talk with a graph, turn by turn; go back to any moment",
        "resume": (
            "continue an interrupted run, an earlier checkpoint, or a question with its answer"
        ),
        "fork": "branch off from a checkpoint of a thread, once or as a group",
        "replay": "replay stored runs from their recorded answers, with the graphs as they are now",
        "gate": "compare a changed agent with the one whose runs are recorded: better, worse or equal",
        "diff": "compare two threads, or two checkpoints",
        "blame": "say which step lost a run, by forks of its moments",
    },
    "training": {
        "demo": "train a tiny policy end to end, and compare before and after",
        "collect": "run tasks through a graph and keep the trajectories",
        "train": "train a policy: `train rl` by reinforcement, `train sft` on conversations",
        "eval": "evaluate a policy on tasks, evaluate a recorded run, or compare runs",
        "analyze": "what a run says: entropy, tool errors, lengths, selection, or why its runs failed",
        "roles": "say which role of a graph deserves a better policy, by swaps of single roles",
        "optimize": "improve the prompts of a graph, by reflection on its recorded runs",
        "why": "find the step of a training, and its rollouts, that taught a text",
        "film": "show the token at which each step of a training changes the run of a task",
        "reward-diff": "what another reward would teach, from recorded rollouts",
        "rescore": (
            "score stored runs by a rubric, beside the scores that they have; compare two rubrics"
        ),
        "plot": "curves of training runs as a picture, runs of one configuration as one line",
    },
    "records": {
        "history": "list the runs of a store, or the checkpoints of one thread as a tree",
        "show": "one trajectory: messages, tool calls, tokens, verdicts",
        "lint": "check that stored trajectories can be trained on",
        "export": "write trajectories to a file: our own formats, chat, TRL, verifiers",
        "import": "read trajectories of a file into a store",
        "dataset": "named, versioned sets of examples made from runs: add, list, show, diff",
        "store": "maintain a store: stats, verify, prune, delete, vacuum, copy, migrate",
    },
    "documents": {
        "index": "put your documents into an index that agents search and cite from",
        "search": "search an index for a question, with exact spans",
        "chunk": "show how a text is cut into chunks",
        "tokens": "compare tokenizers on your texts, or train a vocabulary on them",
    },
    "services": {
        "view": "look at runs in the browser: curves, groups, trajectories, tokens, forks",
        "init": "start a project of your own: agent, tasks, rewards, test, training",
        "serve": "serve graphs to chat clients at OpenAI's /v1/chat/completions",
        "environment": "run model-written code for others: serve, status, token",
        "models": "what a model can do, and what it lacks: `models check STRING`",
        "doctor": "check sandbox support on this machine",
        "completion": "print a script that completes commands and flags in bash, zsh or fish",
    },
}
"""Commands with their descriptions, by package of `hrm_agent.cli`."""

COMMANDS = {name: text for group in COMMAND_GROUPS.values() for name, text in group.items()}

_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the command line. Returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        begin_program()
        # Add the working directory to the module path, as `python -m` does, since a user's graphs,
        # embeddings and types are there.
        with suppress(OSError):  # the folder may have been removed
            if not sys.flags.safe_path and os.getcwd() not in sys.path:  # noqa: PTH109  pathlib would be imported for it
                sys.path.insert(0, os.getcwd())  # noqa: PTH109
    if not sys.stderr.isatty():
        for library in ("HUB", "DATASETS"):  # the library reads this variable when it is imported
            os.environ.setdefault(f"HF_{library}_DISABLE_PROGRESS_BARS", "1")
    if "--debug" in words:
        return _dispatch(words)
    try:
        return _dispatch(words)
    except KeyboardInterrupt as interrupt:
        how = (
            f"What was recorded is kept. Resume it: `{interrupt.args[0]}`."
            if interrupt.args
            else ""
        )
        return _fail(
            "Interrupted.", how or "What was recorded is kept.", 130, as_json="--json" in words
        )
    except BrokenPipeError:  # the reader has closed the output, as in `hrm-agent history | head`
        sys.stderr.close()
        return 0
    except Exception as error:
        message, hint, code = _explain(error)
        return _fail(message, hint, code, as_json="--json" in words)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "--help-all", "help"):
        width = max(map(len, COMMANDS))
        groups = (
            f"{name.capitalize()}:\n{command_list(commands, width)}\n\n"
            for name, commands in COMMAND_GROUPS.items()
        )
        print(
            fitted(
                "usage: hrm-agent COMMAND [OPTIONS]\n\nReasoning agents that learn: what a graph"
                " run leaves on record is what a trainer learns from.\n\n"
                f"{''.join(groups)}`hrm-agent COMMAND --help` lists the options of a command. Every"
                " command takes --json (results as JSON on stdout) and --debug (tracebacks)."
            )
        )
        return 0
    if words[0] in ("--version", "version"):
        from importlib import metadata

        found = [f"hrm-agent {__version__}", f"python {sys.version.split()[0]}"]
        for package in ("langgraph", "torch"):
            with suppress(metadata.PackageNotFoundError):
                found.append(f"{package} {metadata.version(package)}")
        print(", ".join(found))
        return 0
    if words[0] not in COMMANDS:
        raise ConfigError(
            f"There is no command {words[0]!r}.",
            nearest(words[0], COMMANDS) or "`hrm-agent --help` lists the commands.",
        )
    run: Callable[[list[str]], int] = import_module(module_of(words[0])).run
    return run(words[1:])


def module_of(command: str) -> str:
    """Module of a command. Hyphens become underscores, and an underscore is appended to a Python
    keyword.
    """
    group = next(name for name, commands in COMMAND_GROUPS.items() if command in commands)
    return f"hrm_agent.cli.{group}." + (
        f"{command}_" if iskeyword(command) else command.replace("-", "_")
    )


def command_list(commands: Mapping[str, str], width: int = 0) -> str:
    """Commands or actions, one a line, each with its description. `width`: minimum width of the
    first column.
    """
    width = max(width, *map(len, commands))
    return "\n".join(f"  {command:{width}}  {text}" for command, text in commands.items())


def fitted(text: str, columns: int = 0) -> str:
    """Wrap lines to the terminal's width, or to `columns`. Lines break between words only. In a
    list of commands, a text continues below its first line.

    A command that is alone on its line or in backquotes is never broken, so that it can be copied.
    """
    columns = columns or get_terminal_size().columns - 1
    return "\n".join(line for given in text.split("\n") for line in _broken(given, columns))


def fitted_for(stream: TextIO, text: str) -> str:
    """Wrap lines to the width of a stream's terminal. If the stream is no terminal, lines are
    unchanged, unless COLUMNS is set.
    """
    return fitted(text) if stream.isatty() or os.environ.get("COLUMNS") else text


def _broken(line: str, columns: int) -> list[str]:
    if len(line) <= columns or re.match(r" +hrm-agent ", line):
        return [line]
    head = re.match(r" *(?:\S+ {2,})?", line)
    indent = " " * (head.end() if head else 0)
    whole = re.sub(r"`hrm-agent [^`]*`", lambda command: command[0].replace(" ", "\0"), line)
    lines = wrap(
        whole, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [each.replace("\0", " ") for each in lines]


_FOR_TRAINING = {
    "accelerate",
    "jaxtyping",
    "llguidance",
    "pyarrow",
    "safetensors",
    "torch",
    "transformers",
}


def _explain(error: Exception) -> tuple[str, str, int]:
    """Message, hint and exit code for an error."""
    error = _of_several(error)
    if _is_full(error) and not isinstance(error, HrmError):
        error = StoreFullError(
            f"The disk is full: {error}.",
            "What was committed is intact. Free some space, then `hrm-agent resume` the run.",
        )
    if isinstance(error, HrmError):
        return error.message, error.hint, 2
    if isinstance(error, ModuleNotFoundError) and error.name in _FOR_TRAINING:
        return (
            f"The package {error.name} is needed, but not installed.",
            f"Run `{to_install('train')}`.",
            2,
        )
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return (
            f"{error.filename} cannot be used: {error.strerror}.",
            "Check the path and its permissions.",
            2,
        )
    return (
        f"Unexpected {type(error).__name__}: {error}",
        "Run the command again with --debug to see where.",
        1,
    )


def _of_several(error: Exception) -> Exception:
    """Choose one error of parallel tasks: the first error for users (`HrmError`), or else the first
    error.
    """
    if not isinstance(error, ExceptionGroup):
        return error
    several = [_of_several(each) for each in error.exceptions]
    return next(
        (each for each in several if isinstance(each, HrmError) or _is_full(each)), several[0]
    )


def _is_full(error: Exception) -> bool:
    if isinstance(error, sqlite3.Error):
        return "is full" in str(error)
    return isinstance(error, OSError) and error.errno in _FULL


def _fail(message: str, hint: str, code: int, *, as_json: bool) -> int:
    if as_json:
        print(for_terminal(json.dumps({"error": message, "hint": hint})), file=sys.stderr)
    else:
        text = f"{message} {hint}".strip()
        text = text if text.startswith("hrm-agent ") else f"hrm-agent: {text}"
        print(fitted_for(sys.stderr, for_terminal(text)), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
