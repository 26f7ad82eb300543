"""Files of pages, whole or not at all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from hrm_agent.basics.files import replacing
from hrm_agent.errors import ConfigError

__all__ = ["writing_page"]


@contextmanager
def writing_page(path: Path) -> Generator[TextIO]:
    """Yield a file to write a page to. Raises `ConfigError` if it cannot be written."""
    try:
        with replacing(path) as part, part.open("w", encoding="utf-8") as file:
            yield file
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be written: {error}.", "Name another file.") from error
