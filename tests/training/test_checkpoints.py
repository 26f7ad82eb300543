"""Checkpoints: if the newest is damaged, a run continues from the one before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from hrm_agent.errors import RunError
from hrm_agent.testing import tiny_model
from hrm_agent.training.checkpoints import MANIFEST, Checkpoints, damage, has_model, keep_model
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.keeper import Keeper
from hrm_agent.training.rollout.source import RunProgress
from hrm_agent.training.update.learner import Learner

CUTS = 64
"""Lengths that each file is cut to."""


def writer(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "weights").write_bytes(text.encode() * 100)
        (folder / "sub").mkdir()
        (folder / "sub" / "state.json").write_text(json.dumps(text))

    return write


def read(folder: Path) -> str:
    return json.loads((folder / "sub" / "state.json").read_text())


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_the_last_are_kept_and_the_newest_is_used(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert checkpoints.restore(read) is None
    for step in (1, 2, 3):
        checkpoints.save(step, writer(f"after {step}"))
        assert checkpoints.restore(read) == f"after {step}"
    assert kept(tmp_path) == ["step-000002", "step-000003"]
    assert Checkpoints(tmp_path, every=5).is_due(5, 9) and Checkpoints(tmp_path, every=5).is_due(
        9, 9
    )
    assert not Checkpoints(tmp_path, every=5).is_due(6, 9)


def test_what_was_passed_over_is_removed_when_its_step_is_taken_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, writer(f"after {step}"))
    for step in (2, 3):
        (tmp_path / "checkpoints" / f"step-{step:06}" / "weights").unlink()
    assert checkpoints.restore(read) == "after 1"
    assert checkpoints.newest_step == 3
    checkpoints.save(2, writer("again 2"))
    assert kept(tmp_path) == ["step-000001", "step-000002"]
    assert checkpoints.restore(read) == "again 2"


def test_a_kill_while_one_is_written_leaves_those_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, writer("after 1"))

    def killed(folder: Path) -> None:
        writer("after 2")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, killed)
    assert checkpoints.restore(read) == "after 1"
    checkpoints.save(2, writer("after 2"))
    assert kept(tmp_path) == ["step-000002"]


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(1, writer("x"))
    manifest = (path / MANIFEST).read_bytes()
    assert damage(path) is None
    for place in range(len(manifest)):
        (path / MANIFEST).write_bytes(flipped(manifest, place, place % 8))
        assert damage(path) is not None, (place, manifest[place - 5 : place + 5])


def test_a_checkpoint_that_was_moved_is_of_another_step(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(1, writer("x"))
    assert damage(path.rename(path.with_name("step-000007"))) == "it is of another step"


def test_a_checkpoint_that_does_not_fit_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, writer("x"))

    def load(folder: Path) -> None:
        raise RuntimeError("size mismatch for embed_tokens\nand more")

    with pytest.raises(
        RunError, match=r"cannot be loaded \(RuntimeError: size mismatch for embed_tokens\)"
    ):
        checkpoints.restore(load)


def test_a_model_is_written_once(tmp_path: Path) -> None:
    assert not has_model(tmp_path, 4)
    model = keep_model(tmp_path, 4, writer("four"))
    assert model == tmp_path / "model" and has_model(tmp_path, 4) and not has_model(tmp_path, 6)
    keep_model(tmp_path, 4, lambda _: pytest.fail("it is there"))
    keep_model(tmp_path, 6, writer("six"))
    assert read(model) == "six"
    (model / "weights").write_text("cut")
    assert not has_model(tmp_path, 6)


def test_what_a_person_put_beside_a_model_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finished run that is started again keeps it. A run that continues moves it aside."""
    model = keep_model(tmp_path, 4, writer("four"))
    (model / "sub" / "state.json").write_text('"edited"')
    (model / "notes.md").write_text("mine")
    keep_model(tmp_path, 4, lambda _: pytest.fail("it is there"))
    for step, name in ((6, "model.before-1"), (8, "model.before-2")):
        keep_model(tmp_path, step, writer(str(step)))
        assert (
            tmp_path / name / "notes.md"
        ).read_text() == "mine" and name in capsys.readouterr().err
        assert read(model) == str(step) and not (model / "notes.md").exists()
        (model / "notes.md").write_text("mine")
    assert read(tmp_path / "model.before-1") == "edited"
    (model / "weights").write_text("of another training")
    keep_model(tmp_path, 8, writer("again"))
    assert (tmp_path / "model.before-3" / "weights").read_text() == "of another training"
    keep_model(tmp_path, 10, writer("ten"))
    assert not (tmp_path / "model.before-4").exists(), "it was as it had been written"


