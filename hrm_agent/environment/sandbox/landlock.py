"""Landlock: access limits that a process sets for itself and all its children, and that cannot be
lifted.

Namespaces hide the machine. Landlock protects it a second time, by another part of the kernel and
without privileges: it refuses files outside the given folders, all TCP, and, from ABI 6 on,
abstract Unix sockets and signals to processes outside. Without namespaces it is the layer that
protects the user's files. A nested domain cannot have rights that its parent lacks, and there are
at most sixteen levels. Within a domain, nothing can be mounted.

It does not restrict Unix sockets with a path, UDP, and descriptors that were open before.
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
"""First ABI that can restrict signals and abstract sockets."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System call numbers, the same on every architecture."""
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_OLDEST = _REFER - 1
"""Rights of ABI 1."""
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
"""Rights that files can have. The others apply to folders only."""
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_DEVICES = _MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEV
_TCP = 1 << 0 | 1 << 1
"""Rights to bind and connect."""
_SCOPES = 1 << 0 | 1 << 1
"""Scopes for abstract Unix sockets and signals."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def abi() -> int:
    """Kernel's version of Landlock (0 if it is missing or disabled)."""
    try:
        return _version()
    except OSError:
        return 0


def restrict(
    readable: Iterable[str | int], writable: Iterable[str | int], *, scoped: bool = True
) -> int:
    """Restrict this thread and its children to reading and executing beneath `readable`, and to
    everything but devices beneath `writable`. Sets no_new_privs. Returns the ABI in force.

    Places are paths (missing ones are ignored) or descriptors opened with O_PATH. Without `scoped`,
    signals and abstract sockets can reach outside. Raises OSError if there is no Landlock.
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
    """Restrict signals and abstract sockets to this thread and its children. Raises OSError if
    there is no Landlock.
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
    """File access rights that the kernel knows. All are listed when a domain is made: a right that
    is not listed stays allowed in the domain.
    """
    since = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
    return _OLDEST | sum(right for first, right in since.items() if version >= first)


def _ruleset(version: int, rights: int, *, scoped: bool) -> tuple[bytes, int]:
    """Bytes of landlock_ruleset_attr, and the part of them that the kernel knows."""
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
