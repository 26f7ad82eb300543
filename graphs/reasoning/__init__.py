"""Planner, solvers, critic and synthesizer as one graph."""

from hrm_agent.graphs.reasoning.agent import (
    CRITIC,
    PLANNER,
    SYNTHESIZER,
    ReasoningContext,
    ReasoningState,
    SolverTask,
    graph,
    solver,
)

__all__ = [
    "CRITIC",
    "PLANNER",
    "SYNTHESIZER",
    "ReasoningContext",
    "ReasoningState",
    "SolverTask",
    "graph",
    "solver",
]
