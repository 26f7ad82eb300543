"""Speed and memory of the pages of `hrm-agent view` in a browser.

    python -m benchmarks.viewer [--trajectories 10000] [--steps 5000] [--tokens 100000] [--quick] [--json FILE]

A store is filled with many trajectories, of which one has many steps, and another a call with many
tokens. Chromium opens each page in a new window. First content is the first visible row, step or
token, timed from the beginning of the navigation by the page's own clock. When everything is
loaded, the page is scrolled, a step per frame, and the 95th percentile of the times between frames
is kept: 16.7 ms are 60 frames a second. Memory is the resident set of renderer and server after the
scrolling.

The floor is a plain HTML file with the same rows, in a table or each in a span, without server,
search, filters or details of tokens.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from hrm_agent.store import RunStore, open_store
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    Overlay,
    RunStatus,
    StopReason,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
    Verdict,
    call_id,
    tool_record_id,
)

Row = dict[str, Any]
RUN, MANY_STEPS, MANY_TOKENS = "measured", "t-steps", "t-tokens"
PATIENCE = 120_000
"""Time-out in milliseconds."""
SCROLL = """async ([selector, frames]) => {
  const box = document.querySelector(selector) || document.scrollingElement;
  const times = [];
  let before = await new Promise(requestAnimationFrame);
  for (let frame = 0; frame < frames; frame += 1) {
    box.scrollTop += 240;
    const now = await new Promise(requestAnimationFrame);
    times.push(now - before);
    before = now;
  }
  times.sort((one, other) => one - other);
  return [times[Math.floor(times.length * 0.5)], times[Math.floor(times.length * 0.95)]];
}"""
FIRST_SEEN = """
const watch = new MutationObserver(() => {
  const found = document.querySelector(SELECTOR);
  if (!found || !found.getClientRects().length) return;
  watch.disconnect();
  requestAnimationFrame(() => { globalThis.firstSeen = performance.now(); });
});
watch.observe(document, { childList: true, subtree: true });
"""


class PageCase(NamedTuple):
    """Page, with selectors of its content."""

    name: str
    """Name in the report."""
    route: str
    """Route of the viewer."""
    seen: str
    """CSS of the first content."""
    scrolled: str
    """CSS of the scrolled element (the document if it matches nothing)."""


CASES = (
    PageCase("list of trajectories", f"/list?run={RUN}", ".table-body .row", ".table.virtual"),
    PageCase(
        "trajectory of many steps", f"/trajectory?id={MANY_STEPS}", "[role=treeitem]", "[role=tree]"
    ),
    PageCase("tokens", "/tokens?call=CALL", ".tokens .t", ".tokens"),
)


def identity(thread: str, task: str, node: str) -> GraphIdentity:
    """Position of a call in a graph."""
    return GraphIdentity(
        thread_id=thread,
        checkpoint_id="c",
        checkpoint_ns=f"{node}:{task}",
        task_id=task,
        node=node,
        path="1",
    )


def model_call(thread: str, task: str, tokens: int, parent: str | None, at: float) -> Call:
    """Call that adds `tokens`, half of them sampled."""
    half = tokens // 2
    return Call(
        id=call_id(thread, task, 0, 0),
        identity=identity(thread, task, "reason"),
        call_index=0,
        request_hash=task,
        model="builtin:trained",
        policy_version=1,
        parent=parent,
        branch_reason=None if parent else BranchReason.ROOT,
        token_ids=tuple(3 + index % 40 for index in range(tokens)),
        mask=(False,) * half + (True,) * (tokens - half),
        logprobs=(0.0,) * half + tuple(-0.01 * (index % 90) for index in range(tokens - half)),
        logprob_kind=LogprobKind.RAW,
        response={
            "type": "ai",
            "content": f"Step {task}: the sum so far.",
            "tool_calls": [],
            "invalid_tool_calls": [],
        },
        started_at=at,
        ended_at=at + 0.5,
    )


def tool_call(thread: str, task: str, at: float) -> ToolCall:
    """Call of the sandbox. One in fifty fails."""
    failed = int(task) % 50 == 0
    return ToolCall(
        id=tool_record_id(thread, task, f"tc-{task}"),
        identity=identity(thread, f"tools-{task}", "tools"),
        tool_call_id=f"tc-{task}",
        name="python",
        arguments={"code": f"total = {task} + 17\nprint(total)"},
        status=ToolStatus.ERROR if failed else ToolStatus.OK,
        content="ZeroDivisionError: division by zero" if failed else str(int(task) + 17),
        started_at=at,
        duration_seconds=0.01,
    )


def trajectory(id_: str, number: int) -> Trajectory:
    """Rollout. Each task has eight."""
    return Trajectory(
        id=id_,
        thread_id=f"thread-{id_}",
        run_id=RUN,
        group_id=f"{RUN}/step-{number // 256}/{number // 8}",
        sample_index=number % 8,
        task=TaskRef(
            id=f"sum-{number // 8}",
            family="sums",
            prompt=f"What is {number} + 17?",
            answer=str(number + 17),
        ),
        graph="tool_loop",
        policy="builtin:trained",
        policy_version=1,
        status=RunStatus.COMPLETED,
        stop_reason=StopReason.ANSWER,
        answer=str(number + 17),
        rewards={"correct": float(number % 3 > 0)},
        started_at=1_000.0 + number,
        ended_at=1_001.0 + number,
    )


def overlay(made: Trajectory, number: int) -> Overlay:
    """Result of a training step for a rollout."""
    kept = number % 2 == 0
    return Overlay(
        run_id=RUN,
        step=number // 256,
        trajectory_id=made.id,
        group_id=made.group_id,
        reward=made.rewards["correct"],
        verdict=Verdict.KEPT if kept else Verdict.DROPPED,
        reason=(
            "one of the positives that were drawn"
            if kept
            else "a positive that was not among those drawn"
        ),
        penalty_error=0.0,
        penalty_format=0.0,
        advantage=0.5 if kept else None,
    )


def fill(store: RunStore, trajectories: int, steps: int, tokens: int) -> str:
    """Fill the store of all pages. Return the id of the call with many tokens."""
    with store.database.whole():
        names = [MANY_STEPS, MANY_TOKENS, *(f"t-{number:05}" for number in range(2, trajectories))]
        made = [trajectory(name, number) for number, name in enumerate(names)]
        for each in made:
            store.journal.write_trajectory(each)
        store.journal.write_overlays([overlay(each, number) for number, each in enumerate(made)])
        parent, thread = None, made[0].thread_id
        for step in range(1, steps // 2 + 1):
            parent = store.journal.write_call(
                model_call(thread, str(step), 20, parent, 1_000.0 + step)
            ).id
            store.journal.write_tool_call(tool_call(thread, str(step), 1_000.6 + step))
        long = model_call(made[1].thread_id, "1", tokens, None, 1_000.0)
        return store.journal.write_call(long).id


def plain_pages(folder: Path, trajectories: int, steps: int, tokens: int) -> dict[str, Path]:
    """Plain HTML pages with as many rows."""
    cells = "".join(
        f"<tr class=row><td>t-{n:05}<td>completed<td>{n % 3 > 0:d}<td>kept<td>0.5<td>{n // 256}<td>sums"
        f" sum-{n // 8}"
        for n in range(trajectories)
    )
    lines = "".join(
        f"<li class=row>reason {n}: Step {n}: the sum so far. {n} + 17" for n in range(steps)
    )
    spans = "".join(
        f"<span class=row>{html.escape(chr(97 + n % 26))}</span>" for n in range(tokens)
    )
    bodies = (
        f"<table>{cells}</table>",
        f"<ol>{lines}</ol>",
        f"<pre style='white-space:pre-wrap'>{spans}</pre>",
    )
    pages: dict[str, Path] = {}
    for case, body in zip(CASES, bodies, strict=True):
        pages[case.name] = folder / f"{case.name.replace(' ', '-')}.html"
        pages[case.name].write_text(
            f"<!doctype html><meta charset=utf-8><title>{case.name}</title>{body}"
        )
    return pages


@contextmanager
def served(store: Path) -> Generator[tuple[str, int]]:
    """Address of a viewer with its token, and its process."""
    words = [sys.executable, "-m", "hrm_agent", "view", str(store), "--no-browser"]
    server = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert server.stdout is not None
    found = re.search(r"http://\S+", server.stdout.readline())
    try:
        if found is None:
            raise SystemExit("The viewer has not started.")
        yield found[0], server.pid
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()


class Measured:
    """Browser that opens each page in a separate window."""

    def __init__(self, playwright: Any, frames: int) -> None:
        found = next(
            (
                path
                for name in ("chromium", "chromium-browser", "google-chrome")
                if (path := shutil.which(name))
            ),
            None,
        )
        if found is None:
            raise SystemExit(
                "There is no Chromium: apt-get install chromium, or run `tests/install tests`."
            )
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._browser = playwright.chromium.launch(executable_path=found, args=root)
        self._frames = frames

    def page(self, url: str, seen: str, scrolled: str, before: str | None = None) -> Row:
        """Open a page once. `before` is an address that is opened first in the same window, if the
        page needs something from there (the token).
        """
        context = self._browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        if before is not None:
            page.goto(before)
            page.locator("h1").wait_for()
            page.goto("about:blank")
        open_requests: set[Any] = set()

        def begun(request: Any) -> None:
            if "/events" not in request.url:  # the stream of events stays open
                open_requests.add(request)

        def ended(request: Any) -> None:
            open_requests.discard(request)

        page.on("request", begun)
        page.on("requestfinished", ended)
        page.on("requestfailed", ended)
        page.add_init_script(FIRST_SEEN.replace("SELECTOR", json.dumps(seen)))
        page.goto(url)
        page.locator(seen).first.wait_for()
        while (first := page.evaluate("globalThis.firstSeen ?? null")) is None:
            page.wait_for_timeout(20)
        # wait until what is loaded after the first content has arrived
        while open_requests or (page.wait_for_timeout(500), open_requests)[1]:
            page.wait_for_timeout(100)
        median, late = page.evaluate(SCROLL, [scrolled, self._frames])
        row = {
            "first_content_ms": first,
            "frame_p50_ms": median,
            "frame_p95_ms": late,
            "renderer_mb": self._renderer(),
        }
        context.close()
        return row

    def _renderer(self) -> float:
        """Memory in MB of the largest running renderer."""
        import psutil

        sizes = [
            process.memory_info().rss
            for process in psutil.Process().children(recursive=True)
            if any("--type=renderer" in word for word in _words(process))
        ]
        return max(sizes) / 1e6


def _words(process: Any) -> list[str]:
    import psutil

    try:
        return process.cmdline()
    except psutil.Error:
        return []


def middle(rows: list[Row]) -> Row:
    """Medians of repeats."""
    return {key: sorted(row[key] for row in rows)[len(rows) // 2] for key in rows[0]}


def measure(trajectories: int, steps: int, tokens: int, repeats: int, frames: int) -> list[Row]:
    """Measure all pages, ours and plain."""
    import psutil
    from playwright.sync_api import sync_playwright

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        with open_store(folder / "store.db") as store:
            call = fill(store, trajectories, steps, tokens)
        plain = plain_pages(folder, trajectories, steps, tokens)
        browser = Measured(playwright, frames)
        for case in CASES:
            with served(folder / "store.db") as (address, process):
                base = address.partition("#")[0]
                url = f"{base}#{case.route.replace('CALL', call)}&place=store.db"
                ours = [
                    browser.page(url, case.seen, case.scrolled, before=address)
                    for _ in range(repeats)
                ]
                server_mb = psutil.Process(process).memory_info().rss / 1e6
            rows.append(
                {"page": case.name, "by": "hrm-agent view", **middle(ours), "server_mb": server_mb}
            )
            floor = [
                browser.page(f"file://{plain[case.name]}", ".row", "html") for _ in range(repeats)
            ]
            rows.append({"page": case.name, "by": "plain HTML", **middle(floor), "server_mb": None})
    return rows


def report(rows: list[Row], console: Console) -> None:
    """Print a table to a terminal."""
    table = Table("page", "by", "first content", "frame p50", "frame p95", "renderer", "server")
    for row in rows:
        server = "" if row["server_mb"] is None else f"{row['server_mb']:.0f} MB"
        times = (
            f"{row[key]:.0f} ms" for key in ("first_content_ms", "frame_p50_ms", "frame_p95_ms")
        )
        table.add_row(row["page"], row["by"], *times, f"{row['renderer_mb']:.0f} MB", server)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--frames", type=int, default=180)
    parser.add_argument("--quick", action="store_true", help="small, once")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = (
        (200, 100, 2_000, 1, 20)
        if given.quick
        else (given.trajectories, given.steps, given.tokens, given.repeats, given.frames)
    )
    rows = measure(*sizes)
    report(rows, Console())
    if given.json is not None:
        given.json.write_text(json.dumps({"sizes": sizes[:3], "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
