"""A process for a library's verifiers, which nobody made for hostile texts: some do algebra with them.

It runs verifiers and nothing else, on texts that have passed the guards of `hrm_agent.training.tasks.reasoning_gym`. It
is a child of the trainer, outside of the environment that model-written code runs in, and tied to the trainer by two
pipes that nobody else has. What the trainer sends is its own data set and the text; what it reads back is one number.

Each verdict is a fork's, which the kernel ends when it takes more than the bounds: then the answer scores 0. CPU time
is what counts, so that a busy machine does not change a verdict.
"""

from __future__ import annotations

import atexit
import os
import pickle
import resource
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, NoReturn

from hrm_agent.frozen_heap import begin_program

__all__ = ["MAX_CPU_SECONDS", "graded"]

MAX_CPU_SECONDS = 2.0
"""Of one verdict; right answers take some tenths."""
MAX_WALL_SECONDS = 60
"""For one that waits for something."""
MAX_MEMORY_BYTES = 2 * 1024**3
_NUMBER = struct.Struct("<d")
_LENGTH = struct.Struct("<Q")


def graded(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    """`dataset.score_answer(answer, entry)` within the bounds; 0 where it raises or exceeds them."""
    try:
        asked = pickle.dumps((dataset, entry, answer))
    except (AttributeError, TypeError, pickle.PicklingError):  # a data set that holds a lambda cannot be sent
        return _score(dataset, entry, answer)
    return _graders.setdefault(os.getpid(), _Grader()).grade(asked)


def _score(dataset: Any, entry: dict[str, Any], answer: str) -> float:
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # what a library's verifier raises on odd text is a wrong answer, whatever the type
        return 0.0


class _Grader:
    """The process, made when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def grade(self, asked: bytes) -> float:
        with self._lock:
            process = self._process = self._process or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(_LENGTH.pack(len(asked)) + asked)
                process.stdin.flush()
                answer = process.stdout.read(_NUMBER.size)
            except BrokenPipeError:
                answer = b""
            if len(answer) == _NUMBER.size:
                return float(_NUMBER.unpack(answer)[0])
            self._process = None
            process.kill()
            process.communicate()
            return 0.0


_graders: dict[int, _Grader] = {}
"""By process id: a fork may not use its parent's."""


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "hrm_agent.training.tasks.grader"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl+C is for the trainer, which may still have verdicts to ask for
    )
    atexit.register(process.kill)
    return process


def _serve(asked: IO[bytes], answers: IO[bytes]) -> None:
    """Until the trainer is gone."""
    while header := asked.read(_LENGTH.size):
        question = asked.read(*_LENGTH.unpack(header))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _judge(question, writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        answers.write(answer if len(answer) == _NUMBER.size else _NUMBER.pack(0.0))
        answers.flush()


def _judge(question: bytes, writing: int) -> NoReturn:
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_SECONDS)
    signal.alarm(MAX_WALL_SECONDS)
    dataset, entry, answer = pickle.loads(question)  # noqa: S301 - the trainer's own
    os.write(writing, _NUMBER.pack(_score(dataset, entry, answer)))
    os._exit(0)


if __name__ == "__main__":
    begin_program()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ImportError):
        import_module("reasoning_gym")  # before the first fork
    with os.fdopen(os.dup(1), "wb") as verdicts:
        os.dup2(2, 1)  # what a verifier prints is none
        _serve(sys.stdin.buffer, verdicts)
