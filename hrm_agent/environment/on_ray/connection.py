"""Connection of this process to Ray, shared by all its users."""

from __future__ import annotations

import os
import socket
import threading
from importlib import import_module
from typing import Any

from hrm_agent.errors import HrmError, to_install

__all__ = ["connect", "line_of", "release"]

_REACH_SECONDS = 5.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_lock = threading.Lock()
_open = 0
"""Number of users of the connection that this module has made (0 if it has made none). The last
user ends it.
"""
_START = (
    "Start a cluster with `ray start --head`. Without an address, a cluster is started on this"
    " machine."
)


def connect(address: str | None) -> tuple[Any, bool]:
    """Return Ray, and True if `release` has to be called.

    `address`: as for `RayEnvironment` (None: the variable RAY_ADDRESS, else `local`). If Ray is
    already initialized in this process, that connection is used and `address` is ignored. Raises
    HrmError if Ray is not installed or unreachable.
    """
    global _open
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with _lock:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address == "local" or address.rpartition(":")[0] in _LOOPBACK:
            # Without this variable, Ray replaces loopback by the machine's outer address. It is
            # named after the platforms where Ray keeps loopback by default.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise HrmError("Ray is not installed.", f"Run `{to_install('ray')}`.") from None
        if not ray.is_initialized():
            _init(ray, address)
        elif not _open:
            return ray, False
        _open += 1
        return ray, True


def release(ray: Any) -> None:
    """Release the connection. It ends with its last user."""
    global _open
    with _lock:
        _open -= 1
        if not _open:
            ray.shutdown()


def _init(ray: Any, address: str) -> None:
    if address not in {"local", "auto"}:
        # checked first, since Ray would wait forever if nothing listened at the address
        host, _, port = address.rpartition(":")
        if "//" in host or not host or not port.isdigit():
            where = (
                "Run the driver on a node of the cluster, and give HOST:PORT of the head, or"
                " `auto`."
            )
            raise HrmError(f"{address!r} is not the address of a Ray cluster.", where)
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise HrmError(f"No Ray cluster answers at {address}: {error}.", _START) from None
    here = {"_node_ip_address": "127.0.0.1"} if address == "local" else {}
    try:
        ray.init(
            address, include_dashboard=False, log_to_driver=False, logging_level="WARNING", **here
        )
    except Exception as error:  # Ray raises many kinds
        raise HrmError(f"Cannot connect to Ray at {address}: {line_of(error)}", _START) from error


def line_of(error: object) -> str:
    """First line of an error by Ray, since Ray's messages are long."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
