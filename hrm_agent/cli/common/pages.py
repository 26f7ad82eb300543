"""Files of pages. A file is written completely, or not changed."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from hrm_agent.basics.files import replacing
from hrm_agent.errors import ConfigError

__all__ = ["writing_page"]


@contextmanager
def writing_page(path: Path) -> Generator[TextIO]:
    """Yield a file to write a page to. Raises `ConfigError` if it cannot be written."""
    with ExitStack() as stack:
        try:
            part = stack.enter_context(replacing(path))
            file = stack.enter_context(part.open("w", encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unwritten(path, error) from error
        try:
            yield file
            stack.close()  # writes the rest, and replaces an earlier page
        except OSError as error:
            raise _unwritten(path, error) from error


def _unwritten(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error}.", "Name another file.")
