"""Refusals and lost servers of a fleet, and storage of its weights. Real servers:
`tests/models/vllm`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hrm_agent.errors import ConfigError, ModelError, RunError
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.testing import block_until
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.open import open_fleet
from hrm_agent.training.engines.policies import scheduling_policy
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.weights import (
    LogprobDifference,
    WeightsFolder,
    refuse_other_weights,
)
from hrm_agent.trajectory import Sampling
from tests.support.vllm.fleet_stub import FleetStub, opened_on_stubs


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"servers": ("vllm:http://h:1/v1",)}, "no server samples"),
        ({"server_count": 2}, "no server samples"),
        ({"engine": "vllm", "servers": ("http://h:1/v1",)}, "names no vLLM server"),
        ({"engine": "vllm", "servers": ("vllm:http://h:1/v1",) * 2}, "named twice"),
        (
            {"engine": "vllm", "servers": ("vllm:http://h:1/v1",), "server_python": "p"},
            "no server is started",
        ),
        ({"engine": "vllm", "source": ("run",)}, "no effect with --from"),
        ({"engine": "vllm", "publish_tolerance": 0.0}, "greater than 0"),
        ({"weights_by": "collective"}, "no server samples"),
        (
            {"engine": "vllm", "weights_address": "10.0.0.1"},
            "weights_address has no effect here: weights_by is file",
        ),
        (
            {"engine": "vllm", "weights_by": "collective", "weights_folder": "f"},
            "weights_folder has no effect here: weights_by is collective",
        ),
        (
            {"engine": "vllm", "weights_by": "collective", "lora_rank": 4},
            "an adapter goes to servers as files",
        ),
    ],
)
def test_keys_that_do_nothing_or_name_nothing_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=said):
        GrpoConfig.of(**keys)


def test_where_no_server_is_asked_for_one_is_started() -> None:
    assert GrpoConfig.of(engine="vllm").engines.own == 1
    assert GrpoConfig.of(engine="vllm", servers=("vllm:http://h:1/v1",)).engines.own == 0
    assert (
        GrpoConfig.of(engine="vllm", servers=("vllm:http://h:1/v1",), server_count=1).engines.own
        == 1
    )


def opened(folder: Path, **keys: Any) -> None:
    _, tokenizer = load_pretrained(model_folder("builtin:cold-start"), dtype="float32")
    codec = ChatTemplateCodec(tokenizer)
    open_fleet(
        GrpoConfig.of(engine="vllm", **keys), folder, codec, lambda ids: [0.0] * (len(ids) - 1)
    ).close()


def test_a_server_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    (python := tmp_path / "has-vllm").write_text(
        "#!/bin/sh\ntest $1 = -c || { echo ValueError: no GPU; exit 1; }\n"
    )
    python.chmod(0o755)
    with pytest.raises(ModelError, match=r"(?s)started 3 times and never answered.*no GPU"):
        opened(tmp_path, server_python=str(python))
    with pytest.raises(ModelError, match=r"cannot be started by .*no such program") as raised:
        opened(tmp_path, server_python=str(tmp_path / "python"))
    assert "--server-python" in raised.value.hint


@pytest.mark.parametrize("python", ["", sys.executable])
def test_an_interpreter_without_vllm_is_told_before_any_server_is_started(
    python: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"cannot be started by .*: it has no vLLM") as raised:
        opened(tmp_path, server_python=python)
    assert ("[vllm]" in raised.value.hint, "--server-python" in raised.value.hint) == (
        not python,
        True,
    )
    assert not [*(tmp_path / "engines").glob("*.log")]


def test_a_server_that_never_comes_is_waited_for_and_not_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has come within 2 s"):
        opened(tmp_path, servers=("vllm:http://127.0.0.1:9/v1",), server_patience=2)


def test_where_all_servers_are_lost_the_fleet_stays_what_it_is_until_one_is_back(
    tmp_path: Path,
) -> None:
    scheduler, stub = RolloutScheduler(scheduling_policy("least_requests")), FleetStub()
    with opened_on_stubs(tmp_path, scheduler, [stub]) as fleet:
        fleet.publish(1, {"weight": torch.zeros(1)})
        kind = fleet.logprob_kind
        stub.stop()
        block_until(lambda: fleet.metrics()["engines"] == 0)
        assert fleet.logprob_kind is kind
        answer = fleet.submit(
            GenerationRequest((5, 6, 7), Sampling(max_tokens=8), thread="r/s/0/0")
        )
        stub.start()
        assert answer.result(60).policy_version == 1


def test_where_the_watch_fails_requests_do_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: EngineFleet) -> None:
        raise RuntimeError("can't start new thread")

    stub = FleetStub()
    with opened_on_stubs(
        tmp_path, RolloutScheduler(scheduling_policy("least_requests")), [stub]
    ) as fleet:
        answer = fleet.submit(
            GenerationRequest((5, 6, 7), Sampling(max_tokens=8), thread="r/s/0/0")
        )
        monkeypatch.setattr(EngineFleet, "_give_up_where_nobody_comes", fails)
        with pytest.raises(
            ModelError, match="The watcher of the engines failed: RuntimeError: can't start new"
        ):
            answer.result(60)
        with pytest.raises(ModelError, match="The watcher of the engines"):
            fleet.publish(1, {"weight": torch.zeros(1)})


def test_adapters_by_role_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one adapter at a time"):
        opened(tmp_path, lora_rank=4, lora_roles=("plan",))


def test_weights_are_for_this_user_and_only_the_last_are_kept(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path / "run", tmp_path / "shared")
    first = folder.write(1, {"a": torch.ones(2, 3).T})
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert load_file(first)["a"].tolist() == [[1.0, 1.0]] * 3
    adapter = folder.place(2, adapter=True)
    adapter.mkdir()
    folder.keep_only(2)
    assert adapter.is_dir() and not first.exists()
    again = WeightsFolder(tmp_path / "run", tmp_path / "shared")
    assert not adapter.exists(), "what a killed trainer has left is removed"
    again.close()
    assert list((tmp_path / "shared").iterdir()) == []


def test_a_folder_of_somebody_else_in_the_place_of_ours_is_refused(tmp_path: Path) -> None:
    folder = WeightsFolder(tmp_path / "run", tmp_path)
    (place,) = tmp_path.iterdir()
    folder.close()
    target = tmp_path / "target"
    target.mkdir()
    place.symlink_to(target)
    with pytest.raises(RunError, match="--weights-folder"):
        WeightsFolder(tmp_path / "run", tmp_path)
    assert target.is_dir() and place.is_symlink()
    place.unlink()
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(RunError, match=f"{os.strerror(20)}|{os.strerror(17)}"):
        WeightsFolder(tmp_path / "run", file)


@pytest.mark.parametrize(
    ("dtype", "found", "differing", "refused"),
    [
        ("float32", LogprobDifference(9e-5, 1e-5), [], False),
        ("float32", LogprobDifference(2e-4, 1e-5), [], True),
        ("float32", LogprobDifference(0.0, 0.0), ["lm_head.weight"], True),
        ("bfloat16", LogprobDifference(0.8, 0.02), [], False),
        ("bfloat16", LogprobDifference(0.8, 0.06), [], True),
    ],
)
def test_how_far_log_probs_may_differ(
    dtype: str, found: LogprobDifference, differing: list[str], refused: bool
) -> None:
    asked = {"where": "http://h:1/v1", "version": 3, "dtype": dtype, "tolerance": None}
    if not refused:
        refuse_other_weights(**asked, found=found, differing=differing)
        return
    with pytest.raises(ModelError, match=r"version 3: log-probs differ by") as raised:
        refuse_other_weights(**asked, found=found, differing=differing)
    assert all(name in raised.value.message for name in differing)
