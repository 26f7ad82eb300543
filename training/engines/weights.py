"""Transfer of weights to engines in other processes, and the proof that these engines sample with
them.

`WeightsFolder` writes weights to files in a folder that both sides see. On one machine the folder
lies in memory (/dev/shm), so that nothing touches a disk. Across machines the user names a shared
folder. A resumed run uses the same folder name, so that it removes what a killed trainer has left.

`WeightsBroadcast` needs no shared folder: it sends weights over the network to the workers of one
server at a time. Each server has a process group, so that a dead or slow server blocks only itself.
The trainer keeps a copy of the weights until the next version. So a server that comes back while
the trainer updates its model receives the current version, not a half-changed one.

While a transfer lasts, any process that reaches the trainer's address can take part in it. So the
network has to be closed to others, as vLLM's dev mode requires, too.

After each publish, every engine is proved to sample with the new weights. A transfer can answer
"done" and be silently wrong: a server that was asleep wakes with its old weights (huggingface/trl
issue 5312), or an output layer tied to the embedding keeps its old values (pytorch/torchtitan PR
2402). Training then continues on samples of another policy, and its curves only look a little
worse. Three things are compared with the trainer:

* the tensors, layer by layer, byte by byte (`hrm_agent/models/vllm/in_server/hrm_agent_held.py`),
  in whatever form and on however many cards: this shows *which* are wrong, and detects a step of
  any size;
* the log-probs of a fixed text, which the server computes without its cache;
* the log-probs of fresh samples, which took the path of every rollout: prefill, cache, decoding,
  sampler. They begin with a prompt that the server had in its cache with the previous weights, and
  must not be found there.

The allowed difference of log-probs depends on the dtype of the server's weights. In float32 the
largest difference counts. In half precision single tokens differ by up to 0.8 with equal weights,
so the mean counts there: it is 0.016 with the small policy, and cannot show a small step. So
log-probs cannot replace the comparison of tensors: tensors that cannot be compared are named, and
trusted only if the user allows it.

A proof holds for one moment. `hrm_agent.training.engines.fleet` watches the engines after it. The
metric `engine_difference` of each step, within the bounds of `difference_bound`, detects what both
miss.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

import torch
from safetensors.torch import save_file
from torch import Tensor

from hrm_agent.errors import ModelError, RunError
from hrm_agent.models.vllm.in_server.hrm_agent_group import (
    Offer,
    gpu_of,
    listed,
    local_address,
    open_store,
    send,
)
from hrm_agent.models.vllm.server import ServerGoneError

__all__ = [
    "PROBE_TEXT",
    "LogprobDifference",
    "OtherWeightsError",
    "Publication",
    "ScoredText",
    "WeightsBroadcast",
    "WeightsFolder",
    "refuse_kept_cache",
    "refuse_other_weights",
    "refuse_unknown",
]

PROBE_TEXT = (
    "A tank holds 1200 L. It leaks 2% per hour for 3 hours, then is refilled by 150 L. Let me"
    " compute: 1200 * 0.98 ** 3 = 1129.43, and 1129.43 + 150 = 1279.43. def f(x): return x * 17 +"
    " 23 # check"
)
_FLOAT32 = 1e-4
_HALF = 5e-2
_NAMED = 8


@dataclass(frozen=True, slots=True)
class ScoredText:
    """Text with the log-probs that the trainer gives it."""

    token_ids: tuple[int, ...]
    """Token ids of the whole text."""
    logprobs: tuple[float, ...]
    """Log-probs of the text's last tokens, in order."""


@dataclass(frozen=True, slots=True)
class LogprobDifference:
    """Difference of an engine's log-probs from the trainer's."""

    largest: float
    """Largest absolute difference over all compared tokens."""
    mean: float
    """Mean of the absolute differences."""

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> LogprobDifference:
        """Compare log-probs of the same tokens."""
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        return cls(max(apart, default=0.0), fmean(apart) if apart else 0.0)


class OtherWeightsError(ModelError):
    """Raised if an engine samples with other weights than it was given."""


