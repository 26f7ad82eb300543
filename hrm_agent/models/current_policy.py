"""Current policy: the model that `policy()` uses inside a run.

A graph names no weights. It gets its chat model from `policy()`, and the caller of the graph (the
command line, a trainer, a test) chooses the engine or chat model with `using_policy`. So the same
graph can run on a script in a test, on a hosted model in an experiment, and on trained weights in
training.

A part of a graph may use another model, named by a model string (`policy(model=...)`). This model
is loaded at its first call that is not answered from the record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from langchain_core.language_models import BaseChatModel

from hrm_agent.models.engine import Engine
from hrm_agent.trajectory import Sampling

__all__ = ["DEFAULT_POLICY", "ActivePolicy", "Backend", "active_policy", "using_policy"]

DEFAULT_POLICY = "builtin:trained"
POLICY_VARIABLE = "HRM_AGENT_POLICY"
"""Environment variable that names the policy for graphs that run without `using_policy`, as under
`langgraph dev`.
"""
Backend = Engine | BaseChatModel
"""Token engine, or any other LangChain chat model."""


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """Backend, and the sampling parameters of calls that set none."""

    backend: Backend | str
    """Engine, chat model, or a model string, which is loaded at the first call."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling parameters of calls that set none."""
    constrain: bool = True
    """True if answers are constrained to the schema that a graph requests, if the engine can. False
    under a trainer, since tokens sampled under a mask are not samples of the policy.
    """
    own_sampling: bool = False
    """True if the sampling parameters only apply to this backend. If a call uses a hosted model
    instead, that model only gets the parameters that the graph sets. True under a trainer, since
    its parameters belong to the policy that it trains.
    """
    by_role: Mapping[str, ActivePolicy] = field(default_factory=dict[str, "ActivePolicy"])
    """Other policies, by the role (`GraphIdentity.role`) whose calls they answer. They also replace
    a model that a call names.
    """


_active: ContextVar[ActivePolicy | None] = ContextVar("hrm_agent_policy", default=None)


def active_policy(model: str | None = None, role: Callable[[], str] | None = None) -> ActivePolicy:
    """Current policy, or `model` in its place. `role`: function that finds the role that asks. It
    is only called if roles have policies of their own.

    Outside a run, the current policy is named by HRM_AGENT_POLICY. If the variable is not set, it
    is the policy that the package ships.
    """
    active = _active.get() or ActivePolicy(os.environ.get(POLICY_VARIABLE) or DEFAULT_POLICY)
    if active.by_role and role is not None and (own := active.by_role.get(role())) is not None:
        return own
    if model is None or model == getattr(active.backend, "name", active.backend):
        return active
    return replace(active, backend=model)


@contextmanager
def using_policy(
    backend: Backend | str,
    sampling: Sampling | None = None,
    constrain: bool = True,
    *,
    own_sampling: bool = False,
    by_role: Mapping[str, ActivePolicy] | None = None,
) -> Generator[ActivePolicy]:
    """Make `backend` the policy of every graph that runs inside the block. A string is loaded at
    the first call.

    The options are those of `ActivePolicy`.
    """
    active = ActivePolicy(backend, sampling or Sampling(), constrain, own_sampling, by_role or {})
    token = _active.set(active)
    try:
        yield active
    finally:
        _active.reset(token)
