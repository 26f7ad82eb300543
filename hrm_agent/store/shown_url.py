"""The address of a store as people may see it: a password in it is left out."""

from __future__ import annotations

from urllib.parse import unquote

__all__ = ["shown_url"]

_SECRET = ("password", "sslpassword")


def shown_url(address: str) -> str:
    """`postgresql://me:secret@host/name?password=secret` -> `postgresql://me@host/name`; a path stays as it is."""
    scheme, found, rest = address.partition("://")
    if not found or scheme == "sqlite":
        return address
    mark = rest.find("?", max(rest.find("/"), 0))  # one before the first slash may be part of a password
    head, query = (rest, "") if mark < 0 else (rest[:mark], rest[mark + 1 :])
    user, at, host = head.rpartition("@")
    kept = [each for each in query.split("&") if each and unquote(each.partition("=")[0]).lower() not in _SECRET]
    return f"{scheme}://{user.partition(':')[0]}{at}{host}" + (f"?{'&'.join(kept)}" if kept else "")
