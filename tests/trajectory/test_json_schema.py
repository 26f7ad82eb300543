"""The published format matches the written one, and its page is up to date."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hrm_agent.trajectory.formats import write_jsonl
from hrm_agent.trajectory.json_schema import format_page, trajectory_schema
from tests.support.trajectory.samples import make_trajectory

PAGE = Path(__file__).parents[2] / "docs" / "trajectory-format.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(), "run `make docs`"


def test_an_exported_line_conforms(tmp_path: Path) -> None:
    write_jsonl([make_trajectory()], tmp_path / "x.jsonl")
    jsonschema.Draft202012Validator.check_schema(trajectory_schema())
    jsonschema.validate(json.loads((tmp_path / "x.jsonl").read_text()), trajectory_schema())


@pytest.mark.parametrize(
    "broken",
    [{"surprise": 1}, {"status": "finished"}, {"calls": [{"id": "x"}]}, {"started_at": None}],
)
def test_what_does_not_conform_is_told(broken: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {**make_trajectory().model_dump(mode="json"), **broken}, trajectory_schema()
        )


def test_every_field_and_every_value_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for definition in [trajectory_schema(), *trajectory_schema()["$defs"].values()]:
        for name in definition.get("properties", definition.get("enum", ())):
            assert f"`{name}`" in page
