"""Search, reading and cited answers as one graph, over any number of turns."""

from hrm_agent.graphs.research.agent import ResearchContext, ResearchState, build_research, graph

__all__ = ["ResearchContext", "ResearchState", "build_research", "graph"]
