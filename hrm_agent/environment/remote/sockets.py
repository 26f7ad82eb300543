"""Sockets to serve an environment on: a loopback address or a file. The caller has to allow other
network addresses explicitly.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from contextlib import suppress

from hrm_agent.errors import ConfigError, HrmError

__all__ = ["listen_tcp", "listen_unix"]

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""Keep-alive options. If a client's machine is down, the server notices within 25 s, and the
client's calls end. For a client that is only busy, its kernel responds. Linux passes the options on
to accepted sockets.
"""
_CONNECT_SECONDS = 2.0
_BACKLOG = 1024
"""Number of connections that the kernel queues while the server warms up."""


def listen_tcp(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """Listening TCP socket. `port`: 0 takes any free port. Raises HrmError."""
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{host!r} is not an address to listen on: {error}.",
            "Use 127.0.0.1 for this machine alone.",
        ) from None
    if not allow_remote and not ipaddress.ip_address(str(where[0]).partition("%")[0]).is_loopback:
        raise ConfigError(
            f"{host} can be reached from other machines, and the token crosses the network"
            " unencrypted.",
            "Give --allow-remote to listen there all the same. On an open network, put a TLS proxy"
            " in front of the server.",
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    listener = _bound(listener, where, f"{host}:{port}")
    listener.listen(_BACKLOG)
    return listener


def listen_unix(path: str) -> socket.socket:
    """Listening socket in a file that only its owner may access. The file of a dead server is
    replaced. Raises HrmError.
    """
    _clear(path)
    listener = _bound(socket.socket(socket.AF_UNIX), path, path)
    os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)  # noqa: PTH101 - and nobody connects before it listens
    listener.listen(_BACKLOG)
    return listener


def _clear(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"{path} exists already and is not a socket.", "Name another file.")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108
            return
        except OSError as error:
            raise ConfigError(
                f"{path} is taken: {error.strerror or error}.", "Name another file."
            ) from None
    raise ConfigError(
        f"A server listens at {path} already.",
        f"`hrm-agent environment status unix:{path}` shows its state.",
    )


def _bound(listener: socket.socket, where: object, name: str) -> socket.socket:
    try:
        listener.bind(where)  # pyright: ignore[reportArgumentType] - as getaddrinfo gave it
    except OSError as error:
        listener.close()
        raise HrmError(
            f"Cannot listen at {name}: {error.strerror or error}.", "Name another address."
        ) from None
    return listener
