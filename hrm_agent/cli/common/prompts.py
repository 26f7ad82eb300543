"""Checks of `--prompts`: names before a run, and the requests after it."""

from __future__ import annotations

from collections.abc import Iterable

from hrm_agent.cli.common.output import remark
from hrm_agent.prompts import PromptTexts
from hrm_agent.runtime.settings import GraphSettings
from hrm_agent.trajectory import Trajectory

__all__ = ["refuse_unknown_prompts", "tell_unreached_prompts"]


def refuse_unknown_prompts(settings: GraphSettings) -> None:
    """Raise `ConfigError` if the graph has no prompt of a given name."""
    if settings.prompts:
        from hrm_agent.runtime.execution.loading import load_graph

        load_graph(settings.graph, settings.configurable)  # a graph's modules define its prompts
        PromptTexts(settings.prompts)


def tell_unreached_prompts(settings: GraphSettings, runs: Iterable[Trajectory]) -> None:
    """Report on stderr which of the given prompts no request of `runs` contains."""
    left = set(settings.prompts)
    texts = PromptTexts(settings.prompts)
    asked = False
    for each in runs if left else ():
        for call in each.own_calls:
            if call.request is not None:
                asked = True
                left -= texts.names_in(call.request)
        if not left:
            return
    if asked and left:
        remark(
            f"No request contains the prompts {', '.join(sorted(left))} of --prompts: either their"
            " roles were not asked, or the graph changes the texts before it sends them."
        )
