"""Check of a server that a folder names as its store: only known servers are connected to.

A connection reveals to a server who connects, and libpq sends it PGPASSWORD or the password that
`~/.pgpass` has for it. So a folder from an unknown author must not choose the server. Known servers
are this machine, PGHOST, and the hosts in HRM_AGENT_STORE_HOSTS.

`shown_url` gives a store's address for display, without its password.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from hrm_agent.errors import StoreError

__all__ = ["refuse_unknown_server", "shown_url"]

_SECRET = ("password", "sslpassword")


def shown_url(address: str) -> str:
    """Address for display, without passwords.

    `postgresql://me:secret@host/name?password=secret` becomes `postgresql://me@host/name`. A path
    is unchanged.
    """
    scheme, found, rest = address.partition("://")
    if not found or scheme == "sqlite":
        return address
    # a question mark before the first slash may be part of a password
    mark = rest.find("?", max(rest.find("/"), 0))
    head, query = (rest, "") if mark < 0 else (rest[:mark], rest[mark + 1 :])
    user, at, host = head.rpartition("@")
    kept = [
        each
        for each in query.split("&")
        if each and unquote(each.partition("=")[0]).lower() not in _SECRET
    ]
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" + (f"?{'&'.join(kept)}" if kept else "")


_VARIABLE = "HRM_AGENT_STORE_HOSTS"
_PARAMETERS = {
    *(
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "options",
        "application_name",
        "client_encoding",
    ),
    *(
        "sslmode",
        "sslrootcert",
        "sslcert",
        "sslkey",
        "sslcrl",
        "sslcrldir",
        "sslsni",
        "sslnegotiation",
    ),
    *(
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "gssencmode",
        "channel_binding",
        "require_auth",
    ),
    *(
        "connect_timeout",
        "tcp_user_timeout",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
    ),
    *("keepalives_count", "target_session_attrs", "load_balance_hosts"),
}
"""Allowed parameters of libpq. Others name the server elsewhere (`service`), write to a file
(`sslkeylogfile`), or ask a third party (`oauth_issuer`).
"""


def refuse_unknown_server(url: str, named_by: Path) -> None:
    """Raise `StoreError` for a PostgreSQL URL, read from the file `named_by`, if its server is
    unknown to the user.

    Also raise it for a URL with parameters that make libpq do more than connect.
    """
    try:
        named = conninfo_to_dict(url)
    except ProgrammingError:  # an invalid URL is reported when it is opened
        return
    hosts = [
        host
        for name in ("host", "hostaddr")
        for host in str(named.get(name) or "").lower().split(",")
    ]
    given = f"{os.environ.get(_VARIABLE, '')},{os.environ.get('PGHOST', '')}".lower().split(",")
    known = {host.strip() for host in given}
    unknown = [host for host in hosts if host not in known and not _is_here(host)]
    refused = named.keys() - _PARAMETERS
    if ":" in str(named.get("sslkey") or ""):  # not a file: OpenSSL loads a library
        refused.add("sslkey")
    if not unknown and not refused:
        return
    instead = "name the store's own URL in place of the folder."
    if refused:
        hint = f"A folder's URL may not set {', '.join(sorted(refused))}: {instead}"
    else:
        allow = shlex.quote(",".join(dict.fromkeys(unknown)))
        hint = f"Where the server is yours: `export {_VARIABLE}={allow}`. Or {instead}"
    raise StoreError(
        f"{named_by} names a store on a server, {shown_url(url)}; whoever made the folder wrote"
        " that, so it was not connected to.",
        hint,
    )


def _is_here(host: str) -> bool:
    """True for this machine. An empty host is libpq's own default: PGHOST, or a local socket."""
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
