"""The libraries that are committed are those that `vendor.json` names."""

from __future__ import annotations

import hashlib
import json

from tests.support.viewer.vendor import FOLDER, PACKAGES, archive_url


def test_every_file_is_the_one_that_is_listed() -> None:
    listed = {one["file"]: one for one in json.loads((FOLDER / "vendor.json").read_text())}
    present = {path.name: path for path in FOLDER.iterdir() if path.name != "vendor.json"}
    assert listed.keys() == present.keys()
    for name, path in present.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name]["sha256"], name


def test_every_library_has_its_licence_and_its_origin() -> None:
    listed = json.loads((FOLDER / "vendor.json").read_text())
    for package in PACKAGES:
        files = [one for one in listed if one["name"] == package.name]
        assert {one["url"] for one in files} == {archive_url(package)}
        assert any(one["file"].endswith(".LICENSE") for one in files)
