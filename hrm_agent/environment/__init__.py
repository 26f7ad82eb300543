"""Execution of model-written code: isolated, limited, and with an outcome that the code cannot
forge.
"""

from hrm_agent.environment.base import (
    Cell,
    Environment,
    ExecutionResult,
    Limits,
    SessionState,
    Submission,
)
from hrm_agent.environment.current import active_environment, ready_environment, using_environment
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local.environment import LocalEnvironment

__all__ = [
    "Cell",
    "Environment",
    "ExecutionResult",
    "Isolation",
    "Limits",
    "LocalEnvironment",
    "SessionState",
    "Submission",
    "active_environment",
    "ready_environment",
    "using_environment",
]
