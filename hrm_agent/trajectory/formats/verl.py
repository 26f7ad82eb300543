"""Tasks of runs for verl's trainer: a Parquet file of prompts, each with its reference answer.

A row is a task, not a run: verl samples its own answers, so that several runs of one task give one
row. `prompt` is the task as the user's turn. The system turn comes before it if it is proved that
the first model call was sent just these two turns. A task without a reference answer cannot be
checked and is left out.

`data_source` names the family, by which a custom `compute_score` distinguishes tasks; verl's
built-in function knows only the data sets of verl. `ability` is the task's `metadata["ability"]`,
else `agent`; `extra_info.split` is `metadata["split"]`, else `train`. Runs are not read back: such
files contain no tokens, answers of runs or rewards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from langchain_core.messages import HumanMessage, SystemMessage

from hrm_agent.basics.files import replacing
from hrm_agent.trajectory.formats.native import pyarrow
from hrm_agent.trajectory.formats.shared.messages import (
    ConversationOfCall,
    RequestHints,
    conversation_of,
)
from hrm_agent.trajectory.formats.shared.rows import Report, Row, Skipped
from hrm_agent.trajectory.schema import Trajectory

__all__ = ["write_verl"]

_ROWS_PER_GROUP = 1024


def write_verl(trajectories: Iterable[Trajectory], path: Path, known: RequestHints) -> Report:
    """Write one task a row. Without rows no file is written. Raises `StoreError` without
    pyarrow.
    """
    pa, parquet = pyarrow()
    report = Report()
    rows = _rows(trajectories, known, report)
    group = list(islice(rows, _ROWS_PER_GROUP))
    if not group:
        return report
    text = pa.string()
    message = pa.struct([("role", text), ("content", text)])
    extra = [(name, text) for name in ("task_id", "question", "answer", "metadata")]
    schema = pa.schema(
        [
            ("data_source", text),
            ("prompt", pa.list_(message)),
            ("ability", text),
            ("reward_model", pa.struct([("style", text), ("ground_truth", text)])),
            ("extra_info", pa.struct([("split", text), ("index", pa.int64()), *extra])),
        ]
    )
    with (
        replacing(path) as part,
        parquet.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        while group:
            writer.write_table(pa.Table.from_pylist(group, schema=writer.schema))
            group = list(islice(rows, _ROWS_PER_GROUP))
    return report


def _rows(trajectories: Iterable[Trajectory], known: RequestHints, report: Report) -> Iterator[Row]:
    seen: set[tuple[str, str]] = set()
    for trajectory in trajectories:
        report.trajectories += 1
        task = trajectory.task.family, trajectory.task.id
        row = (
            Skipped("another run of a task that has a row")
            if task in seen
            else _row(trajectory, known, report.rows)
        )
        if isinstance(row, Skipped):
            report.left_out[row.reason] += 1
            continue
        seen.add(task)
        report.rows += 1
        yield row


def _row(trajectory: Trajectory, known: RequestHints, index: int) -> Row | Skipped:
    task = trajectory.task
    if task.answer is None:
        return Skipped("the task has no reference answer")
    # The prompt includes the system turn only if the first model call had exactly this turn and the
    # task.
    system: list[Row] = []
    first = next(iter(trajectory.calls), None)
    found = None if first is None else conversation_of(first, trajectory, known)
    match found.messages[:-1] if isinstance(found, ConversationOfCall) else ():
        case (SystemMessage() as turn, HumanMessage() as asked) if (
            asked.text.strip() == trajectory.task.prompt.strip()
        ):
            system = [{"role": "system", "content": turn.text}]
        case _:
            pass
    return {
        "data_source": task.family,
        "prompt": [*system, {"role": "user", "content": task.prompt}],
        "ability": str(task.metadata.get("ability") or "agent"),
        "reward_model": {"style": "rule", "ground_truth": task.answer},
        "extra_info": {
            "split": str(task.metadata.get("split") or "train"),
            "index": index,
            "task_id": task.id,
            "question": task.prompt,
            "answer": task.answer,
            "metadata": json.dumps(task.metadata, ensure_ascii=False, default=str),
        },
    }
