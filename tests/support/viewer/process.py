"""`hrm-agent view` as a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Viewing", "viewing"]


class Viewing(NamedTuple):
    process: subprocess.Popen[str]
    said: dict[str, Any]
    base: str
    token: str

    def ask(self, path: str) -> Any:
        request = urllib.request.Request(
            f"{self.base}/api/v1/{path}", headers={"Authorization": f"Bearer {self.token}"}
        )
        return urllib.request.urlopen(request, timeout=60)


@contextmanager
def viewing(folder: Path, *words: str) -> Iterator[Viewing]:
    command = [sys.executable, "-m", "hrm_agent", "view", *words, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            base, _, fragment = said["url"].partition("/#token=")
            yield Viewing(process, said, base, fragment.partition("&")[0])
        finally:
            process.kill()
