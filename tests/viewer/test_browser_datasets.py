"""The pages of data sets and of evaluations side by side, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hrm_agent.store import open_store
from hrm_agent.training.datasets import DatasetExample, ExampleSource, add_examples, make_example
from hrm_agent.training.tasks.sources import keep_sources
from hrm_agent.trajectory import TaskRef
from tests.support.browser import Browsing
from tests.support.trajectory.samples import make_trajectory

pytestmark = pytest.mark.whole

HOSTILE = "<img src=x onerror=\"console.error('ran')\">"
RIGHT = {"a": "1100110011", "b": "1111111111", "c": "0100100001"}


def example(number: int) -> DatasetExample:
    prompt = f"What is {number} * 7? {HOSTILE}"
    return make_example(
        family=HOSTILE,
        prompt=prompt,
        answer=HOSTILE,
        metadata={},
        task=f"{number}",
        source=ExampleSource(run="a", trajectory="t"),
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three evaluations of a data set, in a folder beside it; one has no problem of the others."""
    monkeypatch.chdir(tmp_path)
    add_examples(tmp_path / "datasets", "farm", map(example, range(10)))
    add_examples(tmp_path / "datasets", "farm", map(example, range(12)))
    broken = add_examples(tmp_path / "datasets", "broken", [example(1)]).dataset.version.path
    broken.write_text("{}\n")
    for name, right in {**RIGHT, "z": "1"}.items():
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(
            'command = "eval"\ntasks = "mix:1*dataset:farm@1?split=all,1*word_problems"\n'
        )
        keep_sources("mix:1*dataset:farm@1?split=all,1*word_problems", "eval", folder)
        with open_store(folder / "store.db") as store:
            for number, flag in enumerate(right, 99 * (name == "z")):
                ref = TaskRef(id=f"{number}", family="f", prompt=example(number).prompt)
                facts = {"id": f"{name}-{number}", "thread_id": f"{name}/{number}", "task": ref}
                found = make_trajectory().model_copy(
                    update={**facts, "run_id": name, "group_id": f"g{number}", "calls": ()}
                )
                found = found.model_copy(update={"rewards": {"correct": float(flag)}})
                store.journal.write_trajectory(found.model_copy(update={"tool_calls": ()}))
    return tmp_path / "runs"


def choose(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Choose {name} to compare").check()
    page.get_by_role("button", name=f"{len(names)} evaluations side by side").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Evaluations side by side")


def walk(page: Page, browsing: Browsing, name: str) -> None:
    choose(page, "a", "b")
    table = page.get_by_role("table", name="Evaluations")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table.get_by_role("row").nth(2)).to_contain_text("+0.400")
    differing = page.get_by_role("table", name="Problems that differ")
    expect(differing.get_by_role("row")).to_have_count(5)
    expect(differing.get_by_role("link", name="wrong")).to_have_count(4)
    browsing.check(page, f"evaluations {name}")
    page.get_by_role("button", name="Compare with b").click()
    expect(table.get_by_role("row").nth(2)).to_contain_text("−0.400")
    differing.get_by_role("link", name="wrong").first.click()
    expect(page.get_by_text("What is 2 * 7?", exact=False).first).to_be_visible()

    page.get_by_role("link", name="hrm-agent view: all runs").click()
    page.get_by_role("link", name="Data sets").click()
    expect(page.get_by_role("table", name="Data sets").get_by_role("row")).to_have_count(3)
    expect(page.get_by_text("is not the head of a data set", exact=False)).to_be_visible()
    row = page.get_by_role("table", name="Data sets").get_by_role("row").nth(2)
    expect(row).to_contain_text("farm@1")
    expect(row.get_by_role("link", name="a", exact=True)).to_be_visible()
    browsing.check(page, f"data sets {name}")
    page.get_by_role("link", name="farm@2").click()
    expect(page.get_by_role("table", name="Examples").get_by_role("row")).to_have_count(13)
    expect(page.get_by_text(HOSTILE, exact=False).first).to_be_visible()
    browsing.check(page, f"data set {name}")


def test_data_sets_and_evaluations_side_by_side(runs: Path, browsing: Browsing) -> None:
    site = browsing.serve(runs)
    page = site.open("runs")
    walk(page, browsing, "1440")
    site.go(page, "runs")
    choose(page, "a", "b", "c")
    expect(page.get_by_role("table", name="Evaluations").get_by_role("row")).to_have_count(4)
    narrow = site.open("datasets", width=390, theme="dark")
    browsing.check(narrow, "data sets 390")
    pairs = '[["a","a"],["b","b"],["c","c"]]'
    site.go(narrow, "evaluations", runs=pairs)
    expect(narrow.get_by_role("table", name="Problems that differ")).to_be_visible()
    browsing.check(narrow, "evaluations 390")


def test_a_copy_has_the_data_sets_and_comparisons(
    runs: Path, browsing: Browsing, tmp_path: Path
) -> None:
    site = browsing.export(runs, tmp_path / "copy.html")
    page = site.open("runs")
    walk(page, browsing, "copy")
