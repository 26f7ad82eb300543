"""Generated ids that differ between a recorded run and its replay, and stand for each other.

LangGraph gives a message without an id a random one, and libraries draw ids where `hrm_agent.draws`
does not reach. A replay has other ids than the record then, in the same places. They count as equal
under a renaming: one to one over all states and requests of a turn, so that two places with one id
then have one id now, and only between strings that look like generated ids of one kind. A number, a
word, or a hash of a content (UUID versions 3 and 5, hex digests) is never renamed.

Ids of a kind have one length, so they are compared and exchanged in the bytes of a value, wherever
they stand.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

__all__ = ["Renaming", "holds_ids"]

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-(?![35][0-9a-f]{3}-[89ab])[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
"""LangGraph's task ids are none of RFC 9562's versions."""
_HEX = rb"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])"
"""A UUID of version 4 without dashes."""
_PREFIXED = rb"((?:call|chatcmpl|fc|msg|req|resp|rs|run|srvtoolu|tooluse|toolu)[-_]{1,2})(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,64}"  # noqa: E501
"""Providers' ids of calls, answers and runs: with a digit, or they might be words."""
_ID = re.compile(rb"%b|%b|%b" % (_UUID, _HEX, _PREFIXED))


class Renaming:
    """Ids now <-> ids on record, one to one. Thread-safe."""

    def __init__(self) -> None:
        self._recorded: dict[bytes, bytes] = {}
        """Id now -> id on record, equal ones included."""
        self._now: dict[bytes, bytes] = {}
        """The inverse."""
        self._seen: set[bytes] = set()
        """Ids now that are others on record, and stood in something that counts."""
        self.changes_any = False
        """An id is another than it was."""
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many ids in the states and requests that were compared are others than they were."""
        return len(self._seen)

    def restart(self) -> None:
        """The replay goes on from a recorded state: there, each id is itself again."""
        with self._lock:
            self._recorded, self._now, self.changes_any = {}, {}, False

    def equal(self, recorded: bytes, now: bytes) -> bool:
        """True if the two are the same but for ids, which are noted and counted."""
        return self._note(recorded, now, counts=True)

    def learn(self, recorded: bytes, now: bytes) -> bool:
        """The same, without counting: it is said where ids stand for others in what a user sees."""
        return self._note(recorded, now, counts=False)

    def _note(self, recorded: bytes, now: bytes, *, counts: bool) -> bool:
        with self._lock:
            pairs = self._pairs(recorded, now)
            if pairs is None:
                return False
            self._recorded |= pairs
            self._now |= {then: new for new, then in pairs.items()}
            others = {new for new, then in pairs.items() if new != then}
            self.changes_any = self.changes_any or bool(others)
            self._seen |= others if counts else set()
            return True

    def would_equal(self, recorded: bytes, now: bytes) -> bool:
        """The same question; nothing is noted."""
        with self._lock:
            return self._pairs(recorded, now) is not None

    def as_now(self, recorded: bytes) -> bytes:
        """Bytes from the record with the ids of now."""
        with self._lock:
            return _ID.sub(lambda found: self._now.get(found[0], found[0]), recorded)

    def _pairs(self, recorded: bytes, now: bytes) -> dict[bytes, bytes] | None:
        """The pairs that make them equal; None where none do."""
        if recorded != now and (
            len(recorded) != len(now) or _ID.sub(_kind, recorded) != _ID.sub(_kind, now)
        ):
            return None
        found: dict[bytes, bytes] = {}
        taken: dict[bytes, bytes] = {}
        for then, new in zip(_ID.finditer(recorded), _ID.finditer(now), strict=True):
            if not (
                _agrees(new[0], then[0], self._recorded, found)
                and _agrees(then[0], new[0], self._now, taken)
            ):
                return None
            found[new[0]], taken[then[0]] = then[0], new[0]
        return found


def holds_ids(data: bytes) -> bool:
    """True if there is anything in it that could be renamed."""
    return _ID.search(data) is not None


def _kind(found: re.Match[bytes]) -> bytes:
    """What is left of an id when all that is drawn is taken out: its prefix and its length."""
    prefix: bytes = found[1] or b""
    return prefix + b"#" * (len(found[0]) - len(prefix))


def _agrees(
    one: bytes, other: bytes, known: Mapping[bytes, bytes], found: Mapping[bytes, bytes]
) -> bool:
    return known.get(one, found.get(one, other)) == other
