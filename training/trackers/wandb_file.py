"""Reads the file that wandb writes for a run, online and offline alike: LevelDB's log format, with
protobuf inside.

Blocks of 32 KiB contain chunks, each after its checksum, length and kind. A record is one chunk or
several.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["steps_in", "wandb_records"]

_BLOCK_BYTES = 32768
_FILE_HEADER_BYTES = 7
_CHUNK = struct.Struct("<IHB")
_ENDS_RECORD = (1, 4)
"""Kinds of chunk that end a record: a whole record, or its last part. 2 is a first part, 3 one in
the middle.
"""


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


def steps_in(path: Path) -> Iterator[int]:
    """Steps whose rows the file holds."""
    for record in wandb_records(path):
        if record.WhichOneof("record_type") == "history":
            yield int(record.history.step.num)
