"""Results of analyses of a training run, which commands save for the viewer."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hrm_agent.cli.common.output import remark
from hrm_agent.store.run_store import shown_url
from hrm_agent.training.analysis.saved import save_analysis

__all__ = ["save_result"]

_NOT_OF_RESULT = frozenset({"run", "store", "json", "debug", "top"})
"""Arguments that do not change the result of an analysis of a run."""


def save_result(
    kind: str,
    words: Sequence[str],
    arguments: argparse.Namespace,
    *,
    title: str,
    result: Mapping[str, Any],
) -> list[str]:
    """Save the result of the command `kind` in its run's folder, `arguments.run`. Returns the
    commands that show it: none if it is not saved, which is reported on stderr with the reason.
    """
    folder: Path = arguments.run
    given = {name: value for name, value in vars(arguments).items() if name not in _NOT_OF_RESULT}
    try:
        save_analysis(
            folder, kind, given, title=title, command=_command(kind, words), result=result
        )
    except OSError as error:
        remark(f"The result is not saved for the viewer: {error}.")
        return []
    return [f"hrm-agent view {shlex.quote(str(folder))}"]


def _command(kind: str, words: Sequence[str]) -> str:
    """Command line, without passwords in the URL of a store."""
    kept = [
        shown_url(word) if "--store" in (word.partition("=")[0], before) else word
        for before, word in zip(["", *words], words, strict=False)
        if word not in ("--json", "--debug")
    ]
    return shlex.join(["hrm-agent", kind, *kept])
