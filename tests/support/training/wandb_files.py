"""Contents of the file that wandb writes for a run, online and offline alike: LevelDB's log format,
with protobuf inside.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_CHUNK = struct.Struct("<IHB")
_ENDS_RECORD = (1, 4)
"""Kinds of chunk that end a record: a whole record, or its last part."""


def wandb_records(path: Path) -> Iterator[Any]:
    """Records as wandb's `Record`. A truncated one is skipped."""
    Record = import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, record = path.read_bytes(), _FILE_HEADER_BYTES, b""
    while at + _CHUNK.size <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _CHUNK.size:
            at += left
            continue
        _, length, kind = _CHUNK.unpack_from(data, at)
        at += _CHUNK.size + length
        if at > len(data):
            return
        record += data[at - length : at]
        if kind in _ENDS_RECORD:
            yield Record.FromString(record)
            record = b""


def history(path: Path) -> dict[int, dict[str, float]]:
    """Numbers by step. Raises if a step occurs twice."""
    found: dict[int, dict[str, float]] = {}
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            step = int(items["_step"])
            assert step not in found
            found[step] = {name: value for name, value in items.items() if not name.startswith("_")}
    return found


def config(path: Path) -> dict[str, Any]:
    """Configuration of the run."""
    (run,) = [
        record.run for record in wandb_records(path) if record.WhichOneof("record_type") == "run"
    ]
    return {item.key: json.loads(item.value_json) for item in run.config.update}
