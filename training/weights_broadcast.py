"""Weights on their way to engines of other processes: sent over the network to the workers of one server at a time.

No folder has to be seen by both sides. Each server has a group of its own, so that one that dies or is slow holds up
itself alone. The weights are kept in the trainer's memory until the next version, as a file would be: a server that
comes back while the trainer learns is given those that are in force, and not those that are half changed.

While a transfer lasts, who reaches the trainer's address can take part in it: as for the servers' dev mode, the
network has to be closed.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from hrm_agent.errors import ModelError
from hrm_agent.models.vllm.in_server.hrm_agent_group import Offer, gpu_of, listed, local_address, open_store, send
from hrm_agent.models.vllm.server import ServerGoneError

__all__ = ["WeightsBroadcast"]

_SECONDS = 120.0
"""That a worker may take for one tensor: to pack it, or to compare it."""
_END_SECONDS = 10.0
_HTTP_PORT = 80


class WeightsBroadcast:
    """The weights of a version, for any number of servers, each as often as it is asked to take or to compare them."""

    def __init__(self, tensors: Mapping[str, Any], address: str = "", *, seconds: float = _SECONDS) -> None:
        """`address`: of this machine, as servers reach it; empty: the one that it has towards each."""
        given: dict[str, Tensor] = {name: tensor.detach() for name, tensor in tensors.items()}
        self._device = next((tensor.device for tensor in given.values()), torch.device("cpu"))
        self._tensors = {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in given.items()}
        self._address, self._seconds = address, seconds

    @contextmanager
    def offered(self, url: str, gpus: Sequence[str]) -> Generator[str]:
        """While the body calls the server at `url` with this string, its workers are sent all tensors.

        `gpus`: that of each worker, as `gpu_of` names it. Raises `ModelError` where the address is none of this
        machine, and says more of a `ServerGoneError` of the body.
        """
        own = gpu_of(self._device)
        # NCCL takes no two ranks on one GPU
        backend = "nccl" if own and all(gpus) and own not in gpus else "gloo"
        host = self._address
        try:
            host = host or local_address(urlsplit(url).hostname or "", urlsplit(url).port or _HTTP_PORT)
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
        del store, sending  # it listens for as long as somebody holds it, and an error holds what stands here
        try:
            yield offer.text()
        except ServerGoneError as error:
            answered.set()
            thread.join(_END_SECONDS)
            if not failures:
                raise
            raise ServerGoneError(
                f"{error.message} Weights were sent to it from {host}, port {port}: {failures[0]}.",
                "See its log. Where it does not reach that address, name another of this machine with "
                "--weights-address; then resume the run.",
            ) from error
        finally:
            answered.set()
            thread.join(_END_SECONDS)  # one that hangs in a driver is left to itself

    def _send(self, offer: Offer, store: Any, answered: threading.Event, failures: list[str]) -> None:
        device = self._device if offer.backend == "nccl" else torch.device("cpu")
        try:
            send(offer, store, self._tensors, device, answered)
        except Exception as error:  # whatever it is: the server's answer says what became of the weights
            failures.append(" ".join(str(error).split()))
