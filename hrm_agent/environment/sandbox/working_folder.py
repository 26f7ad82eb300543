"""The folder that snippets of a slot write to: emptied after each call."""

from __future__ import annotations

# pathlib would cost memory that every child pays for.
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH116, PTH208
import os
import stat
from contextlib import suppress

__all__ = ["WorkingFolder"]


class WorkingFolder:
    """Of one slot."""

    __slots__ = ("mode", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        """Absolute."""
        self.mode = stat.S_IMODE(os.stat(path).st_mode)
        """Permissions that it began with, and has again after each call."""

    def sweep(self) -> bool:
        """Empty it, if anything is in it. False if something stays."""
        if stat.S_IMODE(os.stat(self.path).st_mode) != self.mode:
            os.chmod(self.path, self.mode)
        if os.listdir(self.path):
            _empty(self.path)
        # where the host is an ordinary user, a snippet may have set any other time
        os.utime(self.path)
        return not os.listdir(self.path)


def _empty(folder: str) -> None:
    """Remove what is in a folder, whatever its modes; links are not followed, and no depth is too
    deep.
    """
    with suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _take_apart(entry.path, folder)
                else:
                    os.unlink(entry.path)


def _take_apart(path: str, folder: str) -> None:
    """Remove a folder; the folders in it are moved up into `folder`."""
    os.chmod(path, stat.S_IRWXU)
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, stat.S_IRWXU)
            os.rename(entry.path, f"{folder}/{os.urandom(8).hex()}")
        else:
            os.unlink(entry.path)
    os.rmdir(path)
