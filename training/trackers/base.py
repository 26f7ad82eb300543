"""What a tracker is: something that takes numbers by name, step by step.

A tracker says itself which steps it holds. So one that missed rows, since the process died or the
tracker was named later, is sent them at the next start, and none is sent twice.
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
"""Several trackers ask for the id at once."""


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """What a tracker is told of a run at its start."""

    name: str
    """Id of the run, as its folder was called when it began."""
    folder: Path
    """The run's folder."""
    where: Path | None
    """Folder that the trackers were told to write to; None: each has its own."""
    project: str
    """Project that the run is filed under."""
    config: Mapping[str, Any]
    """The resolved configuration, as JSON, with the command."""

    @property
    def id(self) -> str:
        """The name, made unique by what `tracking_id` in the folder keeps: many folders may hold a
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
    """One tracker with one run open. Used in one thread."""

    def newest_step(self) -> int:
        """The newest step that it holds already; -1 where it holds none."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take a row. It is held, and not only promised, when this returns."""
        ...

    def close(self) -> None:
        """End what is open; called once."""
        ...
