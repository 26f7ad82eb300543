"""`--prompts`: texts that replace prompts of a graph, in every command that runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.errors import ConfigError
from hrm_agent.prompts_file import read_prompts_file, write_prompts_file
from hrm_agent.store import open_store
from tests.cli.conftest import Command, Outcome

GRAPHS = """
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent

from hrm_agent import Prompt
from hrm_agent.models import policy


class Echo(BaseChatModel):
    "Model that answers with its request."

    @property
    def _llm_type(self):
        return "echo"

    def bind_tools(self, tools, **options):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **options):
        text = " | ".join(message.text for message in messages)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


class Streaming(Echo):
    def _stream(self, messages, stop=None, run_manager=None, **options):
        for message in messages:
            yield ChatGenerationChunk(message=AIMessageChunk(content=message.text + " | "))


class Router(Echo):
    "Model that passes its request on to another one."

    def _generate(self, messages, stop=None, run_manager=None, **options):
        return ChatResult(generations=[ChatGeneration(message=Echo().invoke(messages))])


def of(node):
    return StateGraph(MessagesState).add_node("ask", node).add_edge(START, "ask").compile()


compiled = create_react_agent(Echo(), [], prompt=Prompt("compiled", "Say yes."))
TEMPLATE = ChatPromptTemplate.from_messages(
    [("system", Prompt("template", "You know {fact}. Be {tone}.")), ("placeholder", "{messages}")]
)
READ = Prompt("read", "Say no.")
SYSTEM = "Say what you see."
ASKED = Prompt("asked", "Think first.")


def made(config):
    text = Prompt("made", "Say maybe.")
    return of(lambda state: {"messages": [
        Echo().invoke([SystemMessage(text), *state["messages"]])
    ]})


@of
def template(state):
    chain = TEMPLATE | Echo()
    given = {"fact": "that 1 < 2", "tone": "kind", "messages": state["messages"]}
    return {"messages": [chain.invoke(given)]}


@of
def read(state):
    return {"messages": [Echo().invoke([SystemMessage(f"{READ} Now."), *state["messages"]])]}


@of
def constant(state):
    whole = None
    for chunk in Streaming().stream([SystemMessage(SYSTEM), *state["messages"]]):
        whole = chunk if whole is None else whole + chunk
    return {"messages": [whole]}


@of
async def asked(state):
    request = HumanMessage(f"{ASKED}\\n{state['messages'][-1].text}")
    return {"messages": [await policy(model=None).ainvoke([request])]}


@of
def routed(state):
    return {"messages": [Router().invoke([SystemMessage(READ), *state["messages"]])]}


@of
def unrecorded(state):
    return {"messages": [AIMessage("no model")]}


@of
def changed(state):
    return {"messages": [Echo().invoke([SystemMessage(READ.upper()), *state["messages"]])]}
