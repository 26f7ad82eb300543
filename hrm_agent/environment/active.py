"""The environment that tools run on: the one around the current task, else one for the whole process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from hrm_agent.environment.local import LocalEnvironment
from hrm_agent.environment.result import Environment

__all__ = ["active_environment", "using_environment"]

_active: ContextVar[Environment | None] = ContextVar("hrm_agent_environment", default=None)
_default: dict[int, LocalEnvironment] = {}
"""By process id: a fork may not use its parent's."""
_lock = threading.Lock()


def active_environment() -> Environment:
    """The environment set by `using_environment`, or the process-wide LocalEnvironment, made on first use.

    Raises HrmError where this machine cannot isolate code.
    """
    return _active.get() or _process_default()


@contextmanager
def using_environment(environment: Environment) -> Generator[Environment]:
    """Make tools inside the block run on `environment`. The caller closes it."""
    token = _active.set(environment)
    try:
        yield environment
    finally:
        _active.reset(token)


def _process_default() -> LocalEnvironment:
    with _lock:
        environment = _default.get(os.getpid())
        if environment is None:
            environment = _default[os.getpid()] = LocalEnvironment()
            atexit.register(environment.shutdown)
        return environment
