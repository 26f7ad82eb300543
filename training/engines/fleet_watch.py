"""Repeated check that a server is still what was proved, also once before a step is trained on.

A proof shows what a server samples with at one moment. Afterwards it may be restarted with its
initial weights, be given weights by another client, or have its memory overwritten. So each check
reads its process and the last weights it was given, and some checks read a digest of all that it
computes with.

Answers since the last successful check cannot be told apart from answers of other weights. Without
such answers, the server is treated as lost: it is given the weights again, and proved. With any,
the step must not be trained on.
"""

from __future__ import annotations

import time

from hrm_agent.models.vllm.server import ServerGoneError
from hrm_agent.models.vllm.weights import Watched
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.server import FleetServer
from hrm_agent.training.engines.weights import OtherWeightsError

__all__ = ["FleetWatch"]

_LEAST_SECONDS = 10.0
"""Minimum seconds between two digests of all weights."""
_SHARE = 0.01
"""Maximum share of a server's time that digests take."""


class FleetWatch:
    """Watches one server of a fleet."""

    def __init__(self, server: FleetServer, router: EngineRouter) -> None:
        self._server, self._router = server, router
        self._proved: Watched | None = None
        self._next_digest = 0.0
        self._same = self._same_digest = 0
        """Number of its answers at the last successful check, of its process and by a digest."""

    def begin(self) -> None:
        """Begin to watch a server that was proved, and gets requests from now on."""
        self._proved = self._server.proved
        self._same = self._same_digest = self._router.answered(self._server.name)

    def look(self, *, digest: bool = False) -> Watched | None:
        """Check that the server is what was proved, and report the progress of its requests to the
        router. Return its state (None if nothing was proved).

        `digest`: read all weights, even if it is not due. Raises `ServerGoneError` if it has
        changed and has answered nothing since, and `OtherWeightsError` if it has.
        """
        server, proved = self._server, self._server.proved
        if proved is None:
            return None
        began, answered = time.monotonic(), self._router.answered(server.name)
        digest = digest or began >= self._next_digest
        try:
            found = server.watch(digest=digest)
        except ServerGoneError:
            if server.proved is proved:
                raise
            return None  # it was given other weights meanwhile, which this check waited for
        if digest:
            took = time.monotonic() - began
            self._next_digest = began + max(_LEAST_SECONDS, took / _SHARE)
        if found.tokens is not None:
            self._router.heard(server.name, found.tokens)
        if server.proved is not proved or self._proved is not proved:
            return found  # it was given other weights meanwhile, or gets no requests yet
        if found.identity != proved.identity:
            self._refuse("It was started again, or given weights by somebody else,", self._same)
        if digest and found.digest != proved.digest:
            self._refuse("Something has written over its weights", self._same_digest)
        self._same, self._same_digest = answered, answered if digest else self._same_digest
        return found

    def _refuse(self, what: str, same: int) -> None:
        server = self._server
        since = self._router.answered(server.name) - same
        if since <= 0:
            raise ServerGoneError(f"{what} since its proof", "It is given the weights anew.")
        raise OtherWeightsError(
            f"The engine at {server.url} is not what it was proved to be with version"
            f" {server.took}: {what} after its proof, and it has answered {since} requests since it"
            " was last seen to be the same.",
            "Nothing was trained on this step, and the answers are on record: remove the step's"
            " threads with `hrm-agent store delete` before `hrm-agent resume`, or it learns from"
            " them. Look at what else reaches the server: nobody else may restart it under its"
            " address, or change its weights, while a training runs.",
        )
