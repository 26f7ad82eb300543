"""Outcomes that are given again to calls which are submitted again under their id: the latest, within bounds.

An id counts within its run: no run is given another's outcome. What the infrastructure failed at is not kept, since
whoever submits that again wants it to be run.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.trajectory import ToolStatus

__all__ = ["ResultCache"]

_ENTRY_BYTES = 1000
"""Of an outcome without its texts, and of its place here."""


class ResultCache:
    """Not thread-safe."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._kept: OrderedDict[tuple[str, str], tuple[bytes, ExecutionResult]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, submission: Submission) -> tuple[bool, ExecutionResult] | None:
        """Whether it was the same call, and its outcome."""
        found = self._kept.get((submission.run, submission.id or ""))
        return None if found is None else (found[0] == _fingerprint(submission), found[1])

    def keep(self, submission: Submission, result: ExecutionResult) -> None:
        if submission.id is None or result.status is ToolStatus.INFRASTRUCTURE:
            return
        key = (submission.run, submission.id)
        if key in self._kept:
            self._bytes -= _size(self._kept.pop(key)[1])
        self._kept[key] = (_fingerprint(submission), result)
        self._bytes += _size(result)
        while len(self._kept) > self._bounds.answers or self._bytes > self._bounds.answers_bytes:
            self._bytes -= _size(self._kept.popitem(last=False)[1][1])


def _fingerprint(submission: Submission) -> bytes:
    session = "" if submission.session is None else f"{len(submission.session)}:{submission.session}"
    text = f"{session}\0{submission.code}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _size(result: ExecutionResult) -> int:
    texts = (result.stdout, result.stderr, result.value or "", result.value_json or "")
    return _ENTRY_BYTES + sum(map(len, texts))
