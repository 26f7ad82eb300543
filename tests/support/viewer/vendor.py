"""Remakes `hrm_agent/viewer/web/vendor` from npm: the built files of the libraries that the
viewer's pages use.

    python -m tests.support.viewer.vendor

The files are committed, so that neither an installation nor a reader of the code needs node.
`vendor.json` names the version, the origin and the hash of each; a test compares them without a
network. To take a newer version, change PACKAGES, run this and look at the pages again.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import NamedTuple

import hrm_agent

FOLDER = Path(hrm_agent.__file__).parent / "viewer" / "web" / "vendor"
REGISTRY = "https://registry.npmjs.org"


class VendoredFile(NamedTuple):
    """One file of ours, made of one or several of a package."""

    name: str
    """Name in the folder."""
    parts: tuple[str, ...]
    """Files of the package that are joined to this file, in order."""


class VendoredPackage(NamedTuple):
    """An npm package and the files that are vendored from it."""

    name: str
    """Name on npm, with its scope."""
    version: str
    """Exact version."""
    licence: str
    """SPDX identifier."""
    licence_file: str
    """File in the package, which is kept as `NAME.LICENSE`."""
    files: tuple[VendoredFile, ...]
    """Files that are kept of the package, besides the licence."""


PACKAGES = (
    VendoredPackage(
        "preact",
        "10.29.8",
        "MIT",
        "LICENSE",
        (VendoredFile("preact.js", ("dist/preact.umd.js", "hooks/dist/hooks.umd.js")),),
    ),
    VendoredPackage(
        "htm", "3.1.1", "Apache-2.0", "LICENSE", (VendoredFile("htm.js", ("dist/htm.umd.js",)),)
    ),
    VendoredPackage(
        "uplot",
        "1.6.32",
        "MIT",
        "LICENSE",
        (
            VendoredFile("uplot.js", ("dist/uPlot.iife.min.js",)),
            VendoredFile("uplot.css", ("dist/uPlot.min.css",)),
        ),
    ),
    VendoredPackage(
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        "LICENSE",
        (
            VendoredFile(
                "highlight.js",
                ("es/core.min.js", "languages/python.min.js", "languages/json.min.js"),
            ),
        ),
    ),
)
"""Vendored packages. Preact stays at version 10: from 11 on its package has modules only, which no
browser loads from a file.
"""

_MODULE_END = "export{te as default};"
"""End of the core of highlight.js, which is published as a module only. The export is removed,
since the pages use classic scripts, which a browser also loads from a file.
"""

_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)
"""Line that names a source map. It is removed, since the map is not kept and a browser with its
tools open would ask for it.
"""


def archive_url(package: VendoredPackage) -> str:
    """URL of the package's archive on npm."""
    return f"{REGISTRY}/{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"


def fetched(package: VendoredPackage) -> dict[str, bytes]:
    """The files of the package, by name."""
    with urllib.request.urlopen(archive_url(package)) as answer:
        packed = io.BytesIO(answer.read())
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=packed, mode="r:gz") as archive:
        for member in archive.getmembers():
            opened = archive.extractfile(member)
            if opened is not None:
                contents[member.name.partition("/")[2]] = opened.read()
    return contents


def joined(parts: list[bytes]) -> bytes:
    """The parts as one classic script."""
    text = "\n".join(_SOURCE_MAP.sub("", part.decode()) for part in parts)
    if _MODULE_END not in text:
        return text.encode()
    core, _, languages = text.partition(_MODULE_END)
    return f"const hljs = (() => {{{core}return te;}})();\n{languages}".encode()


def remake(folder: Path) -> None:
    """Write all files and `vendor.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    listed: list[dict[str, str]] = []
    for package in PACKAGES:
        contents = fetched(package)
        short = package.name.strip("@").partition("/")[0]
        made = {
            file.name: joined([contents[part] for part in file.parts]) for file in package.files
        }
        made[f"{short}.LICENSE"] = contents[package.licence_file]
        for name, data in made.items():
            (folder / name).write_bytes(data)
            listed.append(
                {
                    "file": name,
                    "name": package.name,
                    "version": package.version,
                    "url": archive_url(package),
                    "licence": package.licence,
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
            )
    (folder / "vendor.json").write_text(json.dumps(listed, indent=2) + "\n")


if __name__ == "__main__":
    remake(FOLDER)
    sys.stdout.write(f"{FOLDER}\n")
