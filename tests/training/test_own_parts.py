"""A user's own parts of the algorithm: they are given and checked what docs/algorithms.md says."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from hrm_agent.config import build_config
from hrm_agent.errors import ConfigError, RunError
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.own_parts import (
    OWN_PARTS_FILE,
    digests_of,
    keep_own_parts,
    refuse_other_parts,
)
from hrm_agent.training.select.verdicts import credited_overlays, judge
from hrm_agent.training.update.advantages import ADVANTAGES, whole_trajectory
from hrm_agent.training.update.objectives import (
    AGGREGATIONS,
    OBJECTIVES,
    Counts,
    TrainedTokens,
    loss_options,
    policy_loss,
)
from hrm_agent.training.update.trial import made_up_tokens, try_own_parts
from hrm_agent.trajectory import RunStatus, Verdict
from tests.test_docs import PROJECT, blocks
from tests.training.test_composition import GROUPS, WHOLE

KEYS = ("algorithm", "selection", "penalties", "advantages", "credit", "objective", "aggregation")

SAME = """
from hrm_agent.training.select.penalties import over_whole
from hrm_agent.training.select.roc import ALGORITHMS, SELECTIONS
from hrm_agent.training.update.advantages import grpo, whole_trajectory
from hrm_agent.training.update.objectives import clipped, token_mean


def algorithm(candidates, keep, rng, options):
    return ALGORITHMS["grpo-roc"](candidates, keep, rng, options)


def selection(positives, count, rng, eps):
    return SELECTIONS["inverse"](positives, count, rng, eps)


def penalties(trajectory):
    found = over_whole(trajectory)
    return found if trajectory.sample_index % 2 else (found.error, found.format)


def advantages(rewards, eps):
    return grpo(rewards, eps)


def credit(trajectories, overlays):
    return whole_trajectory(trajectories, overlays)


def objective(tokens, options):
    return clipped(tokens, options).loss_K


def aggregation(loss_K, tokens, counts, options):
    return token_mean(loss_K, tokens, counts, options)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def own(code: str, *keys: str, **others: Any) -> GrpoConfig:
    """Configuration with the functions of `code` that have the names of `keys`."""
    Path("mine.py").write_text(code)
    return GrpoConfig.of(**{key: f"./mine.py:{key}" for key in keys}, group_size=4, **others)


def judged(config: GrpoConfig) -> list[Any]:
    attempts = [(each,) for each in WHOLE]
    overlays = judge(attempts, 0, "run", config)
    return credited_overlays(WHOLE, overlays, config)


def loss_and_gradient(config: GrpoConfig) -> tuple[float, list[float]]:
    tokens = made_up_tokens(config.loss)
    loss, _ = policy_loss(tokens, Counts(5, 2), loss_options(config.loss))
    loss.backward()
    assert tokens.logprobs_K.grad is not None
    return float(loss.detach()), tokens.logprobs_K.grad.tolist()


def test_the_built_in_parts_as_own_ones_give_the_same() -> None:
    mine = own(SAME, *(key for key in KEYS if key != "selection"))
    usual = GrpoConfig.of(group_size=4)
    try_own_parts(mine)

    def facts(config: GrpoConfig) -> list[Any]:
        told = {"reason", "credit"}  # an own credit is on record beside the advantage
        return [each.model_dump(exclude=told) for each in judged(config)]

    assert facts(mine) == facts(usual)
    assert facts(own(SAME, "selection")) == facts(usual)
    weights = {k: v for o in judged(mine) for k, v in (o.credit or {}).items()}
    kept = [o for o in judged(usual) if o.verdict is Verdict.KEPT]
    by_id = {each.id: each for each in WHOLE}
    assert weights == whole_trajectory([by_id[o.trajectory_id] for o in kept], kept)
    assert loss_and_gradient(mine) == loss_and_gradient(usual)


