"""Updates of a graph's state as a terminal shows them."""

from __future__ import annotations

import pytest

from hrm_agent.cli.common.output import Output
from hrm_agent.cli.common.printer import Printer


def test_a_list_that_begins_anew_shows_its_items_alone(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(Output(as_json=False)).update(
        ("outer",), {"plan": {"remarks": [None, "plan: no JSON"], "spent": [1]}}
    )
    assert capsys.readouterr().out.split("\n") == ["outer/plan  remarks: ", "    plan: no JSON", ""]
