"""Where model-written code runs: isolated, limited, and with an outcome that the code cannot choose."""

from hrm_agent.environment.active import active_environment, using_environment
from hrm_agent.environment.local import LocalEnvironment
from hrm_agent.environment.result import Environment, ExecutionResult, Limits

__all__ = ["Environment", "ExecutionResult", "Limits", "LocalEnvironment", "active_environment", "using_environment"]
