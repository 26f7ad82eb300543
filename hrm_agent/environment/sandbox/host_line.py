"""Slot's end of the socket between host and slot: requests in, replies out."""

from __future__ import annotations

# ruff: noqa: TID252  the package is loaded under another name (see __init__)
import socket

from .protocol import REFUSED, REFUSED_KINDS, REPLY, REQUEST, Reply, Request
from .supervisor import Supervisor

__all__ = ["HostLine"]

_MOST_COUNTED = (1 << 32) - 1


class HostLine:
    """Connection to the host. Adds the CPU time of the slot itself to each reply."""

    def __init__(self, host: socket.socket, supervisor: Supervisor | None) -> None:
        self._host = host
        self._supervisor = supervisor
        self.own_seconds = 0.0
        """CPU time of the slot for the current call, without the supervisor's. It is charged to the
        call, since the snippet determines how much the slot has to check and to clean up.
        """

    @property
    def charged_seconds(self) -> float:
        """CPU time of the slot that is charged to the current call."""
        return self.own_seconds + (
            self._supervisor.seconds if self._supervisor is not None else 0.0
        )

    def receive(self) -> Request | None:
        """Receive a request (None if the host is gone)."""
        data = self._host.recv(REQUEST.size)
        return Request(*REQUEST.unpack(data)) if len(data) == REQUEST.size else None

    def send(self, reply: Reply) -> None:
        """Send the counts of refused system calls, then the reply. Resets the counts and the CPU
        time for the next call.
        """
        if self._supervisor is not None and self._supervisor.refused:
            most = sorted(self._supervisor.refused.items(), key=lambda item: -item[1])[
                :REFUSED_KINDS
            ]
            flat = [
                figure
                for number, count in most
                for figure in (number & 0xFFFF, min(count, _MOST_COUNTED))
            ]
            self._host.send(REFUSED.pack(*flat, *[0] * (2 * REFUSED_KINDS - len(flat))))
        charged = self.charged_seconds
        self.own_seconds = 0.0
        if self._supervisor is not None:
            self._supervisor.begin()
        self._host.send(REPLY.pack(*reply._replace(cpu_seconds=reply.cpu_seconds + charged)))
