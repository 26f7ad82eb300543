"""Training on runs on record: the same steps as those of a run that samples, and nothing is
sampled.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from hrm_agent.errors import ConfigError, RunError, TaskError
from hrm_agent.rewards import opened_scorer
from hrm_agent.store import open_store
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import Row, read_metrics
from hrm_agent.training.records.groups import (
    RecordedGroup,
    RecordedGroups,
    kept_groups,
    select_groups,
)
from hrm_agent.training.records.offline import train_on_record
from hrm_agent.training.records.rescoring import rescore
from hrm_agent.training.tasks.own_verifier import VERIFIER_SPEC
from hrm_agent.training.update import learner
from hrm_agent.training.update.optimizer_step import ALL_STALE
from hrm_agent.trajectory import Overlay, RunStatus, Scoring, Trajectory
from hrm_agent.trajectory.formats import export_to, read_jsonl

CONFIG = GrpoConfig.of(
    steps=3,
    prompts_per_step=3,
    group_size=4,
    seed=5,
    cooldown=0.0,
    context={"max_turns": 4, "max_tokens": 96},
)
ROLLOUTS = 3 * 3 * 8


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run that samples its rollouts."""
    folder = tmp_path_factory.mktemp("sampled") / "run"
    asyncio.run(train(CONFIG, folder))
    return folder


@pytest.fixture
def nothing_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine was made")

    monkeypatch.setattr(learner, "TransformersEngine", refused)


pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("nothing_is_sampled")]


def learned(
    folder: Path, *sources: Path, on_step: Callable[[Row], None] | None = None, **keys: Any
) -> list[Row]:
    """The rows of a run in `folder` that learns from `sources`."""
    config = CONFIG.but(source=[str(source) for source in sources], **keys)
    asyncio.run(train_on_record(config, folder, on_step=on_step))
    return read_metrics(folder / "metrics.jsonl")


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def untimed(rows: Iterable[Row]) -> list[Row]:
    return [
        {name: value for name, value in row.items() if not name.endswith("seconds")} for row in rows
    ]


def verdicts(store: Path, run_id: str) -> list[Overlay]:
    with open_store(store) as opened:
        return [each.model_copy(update={"run_id": ""}) for each in opened.journal.overlays(run_id)]


def stored(folder: Path) -> list[Trajectory]:
    with open_store(folder) as store:
        return list(store.journal.trajectories())


def exported(path: Path, trajectories: Iterable[Trajectory]) -> Path:
    export_to(path, trajectories, path.suffix[1:])
    return path


def test_a_run_is_learned_again_bit_for_bit(sampled: Path, tmp_path: Path) -> None:
    before = (sampled / "store.db").read_bytes()
    rows = learned(tmp_path / "again", sampled)
    assert weights(tmp_path / "again") == weights(sampled)
    assert untimed(rows) == untimed(read_metrics(sampled / "metrics.jsonl"))
    assert any(row["stepped"] for row in rows)
    assert verdicts(tmp_path / "again", "again") == verdicts(sampled, "run")
    assert (sampled / "store.db").read_bytes() == before, "the record is only read"


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.parquet"])
def test_an_export_teaches_the_same(name: str, sampled: Path, tmp_path: Path) -> None:
    learned(tmp_path / "again", exported(tmp_path / name, stored(sampled)))
    assert weights(tmp_path / "again") == weights(sampled)


def test_a_run_that_was_cut_short_goes_on_to_the_same_weights(
    sampled: Path, tmp_path: Path
) -> None:
    class Cut(Exception):
        pass

    def cut(row: Row) -> None:
        raise Cut

    with pytest.raises(Cut):
        learned(tmp_path / "again", sampled, on_step=cut)
    rows = learned(tmp_path / "again", sampled)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert weights(tmp_path / "again") == weights(sampled)


def test_what_is_learned_from_is_kept_and_its_loss_is_told(sampled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sampled, tmp_path / "copy"))
    learned(tmp_path / "again", copy, steps=1)
    with open_store(copy) as store:
        store.database.write(lambda cursor: cursor.execute("DELETE FROM trajectories"))
    with pytest.raises(RunError, match=r"is not in .* any more"):
        learned(tmp_path / "again", copy)


