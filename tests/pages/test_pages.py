"""Pages and fragments of records: no content runs, whatever a model wrote, and all figures match
the record.
"""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from hrm_agent.basics.markup import cut, element, fragment, table
from hrm_agent.errors import StoreError
from hrm_agent.pages import group_page, step_page, trajectory_page
from hrm_agent.runtime.time_travel.history import History, Moment, Step
from hrm_agent.training.demo import DemoReport
from hrm_agent.training.evaluation.compare import compare
from hrm_agent.training.evaluation.evaluate import evaluate
from hrm_agent.training.evaluation.samples import samples_of
from hrm_agent.training.records.rescoring import Rescored
from hrm_agent.trajectory import (
    Overlay,
    RewardFault,
    RewardScore,
    RolePenalty,
    Scoring,
    TaskRef,
    ToolStatus,
    Trajectory,
    Verdict,
)
from tests.support.trajectory.samples import make_call, make_tool_call, make_trajectory

HOSTILE = (
    "</pre></style></title><script>alert(1)</script><img src=x onerror=alert(1)>\"' onload='x'"
    " &lt;b&gt; \x1b[31mred\x1b[0m\x1b]8;;http://evil\x07link\x1b]8;;\x07 \x00\x00\x00"
    " \u202egnp.exe \u200b \ud800 javascript:alert(1)\r\nend"
)
ALLOWED_ATTRIBUTES = {
    *(
        "aria-label",
        "charset",
        "class",
        "content",
        "data-name",
        "href",
        "http-equiv",
        "id",
        "lang",
        "name",
        "role",
    ),
    *("scope", "title"),
}


