"""Server that a folder's `store.url` names: refused, as whoever made the folder chose it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hrm_agent.cli.main import main
from hrm_agent.errors import StoreError
from hrm_agent.store import STORE_POINTER, open_store
from hrm_agent.viewer.places import Places


def test_a_server_that_a_folder_names_is_not_connected_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run_id").write_text("r")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        to = f"me:secret@127.0.0.1:{server.getsockname()[1]}/name"
        for url in (
            f"postgresql://{to}",
            f"postgres://{to}?host=127.0.0.1,db.example.org",
            f"postgresql://{to}?service=theirs&sslkeylogfile={tmp_path}/written",
        ):
            (tmp_path / STORE_POINTER).write_text(url)
            for read_only in (True, False):
                with pytest.raises(StoreError, match="no connection was made") as refused:
                    open_store(tmp_path, create=False, read_only=read_only)
                assert "secret" not in str(refused.value) and "127.0.0.1" in refused.value.message
                assert str(tmp_path / STORE_POINTER) in refused.value.message
            (place,) = Places([str(tmp_path)]).all()
            assert place.problem is not None
            assert "no connection was made" in place.problem["message"]
            for words in (("history", "--store"), ("show", "t", "--store"), ("analyze",)):
                assert main([*words, str(tmp_path)]) == 2, words
                told = " ".join(capsys.readouterr().err.split())
                assert "no connection was made" in told, words
                assert "Name the store's own URL" in told, words
        with pytest.raises(BlockingIOError):
            server.accept()
