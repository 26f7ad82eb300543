"""`hrm-agent replay`: one run, all runs of a store, and data that is not loaded into memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SCRIPT, Command
from tests.support.graphs import compared_agents
from tests.support.serving.providers import TEXT, ProviderServer

HOSTED = """
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

model = ChatOpenAI(model="gpt-test", base_url="{url}/v1", api_key="none", stream_usage=True)


async def answer(state: MessagesState):
    return {{"messages": [await {asked}.ainvoke(state["messages"])]}}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""


def script(path: Path, *answers: str) -> str:
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{path}"


def test_a_run_comes_to_the_same(hrm: Command, scripted: str) -> None:
    assert (
        hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1").code == 0
    )
    done = hrm("replay", "t")
    assert done.code == 0 and "equal, byte for byte" in done.out
    row = hrm("replay", "t", "--json").json
    assert (row["verdict"], row["renamed_ids"], row["unused"], row["difference"]) == (
        "equal",
        0,
        0,
        [],
    )


def test_a_store_is_checked_run_by_run(hrm: Command, tmp_path: Path) -> None:
    for thread in ("a", "b"):
        policy = script(tmp_path / thread, *SCRIPT)
        assert (
            hrm("run", "What is 6 * 7?", "--policy", policy, "--thread", thread, "--seed", "1").code
            == 0
        )
    assert "2 runs replayed, 2 equal, 0 not" in hrm("replay", "--check", "runs/store.db").out
    done = hrm("replay", "--check", "runs", "--graph", "reasoning", "--json")
    assert done.code == 1
    assert [(row["thread"], row["verdict"]) for row in done.json["differ"]] == [
        ("a", "asks"),
        ("b", "asks"),
    ]
    nothing = hrm("replay", "--check", "runs", "--run", "other")
    assert nothing.code == 2 and "no trajectory of the run 'other' that has ended" in nothing.err


def test_what_it_asks_now_is_shown_and_gone_on_with(
    hrm: Command, scripted: str, tmp_path: Path
) -> None:
    hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1")
    graph = "tests.support.graphs.replayed_agents:hinted_loop"
    done = hrm("replay", "t", "--graph", graph)
    assert done.code == 1
    assert "node reason: it asks the model differently than recorded" in done.out
    assert "+[system]" in done.out and "+Check it." in done.out
    policy = script(tmp_path / "other", SCRIPT[1])
    live = hrm(
        "replay",
        "t",
        "--graph",
        graph,
        "--live-after",
        "--policy",
        policy,
        "--thread",
        "u",
        "--json",
    )
    assert live.code == 0 and live.json["live"]
    assert hrm("replay", "u").code == 0
    assert hrm("lint", "runs/store.db").code == 0


def test_what_is_ignored_is_told(hrm: Command, scripted: str) -> None:
    graph = "tests.support.graphs.renamed_agents:measures"
    assert hrm("run", "Go.", "--graph", graph, "--policy", scripted, "--thread", "t").code == 0
    assert hrm("replay", "--check", "runs").code == 1
    some = ["--ignore", "waited", "--ignore", "rows[*].took", "--ignore", "left"]
    paths = [*some, "--ignore", "messages[*].additional_kwargs.took"]
    done = hrm("replay", "--check", "runs", *paths)
    assert done.code == 0 and "1 run replayed, 1 equal, 0 not" in done.out
    assert "Ignored: waited: " in done.out and "--ignore left matched nothing." in done.out
    found = hrm("replay", "--check", "runs", *paths, "--json").json
    assert (
        len(found["ignored"]) == 4 and found["unmatched"] == ["left"] and found["renamed_ids"] == 0
    )
    one = hrm("replay", "t", *paths)
    assert one.code == 0 and "equal, apart from 4 ignored differences" in one.out
    broken = hrm("replay", "t", "--ignore", "rows[")
    assert broken.code == 2 and "'rows[' is no valid path" in broken.err


def test_generated_ids_are_counted(hrm: Command, scripted: str) -> None:
    graph = "tests.support.graphs.renamed_agents:tickets"
    assert hrm("run", "Go.", "--graph", graph, "--policy", scripted, "--thread", "t").code == 0
    done = hrm("replay", "--check", "runs")
    assert done.code == 0 and "1 equal, apart from 3 generated ids, 0 not" in done.out
    assert "equal, apart from 3 generated ids" in hrm("replay", "t").out


