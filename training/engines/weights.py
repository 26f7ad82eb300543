"""Weights on their way to engines of other processes: files in a folder that both sides see.

On one machine that folder lies in memory (/dev/shm), so that nothing touches a disk; across
machines it is a shared one that the user names. It has the same name each time that a run is
resumed: what a killed trainer has left is removed.

Weights on their way to engines of other processes: sent over the network to the workers of one
server at a time.

No folder has to be seen by both sides. Each server has a group of its own, so that one that dies or
is slow holds up itself alone. The weights are kept in the trainer's memory until the next version,
as a file would be: a server that comes back while the trainer learns is given those that are in
force, and not those that are half changed.

While a transfer lasts, who reaches the trainer's address can take part in it: as for the servers'
dev mode, the network has to be closed.

Whether an engine samples with the weights that it was given: proved after each publish, never
assumed.

Ways to hand weights to a server answer "done" and are wrong in silence: a server that was asleep
wakes with what it had (huggingface/trl issue 5312), an output layer tied to the embedding keeps
another (pytorch/torchtitan PR 2402). Then a training goes on, on samples of another policy, and its
curves only look a little worse. Three things are held against the trainer:

* the tensors, layer by layer, byte by byte (`hrm_agent/models/vllm/in_server/hrm_agent_held.py`),
  in whatever form and on however many cards: that says *which* are wrong, and sees a step of any
  size;
* the log-probs of a fixed text, which the server computes without its cache;
* the log-probs of fresh samples, which took the way of every rollout: prefill, cache, decoding,
  sampler. They begin with a prompt that the server had in its cache with the former weights, and
  must not be found there.

How far log-probs may differ depends on the dtype of the server's weights. In float32 the largest
difference counts. In half precision single tokens differ by up to 0.8 with equal weights, so there
the mean does: it is 0.016 with the small policy, and cannot see a small step. So tensors that
cannot be compared are named, and taken on trust only where the user says so.

A proof is of one moment. `hrm_agent.training.engines.fleet_watch` sees to the time after it, and
`engine_difference` of each step, within the bounds of `difference_bound`, to what either of them
misses.
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
    """A text and its log-probs by the trainer."""

    token_ids: tuple[int, ...]
    """The whole text."""
    logprobs: tuple[float, ...]
    """Of its last tokens, as many as there are."""


@dataclass(frozen=True, slots=True)
class LogprobDifference:
    """How far an engine's log-probs are from the trainer's."""

    largest: float
    """Over all tokens that were compared."""
    mean: float
    """Mean of the absolute differences."""

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> LogprobDifference:
        """Of log-probs of the same tokens."""
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        return cls(max(apart, default=0.0), fmean(apart) if apart else 0.0)


class OtherWeightsError(ModelError):
    """An engine samples with other weights than those that it was given."""


def refuse_other_weights(
    where: str,
    version: int,
    dtype: str,
    tolerance: float | None,
    found: LogprobDifference,
    differing: Sequence[str],
) -> None:
    """Raise `OtherWeightsError` where an engine does not sample with the weights of `version`.
    `where`: its address.

    `tolerance`: how far log-probs may differ; None: by dtype. `differing`: tensors that are known
    to; one that differs by less than log-probs show is refused, too.
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
    """Raise `OtherWeightsError` where tensors of an engine cannot be compared; a text in place of
    it if `trusted`.
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
        "Go on without that proof with --unproved-weights; or let vLLM 0.32 serve the model in a"
        " form that it can reload layer by layer.",
    )


def refuse_kept_cache(where: str, version: int) -> None:
    """Raise `OtherWeightsError`: an engine was told to forget its cache of prefixes, and has it
    still.
    """
    raise OtherWeightsError(
        f"The engine at {where} answers with version {version} from a cache of its former weights:"
        " it said that it had dropped its cache, and found in it what it had been asked before.",
        "Nothing was trained on its samples. Look at what stands between trainer and server, and at"
        " the server's log; then resume.",
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (
        f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    )


_SECONDS = 120.0
"""That a worker may take for one tensor: to pack it, or to compare it."""
_END_SECONDS = 10.0
_HTTP_PORT = 80


class WeightsBroadcast:
    """The weights of a version, for any number of servers, each as often as it is asked to take or
    to compare them.
    """

    def __init__(
        self, tensors: Mapping[str, Any], address: str = "", *, seconds: float = _SECONDS
    ) -> None:
        """`address`: of this machine, as servers reach it; empty:
        the one that it has towards each.
        """
        given: dict[str, Tensor] = {name: tensor.detach() for name, tensor in tensors.items()}
        self._device = next((tensor.device for tensor in given.values()), torch.device("cpu"))
        self._tensors = {
            name: tensor.to("cpu", copy=True).contiguous() for name, tensor in given.items()
        }
        self._address, self._seconds = address, seconds

    @contextmanager
    def offered(self, url: str, gpus: Sequence[str]) -> Generator[str]:
        """While the body calls the server at `url` with this string, its workers are sent all
        tensors.

        `gpus`: that of each worker, as `gpu_of` names it. Raises `ModelError` where the address is
        none of this machine, and says more of a `ServerGoneError` of the body.
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
        except (OSError, RuntimeError) as error:  # torch's own is of the second kind
            raise ModelError(
                f"Weights for the server at {url} cannot be offered at {host or 'any address'}: "
                f"{getattr(error, 'strerror', None) or error}.",
                "Name an address of this machine that the server reaches with --weights-address.",
            ) from error
        token = secrets.token_hex(16)
        offer = Offer(host, port, token, backend, len(gpus), self._seconds, listed(self._tensors))
        answered, failures = threading.Event(), list[str]()
        sending = (offer, store, answered, failures)
        thread = threading.Thread(target=self._send, args=sending, name="weights", daemon=True)
        thread.start()
        # it listens for as long as somebody holds it, and an error holds what stands here
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
            thread.join(_END_SECONDS)  # one that hangs in a driver is left to itself

    def _send(
        self, offer: Offer, store: Any, answered: threading.Event, failures: list[str]
    ) -> None:
        device = self._device if offer.backend == "nccl" else torch.device("cpu")
        try:
            send(offer, store, self._tensors, device, answered)
        # whatever it is: the server's answer says what became of the weights
        except Exception as error:
            failures.append(" ".join(str(error).split()))


