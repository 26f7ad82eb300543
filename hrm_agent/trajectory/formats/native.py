"""Formats of whole trajectories, JSON lines and Parquet: writers, readers, and checks on reading.

A Parquet row has columns to filter by beside the record. Tokens are stored as bytes, since lists of
numbers take several times the space. Log-probs are 32-bit numbers in Parquet, as in the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hrm_agent.basics.files import replacing
from hrm_agent.errors import StoreError, StoreVersionError, to_install
from hrm_agent.trajectory.schema import SCHEMA_VERSION, Call, Trajectory

__all__ = ["COLUMNS", "pyarrow", "read_jsonl", "read_parquet", "write_jsonl", "write_parquet"]

COLUMNS: dict[str, str] = {
    "schema_version": "int64; version of the format that `record` is in",
    "id": "string; id of the trajectory",
    "run_id": "string; id of the run that the trajectory belongs to",
    "group_id": "string; shared by the rollouts of one task in one step",
    "task_id": "string; id of the task within its family",
    "task_family": "string; name of the family",
    "graph": "string; the graph, as the user named it",
    "policy": "string; the policy, as the user named it",
    "policy_version": "int64; updates behind the policy's weights at the start of the run",
    "status": "string; see RunStatus",
    "stop_reason": "string or null; see StopReason",
    "reward": "double or null; the reward `correct`, null if it was not verified",
    "trainable": "boolean; every call can be trained on",
    "sampled_tokens": "int64; tokens that the policy sampled, over all calls",
    "record": "string; the trajectory as JSON, without the tokens of its calls",
    "token_ids": "list of binary; per call of `record`, little-endian int32",
    "mask": (
        "list of binary; per call of `record`, one byte per token, 1 where the policy sampled it"
    ),
    "logprobs": "list of binary; per call of `record`, little-endian float32, natural log",
}
"""Parquet column -> its Arrow type and meaning."""

_TOKEN_FIELDS = {"token_ids", "mask", "logprobs"}
_ROWS_PER_GROUP = 256


def write_jsonl(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write one trajectory a line. Return their number."""
    count = 0
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(trajectory.model_dump_json() + "\n")
            count += 1
    return count


def read_jsonl(path: Path) -> Iterator[Trajectory]:
    """Trajectories of a JSONL export. Raises `StoreError` naming the line that cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parse(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}.", "Name a file that `hrm-agent export` wrote."
        ) from error


def write_parquet(trajectories: Iterable[Trajectory], path: Path) -> int:
    """Write one trajectory a row. Return their number. Raises `StoreError` without pyarrow."""
    pa, parquet = pyarrow()
    types: dict[str, Callable[[], Any]] = {
        "string": pa.string,
        "int64": pa.int64,
        "double": pa.float64,
        "boolean": pa.bool_,
        "list": lambda: pa.list_(pa.binary()),
    }
    columns = [(name, types[text.split()[0].rstrip(";")]()) for name, text in COLUMNS.items()]
    count = 0
    remaining = iter(trajectories)
    with (
        replacing(path) as part,
        parquet.ParquetWriter(part, pa.schema(columns), compression="zstd") as writer,
    ):
        while rows := [_row(trajectory) for trajectory in islice(remaining, _ROWS_PER_GROUP)]:
            writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
            count += len(rows)
    return count


def read_parquet(path: Path) -> Iterator[Trajectory]:
    """Trajectories of a Parquet export. Raises `StoreError` for any other file."""
    pa, parquet = pyarrow()
    wanted = ["record", "token_ids", "mask", "logprobs"]
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_ROWS_PER_GROUP, columns=wanted):
                for row in batch.to_pylist():
                    bare = _parse(row["record"], str(path))
                    columns = zip(
                        bare.calls, row["token_ids"], row["mask"], row["logprobs"], strict=True
                    )
                    yield bare.model_copy(
                        update={"calls": tuple(_with_tokens(*column) for column in columns)}
                    )
    except (OSError, KeyError, pa.ArrowException) as error:
        hint = "Name a Parquet file that `hrm-agent export` wrote."
        raise StoreError(f"{path} is not an export of trajectories: {error}.", hint) from error


def _row(trajectory: Trajectory) -> dict[str, Any]:
    calls = trajectory.calls
    return {
        "schema_version": trajectory.schema_version,
        "id": trajectory.id,
        "run_id": trajectory.run_id,
        "group_id": trajectory.group_id,
        "task_id": trajectory.task.id,
        "task_family": trajectory.task.family,
        "graph": trajectory.graph,
        "policy": trajectory.policy,
        "policy_version": trajectory.policy_version,
        "status": trajectory.status.value,
        "stop_reason": trajectory.stop_reason.value if trajectory.stop_reason else None,
        "reward": trajectory.rewards.get("correct"),
        "trainable": trajectory.trainable,
        "sampled_tokens": trajectory.sampled_tokens,
        "record": trajectory.model_dump_json(exclude={"calls": {"__all__": _TOKEN_FIELDS}}),
        "token_ids": [np.asarray(call.token_ids, "<i4").tobytes() for call in calls],
        "mask": [bytes(call.mask) for call in calls],
        "logprobs": [np.asarray(call.logprobs, "<f4").tobytes() for call in calls],
    }


def _with_tokens(call: Call, token_ids: bytes, mask: bytes, logprobs: bytes) -> Call:
    tokens = {
        "token_ids": tuple(np.frombuffer(token_ids, "<i4").tolist()),
        "mask": tuple(byte == 1 for byte in mask),
        "logprobs": tuple(np.frombuffer(logprobs, "<f4").tolist()),
    }
    return call.model_copy(update=tokens)


def _parse(text: str, where: str) -> Trajectory:
    try:
        return Trajectory.model_validate_json(text)
    except ValidationError as error:
        _refuse_newer_version(text, where)
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or "the line"
        raise StoreError(
            f"{where} holds no trajectory: {at}: {first['msg']}.", "Export the store again."
        ) from error


def _refuse_newer_version(text: str, where: str) -> None:
    try:
        version = json.loads(text)["schema_version"]
    except (ValueError, KeyError, TypeError):
        return
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise StoreVersionError(
            f"{where} has schema version {version}; this program knows versions up to"
            f" {SCHEMA_VERSION}.",
            "Update with `pip install --upgrade hrm-agent`.",
        )


def pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its `parquet`. Raises `StoreError` if it is not installed."""
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]
        from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise StoreError(
            "Parquet needs pyarrow, which is not installed.",
            f"Run `{to_install('train')}`, or export with --format jsonl.",
        ) from error
    return pa, parquet
