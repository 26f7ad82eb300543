"""Errors that this project raises on purpose.

    HrmError                   something a user can fix; the command line prints it and exits with 2
    ├── ConfigError            a key, a value or a file of a configuration is wrong
    ├── GraphError             a graph is unknown, does not import, or is no LangGraph graph
    ├── TaskError              a task family is unknown, or a task file is malformed
    ├── ModelError             a model cannot be found or loaded, or lacks a needed capability
    │   ├── ContextLengthError a conversation no longer fits into the model's context window
    │   └── TemplateRefusalError the model's chat template refuses a conversation
    ├── QueueFullError         the queue of waiting calls of an environment is full
    ├── RetrievalError         documents cannot be indexed, or an index cannot be opened, read or written
    ├── RunError               a run directory is missing, incomplete or belongs to another configuration
    └── StoreError             the run store cannot be opened, read or written
        ├── StoreChangedError  another process wrote to the store during a read: read again
        ├── StoreVersionError  the store was written by a newer schema version
        ├── StoreDamagedError  pages of the store's file cannot be read
        ├── StoreFullError     the disk is full; what was committed before is intact
        ├── LeaseLostError     another process took over the thread; what this one did since is not recorded
        └── UnstorableError    a value of a graph's state has no stored form: the run fails

Faults of a *policy* (a snippet that fails, a call that cannot be decoded, a budget that runs out)
are never exceptions. They are data, typed by `hrm_agent.trajectory.ToolStatus` and `StopReason`.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePath
from typing import Any

__all__ = [
    "ConfigError",
    "ContextLengthError",
    "GraphError",
    "HrmError",
    "LeaseLostError",
    "ModelError",
    "QueueFullError",
    "RetrievalError",
    "RunError",
    "StoreChangedError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreVersionError",
    "TaskError",
    "TemplateRefusalError",
    "UnstorableError",
    "nearest",
    "place_of",
    "to_install",
]

_OWN = f"{os.sep}hrm_agent{os.sep}"
_GRAPHS = f"{_OWN}graphs{os.sep}"
_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


class HrmError(Exception):
    """Base of all errors that a user can fix.

    `message` states the problem and its place. `hint` is the next step, if possible a command to
    paste.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.hint = hint


class ConfigError(HrmError):
    """A configuration key, value or file is wrong."""


class GraphError(HrmError):
    """A graph is unknown, does not import, or is not a LangGraph graph."""


class TaskError(HrmError):
    """A task family is unknown, or a file of tasks is malformed."""


class ModelError(HrmError):
    """A model cannot be found or loaded, or lacks a needed capability."""


class ContextLengthError(ModelError):
    """A conversation no longer fits into the model's context window. This is a limit, not a
    fault.
    """


class TemplateRefusalError(ModelError):
    """The model's chat template refuses a conversation. If the policy has already written a part of
    the conversation, only this run ends, and the command goes on.
    """


class QueueFullError(HrmError):
    """The queue of waiting calls of an environment is full. Try again later."""


class RetrievalError(HrmError):
    """Documents cannot be indexed, or an index cannot be opened, read or written."""


class RunError(HrmError):
    """A run directory is missing, incomplete, or was made with another configuration."""


class StoreError(HrmError):
    """The run store cannot be opened, read or written."""


class StoreChangedError(StoreError):
    """Another process has written to the store while it was being read, so that what was read may
    be a mixture. A second read is sound.
    """


class StoreVersionError(StoreError):
    """The store was written by a newer schema version than this program knows."""


class StoreDamagedError(StoreError):
    """Pages of the store's file cannot be read: a disk fault, or another program has written into
    the file.
    """


class StoreFullError(StoreError):
    """The disk is full. Everything committed before the failing write is intact."""


class LeaseLostError(StoreError):
    """Another process took over a thread whose lease this process did not renew in time. This
    process writes nothing more to the thread.
    """

    def __init__(
        self, message: str, hint: str = "", *, thread_id: str = "", key: str = "", epoch: int = 0
    ) -> None:
        super().__init__(message, hint)
        self.thread_id = thread_id
        self.key = key
        """Row of the lease."""
        self.epoch = epoch
        """Epoch of the lost lease. This process may have taken the lease again since."""


class UnstorableError(StoreError, TypeError):
    """A value of a graph's state has no stored form, or is nested too deeply to be read back. The
    store itself is intact.
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"Did you mean 'x'?"` for the known name closest to `name`, else an empty string."""
    match = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {match[0]!r}?" if match else ""


@cache
def to_install(*extras: str) -> str:
    """`pip` command that adds extras to this installation. It names the source that hrm-agent was
    installed from: an index, a repository or a folder.
    """
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    brackets = f"[{','.join(extras)}]"
    try:
        text = metadata.distribution("hrm-agent").read_text("direct_url.json")
        source: dict[str, Any] = json.loads(text) if text else {}
    except (metadata.PackageNotFoundError, ValueError):  # a checkout on Python's path
        source = {"url": Path(__file__).parents[1].as_uri(), "dir_info": {"editable": True}}
    url = str(source.get("url", ""))
    if vcs := source.get("vcs_info"):
        revision = vcs.get("requested_revision") or vcs.get("commit_id", "")
        return (
            f"pip install 'hrm-agent{brackets} @"
            f" {vcs.get('vcs', 'git')}+{url}{'@' * bool(revision)}{revision}'"
        )
    if url.startswith("file://"):
        editable = "-e " if source.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}'{unquote(urlsplit(url).path)}{brackets}'"
    return (
        f"pip install 'hrm-agent{brackets} @ {url}'"
        if url
        else f"pip install 'hrm-agent{brackets}'"
    )


def place_of(error: BaseException) -> str | None:
    """Place of an error as `file.py:LINE in function` (None without a traceback).

    It is the innermost line of the user's code or of a graph. If there is none, it is the innermost
    line.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    for frame in reversed(own or frames):
        return f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
    return None


def _is_library(filename: str) -> bool:
    return filename.startswith(("<frozen", *_INSTALLED)) or (
        _OWN in filename and _GRAPHS not in filename
    )
