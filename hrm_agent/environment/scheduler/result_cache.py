"""Cache of the latest outcomes, for calls that are submitted again under their id. Bounded in size.

An id belongs to its run: no run gets the outcome of another. Outcomes with status `infrastructure`
are not kept, since a caller that submits such a call again wants it to be run.
"""

from __future__ import annotations

import hashlib

from hrm_agent.basics.bounded import BoundedMap
from hrm_agent.environment.base import ExecutionResult, Submission
from hrm_agent.environment.scheduler.admission import Bounds
from hrm_agent.trajectory import ToolStatus

__all__ = ["ResultCache"]

_Kept = tuple[bytes, ExecutionResult]
_ENTRY_BYTES = 1000
"""Size of an outcome without its texts, and of its entry."""


class ResultCache:
    """Cache of outcomes by run and id. Not thread-safe."""

    def __init__(self, bounds: Bounds) -> None:
        self._kept = BoundedMap[tuple[str, str], _Kept](bounds.answers, _size, bounds.answers_bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, submission: Submission) -> tuple[bool, ExecutionResult] | None:
        """Pair of (True if it was the same call, its outcome), or None if the id is unknown."""
        found = self._kept.get((submission.run, submission.id or ""))
        return None if found is None else (found[0] == _fingerprint(submission), found[1])

    def keep(self, submission: Submission, result: ExecutionResult) -> None:
        if submission.id is None or result.status is ToolStatus.INFRASTRUCTURE:
            return
        key = (submission.run, submission.id)
        self._kept.pop(key, None)
        self._kept[key] = (_fingerprint(submission), result)


def _fingerprint(submission: Submission) -> bytes:
    session = (
        "" if submission.session is None else f"{len(submission.session)}:{submission.session}"
    )
    text = f"{session}\0{submission.code}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _size(kept: _Kept) -> int:
    result = kept[1]
    texts = (result.stdout, result.stderr, result.value or "", result.value_json or "")
    return _ENTRY_BYTES + sum(map(len, texts))
