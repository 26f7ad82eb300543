"""One server for the tests of a module: an idle one keeps a third of a core busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.vllm.engine import VllmEngine, open_vllm
from hrm_agent.models.vllm.weights import EXTENSION_FOLDER
from tests.support.vllm.fleet import FAULTY, IN_SERVER
from tests.support.vllm.server import MISSING, VllmServer, find_python

POLICY = "builtin:trained"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    python = find_python()
    if python is None:
        pytest.fail(MISSING, pytrace=False)
    path = f"{EXTENSION_FOLDER}:{IN_SERVER}"
    with pytest.MonkeyPatch.context() as patch:
        # no server compiles for a minute, nor do those that a test starts
        patch.setenv("TORCHDYNAMO_DISABLE", "1")
        started = VllmServer(
            python, model_folder(POLICY), tmp_path_factory.mktemp("vllm"), *FAULTY, path=path
        )
        yield started
        started.stop()


@pytest.fixture(scope="module")
def engine(server: VllmServer) -> Iterator[VllmEngine]:
    with open_vllm(f"vllm:{server.url}") as opened:
        yield opened
