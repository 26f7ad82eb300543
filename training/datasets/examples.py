"""Example of a data set: a task, and the run that it comes from, as one line of JSON.

The id of an example is a digest of its content: family, prompt, reference answer and metadata. The
metadata has everything else that a graph, a verifier or a rubric reads, such as the graph's input.
Two runs of one task so have the same example. The id of the task, the data by which a user's list
draws it again and the source differ from run to run, and are outside of the digest.

The split of an example depends only on its question: the prompt, the graph's input and the earlier
turns. So two examples with one question and two answers are in the same split, and no example
changes its split when others are added.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hrm_agent.basics.files import json_line
from hrm_agent.basics.strict_json import from_json
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import TaskError
from hrm_agent.trajectory import NOT_RECORDED, TASK_INPUTS, content_hash

__all__ = [
    "DatasetExample",
    "ExampleSource",
    "Split",
    "canonical",
    "make_example",
    "read_example",
    "why_invalid",
]

Split = Literal["train", "eval"]

_RESERVED = frozenset({"drawn", "stored", NOT_RECORDED})
"""Keys of a task's metadata that describe the run and not the task, in every family."""
_QUESTION = (TASK_INPUTS, "history")
"""Keys of a task's metadata that are part of the question."""
_LONGEST_PLACE, _LONGEST_REASON = 60, 200
_DIGITS = 13
"""Hex digits of a digest that decide the split: as many as a float represents exactly."""


class ExampleSource(BaseModel):
    """Run that an example was made from."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    run: str
    """Id of the collect, eval or training run (empty for a single run)."""
    trajectory: str
    """Id of the trajectory."""
    trace: str = ""
    """Id of the trace that the trajectory was imported from (empty for other runs)."""


class DatasetExample(BaseModel):
    """Example of a data set."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    id: str
    """Digest of the content: 32 hex digits."""
    family: str
    """Family of the recorded task, whose verifier judges the example."""
    prompt: str
    """Text of the task."""
    answer: str | None = None
    """Reference answer (None if there is none)."""
    metadata: dict[str, Any] = {}
    """Further data of the task, without facts about its run."""
    task: str
    """Id of the recorded task within its family."""
    drawn: dict[str, Any] | None = None
    """Data by which a user's list draws the task again (None for other families)."""
    source: ExampleSource
    """Run that the example was made from."""

    @cached_property
    def task_digest(self) -> str:
        """Digest of the content without the reference answer, which is equal for runs of one
        task.
        """
        return content_hash("task", self.family, self.prompt, self.metadata)

    @cached_property
    def question(self) -> float:
        """Digest of the question as a number in [0, 1), which decides the split."""
        parts = [self.metadata.get(name) for name in _QUESTION]
        return int(content_hash("question", self.prompt, *parts)[:_DIGITS], 16) / 16**_DIGITS

    def split(self, eval_share: float) -> Split:
        """Split of the example in a data set of which this share of the questions is held out."""
        return "eval" if self.question < eval_share else "train"

    @property
    def line(self) -> str:
        """Example as one line of JSON with sorted keys."""
        return canonical(self.model_dump())


def canonical(value: Any) -> str:
    """JSON text with sorted keys, as it is written to a data set."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def make_example(
    *,
    family: str,
    prompt: str,
    answer: str | None,
    metadata: dict[str, Any],
    task: str,
    source: ExampleSource,
) -> DatasetExample:
    """Make an example of a recorded task. Values that strict JSON lacks are replaced."""
    content = {
        name: value for name, value in metadata.items() if not _is_of_run(family, name, value)
    }
    drawn = metadata.get("drawn")
    given = {
        "family": family,
        "prompt": prompt,
        "answer": answer,
        "metadata": content,
        "task": task,
        "drawn": drawn if isinstance(drawn, dict) else None,
        "source": source.model_dump(),
    }
    values: dict[str, Any] = from_json(replace_surrogates(json_line(given)))
    return DatasetExample.model_validate({**values, "id": _digest(values)})


def read_example(line: str) -> DatasetExample:
    """Parse a line. Raises `TaskError`, whose message continues "line 7 ", for a line that is no
    example, does not have the id of its content or is not written as `DatasetExample.line` is.
    """
    try:
        found = DatasetExample.model_validate_json(line)
        written = found.line
    except (ValidationError, ValueError, RecursionError) as error:
        raise TaskError(f"is not an example: {why_invalid(error)}.") from None
    if reserved := sorted(_RESERVED & found.metadata.keys()):
        raise TaskError(f"has the reserved key {reserved[0]!r} in its metadata.")
    digest = _digest(found.model_dump())
    if found.id != digest:
        raise TaskError(f"has the id {found.id[:40]!r}, but its content has {digest}.")
    if written != line:
        raise TaskError("is not in canonical form: sorted keys, each once.")
    return found


def _is_of_run(family: str, name: str, value: Any) -> bool:
    """True for a key of a task's metadata that a recorder or an import wrote about the run."""
    match name:
        case "atif":
            return family == "atif"
        case "checkpointer":
            return family == "recorded"
        case "inspect":
            return family.startswith("inspect:")
        case "trace":
            return isinstance(value, dict) and "format" in value
        case _:
            return name in _RESERVED


def _digest(values: dict[str, Any]) -> str:
    content = [values[name] for name in ("family", "prompt", "answer", "metadata")]
    return content_hash("example", *content)


def why_invalid(error: Exception) -> str:
    """Reason why a line was refused, in one short line without a full stop."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:_LONGEST_PLACE]
        text = f"{place}: {first['msg']}" if place else str(first["msg"])
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_LONGEST_REASON].rstrip(".")
