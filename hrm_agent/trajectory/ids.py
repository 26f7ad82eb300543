"""Ids that stay the same when a run is resumed: derived from LangGraph's ids, not drawn at
random.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

__all__ = [
    "NOT_RECORDED",
    "TASK_INPUTS",
    "call_id",
    "content_hash",
    "derive_seed",
    "step_in_name",
    "tool_record_id",
]

TASK_INPUTS = "inputs"
"""Metadata key of a task. Its value is the graph's input, a JSON object that is used instead of a
human message with the prompt.
"""
NOT_RECORDED = "not_recorded"
"""Metadata key of a task of a partly recorded program. Its value says in words what was lost
first.
"""
_STEP = re.compile(r"step-([0-9]{1,15})(?:/|\Z)")


def content_hash(*parts: Any) -> str:
    """Return 32 hex digits of SHA-256 over the canonical JSON of `parts`."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def call_id(thread_id: str, task_id: str, call_index: int, sample_index: int = 0) -> str:
    """Id of a model call."""
    return content_hash("call", thread_id, task_id, call_index, sample_index)


def tool_record_id(thread_id: str, task_id: str, tool_call_id: str) -> str:
    """Id of a tool call's record."""
    return content_hash("tool", thread_id, task_id, tool_call_id)


def derive_seed(base: int, *parts: Any) -> int:
    """Derive a 63-bit seed that depends on `base` and on each of `parts`.

    The parts must be free of LangGraph's checkpoint and task ids. These ids contain the time, so
    that two runs with one seed would differ.
    """
    return int(content_hash("seed", base, *parts)[:16], 16) >> 1


def step_in_name(name: str, run_id: str) -> int | None:
    """Step, from 0, for which a training began a thread or group: 7 for `RUN/step-7/3/0` (None for
    other names).
    """
    found = _STEP.match(name, len(run_id) + 1) if run_id and name.startswith(f"{run_id}/") else None
    return int(found[1]) if found else None