def refuse_other_weights(
    where: str,
    version: int,
    dtype: str,
    tolerance: float | None,
    found: LogprobDifference,
    differing: Sequence[str],
) -> None:
    """Raise `OtherWeightsError` if the engine at `where` does not sample with the weights of
    `version`.

    `tolerance`: maximum difference of log-probs (None: chosen by `dtype`). `differing`: tensors
    known to differ. Any such tensor is an error, even if the log-probs agree.
    """
    exact = dtype == "float32"
    tolerance = tolerance if tolerance is not None else _FLOAT32 if exact else _HALF
    measured = found.largest if exact else found.mean
    if measured <= tolerance and not differing:
        return
    tensors = (
        f"It differs in: {_named(differing)}." if differing else "No tensor is known to differ."
    )
    raise OtherWeightsError(
        f"The engine at {where} does not sample with the weights of version {version}: log-probs"
        f" differ by {measured:.2g} {'at most' if exact else 'on average'}, and {tolerance:g} is"
        f" allowed in {dtype}. {tensors}",
        "Nothing was trained on its samples. Look at how the server was started and at what it"
        " says; then resume.",
    )


def refuse_unknown(
    where: str, version: int, unknown: Sequence[str], *, trusted: bool
) -> str | None:
    """Raise `OtherWeightsError` if tensors of an engine cannot be compared. If `trusted`, return a
    message instead (None if all can be compared).
    """
    if not unknown:
        return None
    said = (
        f"Not all weights of the engine at {where} can be compared with those of version"
        f" {version}: "
    )
    said += f"{_named(unknown)}."
    if trusted:
        return f"{said} They are taken on trust (unproved_weights)."
    raise OtherWeightsError(
        f"{said} Log-probs agree, and do not show a small difference.",
        "Trust such tensors with --unproved-weights, or let vLLM 0.32 serve the model in a"
        " form that it can reload layer by layer.",
    )


def refuse_kept_cache(where: str, version: int) -> None:
    """Raise `OtherWeightsError` for an engine that still has a cache of prefixes after it was asked
    to drop it.
    """
    raise OtherWeightsError(
        f"The engine at {where} answers with version {version} from a cache of its former weights:"
        " it reported that its cache was dropped, but found an earlier prompt in it.",
        "Nothing was trained on its samples. Look at what stands between trainer and server, and at"
        " the server's log; then resume.",
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )


_SECONDS = 120.0
"""Seconds that a worker may take to pack or to compare one tensor."""
_END_SECONDS = 10.0
_HTTP_PORT = 80


class WeightsBroadcast:
    """Weights of a version, which any number of servers may take or compare any number of times."""

    def __init__(
        self, tensors: Mapping[str, Any], address: str = "", *, seconds: float = _SECONDS
    ) -> None:
        """`address`: address of this machine as servers reach it (empty: the address that faces
        each server).
        """
        given: dict[str, Tensor] = {name: tensor.detach() for name, tensor in tensors.items()}
        self._device = next((tensor.device for tensor in given.values()), torch.device("cpu"))
        self._tensors = {
            name: tensor.to("cpu", copy=True).contiguous() for name, tensor in given.items()
        }
        self._address = address
        self._seconds = seconds

    @contextmanager
    def offered(self, url: str, gpus: Sequence[str]) -> Generator[str]:
        """Yield a string with which a call to the server at `url` makes its workers receive all
        tensors.

        `gpus`: the GPU of each worker, named by `gpu_of`. Raises `ModelError` if the address does
        not belong to this machine. If the body of the `with` raises `ServerGoneError`, details of
        the transfer are added to the error.
        """
        own = gpu_of(self._device)
        # NCCL takes no two ranks on one GPU
        backend = "nccl" if own and all(gpus) and own not in gpus else "gloo"
        host = self._address
        try:
            host = host or local_address(
                urlsplit(url).hostname or "", urlsplit(url).port or _HTTP_PORT
            )
            store, port = open_store(host, self._seconds)
        except (OSError, RuntimeError) as error:  # torch raises RuntimeError
            raise ModelError(
                f"Weights for the server at {url} cannot be offered at {host or 'any address'}: "
                f"{getattr(error, 'strerror', None) or error}.",
                "Name an address of this machine that the server reaches with --weights-address.",
            ) from error
        token = secrets.token_hex(16)
        offer = Offer(host, port, token, backend, len(gpus), self._seconds, listed(self._tensors))
        answered = threading.Event()
        failures = list[str]()
        sending = (offer, store, answered, failures)
        thread = threading.Thread(target=self._send, args=sending, name="weights", daemon=True)
        thread.start()
        # The store listens as long as a reference exists, and a traceback keeps these locals alive.
        del store, sending
        try:
            yield offer.text()
        except ServerGoneError as error:
            answered.set()
            thread.join(_END_SECONDS)
            if not failures:
                raise
            raise ServerGoneError(
                f"{error.message} Weights were sent to it from {host}, port {port}: {failures[0]}.",
                "See its log. Where it does not reach that address, name another of this machine"
                " with --weights-address; then resume the run.",
            ) from error
        finally:
            answered.set()
            thread.join(_END_SECONDS)  # a thread that hangs in a driver is left alone

    def _send(
        self, offer: Offer, store: Any, answered: threading.Event, failures: list[str]
    ) -> None:
        device = self._device if offer.backend == "nccl" else torch.device("cpu")
        try:
            send(offer, store, self._tensors, device, answered)
        # catch any error, since the server's answer shows whether the weights arrived
        except Exception as error:
            failures.append(" ".join(str(error).split()))


