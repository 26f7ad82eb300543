"""Where model-written code runs: isolated, limited, and with an outcome that the code cannot choose."""

from hrm_agent.environment.active import active_environment, ready_environment, using_environment
from hrm_agent.environment.isolation import Isolation
from hrm_agent.environment.local import LocalEnvironment
from hrm_agent.environment.result import Cell, Environment, ExecutionResult, Limits, SessionState, Submission

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
