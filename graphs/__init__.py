"""The agents: ordinary LangGraph graphs, and the door through which every run goes."""

import hrm_agent  # noqa: F401  # pyright: ignore[reportUnusedImport]  # before langgraph: it makes deserialisation strict
