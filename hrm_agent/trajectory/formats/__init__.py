"""Export of trajectories to files of other programs, and import.

Two formats hold whole trajectories and are read back as equal ones: `jsonl`, one trajectory a line
as published, and `parquet`, for many. The others belong to other programs. `trl` and `verifiers`
carry tokens, masks, log-probs and rewards, which a trainer needs, and only these are read back.
`atif` carries everything except the messages from which tokens were rendered; documents of other
agents are read, too. `chat` and `preference` carry messages only and `verl` tasks; these three are
not read back. `otel` carries spans, and spans of other programs are read, too. Traces of `phoenix`,
`langsmith` and `langfuse` and logs of `inspect` are only read. docs/formats.md lists what each
format keeps.

A file appears under its name only when it is complete. Trajectories are read and written one at a
time.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from hrm_agent.errors import ConfigError, StoreError, nearest
from hrm_agent.trajectory.formats.atif.export import atif_rows
from hrm_agent.trajectory.formats.atif.importing import read_atif
from hrm_agent.trajectory.formats.chat import chat_rows
from hrm_agent.trajectory.formats.inspect.logs import read_inspect
from hrm_agent.trajectory.formats.native import (
    COLUMNS,
    read_jsonl,
    read_parquet,
    write_jsonl,
    write_parquet,
)
from hrm_agent.trajectory.formats.otel.file import otel_rows
from hrm_agent.trajectory.formats.preference import write_preference
from hrm_agent.trajectory.formats.shared.json_documents import documents
from hrm_agent.trajectory.formats.shared.messages import RequestHints
from hrm_agent.trajectory.formats.shared.rows import Report, RowMaker, write_rows
from hrm_agent.trajectory.formats.shared.token_runs import Origin
from hrm_agent.trajectory.formats.traces.reading import TRACE_FORMATS, read_traces, trace_format
from hrm_agent.trajectory.formats.traces.runs import missing_parts
from hrm_agent.trajectory.formats.trl import read_trl, trl_rows
from hrm_agent.trajectory.formats.verifiers import read_verifiers, verifiers_rows
from hrm_agent.trajectory.formats.verl import write_verl
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
    "missing_parts",
    "read_jsonl",
    "read_parquet",
    "write_jsonl",
    "write_parquet",
]


@dataclass(frozen=True, slots=True)
class Format:
    """File format."""

    holds: str
    """Description of a row."""
    back: str
    """Description of what is read back."""
    rows: Callable[[RequestHints, float | None, Collection[str]], RowMaker] | None = None
    """Function that makes a row maker from known request data, a least reward and the wanted roles
    (None: `write` is used, or the format cannot be written).
    """
    write: Callable[[Iterable[Trajectory], Path, RequestHints], Report] | None = None
    """Writer for files that are not a JSON object a line."""
    read: Callable[[Path, Origin], Iterator[Trajectory]] | None = None
    """Reader (None: the format cannot be read back)."""
    keys: frozenset[str] = frozenset()
    """Keys by which a row of this format is recognised."""


def _whole(count: int) -> Report:
    return Report(count, count)


def _traces(name: str) -> Callable[[Path, Origin], Iterator[Trajectory]]:
    return lambda path, origin: read_traces([path], origin, name)


_WHOLE = "the trajectory, equal to the one that was written"
_TOKENS = "tokens, masks, log-probs and rewards, as a trajectory that can be trained on"

FORMATS: dict[str, Format] = {
    "jsonl": Format(
        "a trajectory as documented above",
        f"{_WHOLE}",
        write=lambda runs, path, known: _whole(write_jsonl(runs, path)),
        read=lambda path, origin: read_jsonl(path),
        keys=frozenset({"thread_id", "started_at"}),
    ),
    "parquet": Format(
        "a trajectory, tokens as bytes in columns of their own (see below)",
        f"{_WHOLE}; log-probs as 32-bit numbers, as in a store",
        write=lambda runs, path, known: _whole(write_parquet(runs, path)),
        read=lambda path, origin: read_parquet(path),
    ),
    "chat": Format(
        "one conversation to fine-tune on, `messages` and `tools`, as `train sft`, trl and chat"
        " templates read it; beside them `role`, `model`, `answer`, `reward` and `trajectory_id`",
        "nothing: a conversation is not a run",
        rows=lambda known, least, roles: chat_rows(known, least_reward=least, roles=roles),
        keys=frozenset({"messages"}),
    ),
    "preference": Format(
        "a better and a worse answer to one prompt, of the best and the worst rollout of a group:"
        " `prompt`, `chosen`, `rejected`, as TRL's preference trainers read conversations",
        "nothing: a pair is not a run",
        write=write_preference,
        keys=frozenset({"chosen", "rejected"}),
    ),
    "trl": Format(
        "one path of the message forest, with the keys of TRL's `rollout_func`: `prompt_ids`,"
        " `completion_ids`, `logprobs`, `env_mask`; beside them `reward` and what names the run",
        _TOKENS,
        rows=lambda known, least, roles: trl_rows,
        read=read_trl,
        keys=frozenset({"prompt_ids", "completion_ids"}),
    ),
    "verifiers": Format(
        "one trace of the `verifiers` library, version 1: a graph of messages with their tokens",
        f"{_TOKENS}; the answers' messages",
        rows=lambda known, least, roles: verifiers_rows(known),
        read=read_verifiers,
        keys=frozenset({"nodes", "task"}),
    ),
    "atif": Format(
        "one document of ATIF 1.8: steps with messages, tool calls, results and metrics",
        "of own documents the trajectory, without the messages that tokens hold; of a document of"
        " another agent a run: messages, tool calls, tokens, usage and rewards",
        rows=lambda known, least, roles: atif_rows(known),
        read=read_atif,
        keys=frozenset({"schema_version", "steps"}),
    ),
    "verl": Format(
        "one task for verl's trainer, in Parquet: `data_source`, `prompt`, `ability`,"
        " `reward_model`, `extra_info`",
        "nothing: a task is not a run",
        write=write_verl,
    ),
    "otel": Format(
        "the spans of one trajectory, as OpenTelemetry's OTLP has them in JSON: `resourceSpans`",
        "a run for each trace: messages, model calls, tool calls and usage, if the spans have them",
        rows=lambda known, least, roles: otel_rows(),
        read=_traces("otel"),
        keys=frozenset({"resourceSpans"}),
    ),
    "inspect": Format(
        "not written: the logs of inspect_ai, `.eval` or JSON, are read only",
        "a run for each sample and epoch: messages, model calls, tool calls, usage, and scores as"
        " rewards",
        read=read_inspect,
        keys=frozenset({"eval", "status"}),
    ),
    "phoenix": Format(
        "not written: spans by OpenInference, in OTLP or as Phoenix's API lists them, are read only",
        "a run for each trace, as of `otel`",
        read=_traces("phoenix"),
    ),
    "langsmith": Format(
        "not written: runs of LangSmith, as JSON, are read only",
        "a run for each trace: messages, model calls, tool calls, usage and costs",
        read=_traces("langsmith"),
    ),
    "langfuse": Format(
        "not written: observations of Langfuse, as JSON or OTLP, are read only",
        "a run for each trace: messages, model calls, tool calls, usage and costs",
        read=_traces("langfuse"),
    ),
}
"""Format by name."""
_BLANK = 4096
"""Maximum bytes of a file that counts as empty, with spaces alone."""
_NO_RUNS = {"chat": "conversations", "preference": "pairs", "verl": "tasks"}
"""Contents of the formats that cannot be read back."""


def export_to(
    path: Path,
    trajectories: Iterable[Trajectory],
    name: str,
    known: RequestHints | None = None,
    least_reward: float | None = None,
    roles: Collection[str] = (),
) -> Report:
    """Write a file in the format `name`.

    `least_reward`, `roles` (only for `chat`): write only conversations of these roles, from runs
    with at least this reward.
    """
    found = FORMATS[format_of(path, name)]
    known = known or RequestHints()
    if found.write is not None:
        return found.write(trajectories, path, known)
    if found.rows is None:
        raise ConfigError(
            f"The format {name} can be read, but not written.",
            "Export to jsonl, which holds whole runs.",
        )
    return write_rows(trajectories, path, found.rows(known, least_reward, roles))


def import_from(
    path: Path | Sequence[Path], name: str | None = None, origin: Origin | None = None
) -> Iterator[Trajectory]:
    """Trajectories of files in the format `name` (None: detected from each file). Trace files of
    one format are read together, since a trace may be in several.
    """
    paths = [path] if isinstance(path, Path) else path
    origin = origin or Origin()
    by_format: dict[str, list[Path]] = {}
    for one in paths:
        if _is_empty(one):
            raise StoreError(f"{one} is empty.", "Name a file with runs.")
        found = format_of(one, name) if name else _shown(one)
        if FORMATS[found].read is None:
            raise StoreError(
                f"{one} holds {_NO_RUNS[found]}, which cannot be imported as runs.",
                (
                    f"Train on it as it is: hrm-agent train sft {one}"
                    if found == "chat"
                    else "`hrm-agent export --format parquet` writes runs."
                ),
            )
        by_format.setdefault(found, []).append(one)
    return chain.from_iterable(_read(found, some, origin) for found, some in by_format.items())


def _is_empty(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size > _BLANK:
        return False
    try:
        return not path.read_bytes().strip()
    except OSError:  # the reader of the format names the reason
        return False


def _read(name: str, paths: Sequence[Path], origin: Origin) -> Iterator[Trajectory]:
    read = FORMATS[name].read
    if name in TRACE_FORMATS:
        yield from read_traces(paths, origin, name)
    elif read is not None:
        for path in paths:
            yield from read(path, origin)


def format_of(path: Path, name: str | None) -> str:
    """Name of a format: `name`, else the suffix of `path`. Raises `ConfigError` if no format has
    this name.
    """
    wanted = name or path.suffix.removeprefix(".")
    if wanted in FORMATS:
        return wanted
    if name is None:
        raise ConfigError(
            f"The suffix of {path} names no format.", f"Add --format {', '.join(FORMATS)}."
        )
    raise ConfigError(
        f"There is no format {name!r}.",
        nearest(name, FORMATS) or f"There are {', '.join(FORMATS)}.",
    )


def _shown(path: Path) -> str:
    """Format of a file, detected from its suffix or its first row."""
    if path.suffix == ".parquet":
        return "parquet"
    if zipfile.is_zipfile(path):
        return "inspect"
    if (traces := trace_format(path)) is not None:
        return traces
    first = next((row for _, row in documents(path, nan=True)), None)
    fits = (
        name
        for name, one in FORMATS.items()
        if first is not None and one.keys and one.keys <= first.keys()
    )
    return next(chain(fits, ("jsonl",)))