# --- of a policy
# ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    folder = tmp_path_factory.mktemp("policy")
    tiny_model(folder, hidden_size=8, intermediate_size=8, head_dim=8)
    return Learner(GrpoConfig.of(policy=str(folder), steps=9), Accelerator())


def keeper_of(learner: Learner, folder: Path, **other: Any) -> Keeper:
    return Keeper(folder, GrpoConfig.of(policy=learner.name, **{"steps": 9, **other}), learner)


@pytest.fixture(scope="module")
def run(policy: Learner, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, of different weights."""
    folder = tmp_path_factory.mktemp("run")
    for version in (1, 2):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.fill_(float(version))
                parameter.grad = torch.ones_like(parameter)
        policy.optimizer.step()
        policy.publish(version)
        keeper_of(policy, folder).checkpoint(RunProgress())
    return folder


def flipped(content: bytes, place: int, bit: int = 0) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]


def weight(policy: Learner) -> float:
    return round(float(next(policy.model.parameters()).detach().flatten()[0]))


def test_any_damage_to_the_newest_checkpoint_is_survived(
    policy: Learner, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = run / "checkpoints" / "step-000002"
    keeper_of(policy, run).restore()
    assert (policy.version, weight(policy)) == (2, 2) and capsys.readouterr().err == ""
    files = sorted(path for path in newest.iterdir())
    assert {"model.safetensors", "optimizer.pt", "state.json", MANIFEST} <= {
        path.name for path in files
    }
    for file in files:
        whole = file.read_bytes()
        cuts = sorted({len(whole) * part // CUTS for part in range(CUTS)} - {len(whole)})
        for damaged in [
            *(whole[:cut] for cut in cuts),
            None,
            flipped(whole, len(whole) // 2),
            whole + b"\0",
        ]:
            file.unlink() if damaged is None else file.write_bytes(damaged)
            assert Checkpoints(run).restore(lambda path: path.name) == "step-000001", (
                file.name,
                damaged,
            )
            told = capsys.readouterr().err
            assert (
                told.count("\n") == 1
                and file.name in told
                and told.endswith("resuming from step-000001.\n")
            )
        policy.publish(0)
        file.write_bytes(whole[:-1])
        keeper_of(policy, run).restore()
        assert (policy.version, weight(policy)) == (1, 1)
        file.write_bytes(whole)
        capsys.readouterr()
    keeper_of(policy, run).restore()
    assert policy.version == 2


def test_only_where_none_is_whole_the_run_ends(policy: Learner, run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    (folder / "checkpoints" / "step-000001" / "optimizer.pt").write_bytes(b"")
    (folder / "checkpoints" / "step-000002" / "state.json").unlink()
    with pytest.raises(
        RunError,
        match=r"step-000002: state.json is missing; step-000001: optimizer.pt has 0 bytes in",
    ):
        keeper_of(policy, folder).restore()


def test_a_run_of_an_earlier_version_is_resumed(policy: Learner, run: Path, tmp_path: Path) -> None:
    for name, step in (("checkpoint", 2), ("checkpoint.old", 1)):
        shutil.copytree(run / "checkpoints" / f"step-{step:06}", tmp_path / name)
        (tmp_path / name / MANIFEST).unlink()
        (tmp_path / name / "state.json").write_text(json.dumps({"version": step}))
    keeper = keeper_of(policy, tmp_path)
    progress, config = keeper.restore(), keeper.config
    assert progress.cursor == 2 * config.rollout.prompts_per_step
    assert (policy.version, weight(policy)) == (2, 2)
    assert config.rollout.shuffle_block == config.steps * config.rollout.prompts_per_step, (
        "its tasks were one block"
    )
    for name in ("model.safetensors", "optimizer.pt", "state.json"):
        file = tmp_path / "checkpoint" / name
        whole = file.read_bytes()
        for cut in (0, 1, 8, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:cut])
            keeper_of(policy, tmp_path).restore()
            assert (policy.version, weight(policy)) == (1, 1), (name, cut)
        file.write_bytes(whole)
    keeper_of(policy, tmp_path).restore()
    keeper_of(policy, tmp_path).checkpoint(RunProgress())
    assert (tmp_path / "checkpoint").exists(), "one of the new ones is not two"
    policy.publish(3)
    keeper_of(policy, tmp_path).checkpoint(RunProgress())
    assert not (tmp_path / "checkpoint").exists() and kept(tmp_path) == [
        "step-000002",
        "step-000003",
    ]


def test_a_run_cannot_end_before_the_steps_that_it_took(run: Path, policy: Learner) -> None:
    with pytest.raises(RunError, match="has taken 2 steps: it cannot end after 1"):
        keeper_of(policy, run, steps=1).restore()
    with pytest.raises(RunError, match="learning rate of step 0"):
        keeper_of(policy, run, steps=3, cooldown=1.0).restore()
