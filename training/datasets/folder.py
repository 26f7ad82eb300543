"""Folder of data sets: `FOLDER/NAME/VERSION-DIGEST.jsonl`, one file for each version.

The first line of a file is its head: the format, the number of examples and the share of the
questions that is held out. The examples follow, sorted by id. DIGEST is the digest of this share
and the lines of the examples. A file is never changed, so a version stays what it is, and Git shows
each version as a new file.

A version is written beside its name and then renamed, under a lock of the data set's folder. So two
processes that add at once both keep their examples, and a killed one leaves the old versions.

Two branches of a repository may each make a version of one number. The next addition joins all of
them in a new version. Until then neither this number nor the newest version can be named.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hrm_agent.basics.files import locked_folder, replacing
from hrm_agent.errors import TaskError, nearest
from hrm_agent.training.datasets.examples import (
    DatasetExample,
    canonical,
    read_example,
    why_invalid,
)
from hrm_agent.trajectory import content_hash

__all__ = [
    "FOLDER",
    "Added",
    "Dataset",
    "Version",
    "add_examples",
    "branches",
    "dataset_names",
    "file_of_version",
    "find_version",
    "list_versions",
    "read_version",
    "split_reference",
]

FOLDER = "datasets"
"""Default folder of data sets, in the working directory."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FILE = re.compile(r"([1-9][0-9]{0,8})-([0-9a-f]{32})\.jsonl")
_FORMAT = "hrm-agent dataset 1"
_LONGEST_LINE = 1 << 24
"""Maximum bytes of a line that is read."""
_SHOWN = 80
_SHARE = 0.2


