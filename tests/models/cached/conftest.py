"""A cache of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of models, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hrm-agent" / "models"


def left_in(cache: Path) -> list[str]:
    """Files in the cache, and folders that are not complete."""
    paths = cache.rglob("*") if cache.exists() else ()
    return sorted(
        str(path.relative_to(cache))
        for path in paths
        if path.is_file() or path.name.startswith(".")
    )
