"""The pages of single runs in a real browser: trajectories, tokens and forks of a trained run,
research, hostile texts.

Each walk fails on an error or a warning of the console, on a request to another machine, and on a
serious fault of accessibility (`tests.support.browser`).
"""

from __future__ import annotations

import asyncio
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import parse_qs

import pytest
from langgraph.graph import START, StateGraph
from playwright.sync_api import expect

from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import (
    RewardScore,
    RunStatus,
    Scoring,
    StopReason,
    TaskRef,
    ToolStatus,
)
from tests.support.browser import Browsing
from tests.support.graphs.research_scripts import AGENT, Researcher, Talk
from tests.support.graphs.small_wiki import SmallWiki
from tests.support.trajectory.samples import (
    THREAD,
    identity,
    make_call,
    make_tool_call,
    make_trajectory,
)

pytestmark = pytest.mark.whole

SCRIPTS = (
    "<script>window.broken_in = 1</script><img src=x onerror='window.broken_in = 1'>"
    "<a href='javascript:window.broken_in = 1'>here</a>"
)
HOSTILE = f"{SCRIPTS} \x1b[31mred\x1b[0m \u202etxet\u202c NUL:\0 zero\u200bwidth " + "long" * 800
TEN_MEGABYTES = 10 * 2**20


def rollout_with_a_tool(folder: Path) -> str:
    """Id of a rollout of training that called a tool and then answered."""
    with open_store(folder / "store.db") as store:
        for header in store.journal.headers("status = ?", ("completed",)):
            found = store.journal.with_calls(header)
            if (
                found.tool_calls
                and len(found.calls) > 1
                and header.group_id.startswith(f"{header.run_id}/step-")
            ):
                return found.id
    raise AssertionError("no rollout called a tool")


