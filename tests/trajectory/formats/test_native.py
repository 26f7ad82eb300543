"""Exported trajectories are read back unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from hrm_agent.errors import StoreError, StoreVersionError
from hrm_agent.trajectory import Trajectory
from hrm_agent.trajectory.formats import (
    COLUMNS,
    read_jsonl,
    read_parquet,
    write_jsonl,
    write_parquet,
)
from tests.support.properties import few_and_many, holds
from tests.support.trajectory.samples import make_call, make_trajectory

Write = Callable[[Iterable[Trajectory], Path], int]
Read = Callable[[Path], Iterator[Trajectory]]

both = pytest.mark.parametrize(
    ("write", "read"), [(write_jsonl, read_jsonl), (write_parquet, read_parquet)]
)

calls = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.floats(-(2.0**100), 0.0, width=32)),
    min_size=1,
    max_size=30,
).map(
    lambda tokens: make_call(
        "task-x",
        token_ids=tuple(token for token, _, _ in tokens),
        mask=tuple(sampled for _, sampled, _ in tokens),
        logprobs=tuple(value for _, _, value in tokens),
    )
)


@both
def test_round_trip(write: Write, read: Read, tmp_path: Path) -> None:
    originals = [
        make_trajectory(),
        make_trajectory(id="two", answer="naïve ☃ \u2028 \x00"),
        make_trajectory(calls=()),
    ]
    assert write(originals, tmp_path / "export") == 3
    assert list(read(tmp_path / "export")) == originals


@both
def test_round_trip_of_nothing(write: Write, read: Read, tmp_path: Path) -> None:
    assert write([], tmp_path / "export") == 0
    assert list(read(tmp_path / "export")) == []


@both
@few_and_many
def test_tokens_survive(write: Write, read: Read, examples: int, tmp_path: Path) -> None:
    def check(call: object) -> None:
        original = make_trajectory(calls=(call,))
        write([original], tmp_path / "export")
        assert list(read(tmp_path / "export")) == [original]

    holds(check, examples, call=calls)


def test_parquet_is_read_without_this_project(tmp_path: Path) -> None:
    original = make_trajectory()
    write_parquet([original] * 300, tmp_path / "x.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table.column_names == list(COLUMNS)
    row = table.slice(299, 1).to_pylist()[0]
    assert row["reward"] == 1.0
    assert row["sampled_tokens"] == original.sampled_tokens
    assert np.frombuffer(row["token_ids"][1], "<i4").tolist() == [5, 6, 7, 2]
    assert np.frombuffer(row["logprobs"][1], "<f4").tolist() == [0.0, 0.0, -0.5, -0.25]
    assert list(row["mask"][1]) == [0, 0, 1, 1]


def test_an_unverified_run_has_no_reward(tmp_path: Path) -> None:
    write_parquet([make_trajectory(rewards={})], tmp_path / "x.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet")["reward"].to_pylist() == [None]


@both
def test_a_failed_export_leaves_the_old_file(write: Write, read: Read, tmp_path: Path) -> None:
    path = tmp_path / "export"
    write([make_trajectory()], path)

    def failing() -> Iterator[Trajectory]:
        yield make_trajectory(id="new")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(failing(), path)
    assert [trajectory.id for trajectory in read(path)] == ["trajectory-1"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["export"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "Invalid JSON"),
        ('{"id": 3}', "id: Input should be a valid string"),
        ("\ud800", "cannot be read"),
    ],
)
def test_a_bad_line_is_named(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    text = make_trajectory().model_dump_json() + "\n\n" + content
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(StoreError, match=r"x\.jsonl") as raised:
        list(read_jsonl(path))
    assert said in raised.value.message


def test_the_number_of_a_bad_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(make_trajectory().model_dump_json() + "\n{}\n")
    with pytest.raises(StoreError, match=r"x\.jsonl:2 holds no trajectory"):
        list(read_jsonl(tmp_path / "x.jsonl"))


def test_a_newer_version_is_refused_by_number(tmp_path: Path) -> None:
    newer = make_trajectory().model_dump_json().replace('"schema_version":2', '"schema_version":7')
    (tmp_path / "x.jsonl").write_text(newer)
    with pytest.raises(StoreVersionError, match="version 7"):
        list(read_jsonl(tmp_path / "x.jsonl"))


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(StoreError, match="is not an export"):
        list(read_parquet(tmp_path / "x.parquet"))
    with pytest.raises(StoreError, match="absent"):
        list(read_parquet(tmp_path / "absent"))
    with pytest.raises(StoreError, match="absent"):
        list(read_jsonl(tmp_path / "absent"))
