"""Folder of an analysis, which is replaced as a whole.

It is written in a hidden folder beside, on which its process holds a lock. A hidden folder without
a lock was left by a killed process, and is removed by the next one.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hrm_agent.basics.files import json_line, locked_folder
from hrm_agent.basics.unicode import replace_surrogates
from hrm_agent.errors import ConfigError
from hrm_agent.training.analysis.page import page
from hrm_agent.training.analysis.pictures import PICTURES, draw
from hrm_agent.training.analysis.report import AnalysisReport, MarkedCall

__all__ = ["check_folder", "write_analysis"]

_REPORT, _TOKENS, _PAGE = "report.json", "tokens.jsonl", "index.html"
_REST = "-before"
"""Suffix of the folder of the analysis that is being replaced."""


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` for a folder that has other contents, or that cannot be written to."""
    if folder.is_dir() and any(folder.iterdir()) and not _is_analysis(folder):
        raise ConfigError(
            f"{folder} is not empty, and holds no analysis that could be replaced.",
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
    """Write report, tokens, pictures and page to `folder`, and return the names of the files. An
    earlier analysis is replaced.

    Without matplotlib there are no pictures. Raises `ConfigError` for a folder with other contents.
    """
    check_folder(folder)
    with _whole(folder) as part:
        (part / _REPORT).write_text(_json(asdict(report)), encoding="utf-8")
        if marked:
            lines = "".join(json_line(_line(each)) + "\n" for each in marked)
            (part / _TOKENS).write_text(lines, encoding="utf-8")
        light, dark = _pictures(report, part)
        (part / _PAGE).write_text(page(report, marked, light, dark), encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())


def _pictures(report: AnalysisReport, folder: Path) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Draw pictures, light and dark. Light ones stay in the folder, dark ones are only in the
    page.
    """
    try:
        light = {name: path.read_bytes() for name, path in draw(report, folder).items()}
    except ConfigError:
        return {}, {}
    dark: dict[str, bytes] = {}
    for name, path in draw(report, folder, dark=True).items():
        dark[name] = path.read_bytes()
        path.unlink()
    return light, dark


@contextmanager
def _whole(folder: Path) -> Generator[Path]:
    """Yield a folder to write to, which replaces `folder` at the end, and is removed on failure."""
    folder = folder.resolve()  # the target of a link is replaced, and the link stays
    folder.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        # lock it before another process can take it for a stale one
        with locked_folder(folder.parent):
            _remove_stale(folder)
            made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            stack.enter_context(locked_folder(made))
        made.chmod(0o755)
        yield made
        before = made.with_name(f"{made.name}{_REST}")
        with locked_folder(folder.parent):
            if folder.exists():
                folder.rename(before)
            made.rename(folder)
        shutil.rmtree(before, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove folders left by killed processes, and restore an analysis that was about to be
    replaced.
    """
    name = re.compile(rf"\.{re.escape(folder.name)}-[a-z0-9_]{{8}}({_REST})?")
    for left in [
        path for path in folder.parent.iterdir() if name.fullmatch(path.name) and _is_ours(path)
    ]:
        # it may belong to another user, or be in use
        with suppress(OSError), locked_folder(left, fcntl.LOCK_NB):
            if left.name.endswith(_REST) and not folder.exists():
                left.rename(folder)
            else:
                shutil.rmtree(left)


def _is_ours(path: Path) -> bool:
    """True if a folder contains only files of an analysis."""
    known = {
        _REPORT,
        _TOKENS,
        _PAGE,
        *(f"{each.name}{dark}.png" for each in PICTURES for dark in ("", "-dark")),
    }
    with suppress(OSError):
        return (
            path.is_dir()
            and not path.is_symlink()
            and all(each.is_file() and each.name in known for each in path.iterdir())
        )
    return False


def _is_analysis(folder: Path) -> bool:
    try:
        found = json.loads((folder / _REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and {"schema_version", "tool_errors", "missing"} <= found.keys()


def _line(marked: MarkedCall) -> dict[str, Any]:
    call = marked.call
    entropies = [
        None if math.isnan(value) else round(value, 5) for value in call.entropies.tolist()
    ]
    return {
        "call": call.call_id,
        "entropy": entropies,
        "forking": list(marked.forking),
        "reflection": list(marked.reflection),
    }


def _json(record: Any) -> str:
    whole = json.dumps(json.loads(json_line(record)), ensure_ascii=False, indent=1)
    return replace_surrogates(whole) + "\n"
