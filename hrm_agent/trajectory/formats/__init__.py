"""Trajectories to files that other programs read, and back.

Two formats hold a whole trajectory and are read back as equal ones: `jsonl`, one trajectory a line as published, and
`parquet`, for many. The others are other programs' own: `trl` and the two of `verifiers` carry tokens, masks, log-probs
and rewards, which is what a trainer needs, and are read back as that; `chat` carries messages only, and there is no way
back from it to a run.

A file appears under its name only when it is complete. Trajectories are read and written one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from hrm_agent.errors import ConfigError, StoreError, nearest
from hrm_agent.trajectory.formats.chat import chat_rows
from hrm_agent.trajectory.formats.importing import Origin
from hrm_agent.trajectory.formats.messages import RequestHints
from hrm_agent.trajectory.formats.native import COLUMNS, read_jsonl, read_parquet, write_jsonl, write_parquet
from hrm_agent.trajectory.formats.rollouts import read_rollouts, rollout_rows
from hrm_agent.trajectory.formats.rows import Report, RowMaker, read_rows, write_rows
from hrm_agent.trajectory.formats.trl import read_trl, trl_rows
from hrm_agent.trajectory.formats.verifiers import read_verifiers, verifiers_rows
from hrm_agent.trajectory.schema import Trajectory

__all__ = [
    "COLUMNS",
    "FORMATS",
    "Format",
    "Origin",
    "Report",
    "RequestHints",
    "export_to",
    "format_of",
    "import_from",
    "read_jsonl",
    "read_parquet",
    "write_jsonl",
    "write_parquet",
]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    holds: str
    """A row, in words."""
    back: str
    """What is read back."""
    rows: Callable[[RequestHints, float | None], RowMaker] | None = None
    """None: whole trajectories, which have a writer of their own."""
    read: Callable[[Path, Origin], Iterator[Trajectory]] | None = None
    """None: there is no way back."""
    keys: frozenset[str] = frozenset()
    """By these a row is known as one of this format."""


_WHOLE = "the trajectory, equal to the one that was written"
_TOKENS = "tokens, masks, log-probs and rewards, as a trajectory that can be trained on"

FORMATS: dict[str, Format] = {
    "jsonl": Format(
        "a trajectory as documented above",
        f"{_WHOLE}",
        read=lambda path, origin: read_jsonl(path),
        keys=frozenset({"thread_id", "started_at"}),
    ),
    "parquet": Format(
        "a trajectory, tokens as bytes in columns of their own (see below)",
        f"{_WHOLE}; log-probs as 32-bit numbers, as in a store",
        read=lambda path, origin: read_parquet(path),
    ),
    "chat": Format(
        "one conversation to fine-tune on, `messages` and `tools`, as `train sft`, trl and chat templates read it",
        "nothing: a conversation is not a run",
        rows=lambda known, least: chat_rows(known, least_reward=least),
        keys=frozenset({"messages"}),
    ),
    "trl": Format(
        "one path of the message forest, with the keys of TRL's `rollout_func`: `prompt_ids`, `completion_ids`, "
        "`logprobs`, `env_mask`; beside them `reward` and what names the run",
        _TOKENS,
        rows=lambda known, least: trl_rows,
        read=read_trl,
        keys=frozenset({"prompt_ids", "completion_ids"}),
    ),
    "verifiers": Format(
        "one trace of the `verifiers` library, version 1: a graph of messages with their tokens",
        f"{_TOKENS}; the answers' messages",
        rows=lambda known, least: verifiers_rows(known),
        read=read_verifiers,
        keys=frozenset({"nodes", "task"}),
    ),
    "verifiers-rollouts": Format(
        "one rollout of `verifiers` before its traces: `prompt`, `completion`, `reward`, and `trajectory`, whose steps "
        "have `prompt_ids`, `completion_ids`, their masks and `completion_logprobs`",
        f"{_TOKENS}; the answers' messages",
        rows=lambda known, least: rollout_rows(known),
        read=read_rollouts,
        keys=frozenset({"trajectory", "reward"}),
    ),
}
"""Name -> what it is."""


def export_to(
    path: Path,
    trajectories: Iterable[Trajectory],
    name: str,
    known: RequestHints | None = None,
    least_reward: float | None = None,
) -> Report:
    """Write a file of the format `name`. `least_reward`: only conversations of runs with at least this one (`chat`)."""
    rows = FORMATS[format_of(path, name)].rows
    if rows is not None:
        return write_rows(trajectories, path, rows(known or RequestHints(), least_reward))
    count = (write_parquet if name == "parquet" else write_jsonl)(trajectories, path)
    return Report(count, count)


def import_from(path: Path, name: str | None = None, origin: Origin | None = None) -> Iterator[Trajectory]:
    """The trajectories of a file; of the format `name`, else of the one that its first row shows."""
    found = format_of(path, name) if name else _shown(path)
    read = FORMATS[found].read
    if read is None:
        raise StoreError(
            f"{path} holds conversations, which cannot be imported as runs.",
            f"Train on it as it is: hrm-agent train sft {path}",
        )
    return read(path, origin or Origin())


def format_of(path: Path, name: str | None) -> str:
    """The format called `name`, else the one that the suffix of `path` says. Raises `ConfigError` if there is none."""
    wanted = name or path.suffix.removeprefix(".")
    if wanted in FORMATS:
        return wanted
    if name is None:
        raise ConfigError(f"{path} names no format.", f"Add --format {', '.join(FORMATS)}.")
    raise ConfigError(f"There is no format {name!r}.", nearest(name, FORMATS) or f"There are {', '.join(FORMATS)}.")


def _shown(path: Path) -> str:
    """The format of an unnamed file, by its suffix or its first row."""
    if path.suffix == ".parquet":
        return "parquet"
    first = next(islice((row for _, row in read_rows(path)), 1), None)
    fits = (name for name, one in FORMATS.items() if first is not None and one.keys and one.keys <= first.keys())
    return next(chain(fits, ("jsonl",)))