class Parsed(HTMLParser):
    """Tags, attributes and text of a page. Asserts that each tag is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def of(self, name: str) -> list[str]:
        return [value for found, value in self.attributes if found == name]


def hostile() -> Trajectory:
    asked = [
        {"name": HOSTILE, "args": {"code": HOSTILE}, "id": "tc-0"},
        {"name": "s", "args": {HOSTILE: [HOSTILE]}, "id": "?"},
    ]
    response = {
        "type": "ai",
        "content": HOSTILE,
        "tool_calls": asked,
        "invalid_tool_calls": [{"error": HOSTILE}],
    }
    response["additional_kwargs"] = {"reasoning_content": HOSTILE}
    tool = make_tool_call(
        name=HOSTILE,
        content=HOSTILE,
        stderr=HOSTILE + "!",
        status=ToolStatus.DENIED,
        refused={HOSTILE: 1},
    )
    return make_trajectory(
        id=HOSTILE,
        group_id=HOSTILE,
        run_id=HOSTILE,
        graph=HOSTILE,
        policy=HOSTILE,
        answer=HOSTILE,
        error=HOSTILE,
        rewards={HOSTILE: 0.5},
        task=TaskRef(id=HOSTILE, family=HOSTILE, prompt=HOSTILE * 40, answer=HOSTILE),
        calls=(make_call("task-a", model=HOSTILE, response=response),),
        tool_calls=(tool,),
    )


def overlay(of: Trajectory, **changes: Any) -> Overlay:
    facts: dict[str, Any] = {
        "run_id": of.run_id,
        "step": 3,
        "trajectory_id": of.id,
        "group_id": of.group_id,
        "reward": 1.0,
        "verdict": Verdict.KEPT,
        "reason": HOSTILE,
        "penalty_error": 0.0,
        "penalty_format": 0.0,
        "advantage": -1.25,
    }
    return Overlay(**{**facts, **changes})


def scoring(of: Trajectory) -> Scoring:
    scores = (
        RewardScore(name=HOSTILE, value=0.25, reason=HOSTILE),
        RewardScore(name="b", fault=RewardFault.TIMEOUT),
    )
    return Scoring(
        trajectory_id=of.id, rubric=HOSTILE, scores=scores, outcome=1.0, total=0.75, scored_at=1.0
    )


def pages_of(trajectory: Trajectory) -> list[str]:
    judged, scored = [overlay(trajectory)], [scoring(trajectory)]
    by_id = {trajectory.id: scored}
    return [
        trajectory_page(trajectory, judged, scored),
        group_page(trajectory.group_id, [trajectory], judged, by_id),
        step_page(trajectory.run_id, 3, [trajectory], judged, by_id),
    ]


def fragments_of(trajectory: Trajectory) -> list[str]:
    moment = Moment(
        index="0",
        thread_id=HOSTILE,
        checkpoint_id=HOSTILE,
        namespace="",
        parent=None,
        step=-1,
        source=HOSTILE,
        created_at="",
        ran=Step(nodes=(HOSTILE,)),
        next=(HOSTILE,),
        questions=(),
        under_way=None,
        values={},
    )
    ended = trajectory.model_copy(update={"rewards": {"correct": 1.0, HOSTILE: 0.5}})
    found = Rescored(
        HOSTILE, HOSTILE, trajectories=[trajectory], scorings={trajectory.id: scoring(trajectory)}
    )
    found.left_out[HOSTILE] = 1
    sides = samples_of([ended])
    shown: list[Any] = [
        trajectory,
        History(HOSTILE, trajectory, (moment,)),
        evaluate([ended]),
        found,
    ]
    shown.append(compare(sides, sides, (HOSTILE, "b")))
    return [each._repr_html_() for each in shown]


@pytest.mark.parametrize("number", range(8))
def test_nothing_that_a_model_wrote_is_obeyed(number: int) -> None:
    page = [*pages_of(hostile()), *fragments_of(hostile())][number]
    page.encode()  # without a surrogate
    parsed = Parsed(page)
    assert not {"script", "img", "iframe", "object", "embed", "link", "form", "base", "a b"} & set(
        parsed.tags
    )
    assert {name for name, _ in parsed.attributes} <= ALLOWED_ATTRIBUTES, "none that a browser runs"
    assert all(link.startswith("#") for link in parsed.of("href"))
    assert "<script>alert(1)</script>" in parsed.text, "shown as it was written"
    assert re.search("[\x00\x1b\u202e\u200b\r]", page) is None
    assert {"U+0000 x3", "U+202E", "U+200B", "U+D800"} <= set(
        re.findall(r"U\+[0-9A-F]+(?: x\d+)?", parsed.text)
    )
    assert re.search(r"(?<!\\u001b)(?<!\\x1b)\[31m", page) is None, (
        "but where a value is spelled out"
    )


def test_a_page_forbids_what_it_does_not_have_and_fetches_nothing() -> None:
    for page in pages_of(make_trajectory()):
        parsed = Parsed(page)
        assert page.startswith("<!doctype html>")
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none';"
            " form-action 'none'"
        )
        assert policy in parsed.of("content")
        assert not re.search(r"url\(|@import", page)
        assert "prefers-color-scheme:dark" in page


def test_links_lead_to_places_of_the_page_and_places_are_single() -> None:
    siblings = [make_trajectory(), make_trajectory(id="trajectory 2")]
    judged = [overlay(one) for one in siblings]
    for page in [
        *pages_of(hostile()),
        group_page("group-1", siblings, judged),
        step_page("r", 3, siblings, judged),
    ]:
        parsed = Parsed(page)
        ids = parsed.of("id")
        assert len(ids) == len(set(ids))
        assert {link[1:] for link in parsed.of("href")} <= set(ids)


def test_the_numbers_are_those_on_record() -> None:
    trajectory = make_trajectory()
    judged = overlay(trajectory, reason="one of 2", credit={trajectory.calls[0].id: 0.5})
    by_role = {"solve": RolePenalty(failed=1, effective=3, error=0.25)}
    text = Parsed(
        trajectory_page(trajectory, [judged.model_copy(update={"penalty_by_role": by_role})])
    ).text
    assert "step 4 of run-1: kept, advantage -1.250: one of 2" in text
    assert "solve: p_err 0.250 (1 of 4 tool calls that count failed)" in text
    assert "correct 1" in text
    assert text.count("2 prompt tokens, 2 completion tokens, mean log-prob -0.375, stop") == 3
    assert "credit +0.500" in text and "no credit" in text
    assert text.count("ok, 0.010 s") == 2
    assert "least probable is number 1: -0.500" in text
    (row,) = re.findall(r"<tbody><tr>.*?</tr></tbody>", group_page("g", [trajectory], [judged]))
    told = re.findall(r"<td[^>]*>(.*?)</td>", row)
    assert [re.sub("<[^>]*>", "", cell) for cell in told] == [
        *("0", "correct 1", "answer", "kept", "-1.250", "okok", "6", "one of 2"),
    ]


def test_kept_rollouts_stand_before_the_others() -> None:
    siblings = [make_trajectory(id=f"t{number}", sample_index=number) for number in range(3)]
    judged = [
        overlay(one, verdict=Verdict.KEPT if one.id == "t2" else Verdict.DROPPED)
        for one in siblings
    ]
    assert re.findall(r'href="#(t\d)"', group_page("g", siblings, judged)) == ["t2", "t0", "t1"]
    text = Parsed(step_page("r", 3, siblings, judged)).text
    assert "Step 4 of run r" in text and "step 3: the record counts from 0" in text


def test_what_is_not_there() -> None:
    with pytest.raises(StoreError, match="There is no group 'g'"):
        group_page("g", [])
    with pytest.raises(StoreError, match="Step 4 of run 'r' has no rollout"):
        step_page("r", 3, [], [])


def test_long_texts_are_folded_and_very_long_ones_cut() -> None:
    answer = "word " * 200_000
    page = trajectory_page(make_trajectory(answer=answer))
    assert "1,000,000 characters)" in page and "940,000 characters are left out here" in page
    assert len(page) < 200_000
    assert cut("short") == "short"


def test_tables_show_numbers_and_gaps() -> None:
    shown = table(("name", "value"), [("a", None), ("b", 0.5)])
    assert '<th scope="col" class="number">value</th>' in shown
    assert '<td data-name="value" class="number">0.500</td>' in shown or ">0.500</td>" in shown
    counted = table(("tokens", "mean"), [(1_234, math.nan)])
    assert ">1,234</td>" in counted and ">none</td>" in counted
    assert element("p", None, 1, "<") == "<p>1&lt;</p>"
    assert fragment("x")._repr_html_() == fragment("x")


def test_the_demo_shows_before_and_after() -> None:
    side: dict[str, Any] = {
        "pass_at_1": 0.5,
        "interval": (0.25, 0.75),
        "correct_with_tool_error": 0.1,
    }
    side |= {"mean_sampled_tokens": 30.0, "mean_tool_calls": 1.0}
    facts: dict[str, Any] = {
        "steps": 3,
        "groups_rejected": 0.0,
        "cpu_seconds": {},
        "solved": "t",
        "rounds": 1,
    }
    report = DemoReport(
        before=side, after=side | {"pass_at_1": 0.7}, answer=HOSTILE, model="m", **facts
    )
    parsed = Parsed(report._repr_html_())
    assert "0.500 (0.250 to 0.750)" in parsed.text and "0.700 (0.250 to 0.750)" in parsed.text
    assert "script" not in parsed.tags
