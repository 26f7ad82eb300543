"""Interface of a tracker, which takes numbers by name, step by step.

A tracker reports which steps it holds. If it missed rows, because the process died or the tracker
was named later, it is sent them at the next start. No row is sent twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from hrm_agent.basics.files import read_whole, replacing

__all__ = ["TrackedRun", "Tracker"]

_LOCK = Lock()
"""Lock for the id, which several trackers request at once."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """Description of a run for its trackers."""

    name: str
    """Id of the run, the name of its folder when it began."""
    folder: Path
    """Folder of the run."""
    where: Path | None
    """Folder for the trackers' files (None: each uses its own)."""
    project: str
    """Project of the run in the tracker."""
    config: Mapping[str, Any]
    """Resolved configuration as JSON, with the command."""

    @property
    def id(self) -> str:
        """Name made unique by the content of `tracking_id` in the folder. Many folders may hold a
        run of one name.
        """
        with _LOCK:
            kept = self.folder / "tracking_id"
            known = read_whole(kept)
            if known is None:
                known = secrets.token_hex(4)
                with replacing(kept) as part:
                    part.write_text(known, encoding="utf-8")
        return f"{self.name}-{known}"


class Tracker(Protocol):
    """Tracker with one run open. Used in one thread."""

    def newest_step(self) -> int:
        """Newest step that the tracker already holds (-1 if none)."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Store a row. It is persistent when this returns."""
        ...

    def close(self) -> None:
        """Close the run. Called once."""
        ...
