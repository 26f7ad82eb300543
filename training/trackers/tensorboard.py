"""TensorBoard tracker: an event file in the run's folder, in TensorBoard's own record format,
without TensorFlow.

A row is one record, so that a kill leaves all of a step or none of it. Each start writes another
file beside the earlier ones. TensorBoard reads them as one run.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from hrm_agent.training.trackers.base import TrackedRun, Tracker

__all__ = ["open_tensorboard"]

_AROUND = struct.Struct("<QI")
"""Header of a record: its length, and the checksum of the length. A checksum of the record follows
the record.
"""
_CHECKSUM_BYTES = 4


def open_tensorboard(run: TrackedRun) -> Tracker:
    return _TensorBoard(
        run.where / run.id if run.where is not None else run.folder / "tensorboard", run
    )


class _TensorBoard:
    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._event = _message("event", "Event")
        self._newest = max(
            (step for file in _event_files(folder) for step in self._steps(file)), default=-1
        )
        begins = self._newest < 0
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file: BinaryIO = (folder / name).open("wb")
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        if begins:
            self._write(
                step=0,
                summary=_text("config", f"```json\n{json.dumps(dict(run.config), indent=2)}\n```"),
            )
            self._write(step=0, summary=_text("run_id", run.name))

    def newest_step(self) -> int:
        return self._newest

    def log(self, step: int, values: Mapping[str, float]) -> None:
        Summary = _message("summary", "Summary")
        row = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=Summary(value=row))

    def close(self) -> None:
        self._file.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def _steps(self, file: Path) -> Iterator[int]:
        """Steps of the rows in a file. A truncated record is skipped."""
        for record in _records(file.read_bytes()):
            event = self._event.FromString(record)
            if any(value.HasField("simple_value") for value in event.summary.value):
                yield int(event.step)


def _event_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _AROUND.size <= len(data):
        begins = at + _AROUND.size
        ends = begins + _AROUND.unpack_from(data, at)[0]
        at = ends + _CHECKSUM_BYTES
        if at <= len(data):
            yield data[begins:ends]


def _text(name: str, text: str) -> Any:
    """Summary value of a text, as shown on TensorBoard's text page."""
    Summary, SummaryMetadata = (
        _message("summary", "Summary"),
        _message("summary", "SummaryMetadata"),
    )
    TensorProto, TensorShapeProto = (
        _message("tensor", "TensorProto"),
        _message("tensor_shape", "TensorShapeProto"),
    )
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
    shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag=name, metadata=shown, tensor=tensor)])


def _message(file: str, name: str) -> Any:
    """Class that protobuf creates when the file of its definitions is imported."""
    return getattr(import_module(f"tensorboard.compat.proto.{file}_pb2"), name)
