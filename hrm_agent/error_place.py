"""Place at which an error was raised: the user's own line, not that of a library that it passed through."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import PurePath

__all__ = ["place_of"]

_OWN = f"{os.sep}hrm_agent{os.sep}"
_GRAPHS = f"{_OWN}graphs{os.sep}"
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str | None:
    """`file.py:LINE in function`: the innermost line outside of what is installed, else the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    for frame in reversed(own or frames):
        return f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
    return None


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", *_INSTALLED)) or (_OWN in filename and _GRAPHS not in filename)