def test_algorithms_of_the_page_equal_a_computation_by_hand() -> None:
    (block,) = [each for each in blocks(PROJECT / "docs/algorithms.md") if each.file == "mine.py"]
    Path("mine.py").write_text(block.code)
    config = GrpoConfig.of(advantages="./mine.py:maxrl", objective="./mine.py:dppo")
    try_own_parts(config)
    with_names = GrpoConfig.of(advantages="./mine.py:maxrl", algorithm="grpo", group_size=8)
    found = {o.advantage for o in judged(with_names)}
    assert found == {1.0, -1.0}, "half of each group are right: (1 - 1/2) / (1/2)"
    namespace: dict[str, Any] = {}
    exec(block.code, namespace)
    assert namespace["maxrl"]([[1, 0, 0, 0], [0, 0], [1, 1]], 0.1) == [
        [3, -1, -1, -1],
        [0, 0],
        [0, 0],
    ]
    # from .30 to .60 up with weight 1, and down with -1: only the first is beyond 0.2 towards its weight
    new_K = torch.tensor([0.6, 0.6, 0.4]).log().requires_grad_()
    tokens = TrainedTokens(
        logprobs_K=new_K,
        old_logprobs_K=torch.tensor([0.3, 0.3, 0.3]).log(),
        weights_K=torch.tensor([1.0, -1.0, 2.0]),
        sequences_K=torch.tensor([0, 1, 2]),
        lengths_K=torch.ones(3),
    )
    loss, _ = policy_loss(tokens, Counts(3, 3), loss_options(config.loss))
    assert float(loss.detach()) == pytest.approx((0 + 2 - 2 * 4 / 3) / 3)
    loss.backward()
    # the gradient of a ratio by its log-prob is the ratio
    assert new_K.grad is not None
    assert new_K.grad.tolist() == pytest.approx([0, 2 / 3, -2 * 4 / 3 / 3])


FAULTS = [
    ("advantages(rewards, eps)", "[1.0]", "returned 1 items for 3 groups"),
    (
        "advantages(rewards, eps)",
        "[[1.0] for _ in rewards]",
        "returned 1 items for the group [1.0, 0.0, 0.0, 0.25]",
    ),
    (
        "advantages(rewards, eps)",
        "[[float('nan') for _ in each] for each in rewards]",
        "returned nan for a reward of the group",
    ),
    ("advantages(rewards)", "rewards", "takes (rewards), but is called with rewards, eps"),
    ("algorithm(candidates)", "candidates", "is called with candidates, keep, rng, options"),
    (
        "advantages(rewards, eps)",
        "sorted(eps)",
        "raised TypeError: 'float' object is not iterable at mine.py:2",
    ),
    ("advantages(rewards, eps)", "1 / 0", "ZeroDivisionError: division by zero at mine.py:2"),
    (
        "objective(tokens, options)",
        "tokens.logprobs_K.sum()",
        "returned a tensor of shape (), not (5,)",
    ),
    ("objective(tokens, options)", "0.0", "returned float, not a tensor of shape (5,)"),
    ("objective(tokens, options)", "-tokens.weights_K", "returned a loss without a gradient"),
    ("objective(tokens, options)", "tokens.logprobs_K.log()", "a loss that is not finite"),
    ("aggregation(loss_K, *others)", "loss_K", "returned a tensor of shape (5,), not ()"),
    ("algorithm(candidates, *others)", "3", "returned int, not a list of the rollouts"),
    ("algorithm(candidates, *others)", "{'t9': 'x'}", "returned the unknown rollout t9"),
    ("selection(positives, *others)", "positives[:1]", "drew 1 of 4 positives, not 2"),
    ("selection(positives, *others)", "positives[:1] * 2", "drew 1 of 4 positives, not 2"),
    ("penalties(trajectory)", "1.0", "returned float for trajectory"),
    ("penalties(trajectory)", "1.0, None", "returned NoneType for trajectory"),
    ("penalties(trajectory)", "1.0, -2", "and a penalty is 0 or more"),
    ("credit(trajectories, overlays)", "[1.0]", "returned list, not weights by call id"),
    (
        "credit(trajectories, overlays)",
        "{'c9': 1.0}",
        "returned a weight for the unknown call 'c9'",
    ),
    (
        "credit(trajectories, overlays)",
        "{call.id: 'much' for each in trajectories for call in each.own_calls}",
        "returned str for call",
    ),
]


def tried(config: GrpoConfig) -> None:
    try_own_parts(config)
    judged(config)


