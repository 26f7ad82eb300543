"""The policy in force: what `policy()` answers with inside a run.

A graph names no weights. It asks `policy()` for its chat model, and whoever runs the graph (the command line, a
trainer, a test) says with `using_policy` which engine or which other chat model stands behind it. So one graph,
unchanged, is served by a script in a test, by a hosted model in an experiment, and by the weights in training.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from langchain_core.language_models import BaseChatModel

from hrm_agent.models.engine import Engine
from hrm_agent.trajectory import Sampling

__all__ = ["ActivePolicy", "Backend", "active_policy", "using_policy"]

Backend = Engine | BaseChatModel
"""A token engine, or any other LangChain chat model."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """A backend and the sampling parameters that calls use unless they name their own."""

    backend: Backend
    sampling: Sampling = field(default_factory=Sampling)


_active: ContextVar[ActivePolicy | None] = ContextVar("hrm_agent_policy", default=None)


def active_policy() -> ActivePolicy:
    """The policy in force; outside a run, the one that the package ships."""
    active = _active.get()
    if active is not None:
        return active
    from hrm_agent.models.load import DEFAULT_POLICY, load_policy

    return ActivePolicy(load_policy(DEFAULT_POLICY))


@contextmanager
def using_policy(backend: Backend, sampling: Sampling | None = None) -> Generator[ActivePolicy]:
    """Make `backend` the policy of every graph that runs inside the block."""
    active = ActivePolicy(backend, sampling or Sampling())
    token = _active.set(active)
    try:
        yield active
    finally:
        _active.reset(token)
