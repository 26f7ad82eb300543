"""Rubrics from one string: rubrics of a user's own functions, and rubrics that need no code.

| string | rubric |
|---|---|
| `package.module:attribute`, `./file.py:attribute` | a `Rubric`, a list of functions, one function |
| `answer:READER` | 1 if the answer that READER finds in the final text equals the reference |
| `answer:READER,COMPARISON` | 1 if that answer equals the reference by COMPARISON |

Readers and comparisons: `hrm_agent.rewards.readers`, `hrm_agent.rewards.comparison`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from hrm_agent.import_by_name import attribute_by_name
from hrm_agent.rewards.comparison import answer_is
from hrm_agent.rewards.rubric import Rubric, as_rubric
from hrm_agent.trajectory import content_hash

__all__ = ["load_rubric"]

_ANSWER = "answer:"


def load_rubric(spec: str, folder: str | None = None) -> tuple[Rubric, str]:
    """Load the rubric that `spec` names. Returns the rubric and a digest of its source (empty if
    the source cannot be read).

    `folder`: base of relative names (None: the working directory). Raises `ConfigError`.
    """
    if spec.startswith(_ANSWER):
        reader, _, comparison = spec.removeprefix(_ANSWER).rpartition(",")
        if not reader:  # no comparison was named
            reader = comparison
            comparison = "exact"
        return Rubric([answer_is(reader, comparison)], name=spec), ""
    found, module = attribute_by_name(
        spec, "rubric", folder or str(Path.cwd()), ", or answer:last_number"
    )
    rubric = as_rubric(found, spec)
    try:
        return rubric, content_hash(inspect.getsource(module))[:16]
    except (OSError, TypeError):
        return rubric, ""
