"""Picture of the viewer for the README: a recorded run of the shipped policy in Chromium.

    python -m benchmarks.viewer_picture [--out docs/images/viewer.png]

The page is the copy that `hrm-agent show --html` writes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from hrm_agent.cli.main import main
from tests.support.browser import open_browser

__all__ = ["draw"]

WIDTH, HEIGHT, SCALE = 1360, 850, 1200 / 1360
"""Size of the window, and pixels of the picture per pixel of the window."""


def draw(out: Path) -> None:
    """Record a run and write the picture of its page."""
    with tempfile.TemporaryDirectory() as folder:
        run, page = f"{folder}/word-problems", Path(folder) / "page.html"
        asked = "collect --tasks word_problems --count 2 --graph reasoning --policy builtin:trained"
        for words in (
            [*asked.split(), "--out", run],
            ["show", "word-problems/collect/1/0", "--store", run, "--html", str(page)],
        ):
            if main(words) != 0:
                raise SystemExit(1)
        with open_browser() as browser:
            shown = browser.new_page(
                viewport={"width": WIDTH, "height": HEIGHT},
                device_scale_factor=SCALE,
                reduced_motion="reduce",
            )
            shown.goto(page.as_uri())
            shown.locator("summary", has_text="Graph").click()
            shown.get_by_role("treeitem").filter(has_text="python").last.click()
            shown.evaluate("scrollTo(0, 0)")
            out.parent.mkdir(parents=True, exist_ok=True)
            shown.screenshot(path=out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images/viewer.png"))
    draw(parser.parse_args().out)
