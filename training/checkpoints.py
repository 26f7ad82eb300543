"""Checkpoints of a training run: the last few, each complete or not used.

    RUN/checkpoints/step-000012/    everything that the next step depends on, and manifest.json
    RUN/checkpoints/step-000011/    the previous one, in case the newest is damaged

A checkpoint is written beside its place: every file, then the manifest with the size and SHA-256 of
each, everything synced to the disk, and then the folder is renamed. So a kill or a power cut leaves
earlier checkpoints unchanged. Damage that renaming cannot prevent (a lost sector, a copy that broke
off, a file deleted by hand) is detected by the manifest: before a checkpoint is loaded, each of its
files is checked, and a damaged checkpoint is skipped for the previous one, with a line on stderr.
The manifest carries a hash of itself.

Steps after the restored checkpoint are taken again, with the same result: see
`hrm_agent.training.grpo` and `hrm_agent.training.sft`.

A run folder of an earlier version has one folder `checkpoint` without a manifest. It is used if it
can be loaded, and removed once enough others exist.
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
"""Suffixes of model files that users may edit: its card, its settings, its chat template."""

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints of the run in a folder, written by one process of a run and read by all of
    them.
    """

    run: Path
    """Run folder, which has them in `checkpoints`."""
    keep: int = 2
    """Number of checkpoints kept."""
    every: int = 1
    """Steps from one checkpoint to the next."""

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints."""
        return self.run / "checkpoints"

    @property
    def newest_step(self) -> int:
        """Step of the newest checkpoint, complete or not (0 without any)."""
        return max((step_in_name(path) for path in self._numbered()), default=0)

    def is_due(self, step: int, steps: int) -> bool:
        """True if a checkpoint is due after `step` of `steps` steps: every `every` steps, and after
        the last.
        """
        return step % self.every == 0 or step == steps

    def save(self, step: int, write: Callable[[Path], None]) -> Path:
        """Save the checkpoint after `step` steps, and remove old ones. `write` writes its files to
        a given folder.
        """
        written = write_whole(self.folder / f"step-{step:06}", step, write)
        # newer ones were skipped when the run was resumed, and are taken again
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

    def restore(self, load: Callable[[Path], State]) -> State | None:
        """Load the newest complete checkpoint by `load`, and return its result (None if there is no
        checkpoint yet).

        A damaged one is skipped, with a line on stderr. Raises `RunError` if all are damaged, or if
        a complete one cannot be loaded.
        """
        passed: list[str] = []
        newest_first = sorted(self._numbered(), key=step_in_name, reverse=True)
        for path in (*newest_first, *self._earlier()):
            fault = None if path.name in _EARLIER else damage(path)
            if fault is None:
                try:
                    state = load(path)
                except Exception as error:
                    # Damaged files can raise any error: safetensors, pickle, zip and JSON have
                    # their own.
                    first = str(error).partition("\n")[0]
                    fault = type(error).__name__ + (f": {first}" if first else "")
                    if path.name not in _EARLIER or isinstance(error, MemoryError):
                        raise RunError(
                            f"The checkpoint {path} cannot be loaded ({fault}), although its files"
                            " are as they were written.",
                            "Resume with the policy and the version of the libraries that it was"
                            " made with.",
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
                f"No checkpoint in {self.run} is whole ({'; '.join(passed)}).",
                "Put one back from a copy; or remove them, and the run begins at its first step"
                " again (rollouts on record are not sampled again).",
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
    """Write a folder by `write`, with a manifest, and replace the previous one. The folder is
    complete or does not exist.
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
    """Write `RUN/model`, the result of a run after `step` steps, unless it is there already.

    Another folder there that was changed since it was written is renamed, since the user may want
    it.
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
    """True if the run's model is that of `step` steps, with its weights unchanged."""
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
    """Damage of a folder that `write_whole` wrote (None if it is intact).

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
    """JSON of `body` with a hash of itself, which detects any change."""
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
    """Remove a file or a folder. A folder is first renamed to a name that no reader looks for."""
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
    # a single file, which a checkpoint is read back from
    model.save_pretrained(folder, max_shard_size="100TB")
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")