_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is made for this user alone


@dataclass(frozen=True, slots=True)
class Publication:
    """Weights of a version, and texts to verify an engine with."""

    version: int
    """Number of optimiser steps behind the weights."""
    source: Path | WeightsBroadcast
    """Path of a safetensors file with all weights, path of an adapter's folder, or a broadcast of
    the weights.
    """
    texts: tuple[ScoredText, ...]
    """Texts with the trainer's log-probs."""

    @property
    def adapter(self) -> str:
        """Name under which the adapter is requested (empty for all weights)."""
        return (
            f"version-{self.version}"
            if isinstance(self.source, Path) and self.source.is_dir()
            else ""
        )


class WeightsFolder:
    """Folder of a run's weights for its engines."""

    def __init__(self, run: Path, base: Path | None = None) -> None:
        """`base`: parent folder that the engines see, too (None: a folder in this machine's
        memory). Raises `RunError` if the folder cannot be made.
        """
        base = base or (_MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir()))
        key = hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]
        self._folder = base / f"hrm-agent-weights-{os.getuid()}-{key}"
        try:
            base.mkdir(parents=True, exist_ok=True)
            if self._folder.is_symlink() or self._folder.exists():
                # any user of this machine can make files in /dev/shm
                status = self._folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    raise RunError(
                        f"{self._folder} is not this user's.",
                        "Name another folder with --weights-folder.",
                    )
                shutil.rmtree(self._folder)
            self._folder.mkdir(mode=0o700)
        except OSError as error:
            raise RunError(
                f"The weights for the engines cannot be kept in {self._folder}:"
                f" {error.strerror or error}.",
                "Name another folder with --weights-folder.",
            ) from error

    def place(self, version: int, *, adapter: bool) -> Path:
        """Path for the weights of a version: a file, or a folder for an adapter."""
        return self._folder / (
            f"adapter-{version}" if adapter else f"weights-{version}.safetensors"
        )

    def write(self, version: int, tensors: Mapping[str, Any]) -> Path:
        """Write all weights to a file and return its path, which engines may get once the file is
        complete. Raises `RunError`.
        """
        path = self.place(version, adapter=False)
        held: dict[str, Tensor] = {
            name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
        }
        try:
            save_file(held, path)
        except Exception as error:  # safetensors has its own error for a full disk
            raise RunError(
                f"The weights of version {version} cannot be written to {path}: {error}.",
                "Make room there, or name another folder with --weights-folder; then resume the"
                " run.",
            ) from error
        return path

    def keep_only(self, version: int) -> None:
        """Remove the weights of other versions."""
        kept = {self.place(version, adapter=adapter) for adapter in (False, True)}
        for path in self._folder.iterdir():
            if path not in kept:
                (
                    shutil.rmtree(path, ignore_errors=True)
                    if path.is_dir()
                    else path.unlink(missing_ok=True)
                )

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
