"""Environment that tools run on: the one set around the current task, else one for the whole
process.

The process-wide environment is for graphs run by other programs (a notebook, `langgraph dev`). It
is opened at the first call and closed when the process ends. The variable HRM_AGENT_ENVIRONMENT
selects it, in the syntax of `--environment`. HRM_AGENT_ISOLATION is the least isolation accepted
(by default `DEFAULT_ISOLATION`).
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from hrm_agent.environment.base import Environment
from hrm_agent.environment.isolation import DEFAULT_ISOLATION, parse_isolation
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.environment.open import open_environment

__all__ = ["active_environment", "ready_environment", "using_environment"]

_WHERE, _LEAST = "HRM_AGENT_ENVIRONMENT", "HRM_AGENT_ISOLATION"

_active: ContextVar[Environment | None] = ContextVar("hrm_agent_environment", default=None)
_default: dict[int, Environment] = {}
"""Process-wide environments by process id. A forked child may not use its parent's environment."""
_lock = threading.Lock()


def active_environment() -> Environment:
    """Environment set by `using_environment`, or the process-wide one, opened on first use.

    Raises HrmError if the machine cannot isolate code as required.
    """
    return _active.get() or _process_default()


async def ready_environment() -> Environment:
    """Return `active_environment()`, opening it in a thread so that the event loop is not
    blocked.
    """
    return _active.get() or _default.get(os.getpid()) or await asyncio.to_thread(_process_default)


@contextmanager
def using_environment(environment: Environment) -> Generator[Environment]:
    """Make tools inside the block run on `environment`. The caller closes it."""
    token = _active.set(environment)
    try:
        yield environment
    finally:
        _active.reset(token)


def _process_default() -> Environment:
    with _lock:
        environment = _default.get(os.getpid())
        if environment is None:
            least = parse_isolation(os.environ.get(_LEAST) or DEFAULT_ISOLATION)
            environment = _default[os.getpid()] = open_environment(
                os.environ.get(_WHERE) or None, isolation=least
            )
            # other environments end when this process's connections close
            if isinstance(environment, LocalEnvironment):
                atexit.register(environment.shutdown)
        return environment
