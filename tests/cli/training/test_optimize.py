"""`hrm-agent optimize`: texts that are found, the budget, interrupted searches, and mistakes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.prompts import server as scripted
from benchmarks.prompts.__main__ import on_record
from benchmarks.prompts.server import FakeProvider, tasks
from hrm_agent.store import open_store
from hrm_agent.trajectory import Trajectory
from tests.cli.conftest import Command
from tests.support.serving.providers import LANGCHAIN

ROOT = Path(__file__).parents[3]
GRAPH = "benchmarks.prompts.post_office:graph"
FEW = ("--test", "8", "--train", "8", "--validation", "4", "--minibatch", "4")
WORDS = (
    *("optimize", "--graph", GRAPH, "--policy", "openai:agent", "--rewards", "answer:text"),
    *("--reflection-policy", "openai:reflection", "--tasks", "tasks.jsonl", "--max-tokens", "64"),
    *("--reflection-max-tokens", "256", "--out", "found", "--json", *FEW),
)


@pytest.fixture(scope="module")
def running() -> Iterator[FakeProvider]:
    """One server for all tests, since the process keeps its clients."""
    with FakeProvider() as server:
        yield server


@pytest.fixture
def server(running: FakeProvider, hrm: Command, monkeypatch: pytest.MonkeyPatch) -> FakeProvider:
    """Server that was asked nothing, and a folder with tasks."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", running.url)
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(Path.cwd())
    Path("langchain").mkdir()
    Path("langchain/__init__.py").touch()
    Path("langchain/chat_models.py").write_text(LANGCHAIN)
    Path("tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tasks(400)))
    running.asked.clear()
    running.tokens = (0, 0)
    return running


def bodies(server: FakeProvider) -> Counter[str]:
    return Counter(json.dumps(body) for body in server.asked)


def reflections() -> list[Trajectory]:
    with open_store("found/store.db") as store:
        found = [each for each in store.journal.headers() if each.task.family == "reflection"]
    return sorted(found, key=lambda each: int(each.thread_id.split("/")[2]))


def test_texts_are_found_and_used(server: FakeProvider, hrm: Command) -> None:
    done = hrm(*WORDS, "--budget", "80rollouts")
    assert done.code == 0, done.err
    found = done.json
    held_out = found["held_out"]
    assert held_out["after"]["value"] >= held_out["before"]["value"] + 0.25
    assert found["rollouts"] + found["reflections"] <= 80
    with open_store("found/store.db") as store:
        headers = store.journal.headers()
    assert len(headers) == found["rollouts"] + found["reflections"]
    # the reflections see what the clerk saw, and no held-out task
    question = reflections()[0].task.prompt
    assert "Tool price failed. error: ValueError: the zone Harbour is called H1 here" in question
    assert "Last words of other roles\n### writer" in question
    assert "Expected answer: " in question
    tested = {each.task.prompt for each in headers if "/test-" in each.thread_id}
    assert len(tested) == 8
    assert not any(
        each in reflection.task.prompt for each in tested for reflection in reflections()
    )
    # the file has the texts and their lineage, and is what other commands take
    file = tomllib.loads(Path("found/prompts.toml").read_text())
    assert file["prompts"] == found["texts"]
    last = file["changes"][-1]
    assert last["candidate"] == found["best"]
    assert "+You are the" in last["diff"] and "I read the feedback." in last["why"]
    words = ("--graph", GRAPH, "--policy", "openai:agent", "--prompts", "found/prompts.toml")
    ran = hrm("run", "Task 1: a parcel of 2 kg to zone Harbour. The price?", *words, "--json")
    assert ran.lines[-1]["answer"] == "10"
    assert hrm("replay", "--check", "runs").code == 0
    # the gate asks from the first changed text on
    taken = ("--policy", "openai:agent", "--tasks", "tasks.jsonl", "--rewards", "answer:text")
    assert hrm("eval", *taken, "--graph", GRAPH, "--count", "10", "--out", "old").code == 0
    server.asked.clear()
    gated = hrm("gate", "old", "--prompts", "found/prompts.toml", "--json")
    assert gated.code == 0, gated.err
    assert gated.json["verdict"] == "better"
    texts = tuple(found["texts"].values())
    assert server.asked
    assert all(body["messages"][0]["content"] in texts for body in server.asked)
    misspelt = Path("found/prompts.toml").read_text().replace("clerk =", "clark =", 1)
    Path("misspelt.toml").write_text(misspelt)
    wrong = hrm("gate", "old", "--prompts", "misspelt.toml")
    assert wrong.code == 2 and "Did you mean 'clerk'" in wrong.err
    # the record says which texts a run of the search had
    other = next(each for each in headers if "/learn-" in each.thread_id and each.task.metadata)
    assert hrm("replay", "--store", "found", other.id).code == 0


@pytest.mark.slow
def test_a_search_is_reproducible_and_repeats_nothing(server: FakeProvider, hrm: Command) -> None:
    first = hrm(*WORDS, "--budget", "40rollouts").json
    asked = len(server.asked)
    again = hrm("resume", "found", "--json").json
    assert len(server.asked) == asked
    assert again == first
    # more budget continues it
    more = hrm(*WORDS, "--budget", "80rollouts").json
    assert more["candidates"][: len(first["candidates"])] == first["candidates"]
    assert max(bodies(server).values()) <= len(more["candidates"])
    server.asked.clear()
    other = hrm(*(word if word != "found" else "other" for word in WORDS), "--budget", "80rollouts")
    assert other.json["texts"] == more["texts"]


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("10000tokens", marks=pytest.mark.slow),
        pytest.param("0.018", marks=pytest.mark.slow),
        "27rollouts",
    ],
)
def test_a_budget_is_not_exceeded(server: FakeProvider, hrm: Command, limit: str) -> None:
    done = hrm(*WORDS, "--budget", limit, "--price", "1,4")
    assert done.code in (0, 1), done.err
    read, sampled = server.tokens
    used = {"tokens": read + sampled, "": (read + 4 * sampled) / 1e6}
    unit = limit.lstrip("0123456789.")
    if unit == "rollouts":
        with open_store("found/store.db") as store:
            used[unit] = len(store.journal.headers())
    most = float(limit.removesuffix(unit))
    assert 0.4 * most < used[unit] <= most
    assert done.json["ended_by"] == "the budget is used up"


