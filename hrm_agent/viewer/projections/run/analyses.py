"""Saved analyses of a training run."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hrm_agent.training.analysis.saved import ANALYSES, kind_of
from hrm_agent.viewer.json_text import NotThere, foreign, short
from hrm_agent.viewer.projections.runs import is_own_run
from hrm_agent.viewer.run_files import json_file

if TYPE_CHECKING:
    from hrm_agent.viewer.places import Place

__all__ = ["analyses", "analysis"]

_MOST = 200
"""Maximum number of analyses in the list. The newest are preferred."""


def analyses(place: Place, run: str) -> dict[str, Any]:
    """`GET analyses`: analyses of a run, the newest first. `unreadable`: number of files that have
    the name of an analysis, and are none.
    """
    files = sorted(_files(place, run), reverse=True)[:_MOST]
    found = [
        {"name": path.stem, "kind": kind_of(path.stem), "title": title, "at": stamp[0] / 1e9}
        for stamp, path in files
        if (title := _title(path, stamp)) is not None
    ]
    return {"analyses": found, "unreadable": len(files) - len(found)}


def analysis(place: Place, run: str, name: str) -> dict[str, Any]:
    """`GET analysis`: one analysis, by its name in the list."""
    found = _read(place.folder, name) if place.folder and is_own_run(place, run) else None
    if found is None:
        raise NotThere(
            f"There is no analysis {short(name)!r} of this run, or it cannot be read.",
            "The page of the run lists its analyses.",
        )
    return {"name": name, **foreign(found), "title": short(found["title"])}


def _files(place: Place, run: str) -> list[tuple[tuple[int, int, int], Path]]:
    """Files with the name of an analysis, each with its time, inode and size."""
    found: list[tuple[tuple[int, int, int], Path]] = []
    if place.folder is None or not is_own_run(place, run):
        return found
    try:
        paths = [*(place.folder / ANALYSES).iterdir()]
    except OSError:  # no analysis was saved
        return found
    for path in paths:
        if path.suffix == ".json" and kind_of(path.stem) is not None:
            try:
                facts = os.stat(path, follow_symlinks=False)  # noqa: PTH116
            except OSError:  # removed meanwhile
                continue
            found.append(((facts.st_mtime_ns, facts.st_ino, facts.st_size), path))
    return found


@lru_cache(maxsize=1_000)
def _title(path: Path, stamp: tuple[int, int, int]) -> str | None:
    """Title of the analysis in a file (None if it has none). `stamp`: changes with the file."""
    del stamp
    found = _read(path.parents[1], path.stem)
    return None if found is None else short(found["title"])


def _read(folder: Path, name: str) -> dict[str, Any] | None:
    """Analysis by its name (None if the file is missing, too large, a link or invalid)."""
    kind = kind_of(name)
    path = folder / ANALYSES / f"{name}.json"
    if kind is None or path.is_symlink():
        return None
    found = json_file(path.parent, path.name)
    types = {"kind": str, "title": str, "command": str, "result": dict}
    if found.keys() != types.keys() or found["kind"] != kind:
        return None
    if not all(isinstance(found[key], type_) for key, type_ in types.items()):
        return None
    return found