def test_which_run(hrm: Command) -> None:
    assert "hrm-agent replay TRAJECTORY" in hrm("replay").err
    assert hrm("replay", "t", "--check", "runs").code == 2
    assert "There is no store" in hrm("replay", "t").err
    assert "--policy needs --live-after" in hrm("replay", "t", "--policy", "x").err
    assert "--run needs --check" in hrm("replay", "t", "--run", "x").err
    assert (
        "--check cannot be combined with --live-after"
        in hrm("replay", "--check", "runs", "--live-after").err
    )


def test_no_model_is_loaded(hrm: Command, scripted: str, tmp_path: Path) -> None:
    hrm("run", "What is 6 * 7?", "--policy", scripted, "--thread", "t", "--seed", "1")
    program = (
        "import sys; from hrm_agent.cli.main import main; assert main(['replay', '--check',"
        " 'runs']) == 0;print(sorted({'torch', 'transformers'} & sys.modules.keys()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_effects_of_nodes_are_said_and_can_be_refused(
    hrm: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = script(tmp_path / "s", "Fine.")
    graph = "tests.support.graphs.effectful:writes"
    assert hrm("run", "Act.", "--graph", graph, "--policy", policy, "--thread", "t").code == 0
    with pytest.raises(SystemExit):
        hrm("replay", "--help")
    helped = " ".join(capsys.readouterr().out.split())
    assert "nodes' own code runs again" in helped and "--no-effects" in helped
    for words in (["t"], ["--check", "runs"]):
        done = hrm("replay", *words)
        assert done.code == 0 and "node act: it opens effects.log for writing" in done.out
        assert "--no-effects refuses it" in done.out
        done = hrm("replay", *words, "--no-effects")
        assert done.code == 1 and "refused: node act: it opens effects.log for writing" in done.out
    assert Path("effects.log").read_text() == "acted\n" * 3


@pytest.mark.parametrize("asked", ["model", "PolicyModel(backend=model)"])
def test_a_chat_with_a_hosted_model(asked: str, hrm: Command, tmp_path: Path) -> None:
    nobody = script(tmp_path / "s")
    with ProviderServer() as provider:
        code = "from hrm_agent.models import PolicyModel\n" + HOSTED.format(
            url=provider.url, asked=asked
        )
        (tmp_path / "hosted.py").write_text(code)
        words = ("--graph", f"{tmp_path}/hosted.py:graph", "--policy", nobody, "--thread", "t")
        for said in ("What is 6 * 7?", "And once more?"):
            done = hrm("chat", *words, "--say", said)
            assert done.code == 0 and TEXT in done.out, done.err
            words = ("--thread", "t")
    assert (
        [body["stream"] for body in provider.asked] == [asked == "model"] * 2
        if asked == "model"
        else True
    )
    found = hrm("replay", "--check", "runs")
    told = "Compared: 6 checkpoints, 4 tasks, 6 writes.\n1 run replayed, 1 equal, 0 not\n"
    assert (found.code, found.out) == (0, told)


def test_a_step_that_leaves_no_trace_at_the_end_is_compared(
    hrm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = "tests.support.graphs.compared_agents:steps"
    assert (
        hrm("run", "Go.", "--graph", graph, "--policy", "builtin:cold-start", "--thread", "t").code
        == 0
    )
    done = hrm("replay", "t")
    assert done.code == 0 and "4 checkpoints, 3 tasks, 7 writes" in done.out
    row = hrm("replay", "t", "--json").json
    assert (row["checkpoints"], row["tasks"], row["writes"], row["not_compared"]) == (4, 3, 7, [])
    checked = hrm("replay", "--check", "runs/store.db")
    assert checked.code == 0 and "4 checkpoints, 3 tasks, 7 writes" in checked.out
    ignored = hrm("replay", "t", "--ignore", "note")
    assert (
        ignored.code == 0
        and "Not compared: 2 writes to channels that --ignore leads into." in ignored.out
    )
    monkeypatch.setattr(compared_agents, "word", "other")
    done = hrm("replay", "t")
    assert done.code == 1 and "step 1 differs: note written by early" in done.out
    assert '-"draft"' in done.out and '+"other"' in done.out
    checked = hrm("replay", "--check", "runs/store.db", "--json")
    assert checked.code == 1
    assert (checked.json["checkpoints"], [row["step"] for row in checked.json["differ"]]) == (
        4,
        [1],
    )
