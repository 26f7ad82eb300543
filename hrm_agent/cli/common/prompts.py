"""Checks of `--prompts`: names before a run, and the requests after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hrm_agent.cli.common.output import remark
from hrm_agent.errors import ConfigError
from hrm_agent.prompts import PromptTexts, recorded_texts
from hrm_agent.runtime.execution.conversation import texts_of_task
from hrm_agent.runtime.settings import GraphSettings
from hrm_agent.trajectory import Trajectory

__all__ = [
    "names_reached",
    "refuse_unknown_prompts",
    "refuse_unreached_prompts",
    "tell_unreached_prompts",
]


def refuse_unknown_prompts(settings: GraphSettings) -> None:
    """Raise `ConfigError` if the graph has no prompt of a given name."""
    if settings.prompts:
        from hrm_agent.runtime.execution.loading import load_graph

        load_graph(settings.graph, settings.configurable)  # a graph's modules define its prompts
        PromptTexts(settings.prompts)


def tell_unreached_prompts(texts: Mapping[str, str], runs: Iterable[Trajectory]) -> None:
    """Report on stderr which of the given prompts no request of `runs` contains."""
    if not texts:
        return
    reached = names_reached(texts, runs)
    if reached is None:
        remark(
            f"No request was recorded, so the texts of {_listed(texts)} in --prompts were not seen in"
            " one: no model was asked, or it was asked without LangChain or in a thread without the"
            " context of the run."
        )
    elif left := texts.keys() - reached:
        remark(
            f"No request contains the prompts {_listed(left)} of --prompts: either their roles were"
            " not asked, or the graph changes the texts before it sends them, or these requests are not"
            " recorded."
        )


def refuse_unreached_prompts(texts: Mapping[str, str]) -> None:
    """Raise `ConfigError` for texts of which no request contains one."""
    raise ConfigError(
        f"No request contains the prompts {_listed(texts)} of --prompts, so nothing was changed.",
        "Either their roles were not asked, or the graph changes the texts before it sends them, or"
        " it asks its models without LangChain.",
    )


def names_reached(texts: Mapping[str, str], runs: Iterable[Trajectory]) -> set[str] | None:
    """Names of the given prompts that requests of `runs` contain (None if there are no requests).
    A request may have the given text, the recorded one or that of the source.
    """
    reached = set[str]()
    asked = False
    for run in runs:
        said = texts_of_task(run.task, run.prompts)
        own = recorded_texts(run.task.metadata)
        forms = [PromptTexts(texts, said)]
        if own != texts and (known := {name: own[name] for name in texts if name in own}):
            forms.append(PromptTexts(known, said))
        for call in run.own_calls:
            if call.request is not None:
                asked = True
                for form in forms:
                    reached |= form.names_in(call.request)
        if reached >= texts.keys():
            break
    return reached if asked else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