class _Head(BaseModel):
    """First line of a version."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    eval_share: float = Field(ge=0, le=1)
    """Share of the questions that is held out."""
    examples: int = Field(ge=1)
    """Number of examples."""
    format: Literal["hrm-agent dataset 1"] = _FORMAT
    """Name of the format."""


@dataclass(frozen=True, slots=True)
class Version:
    """Version of a data set, known by the name of its file."""

    name: str
    """Name of the data set."""
    number: int
    """Number of the version, from 1."""
    digest: str
    """Digest of the held-out share and the examples."""
    path: Path
    """File of the version."""

    @property
    def reference(self) -> str:
        """Name and number, as in `--tasks dataset:NAME@2`."""
        return f"{self.name}@{self.number}"


@dataclass(frozen=True, slots=True)
class Dataset:
    """Version of a data set with its examples."""

    version: Version
    """Version that was read."""
    eval_share: float
    """Share of the questions that is held out."""
    examples: tuple[DatasetExample, ...]
    """Examples, sorted by id."""

    @property
    def splits(self) -> dict[str, int]:
        """Number of examples by split."""
        counts = Counter(each.split(self.eval_share) for each in self.examples)
        return {"train": counts["train"], "eval": counts["eval"]}

    @property
    def families(self) -> dict[str, int]:
        """Number of examples by the family of their task."""
        return dict(sorted(Counter(each.family for each in self.examples).items()))


@dataclass(frozen=True, slots=True)
class Added:
    """Result of adding examples."""

    dataset: Dataset
    """Newest version after the addition."""
    added: int
    """Number of new examples (0 if no version was made, or only to join others)."""
    known: int
    """Number of given examples that were in the newest version before."""
    joined: int = 0
    """Number of versions of several branches that the new version joins."""


def split_reference(text: str) -> tuple[str, int | None]:
    """Name and version of `NAME` or `NAME@2` (None without a version). Raises `TaskError`."""
    name, at, number = text.partition("@")
    _check_name(name)
    if not at:
        return name, None
    if not re.fullmatch(r"[1-9][0-9]{0,8}", number):
        raise TaskError(
            f"{_short(number)!r} is not a version of the data set {name!r}.",
            f"Versions are numbered from 1: {name}@1.",
        )
    return name, int(number)


def dataset_names(folder: Path) -> list[str]:
    """Names of the data sets in a folder (empty if the folder is missing)."""
    try:
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names, of which there may be many
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if _NAME.fullmatch(name) and _files(folder / name)]


def list_versions(folder: Path, name: str) -> list[Version]:
    """Versions of a data set, oldest first. Raises `TaskError` if there are none."""
    _check_name(name)
    found = [Version(name, number, digest, path) for number, digest, path in _files(folder / name)]
    if not found:
        names = dataset_names(folder)
        known = f"Data sets in {folder}: {', '.join(names[:20])}." if names else ""
        hint = f"{nearest(name, names)} {known}".strip()
        raise TaskError(
            f"There is no data set {name!r} in {folder}.",
            hint or f"`hrm-agent dataset add {name} RUN` makes one of a run.",
        )
    return found


def find_version(folder: Path, name: str, number: int | None = None) -> Version:
    """Version of a data set (None: the newest). Raises `TaskError` if it is missing, or not the
    only one.
    """
    found = list_versions(folder, name)
    if number is None:
        if apart := branches(found):
            raise _doubled(apart)
        return found[-1]
    matching = [version for version in found if version.number == number]
    if len(matching) > 1:
        raise _doubled(matching)
    if matching:
        return matching[0]
    numbers = ", ".join(str(each.number) for each in found[-20:])
    raise TaskError(f"The data set {name!r} has no version {number}.", f"It has: {numbers}.")


def branches(versions: Sequence[Version]) -> list[Version]:
    """Versions from the first number that two of them have, if the newest version lacks examples of
    them (empty otherwise). Raises `TaskError` for a damaged version.
    """
    first = next((i for i, (a, b) in enumerate(pairwise(versions)) if a.number == b.number), None)
    if first is None:
        return []
    apart = list(versions[first:])
    ids = [{each.id for each in read_version(version).examples} for version in apart]
    joined = apart[-1].number > apart[-2].number and ids[-1] >= set[str]().union(*ids)
    return [] if joined else apart


def _doubled(apart: Sequence[Version]) -> TaskError:
    first, second = next(pair for pair in pairwise(apart) if pair[0].number == pair[1].number)
    return TaskError(
        f"The data set {first.name!r} has two versions {first.number}, of two branches:"
        f" {first.path.name} and {second.path.name}.",
        f"`hrm-agent dataset add {first.name} RUN` joins them in a new version, even if it adds"
        " nothing else. Versions of other numbers can be named.",
    )


def file_of_version(folder: Path, reference: str) -> Version:
    """Version that `NAME@2` or `NAME` names. Raises `TaskError`."""
    name, number = split_reference(reference)
    return find_version(folder, name, number)


def read_version(version: Version) -> Dataset:
    """Read a version. Raises `TaskError` for a file that is damaged or was changed."""
    path = version.path
    again = "Restore the file, from Git for example."
    try:
        # a newline inside a text is escaped, and other line ends are characters of a text
        with path.open("rb") as file:
            head = _head(file.readline(_LONGEST_LINE))
            examples: list[DatasetExample] = []
            while raw := file.readline(_LONGEST_LINE):
                examples.append(_example(raw, len(examples) + 2))
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}.", again) from error
    except TaskError as error:
        raise TaskError(f"{path}: {error.message}", again) from None
    ids = [each.id for each in examples]
    if any(one >= other for one, other in pairwise(ids)):
        raise TaskError(f"{path}: the examples are not sorted by id, each once.", again)
    if len(ids) != head.examples:
        raise TaskError(f"{path} has {len(ids)} examples, its head says {head.examples}.", again)
    if (digest := _digest(head.eval_share, examples)) != version.digest:
        raise TaskError(f"{path}: the digest of its examples is {digest}.", again)
    return Dataset(version, head.eval_share, tuple(examples))


def add_examples(
    folder: Path,
    name: str,
    examples: Iterable[DatasetExample],
    eval_share: float | None = None,
    *,
    unanswered: Collection[str] = (),
) -> Added:
    """Add examples to the data set `name`, as a new version if one of them is new, or if branches
    are to be joined.

    `unanswered`: ids of examples whose tasks have no reference answer of their own. Such an example
    counts as known if the data set has one of the same task, with an answer if it has one.
    `eval_share`: share of the questions that is held out (None: that of the data set, which for a
    new one is 0.2). Raises `TaskError` for another share than that of the data set.
    """
    _check_name(name)
    given = {each.id: each for each in examples}
    if not given:
        raise TaskError("There is no example to add.", "Name other runs, or another --where.")
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    with locked_folder(own):
        for left in own.glob("*.jsonl.part"):  # of a process that was killed
            left.unlink()
        versions = list_versions(folder, name) if _files(own) else []
        parts = [read_version(each) for each in branches(versions) or versions[-1:]]
        before = parts[-1] if parts else None
        if len({part.eval_share for part in parts}) > 1:
            raise TaskError(
                f"The versions of the data set {name!r} hold out different shares of its questions:"
                f" {' and '.join(part.version.path.name for part in parts)}.",
                "Move the files of one branch to a data set of another name.",
            )
        if before is not None and eval_share not in (None, before.eval_share):
            raise TaskError(
                f"The data set {name!r} holds out a share of {before.eval_share:g} of its"
                f" questions, not {eval_share:g}: with another one, examples would change sides.",
                "Leave --eval-share out, or begin a data set of another name.",
            )
        joined = len(parts) if len(parts) > 1 else 0
        held = {each.id: each for part in parts for each in part.examples}
        known = {each.task_digest for each in held.values()}
        answered = {each.task_digest for each in held.values() if each.answer is not None}
        repeated = {
            id_
            for id_ in given.keys() & {*unanswered}
            if given[id_].task_digest in (known if given[id_].answer is None else answered)
        }
        new = given.keys() - held.keys() - repeated
        if before is not None and not joined and not new:
            return Added(before, 0, len(given))
        share = (
            (_SHARE if eval_share is None else eval_share) if before is None else before.eval_share
        )
        together = sorted([*held.values(), *(given[id_] for id_ in new)], key=lambda each: each.id)
        number = 1 if before is None else before.version.number + 1
        digest = _digest(share, together)
        version = Version(name, number, digest, own / f"{number}-{digest}.jsonl")
        head = _Head(eval_share=share, examples=len(together))
        with replacing(version.path) as part, part.open("w", encoding="utf-8", newline="") as file:
            file.write(f"{canonical(head.model_dump())}\n")
            file.writelines(f"{each.line}\n" for each in together)
    return Added(Dataset(version, share, tuple(together)), len(new), len(given) - len(new), joined)


def _files(own: Path) -> list[tuple[int, str, Path]]:
    """Files of a data set's versions as (number, digest, path), oldest first."""
    try:
        names = os.listdir(own)  # noqa: PTH208 - names, of which there may be many
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = [found for name in names if (found := _FILE.fullmatch(name))]
    return sorted((int(each[1]), each[2], own / each[0]) for each in matches)


def _head(raw: bytes) -> _Head:
    try:
        return _Head.model_validate_json(raw)
    except ValidationError as error:
        raise TaskError(f"line 1 is not the head of a data set: {why_invalid(error)}.") from None


def _example(raw: bytes, number: int) -> DatasetExample:
    if not raw.endswith(b"\n"):
        what = "has no end" if len(raw) < _LONGEST_LINE else f"is longer than {_LONGEST_LINE} bytes"
        raise TaskError(f"line {number} {what}.")
    try:
        return read_example(raw[:-1].decode())
    except UnicodeDecodeError:
        raise TaskError(f"line {number} is not UTF-8.") from None
    except TaskError as error:
        raise TaskError(f"line {number} {error.message}") from None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise TaskError(
            f"{_short(name)!r} cannot be the name of a data set.",
            "A name has letters, digits and `._-`, begins with a letter or digit and has at most"
            " 100 characters.",
        )


def _digest(eval_share: float, examples: Iterable[DatasetExample]) -> str:
    return content_hash("dataset", eval_share, [each.line for each in examples])


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
