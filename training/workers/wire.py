"""What a trainer and its rollout workers say to each other, over a socket that nobody else has, or
over Ray.

A frame is a pickled list of messages; a message is a tuple that begins with its kind. Both ends are
processes of one program and of one user, and a worker runs only what its parent would have run
itself: what one end says, the other may unpickle. Texts of models and tools are strings in it and
nothing else.

| from the worker | | to the worker | |
|---|---|---|---|
| `open` | what it needs is loaded; by which it owns leases | `setup` | a `WorkerSetup`, once, pickled |
| `refused` | it cannot be opened | `run` | a number, an episode, pickled, the version of the policy |
| `ended` | a run, and its trajectory | `stop` | a run that nobody waits for any more |
| `failed` | a run, and its error | `engine` | what stands for an engine |
| `load` | an engine, by its name | `answer` | what an engine sampled |
| `ask`, `cancel` | a request of an engine | `error` | why a `load` or an `ask` failed |
"""

from __future__ import annotations

import builtins
import pickle
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hrm_agent import errors
from hrm_agent.errors import HrmError
from hrm_agent.runtime.selection.strategies import Mode
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.tasks.base import Task

__all__ = ["LENGTH", "Message", "WorkerSetup", "error_of", "packed", "told", "unpacked"]

LENGTH = struct.Struct("<Q")
"""What goes before a frame on a socket."""
Message = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker rebuilds, as the command that started it has built it."""

    config: CollectConfig | GrpoConfig
    """The configuration of the run."""
    store: str
    """URL of the run's store."""
    policy: str
    """The model string of the policy."""
    is_lazy: bool
    """The policy is loaded when a graph asks for it first."""
    tasks: Callable[[], list[Task]] | None
    """Draws the tasks, whose verifiers cannot be sent; None where the run is scored by a rubric."""
    mode: Mode
    """How often a task is tried, and how an answer is chosen."""
    concurrency: int
    """Runs that this worker has open at a time."""
    slots: int
    """Calls that its environment runs at once, where that is on this machine."""
    sessions: int
    """Sessions that its environment keeps, where that is on this machine."""


def packed(messages: Sequence[Message]) -> bytes:
    """A frame. Raises whatever an object raises that cannot be sent."""
    return pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Sequence[Message]:
    """The messages of a frame."""
    return pickle.loads(data)  # noqa: S301 - only the other end can write it


def told(error: BaseException) -> Message:
    """An error in a form that can be sent, whatever it holds."""
    if isinstance(error, HrmError):
        return type(error).__name__, error.message, error.hint
    return type(error).__name__, str(error), None


def error_of(name: str, message: str, hint: str | None) -> Exception:
    """The error that was told: of the same class where that is ours or Python's, and always of the
    same name.

    A run's record says by which error it failed, and says the same whichever process it ran in.
    """
    if hint is not None:
        return getattr(errors, name, HrmError)(message, hint)
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:  # such as UnicodeDecodeError, which is made of more
            pass
    return type(name, (RuntimeError,), {})(message)
