"""`hrm-agent analyze --failures`: classes of failed runs, the change from another run, a judge."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason, TaskRef, ToolStatus
from tests.cli.conftest import Command
from tests.support.serving.providers import LANGCHAIN, ProviderServer
from tests.support.training.builders import call, tool_call, trajectory

HOSTILE = "\x1b[2J\u202e<script>alert(1)</script>"


def store_of(name: str, *texts: str) -> str:
    """Run folder whose runs have these final texts; the reference answer is 42."""
    Path(name).mkdir()
    (Path(name) / "run_id").write_text(name)
    with open_store(f"{name}/store.db") as store:
        for number, text in enumerate(texts):
            task = TaskRef(id=f"task-{number}", family="sums", prompt="How many?", answer="42")
            run = trajectory(
                number, float(text == "42"), run_id=name, task=task, answer=text, stop_reason=StopReason.ANSWER,
                calls=(call(f"c{number}", text=text, thread=f"thread-{number}"),),
            )  # fmt: skip
            store.journal.write_trajectory(run)
            store.journal.write_call(run.calls[0])
    return name


def test_classes_examples_and_the_change_from_another_run(hrm: Command) -> None:
    store_of("old", "I don't know.", "42", "I give up.", "")
    store_of("new", "I don't know.", "42", "It is 42 legs.", HOSTILE)
    told = hrm("analyze", "--failures", "new", "--against", "old")
    assert told.code == 0 and "3 of 4 judged runs of 4 tasks failed (0.750)." in told.out
    assert "\x1b" not in told.out and "\u202e" not in told.out
    assert "hrm-agent show thread-0 --store new" in told.out
    found = json.loads(Path("new/failures/failures.json").read_text())
    assert {each["name"]: each["runs"] for each in found["classes"] if each["runs"]} == {
        "wrong_form": 1,
        "gave_up": 1,
        "unexplained": 1,
    }
    assert found["failures"][1]["evidence"]["excerpt"] == "It is 42 legs."
    moved = {(each["before"], each["after"]): each["tasks"] for each in found["change"]["moved"]}
    assert moved == {
        ("gave_up", "wrong_form"): ["task-2"],
        ("gave_up", "unexplained"): ["task-3"],
    }
    (saved,) = Path("new/analyses").glob("failures-*.json")
    assert json.loads(saved.read_text())["command"].startswith("hrm-agent analyze --failures new")
    assert hrm("analyze", "--failures", "new", "--json").json["failed"] == 3


def test_files_and_stores_of_others(hrm: Command) -> None:
    """The report of a file or a store is only shown. An import has no reference answers."""
    store_of("own", "41", "I give up.")
    assert hrm("export", "own", "--format", "otel", "--out", "traces.jsonl").code == 0
    assert hrm("import", "traces.jsonl", "--store", "theirs.db").code == 0
    told = hrm("analyze", "--failures", "theirs.db")
    assert told.code == 0 and not Path("failures").exists()
    assert "Not checkable: wrong_form in 2 failed runs, since answers of calls" in told.out
    assert hrm("export", "own", "--out", "own.jsonl").code == 0
    assert hrm("analyze", "--failures", "own.jsonl", "--json").json["failed"] == 2


def test_the_judge_is_asked_once(hrm: Command) -> None:
    store_of("run", "41", "43")
    Path("judge.jsonl").write_text(4 * (json.dumps("It was the plan.") + "\n"))
    options = ("--judge", "scripted:judge.jsonl", "--budget", "100000tokens")
    first = hrm("analyze", "--failures", "run", *options, "--json")
    assert first.code == 0, first.err
    judged = first.json["judge"]
    assert (judged["runs"], judged["judged"], judged["unreadable"]) == (2, 0, 2)
    assert judged["asked_now"] == judged["asked"] and judged["asked"]["read"] > 0
    again = hrm("analyze", "--failures", "run", *options, "--json").json["judge"]
    assert again["asked_now"] == {"read": 0, "sampled": 0, "cost": 0}
    assert again["asked"] == judged["asked"]
    little = ("--judge", "scripted:judge.jsonl", "--budget", "10tokens", "--out", "other")
    told = hrm("analyze", "--failures", "run", *little)
    assert told.code == 0 and "The budget of 10tokens does not suffice for more." in told.out


VERDICTS = {"AAA 77": "wrong_plan", "BBB 99": "invented_fact"}


def judgement(body: dict[str, Any]) -> str:
    """Verdict of a hosted judge by the final text."""
    system, asked = (str(each["content"]) for each in body["messages"])
    code = re.findall('"code": "([0-9a-f]{16})"', system)[0]
    text = json.loads(asked)["final_text"]
    return json.dumps({"code": code, "class": VERDICTS[text], "reason": text})


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch, hrm: Command) -> Iterator[ProviderServer]:
    del hrm  # which changes the folder
    Path("langchain").mkdir()
    Path("langchain/__init__.py").touch()
    Path("langchain/chat_models.py").write_text(LANGCHAIN)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with ProviderServer(text=judgement) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{running.url}/v1")
        yield running


def test_a_hosted_judge_of_two_records_whose_threads_have_equal_names(
    hrm: Command, hosted: ProviderServer
) -> None:
    """A budget needs no option more, and each verdict belongs to the run that it was asked about."""
    store_of("old", "AAA 77", "AAA 77")
    store_of("new", "BBB 99", "BBB 99")
    words = ("new", "--against", "old", "--judge", "openai:m", "--budget", "100000tokens", "--json")
    found = hrm("analyze", "--failures", *words).json
    assert {each["name"]: each["runs"] for each in found["classes"] if each["runs"]} == {
        "invented_fact": 2
    }
    changes = {each["name"]: each["difference"]["value"] for each in found["change"]["changes"]}
    assert changes == {"invented_fact": 1, "wrong_plan": -1}
    assert (found["judge"]["judged"], found["judge"]["runs"]) == (4, 4)
    assert [each["max_completion_tokens"] for each in hosted.asked] == [1024, 1024]


def test_the_report_of_the_rules_is_kept_if_the_judge_does_not_answer(
    hrm: Command, hosted: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    del hosted
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    store_of("run", "I give up.", "AAA 77")
    words = ("run", "--judge", "openai:m", "--budget", "100000tokens", "--max-tokens", "50")
    told = hrm("analyze", "--failures", *words)
    assert told.code == 2 and "The judge did not answer" in told.err and "resume" not in told.err
    assert "gave_up" in told.out and "judged 0 of 1 unexplained run:" in told.out
    saved = json.loads(Path("run/failures/failures.json").read_text())
    assert saved["failed"] == 2 and saved["judge"]["error"]


def test_scores_of_a_rubric_judge_runs(hrm: Command) -> None:
    with open_store("store.db") as store:
        for index in range(2):
            task = TaskRef(id=str(index), family="f", prompt="p")
            run = trajectory(index, task=task, rewards={}, calls=(), answer=f"4{index}")
            store.journal.write_trajectory(run)
    told = hrm("analyze", "--failures", "store.db")
    assert told.code == 0 and "0 of 0 judged runs of 2 tasks failed." in told.out
    assert "Not judged: 2 runs, since they have no reward." in told.out and "--by" in told.out
    Path("own.py").write_text("def right(text):\n    return float(text == '41')\n")
    assert hrm("rescore", "store.db", "--rewards", "./own.py:right", "--name", "mine").code == 0
    found = hrm("analyze", "--failures", "store.db", "--by", "mine", "--json").json
    assert (found["judged"], found["failed"]) == (2, 1)
    other = hrm("analyze", "--failures", "store.db", "--by", "other")
    assert other.code == 2 and "There are no scores 'other'" in other.err


def test_a_report_that_cannot_be_saved_is_not_announced(hrm: Command) -> None:
    store_of("run", "41")
    told = hrm("analyze", "--failures", "run", "--out", "/proc/nowhere")
    assert "The report is not saved" in told.err and "In /proc/nowhere" not in told.out
    assert "1 of 1 judged run of 1 task failed (1.000)." in told.out


def test_limits_of_the_judge_are_read_before_the_runs(hrm: Command) -> None:
    store_of("empty")
    told = hrm("analyze", "--failures", "empty", "--judge", "openai:m", "--price", "cheap")
    assert told.code == 2 and "--price 'cheap' is not a price" in told.err
    Path("judge.jsonl").write_text('"a reply"\n')
    words = ("empty", "--judge", "scripted:judge.jsonl", "--out", "/proc/nowhere")
    told = hrm("analyze", "--failures", *words)
    assert told.code == 2 and "/proc/nowhere" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "There is no run at nowhere."),
        (("run", "--against", "nowhere"), "There is no run at nowhere."),
        (("empty",), "There is no ended run on record in empty"),
        (("run", "--top", "-1"), "--top -1 is below 0."),
        (("run", "--budget", "1"), "--budget needs a judge."),
        (("run", "--max-tokens", "9"), "--max-tokens needs a judge."),
        (("run", "--judge", "scripted:x", "--max-tokens", "0"), "--max-tokens 0 is below 1."),
        (("run", "--judge", ""), "The name of the judge is empty."),
        (("run", "--judge", "builtin:traind"), "There is no built-in policy 'traind'"),
        (("run", "--judge", "scripted:x", "--budget", "much"), "is not an amount"),
        (("run/store.db", "--judge", "scripted:x"), "Name a folder: --out runs/failures."),
        (("run", "--steps", "3"), "--steps belongs to the analysis without --failures."),
        (("run", "--out", "mine"), "mine is not empty"),
        (("run", "--out", "run/store.db"), "run/store.db is a file."),
    ],
)
def test_what_is_refused(words: tuple[str, ...], said: str, hrm: Command) -> None:
    store_of("run", "41")
    store_of("empty")
    Path("mine").mkdir()
    Path("mine/file").touch()
    told = hrm("analyze", "--failures", *words)
    assert told.code == 2 and said in told.err and "Traceback" not in told.err
    assert not Path("run/failures").exists() and not Path("run/analyses").exists()


def test_options_of_failures_need_the_flag(hrm: Command) -> None:
    store_of("run", "41")
    told = hrm("analyze", "run", "--against", "run")
    assert told.code == 2 and "--against needs --failures." in told.err


def test_faults_of_others_are_apart(hrm: Command) -> None:
    lost = tool_call("x", ToolStatus.INFRASTRUCTURE)
    run = trajectory(0, 0.0, calls=(), tool_calls=(lost,), answer="41")
    failed = trajectory(1, 0.0, calls=(), status=RunStatus.FAILED, error="KeyError: 'x'")
    with open_store("store.db") as store:
        for each in (run, failed):
            store.journal.write_trajectory(each)
        where = lost.identity.model_copy(update={"thread_id": run.thread_id})
        store.journal.write_tool_call(lost.model_copy(update={"identity": where}))
    told = hrm("analyze", "--failures", "store.db")
    assert told.code == 0 and "2 of them by no fault of the policy" in told.out
    assert "infrastructure (not the policy's)" in told.out
