"""Checkpoints of a training run: the last few, each whole or not used.

    RUN/checkpoints/step-000012/    what the next step depends on, and manifest.json
    RUN/checkpoints/step-000011/    the one before, in case something happened to the newest

A checkpoint is written beside its place: every file, then the manifest with the size and SHA-256 of
each, everything synced to the disk, and then the folder is renamed to its name. So a kill or a
power cut leaves the checkpoints before it as they were. What renaming cannot prevent (a lost
sector, a copy that broke off, a file deleted by hand) is found by the manifest: before a checkpoint
is loaded each of its files is held against it, and a damaged one is passed over for the one before,
with a line on stderr. The manifest carries a hash of itself.

Steps that were taken after the checkpoint that a run goes on from are taken again. They come out as
they were: see `hrm_agent.training.grpo` and `hrm_agent.training.sft`.

A run folder of an earlier version has one folder `checkpoint` without a manifest. It is used if it
can be loaded, and removed once enough others are there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hrm_agent.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["MANIFEST", "Checkpoints", "damage", "has_model", "keep_model", "save_policy"]

MANIFEST = "manifest.json"
"""Written last; a folder without it is not whole."""
_EARLIER = ("checkpoint", "checkpoint.old")
"""Folders of earlier versions, the newer one first."""
_NAME = re.compile(r"step-(\d+)")
_OURS = re.compile(r"step-\d+(\.part|\.gone)*")
_CHUNK = 1 << 20
_EDITABLE = {".jinja", ".json", ".md", ".txt"}
"""Suffixes of the files of a model that a person may write to: its card, its settings, its chat
template.
"""

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of the run in a folder. Written by one process of a run;
    read by all of them.
    """

    run: Path
    """The run's folder; they lie in `checkpoints` below it."""
    keep: int = 2
    """How many are kept."""
    every: int = 1
    """Steps from one to the next."""

    @property
    def folder(self) -> Path:
        """Where they lie."""
        return self.run / "checkpoints"

    @property
    def newest_step(self) -> int:
        """Steps behind the newest checkpoint, whole or not; 0 without any."""
        return max((step_in_name(path) for path in self._numbered()), default=0)

    def is_due(self, step: int, steps: int) -> bool:
        """Whether there is to be one after `step` of `steps` steps: after every so many, and after
        the last.
        """
        return step % self.every == 0 or step == steps

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Keep what `write` writes to the folder that it is given as the checkpoint after `step`
        steps.
        """
        path = write_whole(self.folder / f"step-{step:06}", step, write)
        self._remove_all_but_the_last(step)
        return path

    def restore(self, load: Callable[[Path], State]) -> State | None:
        """What `load` returns for the newest whole checkpoint; None if there is no checkpoint yet.

        One that is damaged is passed over, with a line on stderr. Raises `RunError` if all are.
        """
        passed: list[str] = []
        for path in self._candidates():
            fault = None if path.name in _EARLIER else damage(path)
            if fault is None:
                try:
                    state = load(path)
                except Exception as error:
                    # Torn files raise what they like: safetensors, pickle, zip and JSON have errors
                    # of their own.
                    fault = _told(error)
                    if path.name not in _EARLIER or isinstance(error, MemoryError):
                        raise _unloadable(path, fault) from error
                else:
                    self._tell(passed, path)
                    return state
            passed.append(f"{path.name}: {fault}")
        if passed:
            raise RunError(
                f"No checkpoint in {self.run} is whole ({'; '.join(passed)}).",
                "Put one back from a copy; or remove them, and the run begins at its first step"
                " again (rollouts on record are not sampled again).",
            )
        return None

    def _tell(self, passed: list[str], path: Path) -> None:
        if passed:
            found = "; ".join(passed)
            sys.stderr.write(
                f"hrm-agent: {self.run}: damaged checkpoint ({found}), resuming from {path.name}.\n"
            )

    def _candidates(self) -> Iterator[Path]:
        """The newest first."""
        yield from sorted(self._numbered(), key=step_in_name, reverse=True)
        yield from self._earlier()

    def _numbered(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)]

    def _earlier(self) -> list[Path]:
        return [path for name in _EARLIER if (path := self.run / name).is_dir()]

    def _remove_all_but_the_last(self, step: int) -> None:
        """What is newer than `step` was passed over when the run was resumed: it is taken again."""
        kept = sorted(
            (path for path in self._numbered() if step_in_name(path) <= step), key=step_in_name
        )[-self.keep :]
        for path in self.folder.glob("step-*"):
            if path not in kept and _OURS.fullmatch(path.name):
                _remove(path)
        if len(kept) == self.keep:
            for path in self._earlier():
                _remove(path)


def step_in_name(path: Path) -> int:
    """12 for `step-000012`."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def write_whole(path: Path, step: int, write: Callable[[Path], None]) -> Path:
    """A folder that is either whole or not there: what `write` writes, with a manifest, in place of
    what was there.
    """
    part = path.with_name(path.name + ".part")
    _remove(part)
    part.mkdir(parents=True)
    write(part)
    files = sorted(file for file in part.rglob("*") if file.is_file())
    listed = {
        file.relative_to(part).as_posix(): {"bytes": file.stat().st_size, "sha256": _hash(file)}
        for file in files
    }
    for file in files:
        _sync(file)
    (part / MANIFEST).write_text(_manifest({"step": step, "files": listed}), encoding="utf-8")
    for made in (part / MANIFEST, *(folder for folder in part.rglob("*") if folder.is_dir()), part):
        _sync(made)
    _remove(path)
    part.rename(path)
    _sync(path.parent)
    return path