_MEMORY = Path("/dev/shm")  # noqa: S108 - the folder in it is made for this user alone


@dataclass(frozen=True, slots=True)
class Publication:
    """The weights of a version, and texts by which an engine is held to them."""

    version: int
    """Optimiser steps behind them."""
    source: Path | WeightsBroadcast
    """Path of a safetensors file of all weights or of an adapter's folder; or the weights
    themselves, to broadcast.
    """
    texts: tuple[ScoredText, ...]
    """With the trainer's log-probs."""

    @property
    def adapter(self) -> str:
        """The name under which an adapter is asked for; empty for all weights."""
        return (
            f"version-{self.version}"
            if isinstance(self.source, Path) and self.source.is_dir()
            else ""
        )


class WeightsFolder:
    """Where the weights of a run lie for its engines."""

    def __init__(self, run: Path, base: Path | None = None) -> None:
        """`base`: a folder that the engines see, too; None: this machine's memory. Raises
        `RunError`.
        """
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
                f"The weights for the engines cannot be kept in {self._folder}:"
                f" {error.strerror or error}.",
                "Name another folder with --weights-folder.",
            ) from error

    def place(self, version: int, *, adapter: bool) -> Path:
        """Where the weights of a version go: a file, or for an adapter a folder."""
        return self._folder / (
            f"adapter-{version}" if adapter else f"weights-{version}.safetensors"
        )

    def write(self, version: int, tensors: Mapping[str, Any]) -> Path:
        """Write all weights, and nothing half: engines are told of the file when it is there."""
        path = self.place(version, adapter=False)
        held: dict[str, Tensor] = {
            name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()
        }
        try:
            save_file(held, path)
        except Exception as error:  # safetensors has an error of its own for a full disk
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
        """Remove all."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_own(self) -> None:
        """What stands there under our name may be somebody else's: memory is open to all users of a
        machine.
        """
        status = self._folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise RunError(
                f"{self._folder} is not this user's.", "Name another folder with --weights-folder."
            )
        shutil.rmtree(self._folder)
