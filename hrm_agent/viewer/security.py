"""Access control of the server, and headers that restrict the browser.

The page runs on the user's machine and shows text of models, tools and web pages. So three rules
hold:

* Another site's page cannot send requests. The Host header of a request has to be one of this
  server's hosts, with its port. A foreign name that was rebound to this machine is refused. An
  Origin header has to be this server, and each POST must have one. `Sec-Fetch-Site`, if a browser
  sends it, has to show that the page belongs to this server. A link of another site to the first
  page may be followed, since this page contains no data.
* Requests for data need the token, which is neither in a cookie nor in an address that a browser
  sends. Forks and replays need a second token.
* Foreign content is never run. Only this server's scripts, styles and images are loaded. Frames and
  forms are not allowed, and text cannot become markup (`require-trusted-types-for`).
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Sequence

from aiohttp import web

from hrm_agent.basics.http_server import BadRequestError

__all__ = ["FORK_HEADER", "HEADERS", "SiteGate", "require_fork_token"]

FORK_HEADER = "X-Fork-Token"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104
_OURS = ("same-origin", "none")


class SiteGate:
    """Filter of requests. Raises `BadRequestError` for a request that neither this server's page
    nor a command-line program would send.
    """

    def __init__(self, host: str, port: int, page: str) -> None:
        """`host`: host that the server listens on. `page`: path that a link of another site may
        lead to.
        """
        self._port = port
        self._page = page
        self._names = {*_LOOPBACK, host.lower()} - set(_ANYWHERE)
        self._any_address = host in _ANYWHERE
        if self._any_address:
            self._names.add(socket.gethostname().lower())

    def reject(self, request: web.Request) -> None:
        hosts = request.headers.getall("Host", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise BadRequestError(
                403,
                "The Host header names another server.",
                "Open the address that `hrm-agent view` printed. Through a tunnel, forward the"
                f" same port: ssh -L {self._port}:127.0.0.1:{self._port} HOST.",
            )
        origins = request.headers.getall("Origin", [])
        if request.method not in ("GET", "HEAD") and not origins:
            raise BadRequestError(403, "A request that changes something needs an Origin header.")
        if len(origins) > 1 or any(not self._is_origin(origin) for origin in origins):
            raise BadRequestError(403, "The Origin header names another site.")
        sites = request.headers.getall("Sec-Fetch-Site", [])
        if any(site not in _OURS for site in sites) and not self._follows_link(request):
            raise BadRequestError(403, "The request comes from a page of another site.")

    def _follows_link(self, request: web.Request) -> bool:
        headers = request.headers
        return (
            request.method == "GET"
            and request.path == self._page
            and headers.getall("Sec-Fetch-Mode", []) == ["navigate"]
            and headers.getall("Sec-Fetch-Dest", []) == ["document"]
        )

    def _is_origin(self, origin: str) -> bool:
        scheme, _, authority = origin.partition("://")
        return scheme == "http" and self._is_ours(authority)

    def _is_ours(self, authority: str) -> bool:
        name, colon, port = authority.rpartition(":")
        if not colon or "]" in port:  # browsers leave out port 80
            name = authority
            port = "80"
        if port != str(self._port):
            return False
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        return bare.lower() in self._names or (self._any_address and _is_address(bare))


def _is_address(name: str) -> bool:
    """True for an IP address, which cannot be rebound as a name can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def require_fork_token(request: web.Request, token: str) -> None:
    """Raise `BadRequestError` for a request without exactly one correct second token."""
    given: Sequence[str] = request.headers.getall(FORK_HEADER, [])
    if len(given) != 1 or not hmac.compare_digest(
        given[0].encode("utf-8", "surrogateescape"), token.encode()
    ):
        raise BadRequestError(
            403, "The token for forks is missing or wrong.", "Reload the page from its address."
        )
