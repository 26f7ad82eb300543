"""Rules of failures, on real runs of scripted policies, and on records that lack what a rule needs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.failures.plants import plants
from benchmarks.failures.recording import record
from hrm_agent.training.analysis.failures.classes import CLASSES, JUDGED, NAMES, UNEXPLAINED
from hrm_agent.training.analysis.failures.failed_run import LONGEST, numbers_in
from hrm_agent.training.analysis.failures.repeats import repeated_end
from hrm_agent.training.analysis.failures.report import classified_runs
from hrm_agent.training.analysis.failures.rules import Explained, explain
from hrm_agent.training.records.runs import opened_runs
from hrm_agent.trajectory import NOT_RECORDED, RunStatus, StopReason, TaskRef, ToolStatus
from tests.support.structure import PROJECT
from tests.support.training.builders import call, place, tool_call, trajectory

TASK = TaskRef(id="1", family="f", prompt="How many are 6 * 7?", answer="42")


def said(text: str, **changes: Any) -> Explained:
    """Run with one call that gives the final text."""
    facts: dict[str, Any] = {
        "task": TASK,
        "answer": text,
        "calls": (call("c", text=text),),
    } | changes
    return explain(trajectory(0, 0.0, **facts))


@pytest.mark.whole
def test_each_planted_failure_is_found(tmp_path: Path) -> None:
    planted = [each for each in plants(1) if each.planted != "tool_timeout"]
    names = record(tmp_path, planted)
    with opened_runs([str(tmp_path / "store.db")]) as (runs,):
        found = {each.thread: each for each in classified_runs(runs, {})}
    assert {thread: each.outcome for thread, each in found.items()} == names
    # classes without a plant here have tests of their own
    others = {"stopped", "unreadable_reply", "tool_timeout", "tool_output", "tool_denied"}
    others.add("not_cited")
    assert {each.name for each in CLASSES} - {*names.values()} == others | {UNEXPLAINED}
    by_class = {each.outcome: each for each in found.values()}
    assert by_class["critic_rejected_right"].role == "critique"
    assert by_class["tool_error"].evidence is not None
    assert by_class["tool_error"].evidence.detail == "NameError"
    assert all(each.evidence is not None for each in found.values() if each.failed)


@pytest.mark.parametrize(
    ("text", "primary"),
    [
        ("It is 42 apples.", "wrong_form"),
        ("Not 42 but 43.", UNEXPLAINED),
        ("<answer>\\boxed{41}</answer> and not 42", UNEXPLAINED),
        ("<answer>\\boxed{42 legs}</answer>", "wrong_form"),
        ("I can\u2019t answer that.", "gave_up"),
        ("I don't know the way, so <answer>\\boxed{41}</answer>", UNEXPLAINED),
        ("", "gave_up"),
        ("again and again " * 40, "loop"),
        ("-" * 400, UNEXPLAINED),
        ('So <tool_call>{"name": "python"', "invalid_tool_call"),
    ],
)
def test_the_final_text(text: str, primary: str) -> None:
    assert said(text).primary == primary


@pytest.mark.parametrize(
    ("changes", "primary"),
    [
        ({"status": RunStatus.ABORTED, "stop_reason": StopReason.ABORTED}, "stopped"),
        ({"status": RunStatus.TRUNCATED, "stop_reason": StopReason.INTERRUPT}, "stopped"),
        ({"status": RunStatus.FAILED, "stop_reason": StopReason.ERROR}, "graph_error"),
        (
            {"status": RunStatus.FAILED, "stop_reason": StopReason.UNUSABLE_ANSWER},
            "unreadable_reply",
        ),
        ({"status": RunStatus.TRUNCATED, "stop_reason": StopReason.MAX_COST}, "limit"),
        ({"tool_calls": (tool_call("a", ToolStatus.OUTPUT_LIMIT),)}, "tool_output"),
        ({"tool_calls": (tool_call("a", ToolStatus.DENIED),)}, "tool_denied"),
        ({"tool_calls": (tool_call("a", ToolStatus.ERROR), tool_call("b"))}, UNEXPLAINED),
        ({"tool_calls": (tool_call("a"), tool_call("b", ToolStatus.ERROR))}, "tool_error"),
    ],
)
def test_typed_outcomes(changes: dict[str, Any], primary: str) -> None:
    assert said("41", **changes).primary == primary


def test_the_first_class_in_order_is_primary_and_others_are_secondary() -> None:
    lost = tool_call("a", ToolStatus.INFRASTRUCTURE)
    found = said("I give up.", tool_calls=(lost, tool_call("b", ToolStatus.TIMEOUT)))
    assert found.primary == "infrastructure"
    assert found.secondary == ("gave_up", "tool_timeout")
    assert [*map(NAMES.index, found.evidence)] == sorted(map(NAMES.index, found.evidence))


def test_what_a_record_lacks_is_not_checkable() -> None:
    unknown = TASK.model_copy(update={"answer": None})
    # the tool call was still under way, or its trace has no end
    found = said("41", task=unknown, tool_calls=(tool_call("a", None),))
    lacks = found.unchecked
    assert found.primary == UNEXPLAINED
    assert lacks["wrong_form"] == lacks["lost_result"] == "no reference answer is on record"
    assert lacks["no_final_answer"] == "requests are not on record"
    assert lacks["tool_error"] == "outcomes of tool calls are not on record"

    # without its texts, a trace does not show an empty reply
    metadata = {NOT_RECORDED: "answers of calls, costs of calls"}
    found = said("", task=TASK.model_copy(update={"metadata": metadata}))
    assert found.primary == UNEXPLAINED
    assert found.unchecked["gave_up"] == "answers of calls are not on record"
    assert said("", calls=(call("c", text="41"),)).primary == UNEXPLAINED

    given_away = TASK.model_copy(update={"prompt": "Is 42 the answer?"})
    tool = tool_call("a").model_copy(update={"content": "42"})
    assert said("41", tool_calls=(tool,)).primary == "lost_result"
    found = said("41", task=given_away, tool_calls=(tool,))
    assert found.unchecked["lost_result"] == "the task's text has the reference answer"


@pytest.mark.parametrize(
    ("reference", "text", "result", "primary"),
    [
        ("Paris", "It is Paris, of course.", "", "wrong_form"),
        ("Paris", "Not Paris but Lyon.", "", UNEXPLAINED),
        ("Paris", "Lyon", "The seat of the state is Paris, a city.", "lost_result"),
        ("Paris", "Lyon", "Parisian", UNEXPLAINED),
        ("yes", "<answer>\\boxed{\\text{Yes}.}</answer>", "", "wrong_form"),
        ("no", "yes", "no", UNEXPLAINED),
        ("B", "C", "A, B or C", UNEXPLAINED),
        ("1/2", "0.5 of them", "", "wrong_form"),
    ],
)
def test_references_in_words(reference: str, text: str, result: str, primary: str) -> None:
    task = TASK.model_copy(update={"answer": reference})
    tools = (tool_call("a").model_copy(update={"content": result}),) if result else ()
    found = said(text, task=task, tool_calls=tools)
    assert found.primary == primary
    if reference in ("no", "B"):
        assert "many texts have" in found.unchecked["lost_result"]


@pytest.mark.parametrize(
    ("prompt", "reference", "text", "primary"),
    [
        ("London or Paris?", "Paris", "London has 9 million; Paris is smaller.", UNEXPLAINED),
        ("London or Paris?", "Paris", "<answer>\\boxed{London before Paris}</answer>", UNEXPLAINED),
        ("London or Paris?", "Paris", "**Paris**.", "wrong_form"),
        ("Is 3 or 5 larger?", "5", "The first; 5 is smaller.", UNEXPLAINED),
        ("Is 3 or 5 larger?", "5", "<answer>\\boxed{5 legs}</answer>", "wrong_form"),
        ("Is 3 or 5 larger?", "5", "5", "wrong_form"),
        (f"{'x ' * LONGEST}Paris {'x ' * LONGEST}", "Paris", "Paris is smaller.", UNEXPLAINED),
        (f"{'x ' * LONGEST}5 {'x ' * LONGEST}", "5", "The first; 5 is smaller.", UNEXPLAINED),
    ],
)
def test_answers_that_the_task_names(prompt: str, reference: str, text: str, primary: str) -> None:
    """A text that names the alternatives of its task does not state the answer thereby."""
    found = said(text, task=TASK.model_copy(update={"prompt": prompt, "answer": reference}))
    assert found.primary == primary
    if primary == UNEXPLAINED:
        assert found.unchecked["wrong_form"] == "the task's text has the reference answer"


@pytest.mark.parametrize(
    ("asked", "text", "found", "primary"),
    [
        ("Cite the sources.", "It is long.", "A river of 9 km.", "not_cited"),
        ("Cite the sources.", 'It is long [S1: "9 km"].', "A river of 9 km.", UNEXPLAINED),
        ("Answer.", "It is long.", "A river of 9 km.", UNEXPLAINED),
        ("Cite the sources.", "It is long.", "No results.", "no_source"),
    ],
)
def test_citations(asked: str, text: str, found: str, primary: str) -> None:
    request = ({"type": "system", "content": asked}, {"type": "human", "content": "How long?"})
    tool = tool_call("a").model_copy(update={"name": "search_archive", "content": found})
    calls = (call("c", text=text, request=request),)
    assert said(text, calls=calls, tool_calls=(tool,)).primary == primary


def test_a_call_that_names_no_tool() -> None:
    invalid = tool_call("a", ToolStatus.INVALID_CALL).model_copy(update={"name": "unknown"})
    found = said("41", tool_calls=(invalid,))
    assert found.evidence["invalid_tool_call"].detail == "no tool named"


def test_tools_that_were_not_called() -> None:
    offered = {"tools": ({"type": "function"},)}
    last = call("b", text="41", **offered)
    assert said("41", calls=(last,)).primary == "no_tool"
    assert said("41", calls=(last,), tool_calls=(tool_call("a"),)).primary == UNEXPLAINED
    lost = said("41", calls=(call("a", text="", **offered), last))
    assert lost.primary == UNEXPLAINED
    assert lost.unchecked["no_tool"] == "a reply has neither a text nor a tool call on record"
    assert said("41").unchecked["no_tool"] == "the tools that were offered are not on record"


def test_parallel_roles_that_do_the_same_once_are_no_loop() -> None:
    """Equal calls count for one run of a role."""

    def solved(name: str, times: int) -> tuple[list[Any], list[Any]]:
        where = place("t", name, "reason").model_copy(
            update={"checkpoint_ns": f"solve:{name}|reason:x"}
        )
        calls = [call(f"{name}{i}", text=f"step {name} {i}") for i in range(times)]
        tools = [tool_call(f"{name}{i}") for i in range(times)]
        same = {"arguments": {"code": "6*7"}, "content": "41", "identity": where}
        return calls, [each.model_copy(update=same) for each in tools]

    def run(*parts: tuple[list[Any], list[Any]]) -> str:
        calls = tuple(each for some, _ in parts for each in some)
        tools = tuple(each for _, some in parts for each in some)
        return said("41", calls=calls, tool_calls=tools).primary

    assert run(*(solved(name, 1) for name in "abcd")) == UNEXPLAINED
    assert run(solved("a", 3)) == "loop"


def test_hostile_texts_take_little_time() -> None:
    """CPU time grows at most linearly with the text."""
    texts = ["1" * 10**6, "1," * 10**6, "<answer>" * 10**5, "\\boxed{" * 10**5, "[{" * 10**5]
    texts += ["no results " * 10**5, "\\frac{1}" * 10**5, "can not " * 10**5, "ab" * 10**6]
    began = time.process_time()
    for text in texts:
        tool = tool_call("a").model_copy(update={"name": "search", "content": text})
        said(text, tool_calls=(tool,), task=TASK.model_copy(update={"prompt": text}))
        said(text, status=RunStatus.FAILED, error=text)
    assert time.process_time() - began < 20
    assert len(numbers_in("1 " * 10**6)) <= LONGEST


def test_repeated_end() -> None:
    assert repeated_end("a b c " * 50) is not None
    assert repeated_end("Once. " + "and on " * 40 + "and") is not None
    assert repeated_end(" ".join(map(str, range(400)))) is None
    assert repeated_end("and on " * 10) is None


def test_the_documentation_has_each_rule() -> None:
    page = (PROJECT / "docs" / "failures.md").read_text(encoding="utf-8")
    rows = [f"| `{each.name}`{' *' if each.apart else ''} | {each.rule} |" for each in CLASSES]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in JUDGED.items()]
    assert [row for row in rows if row not in page] == []
