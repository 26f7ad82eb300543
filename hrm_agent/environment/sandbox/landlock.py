"""Landlock: what a process may reach, decided by itself and never taken back, for it and all that
it starts.

Namespaces hide the machine; this refuses it again, by another part of the kernel and without any
privilege: files outside the given folders, TCP altogether, and, from ABI 6 on, abstract Unix
sockets and signals to processes outside. Where no namespaces can be had it is the layer that keeps
a snippet off the files of the user. What a domain was not allowed, a domain within it cannot be:
domains may be nested, sixteen deep. Within one, nothing can be mounted.

Not covered: Unix sockets that have a path, UDP, and descriptors that were open before.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["SCOPED", "abi", "restrict", "scope"]

SCOPED = 6
"""From this ABI on, signals and abstract sockets can be kept within."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls; the same numbers on every architecture."""
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OLDEST = _REFER - 1
"""The rights of ABI 1."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""The rest can be given to folders only."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICES = _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
_TCP = 1 << 0 | 1 << 1
"""bind, connect."""
_SCOPES = 1 << 0 | 1 << 1
"""Abstract Unix sockets, signals."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def abi() -> int:
    """The kernel's version of Landlock; 0 where it has none, or has it switched off."""
    try:
        return _version()
    except OSError:
        return 0


def restrict(
    readable: Iterable[str | int], writable: Iterable[str | int], *, scoped: bool = True
) -> int:
    """Leave this thread, and all that it starts, reading and executing beneath `readable`,
    everything but devices beneath `writable`, and nothing else. Sets no_new_privs. Returns the ABI
    in force.

    Given are paths, of which those that do not exist are left out, or descriptors opened with
    O_PATH. Without `scoped`, signals and abstract sockets reach outside. Raises OSError where there
    is no Landlock.
    """
    version = _version()
    rights = _rights(version)
    rules = _call(
        "landlock_create_ruleset", _CREATE_RULESET, *_ruleset(version, rights, scoped=scoped), 0
    )
    try:
        for place in readable:
            _allow(rules, place, rights & _READ)
        for place in writable:
            _allow(rules, place, rights & ~_DEVICES)
        _check("no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _call("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return version


def scope() -> None:
    """Signals and abstract sockets reach nothing outside from here on. Raises OSError where there
    is no Landlock.
    """
    version = _version()
    rules = _call("landlock_create_ruleset", _CREATE_RULESET, *_ruleset(version, 0, scoped=True), 0)
    try:
        _call("landlock_restrict_self", _RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _version() -> int:
    return _call("landlock", _CREATE_RULESET, None, 0, _ASK_VERSION)


def _rights(version: int) -> int:
    """To files, as far as the kernel knows them: whatever is not named when a domain is made stays
    allowed in it.
    """
    since = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
    return _OLDEST | sum(right for first, right in since.items() if version >= first)


def _ruleset(version: int, rights: int, *, scoped: bool) -> tuple[bytes, int]:
    """The bytes of landlock_ruleset_attr, and how much of it the kernel knows."""
    size = 24 if version >= SCOPED else 16 if version >= 4 else 8
    return struct.pack("=QQQ", rights, _TCP, _SCOPES if scoped else 0), size


def _allow(rules: int, place: str | int, rights: int) -> None:
    if isinstance(place, str):
        with suppress(FileNotFoundError):
            descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
            try:
                _allow(rules, descriptor, rights)
            finally:
                os.close(descriptor)
        return
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        rights &= _OF_FILES
    _call(
        "landlock_add_rule", _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0
    )


def _call(what: str, number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check(what, int(_libc.syscall(ctypes.c_long(number), *words)))


def _check(what: str, result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result
