"""`export` of real runs, and `import` of what was exported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.store import open_store
from hrm_agent.training.sft import read_chats, tokenize
from hrm_agent.trajectory import ForkRef, Trajectory, call_id
from hrm_agent.trajectory.forest import path_mask, path_tokens, paths
from hrm_agent.trajectory.formats import import_from, read_jsonl, write_jsonl
from tests.cli.conftest import SCRIPT, Command
from tests.support.graphs.own_agent import multiply
from tests.support.trajectory.forests import learned
from tests.support.trajectory.samples import make_call, make_tool_call, make_trajectory

TASK = "What is 6 * 7?"
READ_BACK = ("jsonl", "parquet", "trl", "verifiers")


def stored(store: str | Path) -> list[Trajectory]:
    with open_store(store, create=False) as opened:
        return list(opened.journal.trajectories())


@pytest.fixture
def ran(scripted: str, hrm: Command, tmp_path: Path) -> Path:
    """A store with one run of the tool loop, recorded as it happened."""
    assert hrm("run", TASK, "--policy", scripted).code == 0
    return tmp_path / "runs" / "store.db"


def test_a_conversation_is_the_tokens_that_the_policy_saw(
    ran: Path, hrm: Command, tmp_path: Path
) -> None:
    done = hrm("export", ran, "--out", "x.jsonl", "--format", "chat", "--json")
    assert done.json == {
        "file": "x.jsonl",
        "format": "chat",
        "trajectories": 1,
        "rows": 1,
        "left_out": {},
    }
    (conversation,) = read_chats(tmp_path / "x.jsonl")
    (example,) = tokenize(conversation, ByteCodec())
    (path,) = paths(stored(ran)[0].calls)
    assert example.token_ids == path_tokens(path)
    assert example.mask == path_mask(path)


def test_an_answer_of_no_weight_is_not_learned(ran: Path, hrm: Command, tmp_path: Path) -> None:
    hrm("export", ran, "--out", "x.chat")
    row = json.loads((tmp_path / "x.chat").read_text())
    assistant = next(message for message in row["messages"] if message["role"] == "assistant")
    assistant["weight"] = 0
    (tmp_path / "x.chat").write_text(json.dumps(row))
    (example,) = tokenize(read_chats(tmp_path / "x.chat")[0], ByteCodec())
    first, second = stored(ran)[0].calls
    assert example.token_ids == (*first.token_ids, *second.token_ids)
    assert example.mask == ((False,) * len(first.mask) + second.mask)


def test_a_graph_of_ones_own(scripted: str, hrm: Command, tmp_path: Path) -> None:
    """The graph's model reports no tokens. Its messages and tools are on record."""
    hrm("run", TASK, "--policy", scripted, "--graph", "tests.support.graphs.own_agent:graph")
    assert "1 rows of 1 trajectories" in hrm("export", "runs", "--out", "x.chat").out
    row = json.loads((tmp_path / "x.chat").read_text())
    assert row["tools"][0]["function"]["name"] == "multiply"
    assert row["messages"][-1] == {"role": "assistant", "content": "It is 42."}


def test_a_record_of_an_earlier_version_has_no_tools(
    scripted: str, hrm: Command, tmp_path: Path
) -> None:
    hrm("run", TASK, "--policy", scripted, "--graph", "tests.support.graphs.own_agent:graph")
    (now,) = stored("runs")
    then = now.model_copy(
        update={"calls": tuple(call.model_copy(update={"tools": None}) for call in now.calls)}
    )
    write_jsonl([then], tmp_path / "old.jsonl")
    done = hrm("export", "old.jsonl", "--out", "x.chat")
    assert done.code == 1 and not (tmp_path / "x.chat").exists()
    assert "0 rows of 1 trajectories were found, and x.chat was not written" in done.out
    assert "2 left out: the tools that were offered are not known" in done.out
    assert "--tools" in done.out
    assert multiply.args_schema is not None
    offered = [{"name": "multiply", "input_schema": multiply.args_schema.model_json_schema()}]
    (tmp_path / "tools.json").write_text(json.dumps(offered))
    assert "1 rows" in hrm("export", "old.jsonl", "--out", "x.chat", "--tools", "tools.json").out
    assert (
        json.loads((tmp_path / "x.chat").read_text())["tools"][0]["function"]["name"] == "multiply"
    )
    traced = hrm("export", "old.jsonl", "--out", "x.verifiers")
    assert (
        traced.code == 0 and "2 calls in these rows stand without theirs: the tools" in traced.out
    )