def test_an_interrupted_search_repeats_nothing(
    server: FakeProvider, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider fails at a reflection, and later at an answer."""
    whole = hrm(*WORDS, "--budget", "36rollouts").json
    plain = bodies(server)
    server.asked.clear()
    words = [word if word != "found" else "cut" for word in WORDS]
    for model, after in (("reflection", 0), ("agent", 70)):
        answer = scripted.MODELS[model]

        def failing(
            body: Mapping[str, Any], answer: Any = answer, after: int = after
        ) -> dict[str, Any]:
            if len(server.asked) > after:
                server.asked.remove(dict(body))
                raise RuntimeError("no answer")
            return answer(body)

        with monkeypatch.context() as patch:
            patch.setitem(scripted.MODELS, model, failing)
            cut = hrm(*words, "--budget", "36rollouts")
        assert cut.code == 2 and "gave no answer" in cut.err
        assert "Traceback" not in cut.err
    resumed = hrm("resume", "cut", "--json").json
    assert resumed["texts"] == whole["texts"]
    assert bodies(server) == plain


@pytest.mark.slow
def test_a_killed_search_repeats_nothing(server: FakeProvider, hrm: Command) -> None:
    whole = hrm(*WORDS, "--budget", "60rollouts").json
    plain = bodies(server)
    server.asked.clear()
    words = [word if word != "found" else "killed" for word in WORDS]
    rng = random.Random(0)
    states = list[tuple[set[str], int]]()
    for _ in range(3):
        start = len(server.asked)
        killed = subprocess.Popen(
            [sys.executable, "-m", "hrm_agent", *words, "--budget", "60rollouts"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        goal = start + rng.randint(5, 60)
        while len(server.asked) < goal and killed.poll() is None:
            time.sleep(0.002)
        killed.kill()
        killed.wait()
        server.drain()
        states.append(on_record(Path("killed")))
    resumed = hrm(*words, "--budget", "60rollouts").json
    assert resumed["texts"] == whole["texts"]
    assert plain - bodies(server) == Counter()
    sent = [
        json.loads(line)["call"] for line in Path("killed/asked.jsonl").read_text().splitlines()
    ]
    assert all(recorded and not recorded & set(sent[number:]) for recorded, number in states)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("For {name}.", "has the unknown field {name}"),
        pytest.param("", "the reflection has no text", marks=pytest.mark.slow),
        pytest.param("same", "the text is unchanged", marks=pytest.mark.slow),
    ],
)
def test_a_text_that_does_not_fit_is_not_run(
    server: FakeProvider, hrm: Command, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    def answer(body: Mapping[str, Any]) -> dict[str, Any]:
        same = str(body["messages"][-1]["content"]).split("```\n")[1]
        return {"content": f"```\n{same if text == 'same' else text}\n```" if text else " "}

    monkeypatch.setitem(scripted.MODELS, "reflection", answer)
    done = hrm(*WORDS, "--budget", "30rollouts", "--seed", "1")
    found = done.json
    assert done.code == 1
    assert found["proposals"]
    assert all(said in each["refused"] for each in found["proposals"])
    assert len(found["candidates"]) == 1 and not found["changed"]
    stages = {each.thread_id.split("/")[1] for each in runs() if each.task.family != "reflection"}
    assert {stage.partition("-")[0] for stage in stages} == {"test", "learn"} and len(stages) == 2


def runs() -> list[Trajectory]:
    with open_store("found/store.db") as store:
        return store.journal.headers()


STRANGE = """
from langchain_core.messages import SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from hrm_agent.models import policy

SYSTEM = "Answer."
UNUSED = "Nobody sends this."


async def ask(state: MessagesState):
    return {"messages": [await policy().ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}


graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
"""


def test_a_constant_of_a_module(
    server: FakeProvider, hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("strange.py").write_text(STRANGE)
    Path("tasks.jsonl").write_text(
        "".join(json.dumps({"question": f"Task {n}", "answer": "42"}) + "\n" for n in range(40))
    )

    def agent(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": "42" if "42" in str(body["messages"][0]["content"]) else "41"}

    monkeypatch.setitem(scripted.MODELS, "agent", agent)
    answer = {"content": "```\nAnswer 42.\n```"}
    monkeypatch.setitem(scripted.MODELS, "reflection", lambda _: answer)
    words = [word if word != GRAPH else "./strange.py:graph" for word in WORDS]
    unknown = hrm(*words, "--budget", "40rollouts", "--prompts-of", "./strange.py:SYTEM")
    assert unknown.code == 2 and "has no 'SYTEM'" in unknown.err
    none = hrm(*words, "--budget", "40rollouts")
    assert none.code == 2 and "No request of 8 runs contains a named prompt" in none.err
    names = "./strange.py:SYSTEM,./strange.py:UNUSED"
    words = [word if word != "found" else "again" for word in words]
    unsent = hrm(*words, "--budget", "40rollouts", "--prompts-of", names)
    assert unsent.code == 2 and "contains the prompt './strange.py:UNUSED'" in unsent.err
    words = [word if word != "again" else "third" for word in words]
    done = hrm(*words, "--budget", "40rollouts", "--prompts-of", "./strange.py:SYSTEM")
    assert done.code == 0, done.err
    assert done.json["texts"] == {"./strange.py:SYSTEM": "Answer 42."}
    assert done.json["held_out"]["after"]["value"] == 1.0
    assert Path("strange.py").read_text() == STRANGE


ADDER = """
import re

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import START, MessagesState, StateGraph

from hrm_agent import Prompt
from hrm_agent.rewards import Scored, judged
from hrm_agent.trajectory import JudgeCall

SYSTEM = Prompt("adder", "You add numbers.")


class Obedient(BaseChatModel):
    @property
    def _llm_type(self):
        return "obedient"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        number = int(re.search("[0-9]+", messages[-1].text)[0])
        prompt = messages[0].text
        right = "only" in prompt or ("small" in prompt and number < 100)
        right = right or (number >= 100 and prompt == "You add large numbers.")
        answer = AIMessage(str(number + 7) if right else "A number.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


async def add(state):
    return {"messages": [await Obedient().ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}


graph = StateGraph(MessagesState).add_node("add", add).add_edge(START, "add").compile()


def tasks(split):
    first = {"train": 0, "eval": 100}[split]
    return [{"prompt": f"Add {n} and 7.", "answer": str(n + 7)} for n in range(first, first + 40)]


def same(split):
    rows = [{"prompt": f"Add {n // 2} and 7.", "answer": str(n // 2 + 7)} for n in range(40)]
    return [{"id": f"{split}-{place}", **row} for place, row in enumerate(rows)]


def graded(text):
    return 0.45 if text.isdigit() else 0.05


def polite(text):
    call = JudgeCall(model="a judge", request=(), response="1", seconds=0.0)
    return Scored(1.0, "", (call,))


judge = judged("Is it polite?", "scripted:judge.jsonl")
"""
SEARCH = (
    *("optimize", "--graph", "./adder.py:graph", "--reflection-policy", "scripted:texts.jsonl"),
    *("--out", "my runs/found", "--test", "8", "--train", "8", "--validation", "4"),
)


@pytest.fixture
def adder(hrm: Command) -> None:
    """Folder with an agent whose model is its own."""
    Path("adder.py").write_text(ADDER)


def propose(text: str) -> None:
    """Write what the reflection model answers."""
    answer = json.dumps(f"```\n{text}\n```")
    Path("texts.jsonl").write_text(20 * f"{answer}\n")


@pytest.mark.usefixtures("adder")
def test_texts_that_are_worse_on_held_out_tasks_are_not_recommended(hrm: Command) -> None:
    propose("small")
    Path("large.toml").write_text('[prompts]\nadder = "You add large numbers."\n')
    given = ("--tasks", "./adder.py:tasks", "--rewards", "answer:text", "--budget", "60rollouts")
    done = hrm(*SEARCH, *given, "--prompts", "large.toml")
    assert done.code == 1, done.err
    assert "Held-out mean reward: 1.000 before, 0.000 after" in done.out
    assert "not recommended: on the held-out tasks they are worse" in done.out
    assert "Next:" not in done.out
    file = tomllib.loads(Path("my runs/found/prompts.toml").read_text())
    assert file["prompts"] == {"adder": "small"} and not file["evidence"]["recommended"]


@pytest.mark.usefixtures("adder")
def test_the_held_out_figure_is_the_mean_reward(hrm: Command) -> None:
    """Use a rubric without an outcome above 0.5, and each question twice in both splits."""
    propose("Write only the number.")
    given = ("--tasks", "./adder.py:same", "--rewards", "./adder.py:graded")
    done = hrm(*SEARCH, *given, "--budget", "26rollouts")
    assert done.code == 0, done.err
    assert "Held-out mean reward: 0.050 before, 0.450 after, on 4 tasks: +0.400 (-0.0" in done.out
    assert "The difference is within chance (p = 0.12)" in done.out
    assert "Held-out pass@1 (outcome above 0.5): 0.000 before, 0.000 after" in done.out
    assert "4 held-out tasks are left out: another one has the same question" in done.err
    assert "The budget sufficed" not in done.err
    assert "tasks to learn from are left out: a held-out or an earlier one" in done.err
    assert "--prompts 'my runs/found/prompts.toml'" in done.out


@pytest.mark.usefixtures("adder")
def test_a_text_that_the_budget_does_not_suffice_to_judge_is_named(hrm: Command) -> None:
    propose("Write only the number.")
    given = ("--tasks", "./adder.py:tasks", "--rewards", "answer:text", "--budget", "29rollouts")
    done = hrm(*SEARCH, *given)
    assert done.code == 1, done.err
    assert "0.00 to 1.00  not judged: budget" in done.out
    assert "adder was not judged: the budget did not suffice for the validation" in done.out
    results = json.loads(Path("my runs/found/results.json").read_text())
    assert results["not_judged"]["proposal"]["text"] == "Write only the number."
    assert results["not_judged"]["after"] == 1.0


@pytest.mark.usefixtures("adder")
def test_a_template_is_changed_again_and_again(hrm: Command) -> None:
    """Requests have the new template, filled. A reflection sees them as well."""
    asker = ADDER.replace('Prompt("adder", "You add numbers.")', 'Prompt("asker", "Sum: {task}")')
    asker = asker.replace(
        '[SystemMessage(SYSTEM), *state["messages"]]',
        '[("human", SYSTEM.format(task=state["messages"][-1].text))]',
    )
    # the first change suffices for even numbers
    Path("asker.py").write_text(
        asker.replace("number < 100", "number % 2 == 0").replace("only", "any")
    )
    first, then = (json.dumps(f"```\nFor {word}: {{task}}\n```") for word in ("small", "any"))
    Path("texts.jsonl").write_text(f"{first}\n{then}\n")
    words = ["./asker.py:graph" if word == "./adder.py:graph" else word for word in SEARCH]
    given = ("--tasks", "./adder.py:tasks", "--rewards", "answer:text", "--budget", "80rollouts")
    done = hrm(*words, *given, "--seed", "2", "--json")
    assert done.code == 0, done.err
    assert [each["prompt"] for each in done.json["candidates"]] == [None, "asker", "asker"]
    assert done.json["texts"] == {"asker": "For any: {task}"}
    # a search can begin with a replaced template
    Path("start.toml").write_text('[prompts]\nasker = "For small: {task}"\n')
    Path("more.jsonl").write_text(4 * f"{then}\n")
    words = [word.replace("found", "again").replace("texts.jsonl", "more.jsonl") for word in words]
    done = hrm(*words, *given, "--prompts", "start.toml", "--json")
    assert done.code == 0, done.err
    assert done.json["texts"] == {"asker": "For any: {task}"}


@pytest.mark.usefixtures("adder")
def test_judges_are_not_asked_under_a_budget_of_tokens(server: FakeProvider, hrm: Command) -> None:
    done = hrm(*WORDS, "--budget", "30000tokens", "--rewards", "./adder.py:judge")
    assert done.code == 2 and "whose requests are not counted in a budget of tokens" in done.err
    assert server.asked == [] and not Path("found").exists()
    # a function that reports requests of its own is known once it has scored
    done = hrm(*WORDS, "--budget", "30000tokens", "--rewards", "./adder.py:polite")
    assert done.code == 2 and "The reward 'polite' asks a judge" in done.err
    assert not [body for body in server.asked if body["model"] == "reflection"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--budget", "much"), "'much' is not an amount"),
        (("--budget", "0rollouts"), "'0rollouts' is not an amount"),
        ((), "No budget was given"),
        (("--budget", "2", "--reflection-policy", ""), "No model was named that writes"),
        (("--budget", "3000rollouts", "--test", "500"), "others are needed"),
        (("--budget", "30rollouts", "--test", "0"), "test (from the flags)"),
        (("--budget", "30rollouts", "--tasks", "none.jsonl"), "none.jsonl"),
        (("--budget", "30rollouts", "--rewards", "none:none"), "none"),
        (("--budget", "30rollouts", "--graph", "resoning"), "Did you mean 'reasoning'"),
        (("--budget", "30rollouts", "--prompts-of", "clark"), "Did you mean 'clerk'"),
        (("--budget", "30rollouts", "--prompts", "none.toml"), "none.toml cannot be read"),
        (("--budget", "30rollouts", "--reflection-policy", "builtin:nope"), "nope"),
        (("--budget", "30rollouts", "--price", "x"), "--price"),
    ],
)
def test_a_mistake_is_reported(
    server: FakeProvider, hrm: Command, words: tuple[str, ...], said: str
) -> None:
    done = hrm(*WORDS, *words)
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err
    assert not Path("found").exists()
    assert server.asked == []


def test_a_small_budget(server: FakeProvider, hrm: Command) -> None:
    done = hrm(*WORDS, "--budget", "7rollouts")
    assert done.code == 2 and "and one reflection makes 21" in done.err
    done = hrm(*WORDS, "--budget", "1")
    assert done.code == 2 and "The price of agent is not known" in done.err
    done = hrm(*WORDS, "--budget", "900tokens")
    assert done.code == 2 and "does not suffice for the held-out tasks" in done.err
