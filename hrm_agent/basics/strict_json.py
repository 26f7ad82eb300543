"""JSON as exchanged by the servers and their clients: ASCII only, without nan and infinity."""

from __future__ import annotations

import gc
import json
from typing import Any

from hrm_agent.errors import HrmError

__all__ = ["from_json", "to_json"]

_LARGE = 64 * 1024


def to_json(record: Any) -> str:
    """`record` as ASCII JSON. It may contain lone surrogates, which UTF-8 cannot encode. Raises
    HrmError for nan and infinity.
    """
    try:
        return _ENCODER.encode(record)
    except (ValueError, TypeError) as error:
        raise HrmError(f"The call cannot be written as JSON: {error}.") from error


def from_json(data: bytes | str) -> Any:
    """Parse JSON. Raises HrmError for invalid JSON, including nan and infinity."""
    collects = len(data) > _LARGE and gc.isenabled()
    if collects:
        # nothing that the parser makes is garbage yet, and collections during the parsing would
        # take up to ten times as long as the parsing itself
        gc.disable()
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        raise HrmError(f"The request is not valid JSON: {error}.") from None
    finally:
        if collects:
            gc.enable()


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed in JSON")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
