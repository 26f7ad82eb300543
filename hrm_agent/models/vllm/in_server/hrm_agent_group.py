"""Transfer of weights from a trainer to the workers of one server, by broadcasts in a separate
process group.

Both sides run this module: the trainer is rank 0, and the workers are the other ranks. The module
imports nothing of the package, since a server may have another Python environment.

A group exists for one transfer only. So a restarted server, or a resumed trainer, needs no special
treatment. Ranks find each other by a store of the trainer, which listens on one address during the
transfer. If a rank ends, its connections close, which the other ranks notice at once. If a rank is
silent, the others wait for it up to `seconds`.

Tensors are sent one after the other, in the offer's order. Large tensors are sent in pieces. So
each side holds one tensor in addition to the model.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed
from torch import Tensor

__all__ = ["Offer", "gpu_of", "listed", "local_address", "open_store", "receive", "send"]

_DIST: Any = torch.distributed
"""Module without types, since type checkers do not know its stores and groups."""
_PIECE = 64 << 20
"""Maximum number of bytes of one broadcast."""
_LOOK_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of weights: the address of their source, and a list of the tensors."""

    host: str
    """Address of the trainer's store."""
    port: int
    """Port of the trainer's store."""
    token: str
    """Prefix of each key in the store. A late rank of another transfer has another prefix, so it
    finds nothing.
    """
    backend: str
    """Backend: gloo, or nccl if each rank has its own GPU."""
    workers: int
    """Number of ranks, not counting the trainer."""
    seconds: float
    """Maximum number of seconds that a rank waits for another rank."""
    tensors: list[tuple[str, list[int], str]]
    """Name, shape and dtype of each tensor, in the order of transfer."""

    @property
    def patience(self) -> timedelta:
        """Timeout of `seconds`."""
        return timedelta(seconds=self.seconds)

    def text(self) -> str:
        """Format the offer as text for a call to a server."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Offer:
        """Parse an offer from the result of `text`."""
        return cls(**json.loads(text))


def listed(tensors: Mapping[str, Tensor]) -> list[tuple[str, list[int], str]]:
    """Name, shape and dtype of each tensor, as in an offer."""
    return [
        (name, list(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    ]


def gpu_of(device: torch.device | None) -> str:
    """Identifier of a GPU, equal in all processes (empty for another device, or if NCCL is
    missing).
    """
    if device is None or device.type != "cuda" or not _DIST.is_nccl_available():
        return ""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


def local_address(host: str, port: int) -> str:
    """Address that this machine uses for connections to `host`. Nothing is sent. Raises `OSError`."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asked:
        asked.connect(address)
        return str(asked.getsockname()[0])


def open_store(host: str, seconds: float) -> tuple[Any, int]:
    """Store that only listens on the address `host`, and its port. Raises `OSError`."""
    with socket.create_server(
        (host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET
    ) as listening:
        port = int(listening.getsockname()[1])
        store = _DIST.TCPStore(
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
            master_listen_fd=listening.fileno(),
        )
        listening.detach()  # the store owns the socket
        return store, port


def send(
    offer: Offer,
    store: Any,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    answered: threading.Event,
) -> None:
    """Send all tensors, on the trainer's side. Raises `RuntimeError` if a worker ends or is silent,
    and `TimeoutError` if the workers do not join.

    `answered`: event that is set when the server has reported its result. If it is set before all
    workers have joined, waiting for them ends. The connections stay open until it is set.
    """
    own = _DIST.PrefixStore(offer.token, store)
    while not own.check([_here(rank) for rank in range(1, offer.workers + 1)]):
        if answered.wait(_LOOK_SECONDS):
            raise TimeoutError("the server's workers did not join the transfer")
    with _group(own, 0, offer, offer.host) as group:
        for tensor in tensors.values():
            for piece in _pieces(tensor.reshape(-1).view(torch.uint8)):
                _broadcast(group, piece.to(device), offer)
        answered.wait(offer.seconds)


def receive(offer: Offer, rank: int, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Receive all tensors by name, on a worker's side. `rank`: from 1 on."""
    store = _DIST.TCPStore(
        offer.host, offer.port, is_master=False, wait_for_workers=False, timeout=offer.patience
    )
    own = _DIST.PrefixStore(offer.token, store)
    own.set(_here(rank), "")
    with _group(own, rank, offer, local_address(offer.host, offer.port)) as group:
        for name, shape, kind in offer.tensors:
            dtype: torch.dtype = getattr(torch, kind)
            held = torch.empty(prod(shape) * dtype.itemsize, dtype=torch.uint8, device=device)
            for piece in _pieces(held):
                _broadcast(group, piece, offer)
            yield name, held.view(dtype).reshape(shape)


def _here(rank: int) -> str:
    return f"rank-{rank}"


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    for start in range(0, len(flat), _PIECE):
        yield flat[start : start + _PIECE]


def _broadcast(group: Any, piece: Tensor, offer: Offer) -> None:
    group.broadcast(piece, 0).wait(offer.patience)


@contextmanager
def _group(store: Any, rank: int, offer: Offer, host: str) -> Generator[Any]:
    """Process group of one transfer. It is not torch's default group, since trainers with several
    ranks, and servers, use that group for other purposes.
    """
    if offer.backend == "nccl":
        group = _nccl(store, rank, offer)
        try:
            yield group
        finally:
            with suppress(RuntimeError):  # a peer may be gone
                group.abort()
        return
    options = _DIST.ProcessGroupGloo._Options()
    options._timeout = offer.patience
    options._devices = [_DIST.ProcessGroupGloo.create_device(hostname=host)]
    # the group closes when the last reference to it is gone
    yield _DIST.ProcessGroupGloo(store, rank, offer.workers + 1, options)


_MAKING = threading.Lock()
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"


def _nccl(store: Any, rank: int, offer: Offer) -> Any:
    """NCCL group whose `wait` raises errors. With the default options, a thread of torch would end
    the process instead.
    """
    options = _DIST.ProcessGroupNCCL.Options()
    options._timeout = offer.patience
    with _MAKING:
        before = os.environ.get(_BLOCKING_WAIT)
        # there is no option for this; the variable is read when a group is made
        os.environ[_BLOCKING_WAIT] = "1"
        try:
            return _DIST.ProcessGroupNCCL(store, rank, offer.workers + 1, options)
        finally:
            os.environ.pop(_BLOCKING_WAIT)
            if before is not None:
                os.environ[_BLOCKING_WAIT] = before
