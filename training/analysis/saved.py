"""Saved results of analyses of a training run.

A result is a file `RUN/analyses/KIND-DIGEST.json`, whose JSON object has these keys:

    kind       kind of the analysis
    title      subject of the analysis in one line
    command    command that computed the result
    result     the result, in the form of its kind

DIGEST is the digest of the analysis' arguments. So a repeated analysis replaces its file. Importing
this module imports no torch, since the viewer reads these files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import json_line, replacing
from hrm_agent.basics.unicode import replace_surrogates

__all__ = ["ANALYSES", "KINDS", "MOST_BYTES", "kind_of", "save_analysis"]

ANALYSES = "analyses"
"""Name of the folder of results in a run's folder."""
KINDS = ("failures", "film", "gate", "optimize", "reward-diff", "roles", "why")
"""Kinds of analyses. In the viewer, `hrm.analyses[KIND]` is the component that shows a result."""
_NAME = re.compile(rf"({'|'.join(map(re.escape, KINDS))})-[0-9a-f]{{16}}")
MOST_BYTES = 1 << 24
"""Maximum bytes of a file that the viewer reads as a whole."""
_LONGEST_TITLE = 200


def kind_of(name: str) -> str | None:
    """Kind of the result in a file of this name without `.json` (None for any other name)."""
    found = _NAME.fullmatch(name)
    return found[1] if found else None


def save_analysis(
    folder: Path,
    kind: str,
    arguments: Mapping[str, object],
    *,
    title: str,
    command: str,
    result: Mapping[str, Any],
) -> Path:
    """Save a result, and return the path of its file. `folder`: folder of the run. `arguments`:
    arguments of the analysis that affect the result. Raises `OSError` if the file cannot be written, or
    is too large for the viewer.
    """
    told = json.dumps(arguments, sort_keys=True, default=str)
    path = folder / ANALYSES / f"{kind}-{sha256(told.encode()).hexdigest()[:16]}.json"
    line = " ".join(title.split())
    shown = line if len(line) <= _LONGEST_TITLE else f"{line[:_LONGEST_TITLE]}..."
    text = json_line({"kind": kind, "title": shown, "command": command, "result": result})
    data = f"{replace_surrogates(text)}\n".encode()
    if len(data) > MOST_BYTES:
        raise OSError(f"it has {len(data):,} bytes, and the viewer reads at most {MOST_BYTES:,}")
    with replacing(path) as part:
        part.write_bytes(data)
    return path
