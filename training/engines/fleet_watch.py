"""A server is still what it was proved to be: looked at again and again, and once more before a
step is learnt from.

A proof says what a server samples with at one moment. Afterwards it may be started again with what
it had at first, be given weights by somebody else, or have its memory written over. So each look
asks for its process and for what that was last given, and some looks for a digest of all that it
computes with.

What a server answered since it was last seen to be the same cannot be told from answers of other
weights. Where there is none, the server is dealt with as one that was lost: it is given the weights
anew, and proved. Where there is any, the step must not be learnt from.
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
"""Between one digest of all weights and the next."""
_SHARE = 0.01
"""Share of a server's time that digests may take."""


class FleetWatch:
    """Looks at one server of a fleet."""

    def __init__(self, server: FleetServer, router: EngineRouter) -> None:
        self._server, self._router = server, router
        self._proved: Watched | None = None
        self._next_digest = 0.0
        self._same = self._same_digest = 0
        """Its answers when it was last seen to be the same, by its process and by a digest."""

    def begin(self) -> None:
        """It was proved, and is asked from now on."""
        self._proved = self._server.proved
        self._same = self._same_digest = self._router.answered(self._server.name)

    def look(self, *, digest: bool = False) -> Watched | None:
        """See whether it is what was proved, and hear how far its requests are; None if nothing was
        proved.

        `digest`: read all weights, whether or not it is time to. Raises `ServerGoneError` where it
        is another now and has answered nothing since, and `OtherWeightsError` where it has.
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
            return None  # it was given others meanwhile, and this look had to wait for that
        if digest:
            took = time.monotonic() - began
            self._next_digest = began + max(_LEAST_SECONDS, took / _SHARE)
        if found.tokens is not None:
            self._router.heard(server.name, found.tokens)
        if server.proved is not proved or self._proved is not proved:
            return found  # it was given others meanwhile, or is asked for nothing yet
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
