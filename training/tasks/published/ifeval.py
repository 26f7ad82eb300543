"""IFEval (Zhou et al. 2023, arXiv 2311.07911): `ifeval:FILE`, with Google's `input_data.jsonl`.

A row has `key`, `prompt`, `instruction_id_list` and `kwargs`, the arguments of each instruction. A
verifier gives these numbers:

| name | value | published as |
|---|---|---|
| `correct` | 1 if all instructions are followed, strictly | prompt-level strict accuracy |
| `prompt_loose` | 1 if all are followed, loosely | prompt-level loose accuracy |
| `instruction` | number of instructions | |
| `followed per instruction` | number followed strictly | instruction-level strict accuracy |
| `loosely followed per instruction` | number followed loosely | instruction-level loose accuracy |

The response is the model's own text: its reasoning, tool calls and forged tool responses are left
out. Two instructions need NLTK's `punkt_tab`, which no package has: without it, files that contain
them are refused. A response that exceeds the limits of the checks follows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hrm_agent.answers.final_answer import own_text
from hrm_agent.errors import HrmError, TaskError, to_install
from hrm_agent.rewards.bounded_call import CallRaisedError, ExceededError, bounded_call
from hrm_agent.training.tasks.base import Task, Verifier
from hrm_agent.training.tasks.published.rows import field, options_of, published_rows, text
from hrm_agent.training.tasks.tables import TableRow, in_drawn_order

__all__ = ["ifeval_verifier", "load_ifeval"]

_CHECKS = "hrm_agent.training.tasks.published.ifeval_checks"
_INSTRUCTIONS = "instructions"
"""Key in a task's metadata: pairs (id of an instruction, arguments)."""
_Instruction = tuple[str, dict[str, Any]]
_AT_ONCE = 100
"""Number of rows whose instructions are tried in one bounded call."""


def load_ifeval(
    spec: str, *, split: str, seed: int, count: int | None = None, folder: Path | None = None
) -> list[Task]:
    """Load at most `count` prompts (None: all) of IFEval's file.

    Raises `TaskError`, and `HrmError` if the library if-verifiable is not installed.
    """
    options_of("ifeval", spec)
    if find_spec("if_verifiable") is None:
        raise HrmError("if-verifiable is not installed.", f"Run `{to_install('ifeval')}`.")
    rows = published_rows(spec, split, folder)
    lists = [_instructions(row) for row in rows]
    for first in range(0, len(rows), _AT_ONCE):
        _refuse_uncheckable(rows[first : first + _AT_ONCE], lists[first : first + _AT_ONCE])
    tasks = [
        Task(
            id=text(row, "key"),
            family=f"ifeval:{spec}",
            prompt=text(row, "prompt"),
            verify=_verifier(instructions),
            metadata={**row.metadata, _INSTRUCTIONS: instructions},
        )
        for row, instructions in zip(rows, lists, strict=True)
    ]
    return in_drawn_order(rows, tasks, split=split, seed=seed, count=count)


def ifeval_verifier(metadata: Mapping[str, Any]) -> Verifier | None:
    """Verifier of a recorded task, from its metadata (None if that has no valid instructions)."""
    try:
        instructions = [
            (str(name), dict[str, Any](arguments)) for name, arguments in metadata[_INSTRUCTIONS]
        ]
    except (KeyError, TypeError, ValueError):
        return None
    return _verifier(instructions)


def _instructions(row: TableRow) -> list[_Instruction]:
    names = field(row, "instruction_id_list", list, "a list of ids")
    given = field(row, "kwargs", list, "a list of arguments")
    if len(names) != len(given) or not all(isinstance(each, dict) for each in given):
        raise TaskError(
            f"{row.where}: `kwargs` is not a list of one JSON object for each instruction.",
            "Give the published file.",
        )
    if not names:
        raise TaskError(f"{row.where}: there is no instruction.", "Leave the row out.")
    arguments = cast("list[dict[str, Any]]", given)
    # some editions of the file list every possible argument, and null for those without a value
    return [
        (str(name), {key: value for key, value in one.items() if value is not None})
        for name, one in zip(names, arguments, strict=True)
    ]


def _refuse_uncheckable(rows: list[TableRow], lists: list[list[_Instruction]]) -> None:
    try:
        found = bounded_call(f"{_CHECKS}:first_problem", lists)
    except (CallRaisedError, ExceededError, RuntimeError) as error:
        raise TaskError(
            f"IFEval's instructions cannot be checked: {error}.",
            "Try `python -c 'import if_verifiable'`.",
        ) from error
    if found is None:
        return
    index, problem = found
    hint = (
        "Run `python -m nltk.downloader punkt_tab`, or leave such rows out."
        if "punkt_tab" in problem
        else "Give Google's input_data.jsonl, or leave the row out."
    )
    raise TaskError(f"{rows[index].where}: {problem}.", hint)


def _verifier(instructions: list[_Instruction]) -> Verifier:
    def verify(response: str) -> Mapping[str, float]:
        own = own_text(response)
        shown = response if own == response else own.strip()
        try:
            found = bounded_call(f"{_CHECKS}:followed", shown, instructions)
        except ExceededError:
            found = [(False, False)] * len(instructions)
        strict, loose = (sum(side) for side in zip(*found, strict=True))
        return {
            "correct": float(strict == len(instructions)),
            "prompt_loose": float(loose == len(instructions)),
            "instruction": len(instructions),
            "followed per instruction": strict,
            "loosely followed per instruction": loose,
        }

    return verify
