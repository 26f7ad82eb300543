"""Configurations: file, then flags. Saved files can be loaded again, and mistakes are named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from hrm_agent.cli.common.arguments import Parser, add_config, as_pairs, config_from
from hrm_agent.config import build_config, compare_on_resume, read_config_file, save_config, to_toml
from hrm_agent.errors import ConfigError, RunError
from tests.cli.conftest import Command
from tests.support.disk import files_of_at_most

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=4, ge=1)
    table: dict[str, Any] = Field(default_factory=lambda: {"a": 1, "b": 2})


class Outer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = 'quote " and \\ and \n'
    """Name of the object."""
    count: int | None = 3
    rate: float = 0.5
    fast: bool = False
    kind: Literal["one", "two"] = "one"
    words: tuple[str, ...] = ()
    inner: Inner = Inner(steps=9)


def from_flags(*words: str) -> Outer:
    parser = Parser("test", "")
    add_config(parser, Outer)
    return config_from(parser.read(words), Outer, "test")


def test_a_table_can_be_written_as_flags() -> None:
    table = {"turns": 3, "rate": 1e-3, "text": "a b", "number": "12", "on": True, "none": None}
    table |= {"inner": {"list": ["x"]}, "quoted": '"q"', "empty": ""}
    assert from_flags("--inner.table", *as_pairs(table)).inner.table == table


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ((), {}),
        (("--count", "7", "--rate", "1e-3"), {"count": 7, "rate": 1e-3}),
        (("--count", "none"), {"count": None}),
        (("--name", "none"), {"name": "none"}),
        (("--fast",), {"fast": True}),
        (("--no-fast",), {"fast": False}),
        (("--kind=two", "--words", "x", "y"), {"kind": "two", "words": ("x", "y")}),
        (("--inner.steps", "2"), {"inner": Inner(steps=2)}),
        (("--inner.table", "a=5", "c=x"), {"inner": Inner(steps=9, table={"a": 5, "c": "x"})}),
        (("--inner.table",), {"inner": Inner(steps=9, table={})}),
    ],
)
def test_flags(words: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert from_flags(*words) == Outer().model_copy(update=changes)


def test_flags_go_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('command = "test"\ncount = "none"\nrate = 2\n[inner]\ntable = {a = 7}\n')
    found = from_flags("--config", str(path), "--rate", "3", "--inner.table", "b=0")
    assert found == Outer(count=None, rate=3.0, inner=Inner(steps=9, table={"b": 0}))


@pytest.mark.parametrize(
    "config", [Outer(), Outer(count=None, words=("x",), inner=Inner(table={"odd key": [1, "x"]}))]
)
def test_what_is_saved_is_read_back(config: Outer, tmp_path: Path) -> None:
    path = save_config(config, "test", tmp_path / "new" / "run")
    assert build_config(Outer, read_config_file(path, "test"), "") == config


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--cuont", "3"), "hrm-agent test has no flag '--cuont'.", "Did you mean '--count'?"),
        (("--count", "x"), "count (from the flags)", ""),
        (("--name",), "expected one argument", "--help"),
        (
            ("--inner.steps", "0"),
            "inner.steps (from the flags): Input should be greater than or equal to 1",
            "",
        ),
        (("--kind", "three"), "Input should be 'one' or 'two'", ""),
        (("--inner.table", "a"), "'a' is not KEY=VALUE.", "--inner.table a=VALUE"),
        (("--config", "absent.toml"), "There is no file absent.toml.", ""),
    ],
)
def test_mistakes_in_flags(words: tuple[str, ...], message: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        from_flags(*words)
    assert message in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("cuont = 3", "There is no key 'cuont'", "Did you mean 'count'?"),
        ("[inner]\nstps = 3", "There is no key 'inner.stps'", "Did you mean 'steps'?"),
        ("name = 3", "name (", "Name of the object."),
        ("count = ", "cannot be read as TOML", "toml.io"),
        ('command = "other"', "is for `hrm-agent other`", "Run `hrm-agent other --config"),
    ],
)
def test_mistakes_in_files(text: str, message: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        from_flags("--config", str(tmp_path / "c.toml"))
    assert message in raised.value.message
    assert "c.toml" in raised.value.message
    assert hint in raised.value.hint


def test_a_run_is_not_gone_on_with_under_another_configuration(tmp_path: Path) -> None:
    compare_on_resume(Outer(), "test", tmp_path)
    save_config(Outer(), "test", tmp_path)
    compare_on_resume(Outer(), "test", tmp_path)
    changed = Outer(rate=0.25, count=None)
    with pytest.raises(
        RunError, match=r"count: 3 there, None now; rate: 0.5 there, 0.25 now"
    ) as raised:
        compare_on_resume(changed, "test", tmp_path)
    assert "hrm-agent resume" in raised.value.hint
    compare_on_resume(changed, "test", tmp_path, free=frozenset({"rate", "count"}))
    deeper = Outer(inner=Inner(steps=8))
    with pytest.raises(RunError, match=r"inner\.steps: 9 there, 8 now"):
        compare_on_resume(deeper, "test", tmp_path, free=frozenset({"steps"}))
    compare_on_resume(deeper, "test", tmp_path, free=frozenset({"inner.steps"}))


def test_a_disk_that_is_full_leaves_the_saved_configuration_as_it_was(tmp_path: Path) -> None:
    path = save_config(Outer(), "test", tmp_path)
    before = path.read_bytes()
    with files_of_at_most(16), pytest.raises(OSError, match="File too large"):
        save_config(Outer(count=4), "test", tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_files_are_valid_and_dry_runs_give_them_back(
    path: Path, hrm: Command, tmp_path: Path
) -> None:
    command = tomllib.loads(path.read_text())["command"].split()
    words = [*command, *(["chats.jsonl"] if command == ["train", "sft"] else [])]
    done = hrm(*words, "--config", str(path), "--dry-run")
    assert done.code == 0, done.err
    (tmp_path / "again.toml").write_text(done.out)
    assert hrm(*words, "--config", "again.toml", "--dry-run").out == done.out
    assert set(tomllib.loads(path.read_text())) <= set(tomllib.loads(done.out))


def test_toml_of_a_config_says_its_command() -> None:
    assert tomllib.loads(to_toml(Outer(), "train rl"))["command"] == "train rl"
