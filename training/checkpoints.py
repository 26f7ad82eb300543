"""Checkpoints of a training run. The last few are kept, and an incomplete or damaged checkpoint is
not used.

    RUN/checkpoints/step-000012/    everything that the next step depends on, and manifest.json
    RUN/checkpoints/step-000011/    the previous one, in case the newest is damaged

A checkpoint is written to a folder with another name: first every file, then the manifest with the
size and SHA-256 of each file. Everything is synced to the disk, and then the folder is renamed. So
a kill or a power cut leaves earlier checkpoints unchanged. Other damage (a lost sector, an
interrupted copy, a file deleted by hand) is detected by the manifest. Before a checkpoint is
loaded, each of its files is checked. If one is damaged, the previous checkpoint is used, with a
line on stderr. The manifest contains a hash of itself.

Steps after the restored checkpoint are taken again and have the same result (see
`hrm_agent.training.grpo` and `hrm_agent.training.sft`).

The run folder of an earlier version has one folder `checkpoint` without a manifest. It is used if
it can be loaded, and removed when there are enough newer checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hrm_agent.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["MANIFEST", "Checkpoints", "damage", "has_model", "keep_model", "save_policy"]

MANIFEST = "manifest.json"
"""Name of the manifest, which is written last. A folder without it is incomplete."""
_EARLIER = ("checkpoint", "checkpoint.old")
"""Checkpoint folders of earlier versions, the newer one first."""
_NAME = re.compile(r"step-(\d+)")
_OURS = re.compile(r"step-\d+(\.part|\.gone)*")
_CHUNK = 1 << 20
_EDITABLE = {".jinja", ".json", ".md", ".txt"}
"""Suffixes of the files of a model that users may edit: card, settings, chat template."""

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints in the folder of a run. One process of the run writes them, and all processes
    read them.
    """

    run: Path
    """Folder of the run. Its subfolder `checkpoints` has the checkpoints."""
    keep: int = 2
    """Number of checkpoints that are kept."""
    every: int = 1
    """Steps from one checkpoint to the next."""

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints."""
        return self.run / "checkpoints"

    @property
    def newest_step(self) -> int:
        """Step of the newest checkpoint, even if it is damaged (0 if there are no checkpoints)."""
        return max((step_in_name(path) for path in self._numbered()), default=0)

    def is_due(self, step: int, steps: int) -> bool:
        """True if a checkpoint is due after `step`: after every `every` steps, and after the last
        of `steps`.
        """
        return step % self.every == 0 or step == steps

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save the checkpoint after `step` steps, and remove old ones. `write` writes its files to
        a given folder.
        """
        written = write_whole(self.folder / f"step-{step:06}", step, write)
        # newer checkpoints were damaged when the run was resumed; their steps are taken again
        kept = sorted(
            (path for path in self._numbered() if step_in_name(path) <= step), key=step_in_name
        )[-self.keep :]
        for path in self.folder.glob("step-*"):
            if path not in kept and _OURS.fullmatch(path.name):
                _remove(path)
        if len(kept) == self.keep:
            for path in self._earlier():
                _remove(path)
        return written

    def complete(self) -> dict[int, Path]:
        """Complete checkpoints: step -> folder, in order."""
        paths = sorted(self._numbered(), key=step_in_name)
        return {step_in_name(path): path for path in paths if damage(path) is None}

    def restore(self, load: Callable[[Path], State]) -> State | None:
        """Load the newest complete checkpoint, and return the result of `load` (None if there is no
        checkpoint yet).

        Damaged checkpoints are skipped, with a line on stderr. Raises `RunError` if all are
        damaged, or if a complete one cannot be loaded.
        """
        passed: list[str] = []
        newest_first = sorted(self._numbered(), key=step_in_name, reverse=True)
        for path in (*newest_first, *self._earlier()):
            fault = None if path.name in _EARLIER else damage(path)
            if fault is None:
                try:
                    state = load(path)
                except Exception as error:
                    # Damaged files may raise any error of safetensors, pickle, zip or JSON.
                    first = str(error).partition("\n")[0]
                    fault = type(error).__name__ + (f": {first}" if first else "")
                    if path.name not in _EARLIER or isinstance(error, MemoryError):
                        raise RunError(
                            f"The checkpoint {path} cannot be loaded ({fault}), although its files"
                            " are as they were written.",
                            "Resume with the policy and the versions of the libraries with which it"
                            " was made.",
                        ) from error
                else:
                    if passed:
                        sys.stderr.write(
                            f"hrm-agent: {self.run}: damaged checkpoint ({'; '.join(passed)}),"
                            f" resuming from {path.name}.\n"
                        )
                    return state
            passed.append(f"{path.name}: {fault}")
        if passed:
            raise RunError(
                f"No checkpoint in {self.run} is complete ({'; '.join(passed)}).",
                "Restore one from a copy. Or remove them, so that the run begins again at its"
                " first step (rollouts on record are not sampled again).",
            )
        return None

    def _numbered(self) -> list[Path]:
        return [path for path in self.folder.glob("step-*") if _NAME.fullmatch(path.name)]

    def _earlier(self) -> list[Path]:
        return [path for name in _EARLIER if (path := self.run / name).is_dir()]


def step_in_name(path: Path) -> int:
    """Step number in a folder name: 12 for `step-000012`."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found else 0


def write_whole(path: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Write a folder with a manifest, and replace the folder at `path`. `write` writes the files to
    a given folder. At any time the folder at `path` is complete or does not exist.
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
    """Write `RUN/model`, the result of a run after `step` steps, unless it exists already.

    If an earlier `RUN/model` was changed since it was written, it is renamed instead of removed,
    since the user may want it.
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
            f"hrm-agent: {path} was changed since it was written, so it was renamed to {aside}.\n"
        )
    return write_whole(path, step, write)


def has_model(run: Path, step: int) -> bool:
    """True if `RUN/model` is the model after `step` steps, with unchanged weights."""
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
    """Damage of a folder that `write_whole` wrote, in words (None if it is intact).

    `editable`: suffixes of files that users may edit, so that their contents are not compared.
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
    """JSON of `body` with a hash of it, by which any change is detected."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"sha256": digest}, sort_keys=True, indent=1) + "\n"


def _read_manifest(path: Path) -> dict[str, Any] | None:
    """Read the manifest (None if it is damaged). Raises `OSError` if it is missing."""
    written = (path / MANIFEST).read_bytes()
    try:
        body = cast("dict[str, Any]", json.loads(written))
        del body["sha256"]
        return body if _manifest(body).encode() == written else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _remove(path: Path) -> None:
    """Remove a file or a folder. A folder is renamed first, so that no reader finds it half
    removed.
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
    """Save weights (safetensors), configuration, tokenizer with chat template, and the model card
    as README.md.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # write a single file, since a checkpoint is read from one file
    model.save_pretrained(folder, max_shard_size="100TB")
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
