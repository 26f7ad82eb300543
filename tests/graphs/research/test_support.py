"""`check_support`: a true quote under a false claim is sent back once. Then its mark is removed,
which is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hrm_agent.answers.typed_reply import UnparsableAnswer
from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import SUPPORT_PROMPT
from hrm_agent.graphs.parts.support import SUPPORT
from hrm_agent.graphs.research.sources import evidence, new_source, renamed
from hrm_agent.graphs.research.support import support_text
from hrm_agent.retrieval.citations.checked_text import check
from hrm_agent.runtime.replay.player import replay_async
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus
from hrm_agent.trajectory.lint import lint
from tests.support.graphs.research_scripts import (
    AGENT,
    LENGTH,
    Researcher,
    Talk,
    assert_exact,
    planned,
)
from tests.support.graphs.small_wiki import SmallWiki

TRUE = 'It is long [S1: "Reaching a length of 29.9 m"].'
FALSE = 'The moon is made of cheese [S1: "the largest animal known"].'


class Judged(Researcher):
    """The researcher, with a judge who knows cheese when it is mentioned."""

    def __init__(self, judge: Any = None, **answers: Any) -> None:
        super().__init__(planner=planned(LENGTH), **answers)
        self.asked: list[str] = []
        self._judge = judge or self._by_cheese

    def __call__(self, messages: Any) -> str:
        if messages[0].text != SUPPORT_PROMPT:
            return super().__call__(messages)
        self.asked.append(messages[1].text)
        return self._judge(messages)

    def _by_cheese(self, messages: Any) -> str:
        claims = [line for line in messages[1].text.splitlines() if line.startswith("Statement ")]
        said = [
            {
                "statement": n,
                "verdict": "unsupported" if "cheese" in claim else "supported",
                "reason": "Whales.\n[1]",
            }
            for n, claim in enumerate(claims, start=1)
        ]
        return json.dumps({"verdicts": said})


@pytest.fixture
def wiki() -> Iterator[SmallWiki]:
    served = SmallWiki()
    yield served
    served.close()


@pytest.fixture
def talk_to(store: RunStore, idle_environment: LocalEnvironment, wiki: SmallWiki) -> Iterator[Any]:
    opened: list[Talk] = []

    def talk_to(script: Any, **context: Any) -> Talk:
        given = {"wiki": wiki.url, "user_agent": AGENT, "check_support": True} | context
        opened.append(Talk(store, idle_environment, script, **given))
        return opened[-1]

    yield talk_to
    for talk in opened:
        talk.close()


async def test_what_is_supported_stays(talk_to: Any, store: RunStore, wiki: SmallWiki) -> None:
    model = Judged(writer=TRUE)
    talk = talk_to(model)
    trajectory = await talk()
    assert (trajectory.answer or "").startswith("It is long [1].\n\nSources:") and talk.state[
        "answered"
    ]
    (checked,) = talk.state["support"]
    assert (checked["claim"], checked["verdict"]) == ("It is long.", "supported")
    assert checked["citations"] == talk.state["citations"]
    (asked,) = model.asked
    assert (
        "Statement 1: It is long.\n<source S1 " in asked
        and ">>>Reaching a length of 29.9 m<<<, it is" in asked
    )
    assert {call.identity.node for call in trajectory.calls} == {
        "plan",
        "reason",
        "write",
        "support",
    }
    assert talk.state["spent"]["calls"] == len(trajectory.calls), (
        "it is within the budget of the turn"
    )
    assert lint(trajectory) == []
    wiki.close()
    assert (await replay_async(store, "talk")).equal


async def test_a_true_quote_under_a_false_claim_is_sent_back_then_removed_and_said(
    talk_to: Any, store: RunStore
) -> None:
    model = Judged(writer=f"{TRUE} {FALSE}")
    talk = talk_to(model)
    trajectory = await talk()
    assert (
        "The moon is made of cheese.: not supported: Whales. [1]\nAnswer again"
        in model.seen["writer"][1]
    )
    assert (trajectory.answer or "").startswith(
        "It is long [1]. The moon is made of cheese.\n\nRemoved: 1 citation that does not support"
        " its sentence."
    )
    assert_exact(talk.state)
    assert len(talk.state["citations"]) == 1 and list(talk.state["sources"]) == ["S1"]
    assert [one["verdict"] for one in talk.state["support"]] == ["supported", "unsupported"]
    assert any(
        "removed what 'The moon is made of cheese.' cites: Whales." in r
        for r in talk.state["remarks"]
    )
    assert len(model.asked) == 1, "the second draft says the same, so nobody is asked again"
    assert (await replay_async(store, "talk")).equal and lint(trajectory) == []


async def test_a_draft_that_is_put_right_is_judged_anew(talk_to: Any) -> None:
    model = Judged(writer=[FALSE, TRUE])
    talk = talk_to(model)
    trajectory = await talk()
    assert (trajectory.answer or "").startswith("It is long [1].\n\nSources:") and len(
        model.asked
    ) == 2
    await talk("And again?")
    assert len(talk.state["support"]) == 1, "each turn begins with none"


async def test_where_nothing_is_left_it_is_no_answer(talk_to: Any) -> None:
    talk = talk_to(Judged(writer=FALSE))
    await talk()
    assert (talk.state["stop_reason"], talk.state["answered"]) == ("no_answer", False)


async def test_nobody_is_asked_unless_it_is_wanted(talk_to: Any) -> None:
    model = Judged(writer=FALSE)
    talk = talk_to(model, check_support=False)
    await talk()
    assert model.asked == [] and talk.state["answered"] and "support" not in talk.state


@pytest.mark.parametrize(
    "reply",
    ["I think so.", "", '{"verdicts": []}', '{"verdicts": [{"statement": 9, "verdict": "no"}]}'],
)
async def test_a_verdict_that_cannot_be_read_is_unclear(reply: str, talk_to: Any) -> None:
    talk = talk_to(Judged(judge=lambda _: reply, writer=TRUE))
    trajectory = await talk()
    assert [one["verdict"] for one in talk.state["support"]] == ["unclear"] and talk.state[
        "answered"
    ]
    assert trajectory.status is RunStatus.COMPLETED and lint(trajectory) == []
    assert ("support: " in "".join(talk.state["remarks"])) is not reply.startswith("{")


@pytest.mark.parametrize(
    "limit", [{"max_calls": 4}, {"max_calls": 3}, {"max_calls": 2}, {"max_calls": 1}]
)
async def test_it_is_left_out_where_the_budget_is_used_up(
    limit: dict[str, int], talk_to: Any
) -> None:
    model = Judged(writer=[TRUE, TRUE])
    talk = talk_to(model, **limit)
    trajectory = await talk()
    assert (
        len(trajectory.calls) <= limit["max_calls"] and trajectory.answer and lint(trajectory) == []
    )
    assert_exact(talk.state)


VERDICTS = [
    ('{"verdicts": [{"statement": 1, "verdict": "SUPPORTED"}]}', "supported"),
    ('```json\n[{"statement": 1, "verdict": "not supported", "reason": null}]\n```', "unsupported"),
    ('{"statement": "1", "verdict": false}', "unsupported"),
    ("{'verdicts': [{'statement': 1, 'verdict': 'maybe'}]}", "unclear"),
]


@pytest.mark.parametrize(("text", "verdict"), VERDICTS)
def test_verdicts_are_read_as_models_write_them(text: str, verdict: str) -> None:
    (read,) = SUPPORT.read(text).verdicts
    assert (read.statement, read.verdict, read.reason) == (1, verdict, "")


def test_what_is_no_verdict_is_not_read() -> None:
    for text in ("yes", '{"answer": 1}', '{"verdicts": {"statement": 1}}'):
        with pytest.raises(UnparsableAnswer):
            SUPPORT.read(text)


def test_statements_are_sentences() -> None:
    text = "Dr. Kestrel built it in 1874. It is round.\nIt is white, too."
    sources = {"S1": renamed(new_source("T", text), "S1")}
    found = check(
        'Dr. Kestrel built it [S1: "Kestrel built it"] in 1874 [S1: "in 1874. It is"]. Who knows?'
        ' Round. [S1: "It is round."]\n- White [S1: "It is white"]',
        sources,
    )
    assert [(claim, len(cited)) for claim, cited in found.statements] == [
        ("Dr. Kestrel built it in 1874.", 2),
        ("Round.", 1),
        ("- White", 1),
    ]
    answer = 'Who knows [S1: "Kestrel built it"]. Not me [S1: "It is white"].'
    fewer = check(answer, sources, {found.statements[0].key})
    assert fewer.body == "Who knows [1]. Not me [2]." and fewer.refused == (), (
        "another sentence, another statement"
    )
    one = check(answer, sources, {fewer.statements[0].key})
    assert (
        one.body == "Who knows. Not me [1]."
        and one.refused == (fewer.statements[0],)
        and len(one.citations) == 1
    )


def test_a_request_has_as_much_as_fits() -> None:
    sources = {"S1": renamed(new_source("T", "A sentence that is cited. " * 100), "S1")}
    text = " ".join(f'Claim {n} [S1: "A sentence that is cited."].' for n in range(9))
    statements = check(text, sources).statements
    request, count = support_text(statements, sources, 2000)
    assert 0 < count < 9 and len(request) < 3000 and f"Statement {count}:" in request
    assert support_text(statements, sources, 1)[1] == 1


def test_the_writer_sees_whole_hits() -> None:
    """A hit of a few paragraphs is not cut to the passages that have the question's words."""
    hit = (
        "Tea is a drink.\n\n"
        + "Nothing is said here of it, and that at length.\n\n" * 30
        + "It grows on hills."
    )
    sources = {f"S{n}": renamed(new_source(f"T{n}", f"{n}. {hit}"), f"S{n}") for n in range(1, 21)}
    assert sum(len(source["text"]) for source in sources.values()) > 24_000
    shown = evidence(sources, "What is tea?", dict.fromkeys(sources, ()), 24_000)
    whole = [name for name, source in sources.items() if source["text"] in shown]
    assert len(whole) >= 12 and len(shown) < 26_000
