"""`hrm-agent record`: runs any program, and records every LangGraph graph that it invokes."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.arguments import Parser
from hrm_agent.cli.common.own_types import add_own_types, allowed_names
from hrm_agent.cli.common.run_folder import DEFAULT_STORE
from hrm_agent.errors import ConfigError
from hrm_agent.runtime.recording import hook
from hrm_agent.store import open_store

__all__ = ["run"]

_STARTUP = Path(hook.__file__).with_name("startup")
"""Folder with a `sitecustomize.py`, which Python runs when it starts."""


def run(words: list[str]) -> int:
    """Return the program's exit code."""
    at = words.index("--") if "--" in words else len(words)
    parser = Parser(
        "record", "Run a program, and record every LangGraph graph that it and its children invoke."
    )
    parser.usage = "hrm-agent record [OPTIONS] -- COMMAND [ARGUMENT ...]"
    parser.add_argument("--store", default=DEFAULT_STORE, help=f"where to record [{DEFAULT_STORE}]")
    parser.add_argument(
        "--draws",
        action="store_true",
        help=(
            "also what nodes take from the clock, uuid4 and random, for a replay; nodes then draw"
            " from generators of their own"
        ),
    )
    add_own_types(parser)
    hint = "Put the program after two hyphens: `hrm-agent record -- python theirs.py`."
    arguments = parser.read(words[:at], surplus=hint)
    command = words[at + 1 :]
    if not command:
        raise ConfigError("No program was given.", hint)
    # errors of the store are raised now, not in the middle of the program
    open_store(arguments.store).close()
    allow = allowed_names(arguments)
    where = arguments.store if "://" in arguments.store else str(Path(arguments.store).resolve())
    path = os.pathsep.join(filter(None, (str(_STARTUP), os.environ.get("PYTHONPATH"))))
    named = {hook.ALLOW_VARIABLE: ",".join(allow)} if allow else {}
    named |= {hook.DRAWS_VARIABLE: "1"} if arguments.draws else {}
    environment = {**os.environ, hook.VARIABLE: where, "PYTHONPATH": path, **named}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ConfigError(
            f"{command[0]!r} cannot be started: {error.strerror}.", "Check its name and the path."
        ) from error

    def hand_on(number: int, _: Any) -> None:
        if number != signal.SIGINT:  # a terminal sends SIGINT to both processes
            process.send_signal(number)

    with ExitStack() as stack:
        # in another thread than the main thread, signal handlers cannot be set
        with suppress(ValueError):
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, hand_on)
                stack.callback(signal.signal, number, before)
        code = process.wait()
    return 128 - code if code < 0 else code