"""
NEW = {
    "compiled": "Say yes twice.",
    "template": "Be {tone}, and remember {fact}!",
    "read": "Say no. Say it clearly.",
    "./graphs_of_mine.py:SYSTEM": "Say what you hear.",
    "asked": "Think twice.",
}
SENT = {
    "compiled": "Say yes twice. | hello",
    "template": "Be kind, and remember that 1 < 2! | hello",
    "read": "Say no. Say it clearly. Now. | hello",
    "constant": "Say what you hear. | hello | ",
    "routed": "Say no. Say it clearly. | hello",
}


@pytest.fixture
def prompts(hrm: Command) -> Path:
    Path("graphs_of_mine.py").write_text(GRAPHS)
    return written(NEW)


def written(texts: Mapping[str, Any]) -> Path:
    path = Path("prompts.toml")
    lines = (f"{json.dumps(name)} = {json.dumps(text)}" for name, text in texts.items())
    path.write_text("\n".join(["[prompts]", *lines, ""]))
    return path


def run(hrm: Command, graph: str, *words: str) -> Outcome:
    return hrm("run", "hello", "--graph", f"./graphs_of_mine.py:{graph}", "--json", *words)


def answer(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome.err
    return outcome.lines[-1]["answer"]


@pytest.mark.parametrize("graph", SENT)
def test_texts_reach_a_graph_however_it_is_made(hrm: Command, prompts: Path, graph: str) -> None:
    assert answer(run(hrm, graph, "--prompts", str(prompts), "--thread", "new")) == SENT[graph]
    assert "Say no. Say it clearly." not in answer(run(hrm, graph))
    # today's code against the record, with the recorded texts, and with those of the source
    store = ("--store", "runs/store.db")
    assert hrm("replay", "new", *store).code == 0


def test_a_filled_template_is_not_reported(hrm: Command, prompts: Path) -> None:
    written({"template": NEW["template"]})
    done = run(hrm, "template", "--prompts", str(prompts))
    assert answer(done) == SENT["template"]
    assert "No request contains" not in done.err


def test_a_factory_makes_its_prompt(hrm: Command, prompts: Path) -> None:
    written({"made": "Say perhaps."})
    assert answer(run(hrm, "made", "--prompts", str(prompts))) == "Say perhaps. | hello"


def test_the_policy_gets_the_texts(hrm: Command, prompts: Path) -> None:
    Path("script.json").write_text("42")
    words = ["--prompts", str(prompts), "--policy", "scripted:script.json", "--thread", "new"]
    assert answer(run(hrm, "asked", *words)) == "42"
    with open_store("runs/store.db") as store:
        (call,) = store.journal.trajectory("new").calls
    assert call.request is not None
    assert call.request[0]["content"] == "Think twice.\nhello"


def test_a_run_keeps_its_texts(hrm: Command, prompts: Path) -> None:
    assert answer(run(hrm, "read", "--prompts", str(prompts), "--thread", "new")) == SENT["read"]
    prompts.unlink()
    assert hrm("replay", "new").code == 0
    assert hrm("replay", "--check", "runs").code == 0
    assert hrm("fork", "new", "--at", "0", "--name", "again", "--run").code == 0
    with open_store("runs/store.db") as store:
        assert store.journal.trajectory("again").answer == SENT["read"]
        task = store.journal.trajectory("new").task
    assert task.metadata["prompt_texts"]["read"] == NEW["read"]
    written({"read": "Say nothing."})
    other = hrm("replay", "new", "--prompts", "prompts.toml")
    assert other.code == 1
    assert "+Say nothing. Now." in other.out
    again = run(hrm, "read", "--prompts", "prompts.toml", "--thread", "new")
    assert again.code == 2
    assert "another configuration (prompts" in again.err
    # each turn is replayed with the texts of the thread
    said = ("chat", "--thread", "new", "--say", "more")
    turn = hrm(*said, "--prompts", "prompts.toml")
    assert turn.code == 2
    assert "The turns of this thread have other prompts" in turn.err
    assert hrm(*said).code == 0
    assert hrm("replay", "new").code == 0


def test_a_collection_has_the_texts(hrm: Command, prompts: Path) -> None:
    words = ["--graph", "./graphs_of_mine.py:read", "--prompts", str(prompts), "--count", "2"]
    done = hrm("collect", *words, "--out", "many")
    assert done.code == 0, done.err
    assert "No request contains the prompts ./graphs_of_mine.py:SYSTEM, asked, comp" in done.err
    with open_store("many/store.db") as store:
        answers = [str(each.answer) for each in store.journal.trajectories()]
    assert all(each.startswith("Say no. Say it clearly. Now. |") for each in answers)


def test_a_text_that_the_graph_changes_is_reported(hrm: Command, prompts: Path) -> None:
    written({"read": "Say nothing."})
    done = run(hrm, "changed", "--prompts", str(prompts))
    assert "SAY NO." in answer(done)
    assert "No request contains the prompts read of --prompts" in done.err


def test_every_command_reports_texts_that_reach_no_request(hrm: Command, prompts: Path) -> None:
    assert run(hrm, "changed", "--thread", "old").code == 0
    written({"read": "Say nothing."})
    chat = ("chat", "--graph", "./graphs_of_mine.py:changed", "--say", "hello")
    for words in (
        ("replay", "old"),
        ("replay", "--check", "runs"),
        ("fork", "old", "--at", "0", "--run", "--name", "new"),
        (*chat, "--thread", "talk"),
    ):
        done = hrm(*words, "--prompts", str(prompts))
        assert done.code == 0, done.err
        assert "No request contains the prompts read of --prompts" in done.err
    Path("rubric.py").write_text("def rubric(text):\n    return 1.0\n")
    gate = hrm("gate", "runs", "--rewards", "./rubric.py:rubric", "--prompts", str(prompts))
    assert gate.code == 2
    assert "No request contains the prompts read of --prompts, so nothing was" in gate.err


def test_a_graph_without_recorded_requests(hrm: Command, prompts: Path) -> None:
    written({"read": "Say nothing."})
    done = run(hrm, "unrecorded", "--prompts", str(prompts))
    assert answer(done) == "no model"
    assert "No request was recorded, so the texts of read in --prompts were not seen" in done.err


def test_a_task_that_has_the_text_of_a_prompt(hrm: Command, prompts: Path) -> None:
    written({"read": "Say nothing."})
    words = ("--graph", "./graphs_of_mine.py:read", "--prompts", str(prompts), "--json")
    done = hrm("run", "Say no. Or yes?", *words, "--thread", "new")
    assert answer(done) == "Say nothing. Now. | Say no. Or yes?"
    assert hrm("replay", "new").code == 0


def test_a_file_keeps_the_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "prompts.toml"
    texts = {"a.b": "one\r\ntwo\rthree\n", "c": "x"}
    write_prompts_file(path, "g", texts, {}, [])
    assert read_prompts_file(path) == texts
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_prompts_file(path) == texts
    with pytest.raises(ConfigError, match="has no file name"):
        read_prompts_file(Path())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no prompts"),
        ("prompts = 3", "has no prompts"),
        ("[prompts", "is not TOML"),
        ('[promts]\nread = "x"', "unknown key 'promts'. Did you mean 'prompts'?"),
        ("[prompts]\nread = 3", "The prompt 'read' in bad.toml is not a text"),
        ('[prompts]\nmy.adder = "x"', """Quote a name that has a dot: 'my.adder' = "...\""""),
        ('[prompts]\nread = " "', "The prompt 'read' in bad.toml is not a text"),
        ('[prompts]\nraed = "x"', "no prompt 'raed'. Did you mean 'read'?"),
        ('[prompts]\ntemplate = "You are {tone}"', "lacks the field {fact}"),
        ('[prompts]\nread = "For {name}."', "has the unknown field {name}"),
        ('[prompts]\n"./graphs_of_mine.py:SYSTM" = "x"', "has no 'SYSTM'"),
        ('[prompts]\n"./graphs_of_mine.py:read" = "x"', "is not a text but"),
    ],
)
def test_a_wrong_file_is_refused(hrm: Command, prompts: Path, text: str, said: str) -> None:
    Path("bad.toml").write_text(text)
    for words in (
        ("run", "hello", "--graph", "./graphs_of_mine.py:read"),
        ("eval", "--graph", "./graphs_of_mine.py:read", "--out", "out"),
    ):
        done = hrm(*words, "--prompts", "bad.toml")
        assert done.code == 2
        assert said in done.err
    assert not Path("runs").exists()
    assert not Path("out").exists()


def test_a_missing_file(hrm: Command, prompts: Path) -> None:
    done = run(hrm, "read", "--prompts", "none.toml")
    assert done.code == 2
    assert "none.toml cannot be read: No such file" in done.err
