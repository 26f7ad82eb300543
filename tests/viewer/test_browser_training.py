"""The pages of training in a real browser: a run is walked from its curves to a sibling while
another is written.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from hrm_agent.store import open_store
from hrm_agent.training.analysis.saved import save_analysis
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, ToolStatus
from tests.support.browser import Browsing, Site
from tests.support.trajectory.samples import make_tool_call, make_trajectory
from tests.viewer.conftest import SMALL_TRAINING

pytestmark = pytest.mark.whole


@contextmanager
def training(folder: Path) -> Iterator[None]:
    """Training that runs until the block ends."""
    words = [
        sys.executable,
        "-m",
        "hrm_agent",
        *SMALL_TRAINING,
        "--steps",
        "200",
        "--out",
        str(folder),
    ]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def newest_step(page: Page) -> int:
    """The last step of the large chart."""
    return int(page.get_by_role("slider", name="Accuracy").get_attribute("aria-valuemax") or "0")


def test_a_run_is_walked_while_another_one_is_written(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(trained_run, runs / "before")
    site = browsing.serve(runs)
    with training(runs / "later"):
        page = site.open("runs")
        loaded = page.evaluate("performance.timeOrigin")
        page.get_by_role("link", name="small").or_(
            page.get_by_role("link", name="before")
        ).first.click()
        accuracy = page.get_by_role("slider", name="Accuracy")
        expect(accuracy).to_have_attribute("aria-valuemax", "3")
        expect(page.get_by_text("Held-out", exact=False).first).to_be_visible()
        browsing.check(page, "run")

        accuracy.focus()
        page.keyboard.press("Home")
        expect(accuracy).to_have_attribute(
            "aria-valuetext", re.compile(r"step 1: .*rollouts 0\.\d{3}")
        )
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Step 1")
        walk_a_step(page, browsing)

        page.goto(page.url.partition("#")[0] + "#/")
        later = page.get_by_role("link", name="later")
        expect(later).to_be_visible()
        while not (runs / "later" / "metrics.jsonl").is_file():  # its store exists by then
            time.sleep(0.05)
        later.click()
        accuracy = page.get_by_role("slider", name="Accuracy")
        expect(accuracy).to_be_visible()
        seen = newest_step(page)
        expect(accuracy).not_to_have_attribute("aria-valuemax", str(seen))  # a point came
        assert newest_step(page) > seen
        expect(page.locator("#announcer")).to_contain_text("Step")
        assert page.evaluate("performance.timeOrigin") == loaded, "the page was never loaded again"
    page.get_by_text("Beside other runs").click()
    page.get_by_role("checkbox").first.check()
    expect(page).to_have_url(re.compile("with="))
    browsing.check(page, "runs overlaid")


def walk_a_step(page: Page, browsing: Browsing) -> None:
    """Go from the groups of a step to two siblings, and to one of them."""
    groups = page.locator("section.group")
    expect(groups).to_have_count(2)
    expect(
        groups.first.get_by_role("img", name=re.compile("^(kept|dropped|rejected): "))
    ).not_to_have_count(0)
    browsing.check(page, "step")
    address = page.url
    page.get_by_label("Outcome").select_option("correct")
    expect(page).to_have_url(re.compile("outcome=correct"))
    expect(page.get_by_role("row").filter(has_text="wrong")).to_have_count(0)
    page.get_by_label("Outcome").select_option("")
    boxes = groups.first.get_by_role("checkbox")
    boxes.nth(0).check()
    boxes.nth(1).check()
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile("#/compare"))
    page.goto(address)
    expect(groups).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#/trajectory"))


@pytest.mark.parametrize("width", [390, pytest.param(1440, marks=pytest.mark.slow)])
def test_every_page_stands_in_the_dark_and_where_it_is_narrow(
    trained_run: Path, browsing: Browsing, width: int
) -> None:
    site = browsing.serve(trained_run)
    run = (trained_run / "run_id").read_text()
    page = site.open("runs", width=width, theme="dark")
    expect(page.get_by_role("table", name="Runs")).to_be_visible()
    browsing.check(page, f"runs {width} dark")
    seen = {
        "run": page.get_by_role("slider", name="Gradient, norm"),
        "groups": page.locator("section.group").first,
        "list": page.get_by_role("table", name="Trajectories"),
        "environment": page.get_by_role("heading", name="Outcomes"),
    }
    for route, locator in seen.items():
        site.go(page, route, place=site.place, run=run)
        expect(locator).to_be_visible()
        browsing.check(page, f"{route} {width} dark")
    site.go(page, "step", place=site.place, run=run, step=2)
    expect(page.get_by_role("table").first).to_be_visible()
    browsing.check(page, f"step {width} dark")


HOSTILE = (
    "<img src=x onerror='window.broken_in = 1'><script>window.broken_in = 1</script>"
    "\x1b[31mred\x1b[0m \u202etxet\u202c NUL:\0 zero\u200bwidth " + "long" * 800
)


def test_hostile_names_execute_nothing_and_break_no_layout(
    tmp_path: Path, browsing: Browsing
) -> None:
    path = tmp_path / "hostile.db"
    task = TaskRef(id=HOSTILE, family=HOSTILE, prompt=HOSTILE, answer=HOSTILE)
    facts = {
        "answer": HOSTILE,
        "error": HOSTILE,
        "status": RunStatus.FAILED,
        "stop_reason": StopReason.ERROR,
    }
    with open_store(path) as store:
        store.journal.write_tool_call(
            make_tool_call(name=HOSTILE, status=ToolStatus.ERROR, stderr=HOSTILE)
        )
        store.journal.write_trajectory(
            make_trajectory(calls=(), tool_calls=(), task=task, run_id=HOSTILE, **facts)
        )
    site = browsing.serve(path)
    for width in (390, 1440):
        page = site.open("runs", width=width)
        expect(page.get_by_role("table", name="Runs")).to_be_visible()
        for route in ("groups", "list", "environment"):
            site.go(page, route, place=site.place, run=HOSTILE)
            expect(page.locator(".loading")).to_have_count(0)
            expect(page.locator("h1 .chip").first).to_be_visible()
            browsing.check(page, f"hostile {route} {width}")
        assert page.evaluate("window.broken_in") is None
        expect(page.locator("h1")).not_to_contain_text("\u202e")


def test_ten_thousand_rows_are_moved_over_by_the_keyboard(
    trained_run: Path, browsing: Browsing
) -> None:
    page = browsing.serve(trained_run).open("runs")
    page.evaluate("""() => {
          const { html, render, ui } = hrm;
          const rows = [...Array(10000).keys()].map((number) => ({ number }));
          const columns = [{ key: "number", label: "Number", value: (row) => row.number, render: (row) => row.number }];
          hrm.pages.many = () => html`<h1>Many</h1><${ui.Table} rows=${rows} columns=${columns} label="Many" />`;
          location.hash = "#/many";
        }""")
    table = page.get_by_role("table", name="Many")
    expect(table).to_have_attribute("aria-rowcount", "10001")
    assert page.get_by_role("row").count() < 100
    page.keyboard.press("j")
    page.keyboard.press("End")
    expect(page.locator("[data-row='9999']")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("[data-row='9998']")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next row")


def test_hostile_names_and_numbers_of_metrics_break_no_chart(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained_run, tmp_path / "run"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        role = {**row["roles"]["reason"]}
        row |= {
            f"reward/{HOSTILE}": number,
            "loss": [float("nan"), 1e300, -1e300][number],
            "skipped": HOSTILE,
        }
        row["roles"][HOSTILE] = role
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    site = browsing.serve(folder)
    page = site.open("run", width=390, place=site.place, run=(folder / "run_id").read_text())
    expect(page.get_by_role("slider", name="Rewards by name")).to_be_visible()
    expect(page.get_by_role("slider", name="Loss")).to_have_attribute(
        "aria-valuetext", re.compile("-1.0e300")
    )
    page.get_by_text("All other metrics").click()
    expect(page.get_by_role("slider", name="rollout/count")).to_be_visible()
    browsing.check(page, "hostile metrics 390")
    site.go(page, "step", place=site.place, run=(folder / "run_id").read_text(), step=2)
    expect(page.get_by_text("The weights did not change").locator(".chip").first).to_be_visible()
    browsing.check(page, "hostile step 390")
    look_at_an_analysis(site, page, browsing, folder)
    look_at_a_film(site, page, browsing, folder)
    look_at_failures(site, page, browsing, folder)
    look_at_a_reward_difference(site, page, browsing, folder)
    assert page.evaluate("window.broken_in") is None


def look_at_an_analysis(site: Site, page: Page, browsing: Browsing, folder: Path) -> None:
    """Go from the list of analyses to one, and from it to a trajectory and a step."""
    run = (folder / "run_id").read_text()
    with open_store(folder, read_only=True) as store:
        id_ = store.journal.headers()[0].id
    rollout = {"trajectory_id": id_, "thread_id": HOSTILE, "prompt": HOSTILE, "reward": 1.0}
    pushes = [0.5, -0.25, 0.001, None]
    texts = ["<b>", HOSTILE, "", "\n"]
    result = {
        "behaviour": {"texts": [HOSTILE, HOSTILE]},
        "versions": [{"version": n, "logprob": -99.0 + n, "taught": n} for n in range(3)],
        "step": 2,
        "rollouts": [{**rollout, "push": 0.25, "tokens": 9, "texts": texts, "pushes": pushes}, 7],
        "removed": [id_],
        "proof": {"before": -99.0, "recorded": -97.0, "without": -98.5, "steps": 1},
    }
    save_analysis(folder, "why", {}, title=HOSTILE, command=HOSTILE, result=result)
    save_analysis(folder, "why", {"an": "other"}, title="empty", command="", result={})
    site.go(page, "analyses", place=site.place, run=run)
    table = page.get_by_role("table", name="Analyses")
    expect(table.get_by_role("row")).to_have_count(2)
    browsing.check(page, "hostile analyses 390")
    table.get_by_role("link").filter(has_text="red").click()
    expect(page.locator("h1 .chip").first).to_be_visible()
    chart = page.get_by_role("slider", name="P, probability")
    expect(chart).to_have_attribute("aria-valuetext", "step 2: P 7.5e−43")
    expect(page.get_by_text("P is 1.0e−43 before step 2, and 7.5e−43 after step 2")).to_be_visible()
    tokens = page.get_by_role("group", name="Tokens.")
    expect(tokens.locator(".t.plus4")).to_have_text("<b>")
    expect(tokens.locator(".t.minus2 + .t.zero + .t.zero")).to_have_count(1)
    tokens.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("5 more tokens are not saved")).to_contain_text("push +0.500")
    browsing.check(page, "hostile why 390")
    address = page.url
    page.get_by_role("table", name="Rollouts by push").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(f"#/trajectory.*{id_}"))
    page.goto(address)
    chart.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 2")
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="empty").click()
    expect(page.get_by_text("No rollout of this step affects the text.")).to_be_visible()
    look_at_swaps(site, page, browsing, folder, run)
    look_at_prompts(site, page, browsing, folder, run)


def look_at_prompts(site: Site, page: Page, browsing: Browsing, folder: Path, run: str) -> None:
    """Open a result of `optimize`, and one that has nothing."""
    first = {"parent": None, "prompt": None, "texts": {HOSTILE: "Say yes."}, "validation": 0.25}
    then = {"parent": 0, "prompt": HOSTILE, "texts": {HOSTILE: "Say no."}, "why": HOSTILE}
    then |= {"minibatch": [0.125, 0.75], "validation": 0.5}
    held_out = {"tasks": 8, "before": {"value": 0.25}, "after": {"value": 0.625}}
    held_out["difference"] = {"value": 0.375, "low": 0.125, "high": 0.5}
    result = {
        "graph": HOSTILE,
        "best": 1,
        "candidates": [first, then, 7, {"parent": "constructor"}],
    }
    result |= {"held_out": held_out, "rollouts": 1200, "proposals": [{"refused": "x"}, 3]}
    result |= {"recommended": False, "not_judged": {"proposal": {"prompt": HOSTILE}}}
    save_analysis(folder, "optimize", {}, title="prompts", command="", result=result)
    save_analysis(folder, "optimize", {"an": "other"}, title="no prompts", command="", result={})
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="prompts", exact=True).click()
    table = page.get_by_role("table", name="Candidates")
    expect(table.get_by_role("row").filter(has_text="0.750")).to_contain_text("best")
    change = page.get_by_role("region", name="Candidate 1")
    expect(change.locator("del")).to_have_text("yes")
    expect(change.locator("ins")).to_have_text("no")
    expect(page.get_by_text("1,200 runs, 0 reflections, 1 texts refused.")).to_be_visible()
    expect(page.get_by_text("was not judged: the budget was used up.")).to_be_visible()
    expect(page.get_by_text("No text is recommended")).to_be_visible()
    browsing.check(page, "hostile optimize 390")
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="no prompts").click()
    expect(page.get_by_text("No candidate was run.")).to_be_visible()


def look_at_swaps(site: Site, page: Page, browsing: Browsing, folder: Path, run: str) -> None:
    """Open a result of `roles`, and one that has nothing."""
    comparison = {
        "a": {"pass_at_1": {"value": 0.25}},
        "b": {"pass_at_1": {"value": 0.5}},
        "difference": {"value": 0.25, "low": 0.125, "high": 0.375},
    }
    asked = {"read": 4000, "sampled": 12}
    row = {"role": HOSTILE, "called": 8, "comparison": comparison, "asked": asked, "cost": 0.5}
    result = {"try": HOSTILE, "policy": "p", "advice": HOSTILE, "tasks": 8, "roles": [row, 7, {}]}
    result |= {"runs": 8, "recorded_runs": 9, "budget": HOSTILE, "budget_used_up": True}
    save_analysis(folder, "roles", {}, title="swaps", command="", result=result)
    save_analysis(folder, "roles", {"an": "other"}, title="nothing", command="", result={})
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="swaps").click()
    table = page.get_by_role("table", name="Swaps by role")
    expect(table.get_by_role("row").filter(has_text="+0.250")).to_have_count(1)
    expect(table).to_contain_text("4,000 + 12")
    bar = table.get_by_role("img", name="95 % interval")
    expect(bar).to_have_attribute("aria-label", "0.250, 95 % interval 0.125 to 0.375")
    expect(page.get_by_text("Based on 8 tasks, 8 of 9 runs.")).to_be_visible()
    browsing.check(page, "hostile roles 390")
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="nothing").click()
    expect(page.get_by_text("No role was swapped.")).to_be_visible()
    look_at_a_gate(site, page, browsing, folder, run)


def look_at_a_gate(site: Site, page: Page, browsing: Browsing, folder: Path, run: str) -> None:
    """Open a result of `gate`, and the diff of a run that got worse."""
    with open_store(folder, read_only=True) as store:
        id_ = store.journal.headers()[0].id
    one = {"run": id_, "thread": HOSTILE, "prompt": HOSTILE, "old": 1.0, "new": 0.0}
    one |= {"difference": HOSTILE, "diff": ["-old", "+" + HOSTILE], "old_answer": "7"}
    result = {"verdict": "worse", "sentence": HOSTILE, "old": 1.0, "new": 0.5, "worse": [one, 7]}
    result |= {"difference": {"value": -0.5, "low": -0.75}, "runs": 8, "recorded_runs": 9}
    result |= {"not_comparable": {HOSTILE: ["a"]}, "better": None, "asked": {"requests": 12}}
    save_analysis(folder, "gate", {}, title="compared", command="", result=result)
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="compared").click()
    table = page.get_by_role("table", name="Runs that got worse")
    expect(table.get_by_role("link")).to_have_count(1)
    page.get_by_text("First difference in").click()
    expect(page.get_by_text("Answer on record: 7")).to_be_visible()
    expect(page.get_by_text("Asked: 12 requests")).to_be_visible()
    browsing.check(page, "hostile gate 390")
    table.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(f"#/trajectory.*{id_}"))


def look_at_a_film(site: Site, page: Page, browsing: Browsing, folder: Path) -> None:
    """Go over the versions by the keyboard, the buttons and the strip, and on to a step."""
    call = {"role": HOSTILE, "prompt": HOSTILE, "like": None, "kept": 0, "tools": []}
    tool = {"name": HOSTILE, "status": "error", "content": HOSTILE}
    first = {"version": 0, "right": False, "answer": "7", "caption": ["No tool is called."]}
    flip = {"call": 0, "token": 1, "old": "7", "new": HOSTILE, "old_before": 0.5, "old_now": None}
    then = {"version": 2, "right": True, "answer": "8", "caption": [HOSTILE], "flips": [flip]}
    calls = [
        {**call, "tokens": ["It is ", "7", "."]},
        {**call, "tokens": ["kept"]},
    ]
    changed = [
        {**call, "like": 0, "kept": 1, "tokens": [HOSTILE, "!"], "tools": [tool]},
        {"same": 1},
    ]
    scenes = [{**first, "calls": calls}, {**then, "calls": changed}]
    tasks = [
        {"prompt": HOSTILE, "expected": "8", "why": "hrm-agent why", "scenes": scenes},
        {"prompt": "unchanged", "scenes": [{**first, "right": None, "calls": calls}]},
        {"prompt": "none", "scenes": [7]},
    ]
    result = {"versions": [0, 1, 2, 3], "tasks": tasks}
    coarse_scenes = [scenes[0], {**scenes[1], "status": "truncated"}]
    coarse = {"versions": [0, 2], "tasks": [{**tasks[0], "scenes": coarse_scenes}]}
    coarse_name = save_analysis(
        folder, "film", {"an": "other"}, title="", command="", result=coarse
    ).stem
    name = save_analysis(folder, "film", {}, title=HOSTILE, command="", result=result).stem
    run = (folder / "run_id").read_text()
    site.go(page, "analysis", place=site.place, run=run, name=name)
    slider = page.get_by_role("slider", name="Version")
    expect(slider).to_have_attribute("aria-valuetext", "Before the training")
    expect(page.get_by_role("button", name="none")).to_have_count(0)
    ends = page.locator(".film-summary tbody tr")
    expect(ends.first).to_have_text("Before the training0 of 20 of 20 of 0")
    expect(ends.last).to_have_text("After step 31 of 21 of 21 of 1")
    assert page.locator(".film-text mark, .film-text ins").count() == 0
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", "After step 1")
    expect(page.get_by_text("Unchanged since then.")).to_be_visible()
    page.keyboard.press("n")
    expect(slider).to_have_attribute("aria-valuetext", "After step 2")
    expect(page.locator(".film-text del")).to_have_text("7")
    expect(page.locator(".film-text mark .chip").first).to_be_visible()
    expect(page.locator(".film-text ins")).to_have_text("!")
    expect(page.get_by_text("hrm-agent why --flip 2 --step 2")).to_be_visible()
    expect(page.locator(".film-call").nth(1)).to_contain_text("kept")
    browsing.check(page, "hostile film 390")
    page.get_by_role("button", name="Play").click()
    expect(slider).to_have_attribute("aria-valuetext", "After step 3")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("button", name="unchanged").click()
    expect(page.get_by_role("heading", level=2)).to_have_text("unchanged")
    page.get_by_role("button", name="After step 2 until step 3: right").click()
    expect(slider).to_have_attribute("aria-valuetext", "After step 2")
    expect(page.get_by_role("link", name="Update and rollouts of step 2")).to_be_visible()
    page.locator(".film-text mark a").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Step 2")
    site.go(page, "analysis", place=site.place, run=run, name=coarse_name, at="1")
    expect(page.get_by_text("Between step 1 and 2", exact=True)).to_be_visible()
    expect(page.locator(".film-told .badge")).to_have_text("truncated")
    expect(page.locator(".film-text mark .chip").first).to_be_visible()
    expect(page.locator(".film-text mark a, .film-why a")).to_have_count(0)
    expect(page.locator(".film-why")).not_to_contain_text("--step 2")


def look_at_a_reward_difference(site: Site, page: Page, browsing: Browsing, folder: Path) -> None:
    """Look at the saved result of `reward-diff`, and at an empty one."""
    run = (folder / "run_id").read_text()
    with open_store(folder, read_only=True) as store:
        id_ = store.journal.headers()[0].id
    side = {"reward": 1.0, "advantage": -0.5, "reason": HOSTILE, "push": 0.1}
    rollout = {"trajectory_id": id_, "thread_id": HOSTILE, "prompt": HOSTILE, "old": side}
    tokens = {
        "tokens": 3,
        "texts": ["<b>", HOSTILE, ""],
        "pushes": [[0.5, 0, 0], [-0.5, 0.25, None]],
    }
    change = {"old": 0.1, "new": -0.2, "difference": -0.3, "difference_error": None}
    pushed = {"before": HOSTILE, "text": HOSTILE, "count": 2, "old": -1.0, "new": 1.0}
    result = {
        "old": HOSTILE,
        "new": HOSTILE,
        "steps": [2, "x"],
        "flips": {"rollouts": 9, "down": 4},
        "rollouts": [{**rollout, "new": side, **tokens}, 7],
        "roles": {HOSTILE: [1.0, None]},
        "norms": [1],
        "cosine": 0.25,
        "changes": {"accuracy": change, HOSTILE: 7, "constructor": change},
        "up": [pushed, pushed],
        "down": 3,
        "warnings": [{"kind": "length", "text": HOSTILE}],
    }
    save_analysis(folder, "reward-diff", {}, title="rewards", command=HOSTILE, result=result)
    save_analysis(folder, "reward-diff", {"an": "other"}, title="none", command="", result={})
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="rewards").click()
    changes = page.get_by_role("table", name="Predicted changes")
    expect(changes.get_by_role("row").filter(has_text="accuracy")).to_contain_text("−0.3")
    expect(page.get_by_role("listitem").filter(has_text="The new reward")).to_have_count(1)
    shaded = page.get_by_role("group", name="Tokens.")
    expect(shaded.locator(".t.minus4")).to_have_text("<b>")
    expect(shaded.locator(".t.plus1")).to_have_count(1)
    browsing.check(page, "hostile reward-diff 390")
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="none").click()
    expect(page.get_by_text("No warning.")).to_be_visible()


def look_at_failures(site: Site, page: Page, browsing: Browsing, folder: Path) -> None:
    """Look at the saved result of `analyze --failures`, and at an empty one."""
    run = (folder / "run_id").read_text()
    with open_store(folder, read_only=True) as store:
        id_ = store.journal.headers()[0].id
    share = {"value": 0.25, "low": 0.1, "high": None}
    of_class = {"name": HOSTILE, "rule": HOSTILE, "apart": True, "runs": 3, "share": share}
    failed = {"trajectory": id_, "thread": HOSTILE, "outcome": "loop", "secondary": [HOSTILE, 1]}
    changed = {"name": "loop", "before": 0.5, "after": "x", "difference": {"value": -0.5}}
    result = {
        "runs": 9,
        "judged": 8,
        "failed": 3,
        "apart": 1,
        "classes": [of_class, {"name": "loop", "runs": "x", "details": {HOSTILE: 2}}, 7],
        "failures": [{**failed, "evidence": {"excerpt": HOSTILE}}, {"evidence": 3}, None],
        "change": {
            "against": HOSTILE,
            "paired": 4,
            "changes": [changed, 3],
            "moved": [{"before": "right", "after": "loop", "runs": 2, "tasks": [HOSTILE, 5]}],
        },
    }
    save_analysis(folder, "failures", {}, title="why failed", command=HOSTILE, result=result)
    save_analysis(folder, "failures", {"an": "other"}, title="no failure", command="", result={})
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="why failed").click()
    runs = page.get_by_role("table", name="Failed runs")
    expect(runs.get_by_role("row").filter(has_text="loop")).to_have_count(1)
    expect(page.get_by_role("table", name="Change by class")).to_contain_text("−0.5")
    expect(page.get_by_role("table", name="Runs that moved")).to_contain_text("right")
    browsing.check(page, "hostile failures 390")
    expect(runs.get_by_role("link").first).to_have_attribute("href", re.compile(id_))
    site.go(page, "analyses", place=site.place, run=run)
    page.get_by_role("link", name="no failure").click()
    expect(page.get_by_text("No run failed.")).to_be_visible()


def test_a_hidden_page_gives_its_stream_back_and_reads_all_anew_when_it_is_seen(
    trained_run: Path, browsing: Browsing
) -> None:
    page = browsing.serve(trained_run).open("runs")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    asked: list[str] = []
    ended: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.on("requestfailed", lambda request: ended.append(request.url.rpartition("/")[2]))
    show = """state => {
      Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, "hidden")
    while not ended:
        page.wait_for_timeout(50)
    assert ended == ["events"] and asked == []
    page.evaluate(show, "visible")
    while not {"events", "runs?"} <= set(asked):
        page.wait_for_timeout(50)
