"""Files of an analysis: its numbers, and the entropy of each token."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hrm_agent.basics.files import json_line, replacing
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import ConfigError
from hrm_agent.training.analysis.report import AnalysisReport, MarkedCall

__all__ = ["check_folder", "write_analysis"]

_REPORT, _TOKENS = "report.json", "tokens.jsonl"


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` for a folder that has contents other than an analysis, or that cannot be
    written to.
    """
    if folder.is_dir() and any(folder.iterdir()) and not _is_analysis(folder):
        raise ConfigError(
            f"{folder} is not empty, and has no analysis that could be replaced.",
            "Name another folder by --out.",
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file.", "Name a folder by --out.")
    above = next(each for each in folder.absolute().parents if each.exists())
    try:
        tempfile.TemporaryDirectory(prefix=".hrm-agent-", dir=above).cleanup()
    except OSError as error:
        raise ConfigError(
            f"{folder} cannot be made: {error.strerror}.", "Name another folder by --out."
        ) from error


def write_analysis(report: AnalysisReport, marked: Sequence[MarkedCall], folder: Path) -> list[str]:
    """Write the report and its tokens to `folder`, and return the names of the files. Files of an
    earlier analysis are replaced, each at once.

    Raises `ConfigError` for a folder with contents other than an analysis.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for old in (folder / "index.html", *folder.glob("*.png")):  # files of version 0.2.0
        old.unlink(missing_ok=True)
    whole = json.dumps(json.loads(json_line(asdict(report))), ensure_ascii=False, indent=1)
    with replacing(folder / _REPORT) as part:
        part.write_text(replace_surrogates(whole) + "\n", encoding="utf-8")
    if not marked:
        (folder / _TOKENS).unlink(missing_ok=True)
        return [_REPORT]
    lines: list[str] = []
    for each in marked:
        entropies = each.call.entropies.tolist()
        row = {
            "call": each.call.call_id,
            "entropy": [None if math.isnan(value) else round(value, 5) for value in entropies],
            "forking": list(each.forking),
            "reflection": list(each.reflection),
        }
        lines.append(json_line(row) + "\n")
    with replacing(folder / _TOKENS) as part:
        part.write_text("".join(lines), encoding="utf-8")
    return [_REPORT, _TOKENS]


def _is_analysis(folder: Path) -> bool:
    try:
        found = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"schema_version", "tool_errors", "missing"} <= found.keys()