def test_a_second_pass_is_off_policy_and_may_be_too_stale(sampled: Path, tmp_path: Path) -> None:
    rows = learned(tmp_path / "two", sampled, steps=4)
    assert [row["ratio_max"] == 1 for row in rows] == [
        True,
        True,
        True,
        False,
    ], "the ratio is to what was recorded"
    assert rows[3]["staleness_mean"] == 3
    rows = learned(tmp_path / "fresh", sampled, steps=4, max_staleness=2)
    assert (rows[3]["skipped"], rows[3]["stepped"]) == (ALL_STALE, 0)
    assert rows[3]["stale_tokens"] > 0


def test_other_weights_of_the_same_version_are_told_by_their_log_probs(
    sampled: Path, tmp_path: Path
) -> None:
    """Other rewards give another policy after the first step, with the version number of the
    recorded one.
    """
    turned = [t.model_copy(update={"rewards": {"correct": 1 - t.outcome}}) for t in stored(sampled)]
    path = exported(tmp_path / "turned.jsonl", turned)
    rows = learned(tmp_path / "turned", path)
    assert rows[0]["ratio_max"] == 1 != rows[1]["ratio_max"]
    assert rows[0]["engine_difference"] < 1e-5 < 1e-3 < rows[1]["engine_difference"]
    assert rows[1]["staleness_mean"] == 0
    assert weights(tmp_path / "turned") != weights(sampled)
    rows = learned(tmp_path / "corrected", path, correction="token")
    assert [row["ratio_max"] for row in rows] == [
        1,
        1,
        1,
    ], "a correction weighs the loss in place of the ratio"


def test_scores_of_a_name_stand_for_the_rewards(sampled: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(sampled, tmp_path / "copy"))
    with open_store(copy) as store:
        headers = store.journal.headers()

        async def score() -> None:
            async with opened_scorer(VERIFIER_SPEC, name="mine") as scorer:
                await rescore(store, scorer, headers)

        asyncio.run(score())
        scorings = store.scorings.by_rubric("mine")
        turned = [
            s.model_copy(update={"rubric": "turned", **_turned(s)}) for s in scorings.values()
        ]
        store.scorings.write(turned[1:])
    learned(tmp_path / "mine", copy, by="mine")
    assert weights(tmp_path / "mine") == weights(sampled)
    rows = learned(tmp_path / "turned", copy, by="turned")
    assert weights(tmp_path / "turned") != weights(sampled)
    of_run = read_metrics(sampled / "metrics.jsonl")
    assert rows[2]["rollout/correct"] == pytest.approx(1 - of_run[2]["rollout/correct"])
    unscored = [
        o
        for o in verdicts(tmp_path / "turned", "turned")
        if o.trajectory_id == turned[0].trajectory_id
    ]
    assert [each.drop_reason for each in unscored] == ["not_scored"]
    with open_store(copy) as store:
        store.scorings.write([s.model_copy(update={"rubric": "turned"}) for s in scorings.values()])
    assert untimed(learned(tmp_path / "turned", copy, by="turned")) == untimed(rows), (
        "as scored when it was begun"
    )
    with pytest.raises(ConfigError, match="no scores 'turnd'"):
        learned(tmp_path / "none", copy, by="turnd")


def _turned(scoring: Scoring) -> dict[str, float]:
    assert scoring.outcome is not None
    return {"outcome": 1 - scoring.outcome, "total": 1 - scoring.outcome}