@pytest.mark.parametrize(("signature", "returned", "said"), FAULTS)
def test_a_fault_of_a_function_is_one_paragraph(signature: str, returned: str, said: str) -> None:
    key = signature.partition("(")[0]
    config = own(f"def {signature}:\n    return {returned}", key)
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        tried(config)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(f"{key} = ./mine.py:{key} ")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("advantages = 3", "advantages = ./mine.py:advantages is int, not a function"),
        ("advantage = 3", "./mine.py has no 'advantages'"),
        ("import nothing_of_this_name", "does not import: ModuleNotFoundError"),
    ],
)
def test_a_name_without_a_function_is_one_paragraph(code: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        try_own_parts(own(code, "advantages"))
    assert "\n" not in str(raised.value)


def test_a_selection_that_keeps_nothing_rejects_the_group() -> None:
    config = own("def algorithm(candidates, keep, rng, options):\n    return []", "algorithm")
    assert {(o.verdict, o.reason) for o in judged(config)} == {
        (Verdict.GROUP_REJECTED, "group rejected: none of its rollouts was kept")
    }


def test_functions_are_called_for_groups_alone_and_for_rollouts_without_a_fault() -> None:
    code = """
def algorithm(candidates, keep, rng, options):
    return rng.sample(candidates, keep)


def penalties(trajectory):
    return len(trajectory.own_tool_calls) / len(trajectory.own_calls), 0.0
"""
    config = own(code, "algorithm")
    aborted = GROUPS[0][0].model_copy(
        update={"id": "first", "status": RunStatus.ABORTED, "calls": (), "tool_calls": ()}
    )
    with_second = [(aborted, GROUPS[0][0]), *((each,) for each in GROUPS[0][1:])]
    overlays = judge(with_second, 0, "run", config)
    assert sum(o.verdict is Verdict.KEPT for o in overlays) == 4
    assert [o.trajectory_id for o in overlays if o.trajectory_id == "first"] == ["first"]
    lost = [each.model_copy(update={"status": RunStatus.ABORTED}) for each in GROUPS[0]]
    assert not any(
        o.verdict is Verdict.KEPT for o in judge([(each,) for each in lost], 0, "run", config)
    )
    judge(with_second, 0, "run", own(code, "penalties"))


def test_an_objective_may_use_what_its_options_promise() -> None:
    code = """
def objective(tokens, options):
    return -tokens.weights_K * tokens.logprobs_K + tokens.reference_logprobs_K
"""
    try_own_parts(own(code, "objective", kl_coef=0.1))
    with pytest.raises(ConfigError, match="TypeError: unsupported operand"):
        try_own_parts(own(code, "objective"))


def test_files_of_other_ranks_are_compared() -> None:
    config = own(SAME, "advantages")
    refuse_other_parts(config, digests_of(config), "of rank 0")
    with pytest.raises(RunError, match=r"mine\.py \(advantages\) differs from the file of rank 0"):
        refuse_other_parts(config, {"advantages": "0" * 64}, "of rank 0")


def test_own_options_reach_own_functions_and_built_in_names_are_still_checked() -> None:
    own(SAME, "objective", clip_low=0.1, dual_clip=3.0, constant=7.0, aggregation="constant")
    own(SAME, "aggregation", constant=7.0)
    own(SAME, "algorithm", oversampling=3, penalty_eps=0.1)
    known = "'reinforce_plus_plus' or a function as ./file.py:name"
    with pytest.raises(ConfigError, match=f"loss.advantages.*{known}, not 'gae'"):
        build_config(GrpoConfig, {"loss": {"advantages": "gae"}}, "x.toml")
    tables: list[Any] = [ADVANTAGES, OBJECTIVES, AGGREGATIONS]
    assert all(callable(each) for table in tables for each in table.values())


def test_a_run_is_not_resumed_with_a_changed_file(folder: Path) -> None:
    config = own(SAME, "advantages", "credit")
    keep_own_parts(config, folder / "run")
    assert (folder / "run" / OWN_PARTS_FILE).exists()
    Path("mine.py").write_text(SAME + "\n")
    keep_own_parts(config, folder / "run")  # no step was taken
    (folder / "run" / "metrics.jsonl").write_text('{"step": 0}\n')
    keep_own_parts(config, folder / "run")
    Path("mine.py").write_text(SAME)
    with pytest.raises(
        RunError, match=r"^\./mine\.py \(advantages\) differs from the file with which"
    ):
        keep_own_parts(config, folder / "run")
    (folder / "run" / OWN_PARTS_FILE).write_text('{"advantages": ')
    with pytest.raises(RunError, match=r"own-parts\.json cannot be read"):
        keep_own_parts(config, folder / "run")
    keep_own_parts(GrpoConfig(), folder / "other")
    assert not (folder / "other").exists()


def test_draws_depend_on_the_seed_alone() -> None:
    code = "def algorithm(candidates, keep, rng, options):\n    return rng.sample(candidates, keep)"
    first = judged(own(code, "algorithm"))
    random.seed(5)
    assert judged(own(code, "algorithm")) == first
    assert sum(o.verdict is Verdict.KEPT for o in first) <= 4 * len(GROUPS)
