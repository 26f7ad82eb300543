"""`hrm-agent train rl`: options that are refused, and reports of steps and runs that learnt
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hrm_agent.config import build_config, changed_keys, in_tables
from hrm_agent.errors import ConfigError
from hrm_agent.training.config.commands import DemoConfig, GrpoConfig
from hrm_agent.training.metrics import read_metrics
from hrm_agent.training.ranks.processes import is_first_process, require_one_process
from hrm_agent.training.select.verdicts import why_nothing_was_learnt
from tests.cli.conftest import Command

SMALL = ("--steps", "2", "--prompts-per-step", "1", "--group-size", "2", "--out", "run")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("vllm:http://127.0.0.1:8000/v1", "the server has loaded its weights"),
        ("openai:gpt-5", "'openai' names a provider, whose weights are not here"),
        ("scripted:answers.jsonl", "its answers are read from a file, and it has no weights"),
        ("no-such-folder", "There is no model folder 'no-such-folder'"),
        ("hf:", "There is no model folder 'hf:'"),
        ("builtin:traind", "There is no built-in policy 'traind'. Did you mean 'trained'?"),
        ("builtin:trained?load=nf4", "quantized weights have no gradient"),
    ],
)
@pytest.mark.parametrize("kind", ["rl", "sft"])
def test_a_policy_that_cannot_be_trained_is_refused_for_its_own_reason(
    kind: str, policy: str, said: str, hrm: Command, tmp_path: Path
) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}))
    data = ("chats.jsonl",) if kind == "sft" else ()
    failed = hrm("train", kind, *data, "--policy", policy, "--steps", "1", "--out", "run")
    assert (
        failed.code == 2
        and said in failed.err
        and "openai:gpt" not in failed.err.replace(policy, "")
    )
    assert kind == "sft" or not Path("run").exists(), "a right name can be tried next"


def test_the_next_command_asks_as_the_last_stage_did(hrm: Command, tmp_path: Path) -> None:
    stage = '[[stages]]\nname = "%s"\nsteps = 1\nturns = %d\n'
    tasks = 'tasks = "reasoning_gym:chain_sum"\n'
    (tmp_path / "own.toml").write_text(stage % ("a", 1) + stage % ("b", 2) + tasks)
    small = ("--prompts-per-step", "1", "--group-size", "2", "--max-tokens", "8", "--out", "run")
    trained = hrm("train", "rl", "--config", "own.toml", *small)
    assert trained.code == 0
    assert (
        "eval --policy run/model --tasks reasoning_gym:chain_sum --max-tokens 8"
        " --context max_turns=2\n"
    ) in trained.out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--clip-low", "2"), "less than 1, not '2'"),
        (("--clip-low", "0"), "greater than 0"),
        (("--clip-low", "0.1"), "clip_low has no effect here: each batch is trained on once"),
        (("--clip-high", "0.3"), "clip_high has no effect here"),
        (("--algorithm", "grpo", "--oversampling", "4"), "oversampling has no effect here"),
        (
            ("--algorithm", "grpo", "--selection", "lowest"),
            "only grpo-roc selects by it, and the algorithm is grpo",
        ),
        (("--algorithm", "grpo-random", "--penalty-eps", "0.1"), "penalty_eps has no effect here"),
        (
            ("--algorithm", "grpo-roc-random", "--penalties", "by_role"),
            "penalties has no effect here",
        ),
        (
            ("--algorithm", "grpo", "--penalties", "by_role"),
            "only grpo-roc selects by it, and the algorithm is grpo",
        ),
        (("--lora-alpha", "8"), "lora_alpha has no effect here: there is no adapter"),
        (
            ("--min-positives", "5"),
            "min_positives = 5 is more than half of group_size = 8. At most 4.",
        ),
        (("--min-negatives", "-1"), "greater than or equal to 0"),
        (("--penalty-eps", "0"), "greater than 0"),
        (("--advantage-eps", "0"), "greater than 0"),
        (("--adam-beta1", "1"), "less than 1"),
        (("--min-group", "0"), "greater than 0"),
        (("--min-group", "1.5"), "less than or equal to 1"),
        (("--dual-clip", "0.5"), "greater than 1"),
        (
            ("--dual-clip", "3", "--objective", "gspo"),
            "dual_clip has no effect here: the objective is gspo",
        ),
        (("--correction", "token", "--old-logprobs", "engine"), "correction has no effect here"),
        (
            ("--correction-cap", "3"),
            "correction_cap has no effect here: nothing is corrected without correction",
        ),
        (
            ("--patience", "3"),
            "patience has no effect here: nothing is evaluated without eval_every",
        ),
        (("--constant", "100"), "constant has no effect here: the aggregation is token"),
        (
            ("--dual-clip", "3", "--objective", "cispo", "--epochs", "2"),
            "dual_clip has no effect here: the objective is cispo",
        ),
        (("--least-rate", "0.1"), "least_rate has no effect here: without cooldown"),
        (
            ("--advantages", "dr_grpo", "--advantage-eps", "1e-3"),
            "advantage_eps has no effect here: dr_grpo divides by no deviation",
        ),
        (
            ("--max-staleness", "1"),
            "max_staleness has no effect here: all tokens of a step were sampled with its weights",
        ),
    ],
    ids=" ".join,
)
def test_keys_that_would_do_nothing_or_harm_are_refused(
    flags: tuple[str, ...], said: str, hrm: Command
) -> None:
    failed = hrm("train", "rl", *flags, "--dry-run")
    assert failed.code == 2 and said in failed.err


@pytest.mark.parametrize(
    ("algorithm", "unused"),
    [
        ("grpo-roc", {"clip_low": 0.3}),
        ("grpo", {"oversampling": 4}),
        ("grpo-random", {"selection": "lowest"}),
    ],
)
def test_a_key_that_never_acted_does_not_keep_an_earlier_run_from_going_on(
    algorithm: str, unused: dict[str, object], tmp_path: Path
) -> None:
    config = GrpoConfig.of(algorithm=algorithm)
    kept = {**config.model_dump(), **unused}
    assert build_config(GrpoConfig, kept, "config.toml", on_record=True) == config
    assert build_config(DemoConfig, {"train": kept}, "config.toml", on_record=True).train == config
    assert changed_keys(config, kept, "config.toml") == ""
    with pytest.raises(ConfigError, match=r"belongs into a table .*\[(loss|rollout|select)\]"):
        build_config(GrpoConfig, kept, "from the flags")
    with pytest.raises(ConfigError, match="has no effect here"):
        GrpoConfig.of(algorithm=algorithm, **unused)


@pytest.mark.parametrize(
    "taken",
    [
        {"credit": "even", "aggregation": "sequence"},
        {"lora_rank": 2, "lora_dropout": 0.1, "correction": "token"},
        {"lora_rank": 2, "lora_dropout": 0.1, "old_logprobs": "engine"},
        {"lora_rank": 2, "lora_dropout": 0.1, "source": ["a"]},
    ],
)
def test_a_run_of_values_that_an_earlier_version_took_goes_on(taken: dict[str, object]) -> None:
    values = in_tables(GrpoConfig, taken)
    config = build_config(GrpoConfig, values, "config.toml", on_record=True)
    assert config.but(on_record=True, shuffle_block=7).rollout.shuffle_block == 7
    with pytest.raises(ConfigError, match="does not go with"):
        build_config(GrpoConfig, values, "from the flags")


def test_layers_that_the_model_lacks_are_refused_and_right_ones_can_be_named_next(
    hrm: Command,
) -> None:
    failed = hrm("train", "rl", *SMALL, "--lora-rank", "2", "--lora-targets", "query")
    assert failed.code == 2 and "takes no adapter on query" in failed.err and "q_proj" in failed.err
    assert not Path("run", "config.toml").exists()
    done = hrm(
        "train",
        "rl",
        *SMALL,
        "--lora-rank",
        "2",
        "--lora-targets",
        "q_proj",
        "--lora-targets",
        "v_proj",
    )
    assert done.code == 0, done.err
    assert json.loads(Path("run/model/adapter_config.json").read_text())["r"] == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--graph", "nosuch"), "There is no graph 'nosuch'"),
        (
            ("--lora-rank", "2", "--lora-roles", "plan"),
            "'plan', and the graph tool_loop has no such node",
        ),
        (
            ("--frozen-roles", "critic"),
            "frozen_roles names 'critic', and the graph tool_loop has no such node",
        ),
    ],
)
def test_a_graph_or_a_role_that_there_is_not_leaves_no_run_behind(
    hrm: Command, flags: tuple[str, ...], said: str
) -> None:
    failed = hrm("train", "rl", *SMALL, *flags)
    assert failed.code == 2 and said in failed.err
    assert not Path("run").exists(), "with right ones the folder can be named again"


def test_keys_that_act_are_taken(hrm: Command) -> None:
    flags = (
        "--min-positives",
        "4",
        "--min-negatives",
        "0",
        "--penalty-eps",
        "0.1",
        "--adam-beta2",
        "0.99",
    )
    assert (
        hrm("train", "rl", *flags, "--min-group", "1", "--penalties", "by_role", "--dry-run").code
        == 0
    )
    assert (
        hrm(
            "train",
            "rl",
            "--algorithm",
            "grpo",
            "--clip-low",
            "0.2",
            "--oversampling",
            "2",
            "--dry-run",
        ).code
        == 0
    )


def test_a_run_whose_answers_are_all_wrong_says_that_it_learnt_nothing(hrm: Command) -> None:
    Path("wrong.jsonl").write_text(json.dumps({"question": "What is 6 * 7?", "answer": "43"}))
    done = hrm("train", "rl", "--tasks", "jsonl:wrong.jsonl", *SMALL)
    assert done.code == 0 and "nan" not in done.out + done.err
    assert "skipped: nothing to train: 1 of 1 groups have equal rewards" in done.err
    assert (
        "Nothing was learnt in 2 steps: 2 of 2 groups have equal rewards. Almost no answer was"
        " right" in done.err
    )
    assert "The run has 2 steps, 0 with an update" in done.out
    again = hrm("train", "rl", "--tasks", "jsonl:wrong.jsonl", *SMALL, "--json")
    assert (
        again.json["optimizer_steps"] == 0 and "Nothing was learnt" in again.json["nothing_learnt"]
    )
    rows = read_metrics(Path("run/metrics.jsonl"))
    assert [row["step"] for row in rows] == [0, 1] and all(row["loss"] is None for row in rows)


def test_what_is_not_on_record_is_not_given_as_a_cause() -> None:
    earlier = {"step": 0, "rollout/correct": 1.0, "select/groups_rejected": 1.0, "stepped": 0.0}
    assert (
        why_nothing_was_learnt([earlier])
        == "Nothing was learnt in 1 step. An earlier version took them, which did not record why."
    )
    assert why_nothing_was_learnt([]) is None
    assert why_nothing_was_learnt([{**earlier, "stepped": 1.0}]) is None


def test_greedy_rollouts_are_named_as_the_cause(hrm: Command) -> None:
    done = hrm("train", "rl", *SMALL, "--context", "temperature=0.0")
    assert done.code == 0
    assert (
        "Nothing was learnt in 2 steps: 2 of 2 groups have no call that can be trained on"
        in done.err
    )
    rows = read_metrics(Path("run/metrics.jsonl"))
    assert all(row["select/greedy_calls"] >= 4 and "greedy calls" in row["skipped"] for row in rows)


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_several_processes_are_refused_and_the_first_one_says_so(
    variable: str, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "2")
    rank = variable.replace("WORLD_SIZE", "WORLD_RANK") if "OMPI" in variable else "RANK"
    said: list[str] = []
    for command in (("train", "rl", *SMALL), ("demo", "--out", "run")):
        for number, code in (("0", 2), ("1", 0)):
            monkeypatch.setenv(rank, number)
            done = hrm(*command)
            assert done.code == code and done.out == ""
            said += done.err.splitlines()
    assert len(said) == 2 and all(
        "runs in one process, but 2 were started" in line for line in said
    )
    assert not Path("run").exists()


def test_a_rank_that_is_left_in_the_environment_is_not_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert is_first_process()
    require_one_process()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not is_first_process()


@pytest.mark.slow
def test_torchrun_without_a_way_to_share_the_training_is_refused_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "-m",
        "hrm_agent.cli.main",
    ]
    with subprocess.Popen(
        [*command, "train", "rl", *SMALL],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as launched:
        try:
            said, _ = launched.communicate(timeout=240)
        finally:
            if launched.poll() is None:
                os.killpg(launched.pid, signal.SIGKILL)
    assert launched.returncode != 0
    assert said.count("This runs in one process, but 2 were started") == 1
    assert list(tmp_path.iterdir()) == []
