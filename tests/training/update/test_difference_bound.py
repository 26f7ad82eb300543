"""Bound on the difference between engine and trainer, beyond which they are not one policy."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.training.config.commands import GrpoConfig
from hrm_agent.training.grpo import train
from hrm_agent.training.metrics import Row
from hrm_agent.training.update.difference_bound import difference_bound, refuse_difference


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (("float32", ""), 1e-5, 1e-3),
        (("bfloat16", ""), 0.016, 0.06),
        (("float16", ""), 0.016, 0.06),
        (("bfloat16", "fp8"), 0.07, 0.2),
        (("bfloat16", "int8"), 0.04, 0.2),
        (("float32", "compressed-tensors-w8a8"), 0.04, 0.2),
        (("bfloat16", "nf4"), 0.37, 0.6),
        (("bfloat16", "awq"), 0.37, 0.6),
    ],
)
def test_what_a_format_allows(kind: tuple[str, str], right: float, wrong: float) -> None:
    formats = {"/".join(kind): difference_bound(*kind)}
    refuse_difference({"engine_difference": right, "staleness_max": 0.0}, formats, None)
    with pytest.raises(ModelError, match=rf"engine_difference is {wrong:g} nats"):
        refuse_difference({"engine_difference": wrong, "staleness_max": 0.0}, formats, None)


@pytest.mark.parametrize(
    ("row", "limit"),
    [
        ({"engine_difference": 0.3, "staleness_max": 2.0}, None),
        ({"engine_difference": math.nan, "staleness_max": math.nan}, None),
        ({"engine_difference": 0.3, "staleness_max": 0.0}, 0.4),
    ],
)
def test_tokens_of_older_weights_none_at_all_and_what_the_user_allows_are_taken(
    row: Row, limit: float | None
) -> None:
    refuse_difference(row, {"float32": difference_bound("float32")}, limit)


def test_the_coarsest_of_trainer_and_engines_counts() -> None:
    formats = {"float32": difference_bound("float32"), "bfloat16": difference_bound("bfloat16")}
    refuse_difference({"engine_difference": 0.02, "staleness_max": 0.0}, formats, None)
    with pytest.raises(ModelError, match="allowed in float32 and bfloat16"):
        refuse_difference({"engine_difference": 0.2, "staleness_max": 0.0}, formats, None)


def test_a_limit_has_no_effect_on_runs_on_record() -> None:
    with pytest.raises(ConfigError, match="engine_difference_limit has no effect with --from"):
        GrpoConfig.of(source=("run",), engine_difference_limit=1.0)


@pytest.mark.whole
def test_a_step_that_another_policy_sampled_stops_the_run_and_goes_on_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine whose log-probs are off, as those of other weights are: not kept, and the same when
    it is resumed.
    """
    submit = TransformersEngine.submit

    def off(self: TransformersEngine, request: object) -> object:
        from dataclasses import replace

        future = submit(self, request)  # type: ignore[arg-type]
        result = future.result
        future.result = lambda timeout=None: replace(  # type: ignore[method-assign]
            found := result(timeout), logprobs=tuple(each - 2e-3 for each in found.logprobs)
        )
        return future

    monkeypatch.setattr(TransformersEngine, "submit", off)
    rows: list[Row] = []
    keys = {
        "steps": 1,
        "policy": "builtin:cold-start",
        "prompts_per_step": 2,
        "group_size": 4,
        "max_tokens": 128,
    }
    for _ in range(2):
        with pytest.raises(
            ModelError,
            match=r"engine_difference is 0\.002 nats, but only 0\.0005 is allowed in float32",
        ):
            asyncio.run(train(GrpoConfig.of(**keys), tmp_path / "run", on_step=rows.append))
    assert rows == []
    asyncio.run(
        train(
            GrpoConfig.of(**keys, engine_difference_limit=1.0),
            tmp_path / "run",
            on_step=rows.append,
        )
    )
    assert [row["step"] for row in rows] == [0] and rows[0]["engine_difference"] == pytest.approx(
        2e-3, rel=0.1
    )
    dropping = GrpoConfig.of(**keys, lora_rank=2, lora_dropout=0.1)
    asyncio.run(train(dropping, tmp_path / "dropping", on_step=rows.append))
    assert len(rows) == 2, "an adapter's dropout makes a difference by itself"