def test_results_of_tools_of_ones_own_are_proved_without_the_store(
    hrm: Command, tmp_path: Path
) -> None:
    asked = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps(answer) + "\n" for answer in (asked, "It is 42."))
    )
    words = (
        "--policy",
        "scripted:own.jsonl",
        "--graph",
        "tests.support.graphs.own_agent:graph",
        "--stand-in",
    )
    assert hrm("run", TASK, *words).code == 0
    assert multiply.args_schema is not None
    offered = {"name": "multiply", "input_schema": multiply.args_schema.model_json_schema()}
    (tmp_path / "tools.json").write_text(json.dumps([convert_to_openai_tool(offered)]))
    assert hrm("export", "runs", "--out", "x.jsonl").code == 0
    done = hrm("export", "x.jsonl", "--out", "x.chat", "--tools", "tools.json")
    assert "1 rows of 1 trajectories" in done.out, done.err
    row = json.loads((tmp_path / "x.chat").read_text())
    assert [message["role"] for message in row["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_a_trace_has_the_messages_and_the_tools(ran: Path, hrm: Command, tmp_path: Path) -> None:
    hrm("export", ran, "--out", "x.verifiers")
    trace = json.loads((tmp_path / "x.verifiers").read_text())
    roles = [node["message"]["role"] for node in trace["nodes"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 3]
    assert [tool["name"] for tool in trace["tools"]] == ["python"]
    assert trace["nodes"][2]["message"]["tool_calls"][0]["arguments"] == '{"code": "6 * 7"}'


@pytest.fixture
def forked(hrm: Command, tmp_path: Path) -> Path:
    """Store with a run, and a fork of it after its tool call."""
    answers = (*SCRIPT, r"<reason>forked</reason><answer>\boxed{42}</answer>")
    (tmp_path / "forked.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    assert (
        hrm("run", TASK, "--policy", f"scripted:{tmp_path / 'forked.jsonl'}", "--thread", "t1").code
        == 0
    )
    assert hrm("fork", "t1", "--at", "after:tools", "--run").code == 0
    return tmp_path / "runs" / "store.db"


def test_a_fork_teaches_what_it_added(forked: Path, hrm: Command, tmp_path: Path) -> None:
    first, fork = stored(forked)
    assert len(fork.calls) == 2
    assert len(fork.own_calls) == 1
    hrm("export", forked, "--out", "x.chat")
    rows = [json.loads(line) for line in (tmp_path / "x.chat").read_text().splitlines()]
    weights = [
        [m.get("weight") for m in row["messages"] if m["role"] == "assistant"] for row in rows
    ]
    assert weights == [[None, None], [0, None]]
    for name in ("trl", "verifiers"):
        hrm("export", forked, "--out", "x", "--format", name)
        found = list(import_from(tmp_path / "x"))
        assert [learned(one) for one in found] == [learned(first), learned(fork)]


def test_a_fork_is_read_back_once(forked: Path, hrm: Command) -> None:
    hrm("export", forked, "--out", "x.jsonl")
    assert hrm("import", "x.jsonl", "--store", "new.db", "--json").json["imported"] == 2
    assert hrm("import", "x.jsonl", "--store", "new.db", "--json").json["present"] == 2
    assert [one.own_calls for one in stored("new.db")] == [one.own_calls for one in stored(forked)]
    assert hrm("lint", "new.db").code == 0


@pytest.mark.parametrize("name", READ_BACK)
def test_out_and_in_again(name: str, ran: Path, hrm: Command) -> None:
    hrm("export", ran, "--out", "x", "--format", name)
    done = hrm("import", "x", "--store", "new.db", "--format", name, "--json")
    assert done.json == {
        "store": "new.db",
        "imported": 1,
        "present": 0,
        "without_lineage": 0,
        "untrainable": 0,
    }
    (original,), (found,) = stored(ran), stored("new.db")
    assert learned(found) == learned(original)
    assert hrm("lint", "new.db").code == 0
    if name in ("jsonl", "parquet"):
        assert found == original
    again = hrm("import", "x", "--store", "new.db", "--format", name, "--json").json
    assert (again["imported"], again["present"]) == (0, 1)
    assert stored("new.db") == [found]


def test_the_format_is_seen_from_the_file(ran: Path, hrm: Command) -> None:
    for name in READ_BACK:
        file = "x.parquet" if name == "parquet" else "x.jsonl"
        hrm("export", ran, "--out", file, "--format", name)
        assert hrm("import", file, "--store", f"{name}.db").code == 0
        assert len(stored(f"{name}.db")) == 1


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"answer": "other"}, "answer"),
        ({"id": "trajectory-2"}, "id"),
        ({"calls": (make_call("task-a"),)}, "calls"),
        ({"tool_calls": (make_tool_call(content="43"),)}, "tool_calls"),
    ],
)
def test_another_by_the_same_name_is_refused(
    changed: dict, where: str, store: str, hrm: Command, tmp_path: Path
) -> None:
    """The whole file is refused, including the trajectories before the conflict."""
    first = make_trajectory(id="new", thread_id="new", calls=(), tool_calls=())
    write_jsonl([first, make_trajectory(**changed)], tmp_path / "x.jsonl")
    done = hrm("import", "x.jsonl", "--store", store)
    assert done.code == 2
    assert f"it differs in {where}" in done.err
    assert stored(store) == [make_trajectory()]


