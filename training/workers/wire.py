"""Messages between a trainer and its rollout workers, over a private socket or over Ray.

A frame is a pickled list of messages. A message is a tuple that begins with its kind. Both sides
may unpickle each other's messages: they are processes of one program and one user, and a worker
runs only what its parent would otherwise run. Texts of models and tools are plain strings in
messages.

| from the worker | | to the worker | |
|---|---|---|---|
| `open` | the worker is ready; the owner of its leases | `setup` | a `WorkerSetup`, pickled, sent once |
| `refused` | the worker cannot be opened | `run` | a number, an episode, pickled, the version of the policy |
| `ended` | a run, and its trajectory | `stop` | a run that is no longer needed |
| `failed` | a run, and its error | `engine` | the facts of an engine |
| `stopped` | a cancelled run that has released its lease | `answer` | a sample of an engine |
| `load` | an engine, by its name | `error` | why a `load` or an `ask` failed |
| `ask`, `cancel` | a request of an engine | | |
"""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hrm_agent import errors
from hrm_agent.errors import HrmError
from hrm_agent.runtime.selection.strategies import Mode
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.tasks.base import Task

__all__ = ["Message", "WorkerSetup", "error_of", "packed", "told", "unpacked"]

Message = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Settings from which a worker opens the same objects as the command that started it."""

    config: CollectConfig | GrpoConfig
    """Configuration of the run."""
    store: str
    """URL of the run's store."""
    policy: str
    """Model string of the policy."""
    is_lazy: bool
    """True if the policy is loaded when a graph first uses it."""
    tasks: Callable[[], list[Task]] | None
    """Function that draws the tasks. A worker draws them again because verifiers cannot be sent
    (None if a rubric scores the run).
    """
    mode: Mode
    """Number of attempts at a task, and choice of the answer."""
    concurrency: int
    """Maximum number of runs of this worker at a time."""
    slots: int
    """Maximum number of concurrent calls of the worker's environment, if the
    environment is local.
    """
    sessions: int
    """Maximum number of sessions of the worker's environment, if the environment is local."""


def packed(messages: Sequence[Message]) -> bytes:
    """Frame of messages. Raises the error of any object that cannot be pickled."""
    return pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Sequence[Message]:
    """Messages of a frame."""
    return pickle.loads(data)  # noqa: S301 - only the other side can write it


def told(error: BaseException) -> Message:
    """Error in a form that can always be sent."""
    if isinstance(error, HrmError):
        return type(error).__name__, error.message, error.hint
    return type(error).__name__, str(error), None


def error_of(name: str, message: str, hint: str | None) -> Exception:
    """Rebuild an error that was sent. It has the same class if that is a class of this project or
    of Python, else a new class with the same name.

    The record of a failed run has the name of its error, which must not depend on the process in
    which the run failed.
    """
    if hint is not None:
        return getattr(errors, name, HrmError)(message, hint)
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:  # such as UnicodeDecodeError, which needs more arguments
            pass
    return type(name, (RuntimeError,), {})(message)
