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

from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.import_by_name import import_by_name
from hrm_agent.rewards.comparison import answer_is
from hrm_agent.rewards.rubric import Rubric, as_rubric
from hrm_agent.trajectory import content_hash

__all__ = ["load_rubric"]

_ANSWER = "answer:"
_WRITE = "Write package.module:attribute, ./file.py:attribute, or answer:last_number."


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
    module_name, colon, attribute = spec.rpartition(":")
    if not colon or not module_name or not attribute:
        raise ConfigError(f"{spec!r} names no rubric.", _WRITE)
    folder = folder or str(Path.cwd())
    try:
        module = import_by_name(module_name, folder)
    except HrmError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        trial = (
            f"python {module_name}"
            if module_name.endswith(".py")
            else f"python -c 'import {module_name}'"
        )
        raise ConfigError(
            f"The rubric {spec!r} does not import: {type(error).__name__}: {error}.",
            f"Try `{trial}` in {folder}.",
        ) from error
    if not hasattr(module, attribute):
        public = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing"
        raise ConfigError(f"{module_name} has no {attribute!r}.", f"It has {public}.")
    rubric = as_rubric(getattr(module, attribute), spec)
    try:
        return rubric, content_hash(inspect.getsource(module))[:16]
    except (OSError, TypeError):
        return rubric, ""
