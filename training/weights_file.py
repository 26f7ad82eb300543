"""Weights on their way to engines of other processes: files in a folder that both sides see.

On one machine that folder lies in memory (/dev/shm), so that nothing touches a disk; across machines it is a shared one
that the user names. It has the same name each time that a run is resumed: what a killed trainer has left is removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from hrm_agent.errors import RunError
from hrm_agent.training.weights_broadcast import WeightsBroadcast
from hrm_agent.training.weights_proof import ScoredText

__all__ = ["Publication", "WeightsFolder"]

_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is made for this user alone


@dataclass(frozen=True, slots=True)
class Publication:
    """The weights of a version, and texts by which an engine is held to them."""

    version: int
    """Optimiser steps behind them."""
    source: Path | WeightsBroadcast
    """Path of a safetensors file of all weights or of an adapter's folder; or the weights themselves, to broadcast."""
    texts: tuple[ScoredText, ...]
    """With the trainer's log-probs."""

    @property
    def adapter(self) -> str:
        """The name under which an adapter is asked for; empty for all weights."""
        return f"version-{self.version}" if isinstance(self.source, Path) and self.source.is_dir() else ""


class WeightsFolder:
    """Where the weights of a run lie for its engines."""

    def __init__(self, run: Path, base: Path | None = None) -> None:
        """`base`: a folder that the engines see, too; None: this machine's memory. Raises `RunError`."""
        base = base or (_MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        key = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
        self._folder = base / f"hrm-agent-weights-{os.getuid()}-{key}"
        try:
            base.mkdir(parents=True, exist_ok=True)
            if self._folder.is_symlink() or self._folder.exists():
                self._remove_own()
            self._folder.mkdir(mode=0o700)
        except OSError as error:
            raise RunError(
                f"The weights for the engines cannot be kept in {self._folder}: {error.strerror or error}.",
                "Name another folder with --weights-folder.",
            ) from error

    def place(self, version: int, *, adapter: bool) -> Path:
        """Where the weights of a version go: a file, or for an adapter a folder."""
        return self._folder / (f"adapter-{version}" if adapter else f"weights-{version}.safetensors")

    def write(self, version: int, tensors: Mapping[str, Any]) -> Path:
        """Write all weights, and nothing half: engines are told of the file when it is there."""
        path = self.place(version, adapter=False)
        held: dict[str, Tensor] = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        try:
            save_file(held, path)
        except Exception as error:  # safetensors has an error of its own for a full disk
            raise RunError(
                f"The weights of version {version} cannot be written to {path}: {error}.",
                "Make room there, or name another folder with --weights-folder; then resume the run.",
            ) from error
        return path

    def keep_only(self, version: int) -> None:
        """Remove the weights of other versions."""
        kept = {self.place(version, adapter=adapter) for adapter in (False, True)}
        for path in self._folder.iterdir():
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_own(self) -> None:
        """What stands there under our name may be somebody else's: memory is open to all users of a machine."""
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise RunError(f"{self._folder} is not this user's.", "Name another folder with --weights-folder.")
        shutil.rmtree(self._folder)
