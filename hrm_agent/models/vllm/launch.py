"""Start of vLLM servers by a training. They listen on free ports of the loopback, and end when the
training ends, even if it is killed.

A server writes its output to a log. It may use another interpreter than the training, since vLLM
pins versions of its dependencies. That interpreter only needs one folder of this package on its
path (`in_server`).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from hrm_agent.errors import ModelError, to_install
from hrm_agent.models.vllm.weights import EXTENSION, EXTENSION_FOLDER

__all__ = ["LaunchOptions", "VllmProcess"]

_TERM_SECONDS, _KILL_SECONDS = 10.0, 10.0
_SHOWN_LINES, _SHOWN_BYTES = 12, 256 << 10
_SHOWN_ERRORS, _SHOWN_CHARACTERS = 4, 600
_ERROR = re.compile(r"\b\w+(?:Error|Exception): .*")

_HAS_VLLM = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """Options to start servers."""

    model: str
    """Folder of the initial weights."""
    python: str = ""
    """Interpreter that has vLLM (empty: the interpreter of this process)."""
    arguments: tuple[str, ...] = ()
    """Further options of `vllm serve`."""
    adapters: bool = False
    """True if the servers accept adapters while they run."""
    devices: tuple[str, ...] = ()
    """Values of `CUDA_VISIBLE_DEVICES` for the servers, in turn (empty: each server sees all GPUs).
    """


class VllmProcess:
    """Server process, started at once. It is ready when its `/health` reports so.

    The operating system ends the server when the *thread* that started it ends. So that thread has
    to live as long as the server is needed.
    """

    def __init__(
        self, options: LaunchOptions, log: Path, number: int = 0, *, port: int | None = None
    ) -> None:
        """`port`: port of the server (None: a free one). Raises `ModelError` if the interpreter
        cannot be run, or has no vLLM.
        """
        self.port = port or _free_port()
        self.log = log
        python = options.python or sys.executable
        if which(python) is None:
            raise _unusable(python, "there is no such program")
        if subprocess.run(
            [python, "-c", _HAS_VLLM], env=_environment(options, number), check=False
        ).returncode:
            raise _unusable(
                python, "it has no vLLM", f"Run `{to_install('vllm')}`. " * (not options.python)
            )
        tied = [which("setpriv"), "--pdeathsig", "TERM", "--"] if which("setpriv") else []
        command = [
            *(str(part) for part in tied),
            *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", options.model),
            *("--host", "127.0.0.1", "--port", str(self.port), "--worker-extension-cls", EXTENSION),
            *(
                "--logprobs-mode",
                "processed_logprobs",
                *(("--enable-lora",) if options.adapters else ()),
            ),
            *options.arguments,
        ]
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as opened:
                self._said_before = opened.tell()
                self._process = subprocess.Popen(
                    command,
                    env=_environment(options, number),
                    stdin=subprocess.DEVNULL,
                    stdout=opened,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise _unusable(python, error.strerror or str(error)) from error

    @property
    def url(self) -> str:
        """Address up to and including `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def pid(self) -> int:
        """Process id of the server, whose process group has all its workers."""
        return self._process.pid

    @property
    def ended(self) -> str | None:
        """Description of how the server ended, with errors from its log (None while it runs)."""
        code = self._process.poll()
        if code is None:
            return None
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{how}; its log {self.log} has:\n{_cause(self.log, self._said_before)}"

    def stop(self) -> None:
        """End the server and its workers."""
        for sign, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            if self._process.poll() is None:
                self._signal(sign)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
        self._signal(signal.SIGKILL)  # remaining workers

    def _signal(self, sign: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, sign)


def _environment(options: LaunchOptions, number: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept |= {
        "PYTHONPATH": str(EXTENSION_FOLDER),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if options.adapters:
        kept["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if options.devices:
        kept["CUDA_VISIBLE_DEVICES"] = options.devices[number % len(options.devices)]
    return kept


def _free_port() -> int:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _unusable(python: str, why: str, first: str = "") -> ModelError:
    return ModelError(
        f"A vLLM server cannot be started by {python!r}: {why}.",
        f"{first}Name the interpreter of an environment that has vLLM with --server-python.",
    )


def _cause(log: Path, start: int) -> str:
    """First errors in a log, since an early error often causes the others (the last lines if there
    are no errors).
    """
    with suppress(OSError):
        lines = log.read_bytes()[start:][-_SHOWN_BYTES:].decode(errors="replace").splitlines()
        errors = dict.fromkeys(
            found[0][:_SHOWN_CHARACTERS]
            for line in lines
            if "WARNING" not in line and (found := _ERROR.search(line))
        )
        return "\n".join(list(errors)[:_SHOWN_ERRORS] or lines[-_SHOWN_LINES:])
    return "(no log)"