def test_a_trained_rollout_is_read_from_its_steps_to_its_tokens(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    id_ = rollout_with_a_tool(trained_run)
    site = browsing.serve(trained_run)
    page = site.open("trajectory", place=site.place, id=id_)
    tree = page.get_by_role("tree", name="Steps")
    chosen = tree.locator("[aria-selected=true]")
    expect(chosen).to_have_count(1)
    expect(page.get_by_role("tabpanel")).to_contain_text("Model call")
    tree.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(chosen).to_have_attribute("aria-level", "2")
    expect(page.get_by_role("tabpanel")).to_contain_text("Tool call: python")
    expect(page).to_have_url(re.compile("item="))
    deep = page.url

    slider = page.get_by_role("slider", name="Checkpoint")
    slider.fill("0")
    expect(page.get_by_role("heading", name="As of checkpoint 1")).to_be_visible()
    before = page.locator(".message").count()
    slider.fill(slider.get_attribute("max") or "")
    expect(page.locator(".message").nth(before)).to_be_visible()  # the conversation has grown
    expect(page).to_have_url(re.compile("moment="))
    page.get_by_role("tab", name="State").click()
    expect(page.locator(".trace-panel")).to_contain_text("stop_reason")
    page.locator(".graph-fold summary").click()
    expect(page.locator(".graph-edge.taken").first).to_be_attached()
    browsing.check(page, "trajectory")

    page.goto(deep)
    expect(page.get_by_role("tabpanel")).to_contain_text("Tool call: python")
    page.keyboard.press("j")
    expect(page).not_to_have_url(re.compile(id_))


def test_a_link_in_another_tab_and_the_address_of_a_checkpoint_show_what_they_name(
    trained_run: Path, browsing: Browsing
) -> None:
    site = browsing.serve(trained_run)
    page = site.open("trajectory", place=site.place, id=rollout_with_a_tool(trained_run))
    page.get_by_role("slider", name="Checkpoint").fill("1")
    expect(page).to_have_url(re.compile("moment="))
    with page.context.expect_page() as opened:
        page.get_by_role("navigation", name="Where this is").get_by_role("link").nth(1).click(
            modifiers=["Control"]
        )
    # it got the token of the first tab
    expect(opened.value.get_by_role("slider", name="Accuracy")).to_be_visible()
    opened.value.goto(page.url)
    assert opened.value.locator(".as-of").inner_text() == "As of checkpoint 2"  # at once


def test_the_address_of_curves_of_a_run_without_steps_leads_to_its_groups(
    tmp_path: Path, browsing: Browsing
) -> None:
    (tmp_path / "config.toml").write_text('command = "collect"\n')
    with open_store(tmp_path / "store.db") as store:
        store.journal.write_trajectory(make_trajectory(calls=(), tool_calls=(), run_id="collected"))
    page = browsing.serve(tmp_path).open("runs")
    page.get_by_role("link", name="collected").click()
    page.get_by_role("link", name="Trajectories").click()
    page.locator(".row a").first.click()
    page.get_by_role("navigation", name="Where this is").get_by_role(
        "link", name="collected"
    ).click()
    expect(page.get_by_role("link", name="Groups")).to_have_attribute("aria-current", "page")
    page.go_back()
    expect(page.get_by_text("No steps were recorded.")).to_be_visible()


def test_tokens_are_shaded_moved_over_and_copied_as_they_were_seen(
    trained_run: Path, browsing: Browsing
) -> None:
    id_ = rollout_with_a_tool(trained_run)
    with open_store(trained_run / "store.db") as store:
        call = store.journal.trajectory(id_).calls[-1]
        ids = store.journal.path_tokens(call.id)
    site = browsing.serve(trained_run)
    page = site.open("tokens", place=site.place, call=call.id, run=site.place)
    text = page.locator(".tokens[data-filled=all]")
    expect(text.locator(".t")).to_have_count(len(ids))
    sampled = sum(page.locator(f".tokens .t.{name}").count() for name in ("trained", "sampled"))
    page.get_by_role("tab", name="Log-prob").click()
    expect(text.locator(".t[class*=' q']")).to_have_count(sampled)
    browsing.check(page, "tokens")
    page.get_by_role("tab", name="Entropy").click()
    expect(page.locator(".notice")).to_contain_text("hrm-agent analyze")

    text.focus()
    page.keyboard.press("End")
    details = page.get_by_label("The chosen token")
    expect(details).to_contain_text(f"{len(ids)} of {len(ids)}")
    expect(details).to_contain_text("log-prob")
    page.keyboard.press("Home")
    expect(details).to_contain_text(str(ids[0]))
    assert page.evaluate(COPY) == page.evaluate("document.querySelector('.tokens').textContent")


COPY = """() => {
  const text = document.querySelector(".tokens"), data = new DataTransfer();
  getSelection().selectAllChildren(text);
  text.dispatchEvent(new ClipboardEvent("copy", { clipboardData: data, bubbles: true, cancelable: true }));
  return data.getData("text/plain");
}"""


@pytest.mark.slow
def test_an_edited_tool_result_is_forked_and_both_ways_are_compared(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    id_ = rollout_with_a_tool(trained_run)
    copy = Path(shutil.copytree(trained_run, tmp_path / "run"))
    site = browsing.serve(copy, allow_fork=True)
    page = site.open("trajectory", place=site.place, id=id_)
    page.get_by_role("tree", name="Steps").focus()
    page.keyboard.press("End")  # the last call: its prompt ends with the tool's result
    expect(page.get_by_role("tabpanel")).to_contain_text("Model call")
    page.get_by_role("link", name="Edit and fork here").click()
    page.get_by_label(re.compile("tool python result")).last.fill("7")
    page.get_by_role("button", name="Show what will run again").click()
    plan = page.get_by_label("What will run again")
    expect(plan).to_contain_text("reason")
    expect(plan).to_contain_text("builtin:")
    browsing.check(page, "fork")
    page.get_by_role("button", name="Fork and run").click()
    both = page.get_by_label("Both branches")
    expect(both).to_be_visible(timeout=120_000)
    expect(both.get_by_text("the same, from before they parted")).to_be_visible()
    expect(both.locator("ins").first).to_be_visible()
    page.get_by_role("button", name="Replay the recorded run").click()
    expect(page.locator("[data-verdict=equal]")).to_be_visible(timeout=120_000)
    browsing.check(page, "branches")
    with open_store(copy / "store.db") as store:
        (fork,) = store.journal.forks_of(id_)
    assert fork.forked_from is not None and fork.forked_from.trajectory_id == id_
    page.get_by_role("link", name="Open the fork").click()
    expect(page.get_by_text("Forked from another run; compare both.")).to_be_visible()
    expect(page.get_by_role("link", name=f"{site.place}: single runs")).to_be_visible()
    site.go(page, "trajectory", place=site.place, id=id_)
    expect(page.locator(".tree-row.fork")).to_contain_text(fork.thread_id)


@pytest.fixture
def research_store(tmp_path: Path, environment: LocalEnvironment) -> tuple[Path, str]:
    """A conversation over a wiki that a scripted model has led, and its trajectory."""
    wiki, path = SmallWiki(), tmp_path / "research.db"

    async def ask() -> str:
        with open_store(path) as store:
            talk = Talk(store, environment, Researcher(), wiki=wiki.url, user_agent=AGENT)
            try:
                return (await talk()).id
            finally:
                talk.close()

    try:
        with ThreadPoolExecutor(1) as apart:  # Playwright has a loop in this thread
            return path, apart.submit(asyncio.run, ask()).result()
    finally:
        wiki.close()


def test_a_citation_opens_its_exact_span(
    research_store: tuple[Path, str], browsing: Browsing
) -> None:
    path, id_ = research_store
    site = browsing.serve(path)
    page = site.open("trajectory", place=site.place, id=id_)
    expect(page.get_by_role("treeitem", name=re.compile("search 2"))).to_be_visible()
    page.get_by_role("link", name="Citations").click()
    source = page.get_by_label("Source", exact=True)
    expect(source.locator("mark")).to_have_text("Reaching a length of 29.9 m")
    page.get_by_role("button", name="[2]", exact=True).focus()
    page.keyboard.press("Enter")
    expect(source.locator("mark")).to_have_text("They feed near the surface at night")
    link = source.get_by_role("link")
    expect(link).to_have_attribute("href", re.compile("^http://wiki.test/"))
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    browsing.check(page, "research")


class Cited(TypedDict):
    citations: list[dict[str, Any]]
    sources: dict[str, dict[str, Any]]


FORGED: Cited = {
    "citations": [
        {
            "source": "S1",
            "start": 0,
            "end": 9,
            "quote": HOSTILE,
            "url": "javascript:window.broken_in = 1",
        },
        {"source": "S1", "start": -5, "end": 2**62, "quote": "long", "url": "data:text/html,x"},
        {"source": HOSTILE, "start": "0", "end": None, "quote": 7, "url": {}},
    ],
    "sources": {
        "S1": {
            "title": HOSTILE,
            "url": "javascript:window.broken_in = 1",
            "file": "",
            "text": HOSTILE,
        }
    },
}


def keep_forged_state(store: RunStore, thread: str) -> str:
    """Citations and sources in the state of a thread, as a graph leaves them. Gives back its newest
    checkpoint.
    """
    graph: Any = StateGraph(Cited).add_node("cite", lambda _: FORGED).add_edge(START, "cite")
    compiled, config = (
        graph.compile(checkpointer=store.checkpointer),
        {"configurable": {"thread_id": thread}},
    )
    compiled.invoke({}, config)
    return compiled.get_state(config).config["configurable"]["checkpoint_id"]


def test_hostile_records_execute_nothing_and_break_no_layout(
    tmp_path: Path, browsing: Browsing
) -> None:
    path = tmp_path / "hostile.db"
    asked = {"name": HOSTILE, "args": {"code": HOSTILE}, "id": "tc-0", "type": "tool_call"}
    said: dict[str, Any] = {
        "type": "ai",
        "content": HOSTILE,
        "tool_calls": [asked],
        "invalid_tool_calls": [],
    }
    said["additional_kwargs"] = {"reasoning_content": HOSTILE}
    task = TaskRef(id=HOSTILE, family=HOSTILE, prompt=HOSTILE, answer=HOSTILE)
    facts = {"answer": f"{HOSTILE} [1] [2] [3] [99]", "error": HOSTILE, "status": RunStatus.FAILED}
    with open_store(path) as store:
        moment = keep_forged_state(store, THREAD)
        where = identity("task-a").model_copy(update={"checkpoint_id": moment})
        call = make_call(
            "task-a",
            identity=where,
            response=said,
            request=({"type": "human", "content": HOSTILE},),
        )
        tool = make_tool_call(
            identity=where,
            name=HOSTILE,
            status=ToolStatus.OUTPUT_LIMIT,
            stdout="x" * TEN_MEGABYTES,
            stderr=HOSTILE,
            refused={HOSTILE: 2},
        )
        store.journal.write_call(call)
        store.journal.write_tool_call(tool)
        stopped = make_trajectory(
            calls=(), tool_calls=(), task=task, stop_reason=StopReason.ERROR, **facts
        )
        store.journal.write_trajectory(stopped)
        score = RewardScore(name="short", value=0.25, reason=HOSTILE)
        scored = {"rubric": "r", "outcome": 1.0, "total": 0.25, "scored_at": 1.0}
        store.scorings.write([Scoring(trajectory_id=stopped.id, scores=(score,), **scored)])
    site = browsing.serve(path)
    for item in (call.id, tool.id):
        page = site.open("trajectory", width=390, place=site.place, id="trajectory-1", item=item)
        expect(page.get_by_role("tabpanel")).to_contain_text("window.broken_in")
        page.locator("details").evaluate_all(
            "(parts) => parts.forEach((part) => { part.open = true; })"
        )
        expect(page.locator(".more")).to_contain_text("short: 0.25")
        browsing.check(page, "hostile")
    expect(page.get_by_role("button", name=re.compile("^More"))).to_contain_text(
        "4,000 of 10,485,760"
    )
    page.get_by_role("button", name=re.compile("^More")).click()
    expect(page.get_by_role("button", name=re.compile("^More"))).to_contain_text("65,536 of")
    for route, shown, params in (
        ("tokens", ".tokens .t", {"call": call.id}),
        ("compare", ".pair-equal", {"a": "trajectory-1", "b": "trajectory-1"}),
        ("trajectory", ".as-of", {"id": "trajectory-1", "moment": moment}),
        ("research", ".cite.unverified", {"id": "trajectory-1"}),
    ):
        site.go(page, route, place=site.place, **params)
        expect(page.locator(shown).first).to_be_visible()
        browsing.check(page, f"hostile {route}")
    for number in (1, 2, 3):
        page.get_by_role(
            "button", name=re.compile(rf"^\[{number}\].*does not verify|^\[{number}\].*not checked")
        ).first.click()
        expect(page.get_by_text(f"Citation {number} ")).to_be_visible()
    assert page.locator("a[href^='javascript'], a[href^='data']").count() == 0
    browsing.check(page, "hostile citations")


@pytest.mark.usefixtures("trained_run")  # made before there is a browser, whatever test comes first
def test_thoughts_are_closed_until_the_keyboard_opens_them(
    tmp_path: Path, browsing: Browsing
) -> None:
    def thinks(name: str, thought: str) -> None:
        response = {
            "type": "ai",
            "content": "It is 42.",
            "additional_kwargs": {"reasoning_content": thought},
        }
        call = make_call("task-a", identity=identity("task-a", name), response=response)
        store.journal.write_trajectory(
            make_trajectory(calls=(), tool_calls=(), id=name, thread_id=name)
        )
        store.journal.write_call(call)

    with open_store(tmp_path / "store.db") as store:
        thinks("one", "Six sevens.")
        thinks("two", "Seven sixes.")
    site = browsing.serve(tmp_path / "store.db")
    page = site.open("trajectory", place=site.place, id="one")
    thought = page.get_by_text("Six sevens.", exact=True)
    step = page.get_by_role("tabpanel")
    expect(step).to_contain_text("It is 42.")
    expect(thought).to_be_hidden()
    page.locator("summary", has_text="Thoughts").focus()
    page.keyboard.press("Enter")
    expect(thought).to_be_visible()
    browsing.check(page, "thoughts")
    site.go(page, "compare", place=site.place, a="one", b="two")
    expect(page.locator("summary", has_text="Thoughts").first).to_contain_text("they differ")
    browsing.check(page, "compared thoughts")


def test_the_copy_opens_from_its_file_alone(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    id_ = rollout_with_a_tool(trained_run)
    site = browsing.export(trained_run, tmp_path / "copy.html")
    page = site.open("trajectory", place=site.place, id=id_)
    tree = page.get_by_role("tree", name="Steps")
    expect(page.get_by_role("link", name="Sibling")).not_to_have_count(0)
    # a copy holds no comparison of siblings
    expect(page.get_by_role("link", name="Compare with")).to_have_count(0)
    tree.focus()
    page.keyboard.press("Home")
    page.get_by_role("slider", name="Checkpoint").fill("0")
    expect(page.get_by_role("heading", name="As of checkpoint 1")).to_be_visible()
    page.get_by_role("tab", name="Step").click()
    page.get_by_role("link", name="Tokens of this call").click()
    expect(page.locator(".tokens .t.trained, .tokens .t.sampled").first).to_be_visible()
    browsing.check(page, "copy")


LAYOUT = """(edges) => {
  const nodes = [...Array(50)].map((_, i) => ({ id: `n${i}`, label: `node ${i}`, kind: "node" }));
  return hrm.graphLayout({ nodes, edges });
}"""


TEXTS = [
    ("", "new words"),
    ("the same", "the same"),
    ("a b c d", "a c d e"),
    ("x = 1\n", "x = 2\n\n"),
]


def test_fifty_nodes_are_drawn_apart_and_a_difference_holds_both_texts(
    trained_run: Path, browsing: Browsing
) -> None:
    page = browsing.serve(trained_run).open("runs")
    pairs = (
        [(i, (i * 7 + 3) % 50) for i in range(50)]
        + [(i, (i * i) % 50) for i in range(50)]
        + [(4, 4)]
    )
    edges = [{"from": f"n{a}", "to": f"n{b}", "taken": 0} for a, b in pairs]
    drawn = page.evaluate(LAYOUT, edges)
    assert len(drawn["nodes"]) == 50 and len(drawn["edges"]) == len(edges)
    for one in drawn["nodes"]:
        assert one["x"] - one["width"] / 2 >= 0 and one["x"] + one["width"] / 2 <= drawn["width"]
        assert one["y"] - one["height"] / 2 >= 0 and one["y"] + one["height"] / 2 <= drawn["height"]
        for other in drawn["nodes"]:
            apart = abs(one["x"] - other["x"]) >= (one["width"] + other["width"]) / 2
            assert one is other or apart or abs(one["y"] - other["y"]) >= one["height"]
    for before, after in TEXTS:
        parts = page.evaluate("([a, b]) => hrm.wordDiff(a, b)", [before, after])
        assert "".join(text for kind, text in parts if kind != "come") == before
        assert "".join(text for kind, text in parts if kind != "left") == after


DURATIONS = {
    0.00099951: "1.0 ms",
    0.0009: "900 µs",
    0.0099996: "10 ms",
    0.0042: "4.2 ms",
    0.9994: "999 ms",
    0.9996: "1.00 s",
    9.9996: "10.0 s",
    59.96: "1 min 0 s",
}


@pytest.mark.usefixtures("trained_run")  # made before there is a browser, whatever test comes first
def test_no_answer_is_told_and_durations_are_rounded_into_their_unit(
    tmp_path: Path, browsing: Browsing
) -> None:
    with open_store(tmp_path / "store.db") as store:
        for name, answer in (("none", None), ("some", "42")):
            store.journal.write_trajectory(
                make_trajectory(calls=(), tool_calls=(), id=name, thread_id=name, answer=answer)
            )
    site = browsing.serve(tmp_path / "store.db")
    page = site.open("compare", place=site.place, a="none", b="some")
    expect(page.get_by_role("region", name="Run A").locator(".answer-row")).to_contain_text(
        "no answer"
    )
    expect(page.get_by_role("region", name="Run B").locator(".answer-row")).to_contain_text("42")
    assert page.evaluate("of => of.map(hrm.ui.format.seconds)", list(DURATIONS)) == list(
        DURATIONS.values()
    )


def test_the_arrows_of_a_copy_lead_to_siblings_that_are_in_it(
    trained_run: Path, browsing: Browsing, tmp_path: Path
) -> None:
    site = browsing.export(trained_run, tmp_path / "copy.html", "--limit", "2")
    page = site.open("runs")
    keys = page.evaluate("[...hrm.stored.keys()].filter(key => key.startsWith('trajectory?'))")
    ids = {parse_qs(key.partition("?")[2])["id"][0] for key in keys}
    assert len(ids) == 2
    for id_ in ids:
        siblings = site.go(page, "trajectory", place=site.place, id=id_).get_by_role(
            "navigation", name="Siblings"
        )
        expect(siblings).to_contain_text(re.compile(r"\d of \d"))
        links = [str(link.get_attribute("href")) for link in siblings.get_by_role("link").all()]
        assert {parse_qs(link.partition("?")[2])["id"][0] for link in links} == ids - {id_}
    for key in "jjkkk":
        page.keyboard.press(key)
        expect(siblings).to_be_visible()
    expect(page.get_by_text("left out of this copy")).to_have_count(0)
