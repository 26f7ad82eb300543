"""Servers that a folder's `store.url` may name: some are connected to, others refused."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hrm_agent.cli.main import main
from hrm_agent.errors import StoreError
from hrm_agent.store import STORE_POINTER, open_store
from hrm_agent.viewer.places import Places
from tests.support.trajectory.samples import make_trajectory

HOSTS = "HRM_AGENT_STORE_HOSTS"


def test_a_server_that_nobody_knows_is_not_connected_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    (tmp_path / "run_id").write_text("r")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        to = f"me:secret@127.0.0.1:{server.getsockname()[1]}/name"
        for url in (
            f"postgresql://{to}?host=db.example.org&hostaddr=127.0.0.1",
            f"postgres://{to}?host=127.0.0.1,db.example.org",
            f"postgresql://{to}?host=db.example.org&service=theirs",
            f"postgresql://{to}?application_name=db.example.org&sslkeylogfile={tmp_path}/written",
            f"postgresql://{to}?application_name=db.example.org&sslkey=engine:theirs",
            f"postgresql://{to}?application_name=db.example.org&oauth_issuer=https://theirs",
        ):
            (tmp_path / STORE_POINTER).write_text(url)
            for read_only in (True, False):
                with pytest.raises(StoreError, match="not connected to") as refused:
                    open_store(tmp_path, create=False, read_only=read_only)
                assert (
                    "secret" not in str(refused.value) and "db.example.org" in refused.value.message
                )
                assert str(tmp_path / STORE_POINTER) in refused.value.message
            (place,) = Places([str(tmp_path)]).all()
            assert place.problem is not None and "not connected to" in place.problem["message"]
            for words in (("history", "--store"), ("show", "t", "--store"), ("analyze",)):
                assert main([*words, str(tmp_path)]) == 2, words
                told = capsys.readouterr().err
                assert "not connected to" in told and "name the store's own URL" in " ".join(
                    told.split()
                ), words
        with pytest.raises(BlockingIOError):
            server.accept()
    (tmp_path / STORE_POINTER).write_text("postgresql://db.example.org,[2001:db8::1]/name")
    with pytest.raises(StoreError, match="not connected to") as refused:
        open_store(tmp_path)
    assert f"`export {HOSTS}=db.example.org,2001:db8::1`" in refused.value.hint
    (tmp_path / STORE_POINTER).write_text("postgresql:///name?service=theirs&passfile=theirs")
    with pytest.raises(StoreError, match="not connected to") as refused:
        open_store(tmp_path)
    assert refused.value.hint.startswith(
        "A folder's URL may not set passfile, service: name the store's own URL"
    )


def test_one_that_the_user_knows_is_read(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(fresh_database) as store:
        store.journal.write_trajectory(make_trajectory())
    folder, named = tmp_path / "run", f"{fresh_database}?host=db.example.org&hostaddr=127.0.0.1"
    folder.mkdir()

    def is_read(url: str) -> bool:
        (folder / STORE_POINTER).write_text(url)
        with open_store(folder, read_only=True) as store:
            return len(store.threads()) == 1

    assert urlsplit(fresh_database).hostname in ("127.0.0.1", "localhost"), "this machine"
    assert is_read(fresh_database)
    monkeypatch.setenv(HOSTS, "other.example.org, DB.example.org")
    assert is_read(named)
    monkeypatch.delenv(HOSTS)
    monkeypatch.setenv("PGHOST", "db.example.org")
    assert is_read(named)
    monkeypatch.setenv("PGHOST", "other.example.org")
    with pytest.raises(StoreError, match="not connected to"):
        is_read(named)
    with open_store(named, read_only=True) as store:
        assert len(store.threads()) == 1, "what is given itself is not asked about"
