"""Folder that snippets of a slot write to, emptied after each call."""

from __future__ import annotations

# pathlib would cost memory in every child.
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, PTH116, PTH208
import os
import stat
from contextlib import suppress

__all__ = ["WorkingFolder"]


class WorkingFolder:
    """Working folder of one slot."""

    __slots__ = ("mode", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        """Absolute path."""
        self.mode = stat.S_IMODE(os.stat(path).st_mode)
        """Initial permissions, restored after each call."""

    def sweep(self) -> bool:
        """Empty the folder; False if something stays."""
        if stat.S_IMODE(os.stat(self.path).st_mode) != self.mode:
            os.chmod(self.path, self.mode)
        if os.listdir(self.path):
            _empty(self.path)
        # reset the times: if the host is an ordinary user, a snippet may have set them
        os.utime(self.path)
        return not os.listdir(self.path)


def _empty(folder: str) -> None:
    """Remove the content of a folder, whatever its modes. Links are not followed, and any depth is
    handled.
    """
    with suppress(OSError):
        while entries := list(os.scandir(folder)):
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    _take_apart(entry.path, folder)
                else:
                    os.unlink(entry.path)


def _take_apart(path: str, folder: str) -> None:
    """Remove a folder; folders in it are moved up into `folder`."""
    os.chmod(path, stat.S_IRWXU)
    for entry in list(os.scandir(path)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, stat.S_IRWXU)
            os.rename(entry.path, f"{folder}/{os.urandom(8).hex()}")
        else:
            os.unlink(entry.path)
    os.rmdir(path)