def test_a_bad_line_at_the_end_keeps_the_store_as_it_was(
    store: str, hrm: Command, tmp_path: Path
) -> None:
    new = make_trajectory(id="new", thread_id="new", calls=(), tool_calls=())
    (tmp_path / "x.jsonl").write_text(new.model_dump_json() + "\n{}\n")
    assert "x.jsonl:2 holds no trajectory" in hrm("import", "x.jsonl", "--store", store).err
    assert stored(store) == [make_trajectory()]


def test_an_import_that_was_cut_short_is_gone_on_with(hrm: Command, tmp_path: Path) -> None:
    """Calls are written before the trajectory's own fields, so that an incomplete trajectory is not
    counted.
    """
    whole = make_trajectory()
    write_jsonl([whole], tmp_path / "x.jsonl")
    with open_store("half.db") as half:
        half.journal.write_call(whole.calls[0])
    assert stored("half.db") == []
    assert hrm("import", "x.jsonl", "--store", "half.db").code == 0
    assert stored("half.db") == [whole]


def test_a_call_on_record_that_differs_is_refused(hrm: Command, tmp_path: Path) -> None:
    whole = make_trajectory()
    write_jsonl([whole], tmp_path / "x.jsonl")
    with open_store("half.db") as half:
        half.journal.write_call(whole.calls[0].model_copy(update={"model": "another"}))
    done = hrm("import", "x.jsonl", "--store", "half.db")
    assert done.code == 2
    assert f"it differs in call {whole.calls[0].id}" in done.err
    assert stored("half.db") == []


@pytest.mark.parametrize(
    ("changed", "where"),
    [
        ({"token_ids": (5, 6, -1, 2)}, "token-range"),
        ({"token_ids": (5, 6, 2**40, 2)}, "token-range"),
        ({"mask": (False, True)}, "alignment"),
        ({"parent": make_call("task-a").id, "branch_reason": None}, "parent-acyclic"),
        ({"call_index": 10**15, "id": call_id("thread-1", "task-a", 10**15)}, "call-index-gapless"),
    ],
)
def test_what_the_linter_finds_is_not_imported(
    changed: dict, where: str, hrm: Command, tmp_path: Path
) -> None:
    write_jsonl(
        [make_trajectory(calls=(make_call("task-a").model_copy(update=changed),))],
        tmp_path / "x.jsonl",
    )
    done = hrm("import", "x.jsonl", "--store", "new.db")
    assert done.code == 2 and where in done.err
    assert stored("new.db") == []


