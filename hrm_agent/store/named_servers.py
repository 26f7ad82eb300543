"""Servers that a folder names as its store: only those that the user knows are connected to.

A connection tells a server who asks, and libpq sends it PGPASSWORD or what `~/.pgpass` holds for it. So a folder that
somebody else made must not choose the server. Known are this machine, PGHOST, and the hosts of a variable.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
from contextlib import suppress
from pathlib import Path

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from hrm_agent.errors import StoreError
from hrm_agent.store.shown_url import shown_url

__all__ = ["refuse_unknown_server"]

_VARIABLE = "HRM_AGENT_STORE_HOSTS"
_INDIRECT = {"service", "servicefile", "sslkeylogfile"}
"""Parameters that name the server elsewhere, or make libpq write to a file. A key with a colon in its name is not a
file: OpenSSL loads a library for it."""


def refuse_unknown_server(url: str, named_by: Path) -> None:
    """Raises `StoreError` for a PostgreSQL URL, read from the file `named_by`, whose server the user does not know.

    Nor is one connected to by a URL that makes libpq do more than connect.
    """
    try:
        named = conninfo_to_dict(url)
    except ProgrammingError:  # what is no URL is connected to by nobody, and told by who opens it
        return
    hosts = [host for name in ("host", "hostaddr") for host in str(named.get(name) or "").lower().split(",")]
    given = f"{os.environ.get(_VARIABLE, '')},{os.environ.get('PGHOST', '')}".lower().split(",")
    known = {host.strip() for host in given}
    unknown = [host for host in hosts if host not in known and not _is_here(host)]
    indirect = bool(named.keys() & _INDIRECT) or ":" in str(named.get("sslkey") or "")
    if not unknown and not indirect:
        return
    allow = shlex.quote(",".join(dict.fromkeys(unknown)))
    raise StoreError(
        f"{named_by} names a store on a server, {shown_url(url)}; whoever made the folder wrote that, so it was not "
        "connected to.",
        ("" if indirect else f"Where the server is yours: `export {_VARIABLE}={allow}`. ")
        + "Or name the store's own URL in place of the folder.",
    )


def _is_here(host: str) -> bool:
    """Nothing at all is libpq's own default: PGHOST, or a socket of this machine."""
    if not host or host == "localhost" or host.startswith(("/", "@")):
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