def keep_model(run: Path, step: int, write: Callable[[Path], None]) -> Path:
    """`RUN/model`, what a run comes to after `step` steps; not written again where it is that
    already.

    What is there otherwise and was not left as it was written, somebody may want: it goes under
    another name.
    """
    path = run / "model"
    if has_model(run, step):
        return path
    if _is_changed(path):
        aside = next(
            name
            for n in count(1)
            if not (name := path.with_name(f"{path.name}.before-{n}")).exists()
        )
        path.rename(aside)
        sys.stderr.write(
            f"hrm-agent: {path} was changed since it was written; it is {aside} now.\n"
        )
    return write_whole(path, step, write)


def has_model(run: Path, step: int) -> bool:
    """Whether the run's model is of so many steps, and its weights are as they were written."""
    path = run / "model"
    return damage(path, _EDITABLE) is None and (_read_manifest(path) or {}).get("step") == step


def _is_changed(path: Path) -> bool:
    if not path.exists() and not path.is_symlink():
        return False
    if path.is_symlink() or damage(path) is not None:
        return True
    files = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
    return not files <= {MANIFEST, *(_read_manifest(path) or {})["files"]}


def damage(path: Path, editable: Collection[str] = ()) -> str | None:
    """What is wrong with a folder that `write_whole` wrote; None if nothing is.

    `editable`: suffixes of files that may have other contents.
    """
    try:
        manifest = _read_manifest(path)
        if manifest is None:
            return f"{MANIFEST} is damaged"
        for name, entry in manifest["files"].items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.suffix in editable:
                continue
            if (size := file.stat().st_size) != entry["bytes"]:
                return f"{name} has {size} bytes in place of {entry['bytes']}"
            if _hash(file) != entry["sha256"]:
                return f"{name} has other contents than it was written with"
    except OSError as error:
        return (
            f"{Path(error.filename).name if error.filename else path.name}:"
            f" {error.strerror or error}"
        )
    expected = _NAME.fullmatch(path.name)
    return "it is of another step" if expected and int(expected[1]) != manifest["step"] else None


def _manifest(body: dict[str, Any]) -> str:
    """JSON that ends with a hash of itself, so that no bit of it can change unseen."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"sha256": digest}, sort_keys=True, indent=1) + "\n"


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """None for one that is damaged; a missing one raises `OSError`."""
    written = (path / MANIFEST).read_bytes()
    try:
        body = cast("dict[str, Any]", json.loads(written))
        del body["sha256"]
        return body if _manifest(body).encode() == written else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _told(error: Exception) -> str:
    """The first line of an error, with its kind."""
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _unloadable(path: Path, fault: str) -> RunError:
    return RunError(
        f"The checkpoint {path} cannot be loaded ({fault}), although its files are as they were"
        " written.",
        "Resume with the policy and the version of the libraries that it was made with.",
    )


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """A folder goes under another name, which no reader looks for, before it goes away file by
    file.
    """
    if path.is_dir() and not path.is_symlink():
        going = (
            path if path.name.endswith((".part", ".gone")) else path.with_name(path.name + ".gone")
        )
        if going != path:
            shutil.rmtree(going, ignore_errors=True)
            path.rename(going)
        shutil.rmtree(going, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_policy(model: PreTrainedModel, tokenizer: Any, folder: Path, card: str) -> None:
    """Weights (safetensors), configuration, tokenizer with chat template, and the model card as
    README.md.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # one file: a checkpoint is read back from it
    model.save_pretrained(folder, max_shard_size="100TB")
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