def test_a_run_without_a_name_is_not_imported(hrm: Command, tmp_path: Path) -> None:
    for name in ("id", "thread_id"):
        write_jsonl([make_trajectory(calls=(), tool_calls=(), **{name: " "})], tmp_path / "x.jsonl")
        assert "has no id or no thread_id" in hrm("import", "x.jsonl", "--store", "new.db").err


def test_no_import_adds_to_another_run(store: str, hrm: Command, tmp_path: Path) -> None:
    (known,) = stored(store)
    forged = make_call("task-x"), make_tool_call("tc-x")
    new = make_trajectory(id="new", thread_id="new", calls=(forged[0],), tool_calls=())
    fork = new.model_copy(
        update={"forked_from": ForkRef(trajectory_id=known.id, checkpoint_id="c")}
    )
    tools = fork.model_copy(update={"calls": (), "tool_calls": (forged[1],)})
    for one, reason in (
        (new, "forest-thread"),
        (fork, "does not have this call"),
        (tools, "does not have this call"),
    ):
        write_jsonl([one], tmp_path / "x.jsonl")
        done = hrm("import", "x.jsonl", "--store", store)
        assert done.code == 2 and reason in done.err
        assert stored(store) == [known]


def test_what_a_fork_inherited_is_not_written(store: str, hrm: Command, tmp_path: Path) -> None:
    (known,) = stored(store)
    left = ForkRef(trajectory_id=known.id, checkpoint_id="c")
    write_jsonl(
        [known.model_copy(update={"id": "new", "thread_id": "new", "forked_from": left})],
        tmp_path / "x.jsonl",
    )
    for where in (store, "new.db"):
        done = hrm("import", "x.jsonl", "--store", where, "--json")
        assert (done.json["imported"], done.json["without_lineage"]) == (1, 1)
        with open_store(where) as opened:
            assert len(opened.journal.tool_calls()) == (
                len(known.tool_calls) if where == store else 0
            )


def test_what_import_says_of_mistakes(ran: Path, hrm: Command, tmp_path: Path) -> None:
    assert "parquet" in hrm("import", "x", "--format", "parquets").err
    assert "cannot be read" in hrm("import", "absent.jsonl", "--store", "new.db").err
    assert not (tmp_path / "new.db").exists()
    hrm("export", ran, "--out", "x.chat")
    done = hrm("import", "x.chat")
    assert done.code == 2
    assert "hrm-agent train sft x.chat" in done.err


def test_what_export_says_of_mistakes(ran: Path, hrm: Command, tmp_path: Path) -> None:
    assert (
        "--reward works with --format chat only"
        in hrm("export", ran, "--out", "x.jsonl", "--reward", "1").err
    )
    assert "verifiers" in hrm("export", ran, "--out", "x", "--format", "verifier").err
    (tmp_path / "tools.json").write_text("{}")
    assert (
        "is not a list of tools"
        in hrm("export", ran, "--out", "x.chat", "--tools", "tools.json").err
    )
    assert "cannot be read" in hrm("export", ran, "--out", "x.chat", "--system", "absent").err


@pytest.mark.parametrize("name", ["sample.db", "./linked.db", "x.jsonl"])
def test_no_export_is_written_over_a_store_or_its_source(
    name: str, store: str, hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "linked.db").symlink_to(store)
    write_jsonl([make_trajectory()], tmp_path / "x.jsonl")
    done = hrm("export", "x.jsonl", "--format", "atif", "--out", name)
    assert done.code == 2
    assert "would overwrite" in done.err
    assert stored(store) == list(read_jsonl(tmp_path / "x.jsonl")) == [make_trajectory()]


def test_parquet_without_pyarrow(ran: Path, hrm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = hrm("export", ran, "--out", "x.parquet")
    assert done.code == 2
    assert "[train]'" in done.err
