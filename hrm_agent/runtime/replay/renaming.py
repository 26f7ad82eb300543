"""Correspondence of generated ids that differ between a recorded run and its replay.

LangGraph gives a message without an id a random one, and libraries draw ids that `hrm_agent.draws`
does not cover. So a replay has other ids than the record, in the same places. They count as equal
under a renaming. The renaming is one to one over all states and requests of a turn, so that two
places with one recorded id have one current id. It applies only to strings that look like generated
ids of one kind. A number, a word, or a hash of a content (UUID versions 3 and 5, hex digests) is
never renamed.

Ids of a kind have one length, so they are compared and exchanged in the bytes of a value, at any
place.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

__all__ = ["Renaming", "holds_ids"]

_UUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-(?![35][0-9a-f]{3}-[89ab])[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
"""Pattern of a UUID of any version but 3 and 5. It includes LangGraph's task ids, whose version is
none of RFC 9562's.
"""
_HEX = rb"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])"
"""Pattern of a UUID of version 4 without dashes."""
_PREFIXED = rb"((?:call|chatcmpl|fc|msg|req|resp|rs|run|srvtoolu|tooluse|toolu)[-_]{1,2})(?=[A-Za-z]*[0-9])[A-Za-z0-9]{16,64}"  # noqa: E501
"""Pattern of providers' ids of calls, answers and runs. A digit is required, so that no word
matches.
"""
_ID = re.compile(rb"%b|%b|%b" % (_UUID, _HEX, _PREFIXED))


class Renaming:
    """One-to-one mapping between current and recorded ids. Thread-safe."""

    def __init__(self) -> None:
        self._recorded: dict[bytes, bytes] = {}
        """Current id -> recorded id, equal ones included."""
        self._now: dict[bytes, bytes] = {}
        """Recorded id -> current id."""
        self._seen: set[bytes] = set()
        """Current ids that differ from the recorded ones, in values that count."""
        self.changes_any = False
        """True if any id differs from the recorded one."""
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Number of ids in the compared states and requests that differ from the recorded ones."""
        return len(self._seen)

    def restart(self) -> None:
        """Forget the ids, since the replay continues from a recorded state, where each id is
        unchanged.
        """
        with self._lock:
            self._recorded = {}
            self._now = {}
            self.changes_any = False

    def equal(self, recorded: bytes, now: bytes) -> bool:
        """True if the two are the same except for ids, which are noted and counted."""
        return self._note(recorded, now, counts=True)

    def learn(self, recorded: bytes, now: bytes) -> bool:
        """True if the two are the same except for ids, which are noted and not counted: the count
        is for ids in values that a user sees.
        """
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
        """True if the two are the same except for ids. Nothing is noted."""
        with self._lock:
            return self._pairs(recorded, now) is not None

    def as_now(self, recorded: bytes) -> bytes:
        """Recorded bytes with the current ids."""
        with self._lock:
            return _ID.sub(lambda found: self._now.get(found[0], found[0]), recorded)

    def _pairs(self, recorded: bytes, now: bytes) -> dict[bytes, bytes] | None:
        """Pairs of ids that make both equal (None if there are none)."""
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
    """True if the bytes hold an id that could be renamed."""
    return _ID.search(data) is not None


def _kind(found: re.Match[bytes]) -> bytes:
    """Constant part of an id: its prefix and its length."""
    prefix: bytes = found[1] or b""
    return prefix + b"#" * (len(found[0]) - len(prefix))


def _agrees(
    one: bytes, other: bytes, known: Mapping[bytes, bytes], found: Mapping[bytes, bytes]
) -> bool:
    return known.get(one, found.get(one, other)) == other