@pytest.mark.slow
def test_a_rubric_scores_now_and_once(sampled: Path, tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def cut(row: Row) -> None:
        if row["step"] == 1:
            raise Cut

    with pytest.raises(Cut):
        learned(tmp_path / "scored", sampled, rewards=VERIFIER_SPEC, on_step=cut)
    learned(tmp_path / "scored", sampled, rewards=VERIFIER_SPEC, steps=6)
    rows = read_metrics(tmp_path / "scored" / "metrics.jsonl")
    assert untimed(rows)[0]["loss"] == read_metrics(sampled / "metrics.jsonl")[0]["loss"]
    with open_store(tmp_path / "scored") as store, open_store(sampled) as source:
        times = [scoring.scored_at for scoring in store.scorings.by_rubric("verifier").values()]
        assert len(times) == ROLLOUTS
        assert source.scorings.rubrics() == []
    learned(tmp_path / "thrice", sampled, rewards=VERIFIER_SPEC)
    assert weights(tmp_path / "thrice") == weights(sampled)


def test_groups_of_no_training_are_drawn_by_the_seed(sampled: Path, tmp_path: Path) -> None:
    renamed = [
        t.model_copy(update={"thread_id": f"x/{t.id}", "run_id": "x", "group_id": t.group_id})
        for t in stored(sampled)
    ]
    path = exported(tmp_path / "renamed.jsonl", [_moved(t) for t in renamed])
    rows = learned(tmp_path / "drawn", path, prompts_per_step=4, steps=4)
    assert [row["rollout/count"] for row in rows] == [
        32,
        32,
        8,
        32,
    ], "nine groups, then the next pass"
    groups = kept_groups(tmp_path / "drawn")
    assert groups is not None and groups.own_steps() is None
    assert rows[0]["staleness_mean"] < 0 or rows[0]["ratio_max"] != 1, (
        "tokens of later versions are off-policy"
    )


def _moved(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with all its calls on its own thread."""
    calls = [
        c.model_copy(
            update={"identity": c.identity.model_copy(update={"thread_id": trajectory.thread_id})}
        )
        for c in trajectory.calls
    ]
    return trajectory.model_copy(update={"calls": tuple(calls)})


def test_passes_have_orders_of_their_own() -> None:
    groups = tuple(
        RecordedGroup(source=0, group_id=str(n), step=None, rollouts=()) for n in range(7)
    )
    drawn = RecordedGroups(sources=("x",), groups=groups)
    assert drawn.steps_of_pass(3) == 3
    passes = [
        [g.group_id for step in range(3 * n, 3 * n + 3) for g in drawn.of_step(step, 3, 0)]
        for n in range(2)
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == [str(n) for n in range(7)]
    assert passes[0] != passes[1]
    assert drawn.of_step(0, 3, 0) != drawn.of_step(0, 3, 1)
    gaps = RecordedGroups(
        sources=("x",),
        groups=tuple(g.model_copy(update={"step": 4 + 2 * (int(g.group_id) // 4)}) for g in groups),
    )
    assert gaps.own_steps() == [4, 6]
    assert [len(gaps.of_step(step, 1, 0)) for step in range(4)] == [4, 3, 4, 3]


def test_what_is_left_out_is_counted(sampled: Path, tmp_path: Path) -> None:
    whole = stored(sampled)
    changes: list[dict[str, Any]] = [
        {"status": RunStatus.RUNNING},
        {"group_id": ""},
        {"thread_id": "run/eval-1/0/0", "group_id": "run/eval-1/0"},
    ]
    some = [t.model_copy(update=change) for t, change in zip(whole, changes, strict=False)]
    other = whole[8].model_copy(
        update={"thread_id": "run/step-2/99/0", "group_id": "run/step-2/99"}
    )
    path = exported(tmp_path / "some.jsonl", [*some, *whole[3:8], other, *whole[9:]])
    found = select_groups(CONFIG.but(source=[str(path), str(sampled)]), str(tmp_path / "x.db"))
    assert found.left_out == {
        "still under way": 1,
        "of no group: there is nothing to compare it with": 1,
        "of a training, but of none of its steps (for example of an evaluation)": 1,
        "alone in its group: there is nothing to compare it with": 1,
        "of a group that is on record twice": ROLLOUTS,
    }
    assert [len(group.rollouts) for group in found.groups] == [5, 7, *[8] * 7]
    assert sum("left out" in line for line in found.lines(3, 3)) == 5


def test_two_runs_of_one_name_are_not_taken_for_one(sampled: Path, tmp_path: Path) -> None:
    later = [
        each.model_copy(update={"started_at": each.started_at + 60}) for each in stored(sampled)
    ]
    path = exported(tmp_path / "later.jsonl", later)
    with pytest.raises(ConfigError, match=r"two different runs that are both called 'run'"):
        select_groups(CONFIG.but(source=[str(path), str(sampled)]), str(tmp_path / "x.db"))


def greedy(trajectory: Trajectory) -> Trajectory:
    def of(call: Any) -> Any:
        return call.model_copy(
            update={"sampling": call.sampling.model_copy(update={"temperature": 0.0})}
        )

    return trajectory.model_copy(update={"calls": tuple(map(of, trajectory.calls))})


def hosted(trajectory: Trajectory) -> Trajectory:
    none = {
        "token_ids": (),
        "mask": (),
        "logprobs": (),
        "model": "openai:gpt",
        "untrainable": "no token ids",
    }
    calls = tuple(call.model_copy(update=none) for call in trajectory.calls)
    return trajectory.model_copy(update={"calls": calls, "policy": "openai:gpt"})


def of_another_tokenizer(trajectory: Trajectory) -> Trajectory:
    def of(call: Any) -> Any:
        return call.model_copy(
            update={"model": "theirs", "token_ids": tuple(t % 90 + 5 for t in call.token_ids)}
        )

    return trajectory.model_copy(
        update={"calls": tuple(map(of, trajectory.calls)), "policy": "theirs"}
    )


def beyond_the_vocabulary(trajectory: Trajectory) -> Trajectory:
    def of(call: Any) -> Any:
        return call.model_copy(update={"token_ids": tuple(t + 100_000 for t in call.token_ids)})

    return trajectory.model_copy(update={"calls": tuple(map(of, trajectory.calls))})


def equally_right(trajectory: Trajectory) -> Trajectory:
    return trajectory.model_copy(
        update={"rewards": {"correct": 1.0}, "status": RunStatus.COMPLETED}
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (greedy, "calls not trained on: greedy calls"),
        (hosted, "calls not trained on: no token ids"),
        (of_another_tokenizer, "calls not trained on: its tokens are of another tokenizer"),
        (beyond_the_vocabulary, "calls not trained on: its tokens are of another tokenizer"),
        (equally_right, "9 groups without a signal: their rewards are equal"),
    ],
)
def test_with_nothing_to_learn_nothing_is_begun(
    changed: Callable[[Trajectory], Trajectory], said: str, sampled: Path, tmp_path: Path
) -> None:
    path = exported(tmp_path / "runs.jsonl", map(changed, stored(sampled)))
    with pytest.raises(TaskError, match=said):
        learned(tmp_path / "run", path)
    assert not (tmp_path / "run").exists()


def test_another_policy_of_the_same_tokenizer_teaches_off_policy(
    sampled: Path, tmp_path: Path
) -> None:
    """The run's own end, under the name of its folder: the version says 0, the log-probs say
    otherwise.
    """
    tokenizer = AutoTokenizer.from_pretrained(sampled / "model")
    assert len(tokenizer) < 100_000
    rows = learned(tmp_path / "run", sampled, policy=str(sampled / "model"), steps=1)
    assert rows[0]["ratio_max"] != 1
    assert rows[0]["trained_tokens"] > 0
    assert rows[0]["select/untrainable_calls"] == 0


def test_calls_that_cannot_be_trained_on_are_counted_in_the_row(
    sampled: Path, tmp_path: Path
) -> None:
    whole = stored(sampled)
    path = exported(tmp_path / "runs.jsonl", [*map(greedy, whole[:24]), *whole[24:]])
    rows = learned(tmp_path / "run", path)
    assert rows[0]["select/groups_without_gradient"] == 3 and rows[0]["stepped"] == 0
    assert rows[0]["select/greedy_calls"] > 0 == rows[1]["select/greedy_calls"]
    assert len(list(read_jsonl(path))) == ROLLOUTS


def test_a_source_is_not_written_to(sampled: Path, tmp_path: Path) -> None:
    for config, folder in (
        (CONFIG.but(source=[str(sampled)]), sampled),
        (CONFIG.but(source=[str(sampled / "store.db")], store=str(sampled)), tmp_path / "run"),
        (
            CONFIG.but(source=[str(sampled)], store=f"sqlite:///{sampled / 'store.db'}"),
            tmp_path / "run",
        ),
    ):
        with pytest.raises(ConfigError, match="a source must only be read"):
            asyncio.run(train_on_record(config, folder))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"by": "x"}, "by has no effect here: no runs on record"),
        ({"source": ["x"], "by": "x", "rewards": "answer:boxed"}, "Both by and rewards"),
        ({"source": ["x"], "refill": 2}, "refill has no effect with --from"),
        ({"source": ["x"], "eval_every": 2}, "eval_every has no effect with --from"),
        ({"source": ["x"], "stages": [{"steps": 2}]}, "stages has no effect with --from"),
    ],
)
def test_keys_that_would_do_nothing_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GrpoConfig.of(**keys)
