"""Agents as ordinary LangGraph graphs to run, read and copy, imported as `hrm_agent.graphs`."""

if __name__ != "hrm_agent.graphs":
    raise ImportError(
        f"This folder is the package hrm_agent.graphs, not {__name__}: import it by that name."
    )
