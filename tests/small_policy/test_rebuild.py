"""`make policy` from nothing gives what the cards of the shipped policies say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hrm_agent.models.load import model_folder
from training.small_policy.__main__ import main

_FIGURES = re.compile(r"^\| (\w+) \| [\d.]+ \| \d+ \| ([\d.]+) \([^|]*\| ([\d.]+) \|$", re.MULTILINE)


def figures(folder: Path) -> dict[str, tuple[float, float]]:
    """By graph: share of correct answers, and share of the correct ones with a tool error."""
    card = (folder / "README.md").read_text(encoding="utf-8")
    return {graph: (float(correct), float(errors)) for graph, correct, errors in _FIGURES.findall(card)}


@pytest.mark.first
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_both_policies_rebuilt_from_nothing_hold_the_figures_of_their_cards(tmp_path: Path) -> None:
    main(["--out", str(tmp_path / "built"), "--runs", str(tmp_path / "runs")])
    for name in ("cold-start", "trained"):
        shipped, rebuilt = figures(Path(model_folder(f"builtin:{name}"))), figures(tmp_path / "built" / name)
        assert rebuilt.keys() == shipped.keys() == {"tool_loop", "reasoning"}
        for graph, (correct, errors) in shipped.items():
            assert rebuilt[graph][0] == pytest.approx(correct, abs=0.1), f"{name}, {graph}"
            assert rebuilt[graph][1] == pytest.approx(errors, abs=0.12), f"{name}, {graph}, tool errors"
    cold, trained = (figures(tmp_path / "built" / name)["tool_loop"] for name in ("cold-start", "trained"))
    assert cold[0] <= 0.65 and trained[0] >= 0.80 and trained[1] <= cold[1] / 5
