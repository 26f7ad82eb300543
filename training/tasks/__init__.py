"""Problems and how their answers are verified."""

from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.registry import (
    load_tasks,
    refuse_unscored,
    run_verifier_of,
    verifier_of,
)

__all__ = ["Task", "Verifier", "load_tasks", "refuse_unscored", "run_verifier_of", "verifier_of"]
