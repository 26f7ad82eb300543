"""`hrm-agent chat`: from a pipe, at a real pseudo-terminal, killed in the middle,
and two at once.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import sys
import time
from pathlib import Path

import pytest

from hrm_agent.cli.runs.chat_session import ChatSession
from hrm_agent.store import open_store
from hrm_agent.store.database.leases import CHAT
from hrm_agent.tools.local_wiki import LocalWiki
from hrm_agent.tools.mediawiki import transport as asking
from hrm_agent.trajectory import RunStatus, StopReason, ToolStatus, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.cli.conftest import SCRIPT, Command, Outcome
from tests.support.postgres import PostgresServer
from tests.support.store.bodies import execute

PROJECT = Path(__file__).parents[3]
SLEEP = (
    '<tool_call>{"name": "python", "arguments": {"code": "import time;'
    ' time.sleep(100)"}}</tool_call>'
)


def script(path: Path, *answers: str) -> str:
    path.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{path}"


@pytest.fixture
def chat(hrm: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`hrm-agent chat WORDS` with lines from a pipe."""

    def run(*words: str, lines: tuple[str, ...] = ()) -> Outcome:
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO("".join(f"{x}\n" for x in lines).encode()))
        )
        return hrm("chat", *words)

    return run


def test_an_index_that_cannot_be_searched_is_said_before_the_conversation(
    chat: Command, hrm: Command, tmp_path: Path
) -> None:
    """The error is not reported as an answer that the sources have none. Recorded turns are read
    without the index.
    """
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "whale.txt").write_text("The blue whale eats krill.")
    (tmp_path / "text.db").write_text("not an index " * 100)
    assert hrm("index", "docs", "--store", "docs.db").code == 0
    policy = script(tmp_path / "s", '{"reply": "Hello."}')
    research = ("--graph", "research", "--policy", policy, "--context")
    for name in ("none.db", "text.db"):
        for done in (
            chat(*research, f"index={name}", "--thread", "none", lines=("What do whales eat?",)),
            chat(*research, f"index={name}", "--thread", "none", "--say", "What do whales eat?"),
            hrm("run", "What do whales eat?", *research, f"index={name}", "--thread", "none"),
        ):
            assert done.code == 2 and name in done.err and done.out == ""
    assert chat(*research, "index=docs.db", "--thread", "t", "--say", "Hi").out == "Hello.\n"
    Path("docs.db").unlink()
    again = chat("--thread", "t", lines=("/history",))
    assert again.code == 0 and "turn 1" in again.out
    assert chat("--thread", "t", *research, "index=none.db", lines=("/history",)).code == 2


def test_a_conversation_from_a_pipe(chat: Command, hrm: Command, tmp_path: Path) -> None:
    policy = script(tmp_path / "s", *SCRIPT, "<answer>5</answer>", "<answer>9</answer>")
    lines = (
        "What is 6 * 7?",
        "What is 2 + 3?",
        "/history",
        "/back 1",
        "What is 4 + 5?",
        "/diff",
        "/threads",
    )
    lines += ("/replay", "//slash", "/quit", "never said")
    done = chat("--policy", policy, "--thread", "t", "--seed", "1", lines=lines[:-3])
    assert done.code == 0 and done.err == ""
    shown = done.out.splitlines()
    assert shown[:3] == [
        "\\boxed{42}",
        "5",
        "turn 1  What is 6 * 7?  (/back 2 goes back to before it)",
    ]
    assert re.search(r"@1 +__start__ +-> reason", done.out) and re.search(
        r"@3 +tools .*-> reason", done.out
    )
    assert "On the thread t/fork-1, at moment 4." in shown
    assert "They diverged at moment 4, after reason." in shown and "+What is 4 + 5?" in shown
    assert re.search(r"\* +t/fork-1 +tool_loop +completed +2 +What is 4 \+ 5\?", done.out)
    assert shown[-5:] == [
        *("> What is 6 * 7?", "\\boxed{42}", "> What is 4 + 5?", "9"),
        "Replayed from the record, 8 moments: equal, byte for byte.",
    ]
    assert hrm("replay", "--check", "runs").code == 0 and hrm("lint", "runs").code == 0
    again = chat(
        "--thread",
        "t",
        "--policy",
        script(tmp_path / "u", "<answer>said</answer>"),
        lines=lines[-3:],
    )
    assert (again.code, again.out) == (0, "said\n")
    turns = hrm("show", "t", "--json").json["turns"]
    assert [turn["prompt"] for turn in turns] == ["What is 2 + 3?", "/slash"]
    assert "turn 2: What is 2 + 3?" in hrm("show", "t").out.splitlines()


THINKS = """
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph


def ask(state):
    thoughts = "\\n".join(f"Step {number}." for number in range(30))
    said = AIMessage("It is 42.", additional_kwargs={"reasoning_content": thoughts})
    return {"messages": [GenericFakeChatModel(messages=iter([said])).invoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()
"""


def test_thoughts_stand_before_the_answer_and_are_marked(
    chat: Command, hrm: Command, tmp_path: Path
) -> None:
    (tmp_path / "thinks.py").write_text(THINKS)
    options = ("--graph", "./thinks.py:graph", "--policy", script(tmp_path / "s", "unasked"))
    lines = chat(*options, "--thread", "t", lines=("What is 6 * 7?",)).out.splitlines()
    assert lines[:2] == ["thoughts:", "| Step 0."] and lines[-2:] == [
        "| ... 10 more lines",
        "It is 42.",
    ]
    assert len(lines) == 23 and all(line.startswith("| ") for line in lines[1:-1])
    events = chat(*options, "--thread", "u", "--json", "--say", "What is 6 * 7?").lines
    assert events[-1]["answer"] == "It is 42." and events[-1]["reasoning_content"].startswith(
        "Step 0.\n"
    )
    assert not any("Step" in event["text"] for event in events if event["event"] == "chunk")
    ran = hrm("run", "What is 6 * 7?", *options).out
    assert "    thoughts:\n    | Step 0.\n" in ran and "    | Step 29.\n    It is 42.\n" in ran


def test_turn_by_turn_without_a_prompt(chat: Command, hrm: Command, tmp_path: Path) -> None:
    first = chat(
        "--say",
        "What is 6 * 7?",
        "--thread",
        "t",
        "--policy",
        script(tmp_path / "s", *SCRIPT),
        "--json",
    )
    events = first.lines
    assert events[-1]["event"] == "end" and events[-1]["answer"].endswith(
        "<answer>\\boxed{42}</answer>"
    )
    assert {"chunk", "custom", "node"} <= {event["event"] for event in events}
    assert (
        chat("--say", "And now?", "--thread", "t", "--policy", script(tmp_path / "u", "So.")).out
        == "So.\n"
    )
    assert "turn 2: And now?" in hrm("history", "t").out
    hrm("fork", "t", "--at", "4", "--name", "other")
    with open_store("runs/store.db") as store:  # as Ctrl-C leaves a turn
        known = store.journal.trajectory("other")
        stopped = {
            "status": RunStatus.ABORTED,
            "stop_reason": StopReason.ABORTED,
            "ended_at": known.started_at,
        }
        store.journal.write_trajectory(known.model_copy(update=stopped))
    assert hrm("resume", "other", "--json").json["status"] == "completed", (
        "it is resumed, to its end"
    )
    assert (
        chat("--say", "Or so?", "--thread", "other", "--policy", script(tmp_path / "v", "Or.")).out
        == "Or.\n"
    )
    assert "reason" in hrm("history", "other").out and hrm("diff", "t", "other").code == 0
    prompts = hrm("resume", "other", "--json").json
    assert [turn["prompt"] for turn in prompts["turns"]] == ["Or so?"], (
        "what has ended is read back"
    )
    assert hrm("replay", "--check", "runs").code == 0
    refused = hrm("run", "And now?", "--thread", "t", "--policy", f"scripted:{tmp_path / 's'}")
    assert refused.code == 2 and "hrm-agent chat --thread t" in refused.err


def test_mistakes_are_told_in_a_line(chat: Command, tmp_path: Path) -> None:
    lines = (
        "/histroy",
        "/history",
        "/back 1",
        "hello",
        "/back 7",
        "/back @77",
        "/back before:nobody",
        "/sources 3",
    )
    lines += (
        "/diff a b c",
        "/threads nobody",
        "/resume",
        "once more",
        "/diff @0 nobody",
        "/fork t",
        "",
        "again",
    )
    done = chat("--policy", script(tmp_path / "s", "Hello.", "Well."), "--thread", "t", lines=lines)
    expected = [
        r"There is no command '/histroy'\. Did you mean '/history'\?",
        *2 * [r"Nothing has been said yet\. Say something\."],
        r"Hello\.",
        r"There are 1 turns, not 7\. See /history\.",
        r"Thread 't' has no moment '77'.*",
        r"Thread 't' has no moment 'before:nobody'.*before:reason.*",
        r"The newest answer has no citation '3'\. Known: none\.",
        r"/diff takes 2 words: .*",
        r"There is no thread 'nobody'.*",
        r"No turn is under way\. Say something\.",
        r"Well\.",
        r"There is no checkpoint of thread 'nobody'.*",
        r"Thread 't' exists already\. Give the fork another name\.",
        r"The script of .* has 2 answers, but one more was requested\..*",
        r"What the turn did so far is kept; /resume continues it\.",
    ]
    assert done.code == 1
    assert [
        bool(re.fullmatch(e, s)) for e, s in zip(expected, done.out.splitlines(), strict=True)
    ] == 16 * [True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--graph", "resaerch"), "There is no graph 'resaerch'. Did you mean 'research'?"),
        (("--graph", "research"), "The research agent has nothing to search"),
        (
            ("--graph", "tests.runtime.execution.test_conversation:one_task"),
            "its input has no messages",
        ),
        (("--mode", "majority"), "--mode majority cannot be used in a chat"),
        (("--context", "turns=1"), "has no option 'turns'"),
        (("--say", " "), "--say is empty"),
    ],
)
def test_wrong_options_are_told_before_anything_is_said(
    words: tuple[str, ...], message: str, chat: Command
) -> None:
    done = chat(*words, lines=("hello",))
    assert (done.code, done.out) == (2, "") and message in done.err


def test_questions_of_a_graph_are_asked_at_the_prompt(chat: Command, tmp_path: Path) -> None:
    options = ("--graph", "tests.support.graphs.replayed_agents:asks_twice", "--thread", "t")
    policy = ("--policy", script(tmp_path / "s", "Hm.", "Ho."))
    done = chat(*options, *policy, lines=("Help me.", "one", "/history"))
    assert done.out.splitlines()[:2] == ["first?", "second?"]
    done = chat(*options, lines=("", "two", "And then?"))
    assert done.out.splitlines() == ["second?", "Hm. one two", "first?"] and done.code == 0
    assert chat(*options, "--say", "1").out == "second?\n"


def test_several_questions_are_asked_one_by_one(
    chat: Command, hrm: Command, tmp_path: Path
) -> None:
    options = ("--graph", "tests.support.graphs.replayed_agents:asks_side_by_side", "--thread", "t")
    policy = ("--policy", script(tmp_path / "s", *4 * ["Hm."]))
    done = chat(*options, *policy, lines=("Help us.", "a", "b", "c", "d"))
    assert (
        done.out.splitlines()[:4] == ["first?", "first?", "second?", "second?"] and done.code == 0
    )
    assert done.out.splitlines()[4] == "Hm. b d"
    assert hrm("replay", "t").code == 0


def test_citations_and_the_cited_span(
    chat: Command, hrm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The research graph, its wiki gone after the first turn: the conversation goes on, and its
    sources stay.
    """
    monkeypatch.setattr(asking, "_LONGEST_WAIT", 0.0)
    (tmp_path / "wiki").mkdir()
    text = (
        "The blue whale is the largest animal. Reaching a length of 29.9 metres, it weighs 199"
        " tonnes."
    )
    (tmp_path / "wiki" / "Blue whale.txt").write_text(text)
    plan = json.dumps({"questions": [{"question": "How long is a blue whale?", "queries": []}]})
    calls = [{"name": "wiki_search", "arguments": {"query": "blue whale"}}]
    calls += [{"name": "wiki_page", "arguments": {"title": "Blue whale"}}]
    quote = '[S1: "Reaching a length of 29.9 metres"]'
    looked_up = [
        plan,
        *(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls),
        f"So {quote}.",
    ]
    policy = script(tmp_path / "s", *looked_up, f"Almost 30 metres {quote}.")
    with LocalWiki(tmp_path / "wiki") as wiki:
        context = ("--context", f"wiki={wiki.url}", "user_agent=tests/1.0 (a@example.org)")
        options = ("--graph", "research", "--thread", "t", "--max-tokens", "2048", *context)
        done = chat(
            *options,
            "--policy",
            policy,
            lines=("How long is a blue whale?", "/sources", "/sources 1"),
        )
        shown = done.out.splitlines()
        assert shown[0] == "Almost 30 metres [1]."
        assert re.fullmatch(rf"\[1\] Blue whale  {wiki.site}/wiki/Blue_whale\?oldid=\d+", shown[1])
        assert shown[2] == '    "Reaching a length of 29.9 metres"' and shown[3:5] == shown[1:3]
        assert re.fullmatch(r"  S1  Blue whale  .* characters, cited", shown[6])
        assert [line.rstrip() for line in shown[-3:]] == [
            text[:37],
            "Reaching a length of 29.9 metres",
            ", it weighs 199 tonnes.",
        ]
        events = hrm("history", "t", "--json").json
        assert events["status"] == "completed"
    policy = script(
        tmp_path / "u", *looked_up[:2], looked_up[2], "I found nothing.", "NOT ANSWERED It is away."
    )
    done = chat("--thread", "t", "--policy", policy, lines=("How heavy is it?", "/replay"))
    assert (
        "The sources do not answer this. It is away." in done.out
        and "equal" in done.out.splitlines()[-1]
    )
    sources = hrm("show", "t", "--sources", "--json").json
    assert sources["sources"]["S1"]["text"].strip() == text and done.code == 0
    assert "Blue whale" in hrm("show", "t", "--sources").out
    with open_store("runs/store.db") as store:
        trajectory = store.journal.trajectory("t")
        assert (
            lint(trajectory) == [] and trajectory.tool_calls[-1].status is ToolStatus.INFRASTRUCTURE
        )


def test_a_wrong_wiki_is_told_and_mended(chat: Command, hrm: Command, tmp_path: Path) -> None:
    """The interrupted turn is not resumed with other options, unless requested."""
    (tmp_path / "wiki").mkdir()
    plan = json.dumps({"questions": [{"question": "How long is it?", "queries": []}]})
    search = '<tool_call>{"name": "wiki_search", "arguments": {"query": "whale"}}</tool_call>'
    says = [plan, search, "I found nothing.", "NOT ANSWERED It has no page."]
    options = (
        "--graph",
        "research",
        "--thread",
        "t",
        "--max-tokens",
        "2048",
        "--context",
        "user_agent=t/1 (a@b.org)",
    )
    wrong = chat(
        *options,
        "wiki=nonsense",
        "--policy",
        script(tmp_path / "s", *says),
        lines=("How long is it?",),
    )
    assert wrong.code == 1 and wrong.out.startswith("'nonsense' is not a wiki.")
    with LocalWiki(tmp_path / "wiki") as wiki:
        policy = ("--policy", script(tmp_path / "u", *says))
        right = chat(
            "--thread",
            "t",
            *policy,
            *options[-2:],
            f"wiki={wiki.url}",
            lines=("How long?", "/replay"),
        )
    shown = right.out.splitlines()
    assert right.code == 0 and shown[0].startswith("The interrupted turn had other options")
    assert shown[1] == "The sources do not answer this. It has no page."
    assert shown[2:4] == ["> How long is it?", "(aborted)"] and "equal, byte for byte" in shown[-1]
    assert hrm("lint", "runs").code == 0


class Terminal:
    """Program at a pseudo-terminal, with typed input."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.shown = ""
        self.process, self._screen = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            # a shell's background job is born with it ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.environ |= {
                "PYTHONPATH": str(PROJECT),
                "TERM": "xterm",
                "COLUMNS": "100",
                "LINES": "30",
            }
            os.execv(sys.executable, [sys.executable, "-m", "hrm_agent.cli.main", *words])

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def until(self, pattern: str, seconds: float = 120.0) -> str:
        """Read until the pattern is shown, and return the output up to it, which is consumed."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"{pattern!r} was not shown: {self.shown!r}"
            if select.select([self._screen], [], [], 0.2)[0]:
                self.shown += os.read(self._screen, 65536).decode(errors="replace")
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def waits(self) -> None:
        """Wait until the main thread has slept undisturbed for a while, so that it waits for input."""
        status, still, seen = Path(f"/proc/{self.process}/task/{self.process}/status"), 0, ""
        while still < 10:
            found = "".join(re.findall(r"(?m)^(?:State|\w*ctxt_switches):.*$", status.read_text()))
            still = still + 1 if found == seen and "S (sleeping)" in found else 0
            seen = found
            time.sleep(0.02)

    def ends(self) -> int:
        """Wait for the end of the program and return its exit code."""
        while True:
            try:
                os.read(self._screen, 65536)
            except OSError:  # nobody has the other end any more
                break
        os.close(self._screen)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def test_at_a_terminal(tmp_path: Path, hrm: Command) -> None:
    """Input is typed, edited, stopped, taken back and killed. The chat is then opened again, and
    left by Ctrl-D.
    """
    policy = script(tmp_path / "s", SCRIPT[0], SCRIPT[1], SLEEP, "<answer>gone on</answer>", SLEEP)
    words = ("chat", "--policy", policy, "--thread", "t", "--seed", "1")
    one = Terminal(tmp_path, *words)
    one.until("thread t .new.")
    one.until("> ")
    one.type("What is 6 * 8?\b\b7?\r")
    one.until("boxed.42.*\n")
    one.until("> ")
    one.type("Sleep\r")
    one.until("running import time")
    one.type("\x03")
    one.until("Stopped; what was recorded is kept")
    one.until("> ")
    one.type("/resume\r")
    one.until("(?s)/resume.*running import time")
    one.type("\x03")
    one.until("Stopped; what was recorded is kept")
    one.until("> ")
    one.waits()  # Python's line editor misses a signal between its prompt and its wait
    one.type("\x03")  # at the prompt it only drops the line
    one.until("> ")
    one.type("\x1b[A\x1b[A and now?\r")  # the line before, from the history, with more
    one.until("gone on.*\n")
    one.until("> ")
    one.type("/ba\t\r")
    one.until("how many turns back")
    one.type("1\r")
    assert "On the thread t/fork-1" in one.until("On the thread .*\n")
    one.until("> ")
    second = hrm("chat", "--thread", "t/fork-1", "--say", "hello")
    assert second.code == 2 and "'t/fork-1' is being talked on already, by process" in second.err
    one.type("Sleep again\r")
    one.until("running import time")
    with open_store(tmp_path / "runs" / "store.db") as store:
        while not any(
            call.status is None for call in store.journal.trajectory("t/fork-1").own_tool_calls
        ):
            time.sleep(0.02)
    os.kill(one.process, signal.SIGKILL)
    assert one.ends() == -signal.SIGKILL

    script(tmp_path / "s", "<answer>after the kill</answer>", "<answer>bye</answer>")
    with open_store(tmp_path / "runs" / "store.db") as store:
        known = store.journal.trajectory("t/fork-1")
        assert known.status is RunStatus.RUNNING and known.prompts == (
            "What is 6 * 7?",
            "Sleep",
            "Sleep again",
        )
        (call,) = (call for call in known.own_tool_calls if call.status is None)
        # so that the test need not wait for it
        done = {"status": ToolStatus.OK, "content": "slept"}
        store.journal.write_tool_call(call.model_copy(update=done))
    two = Terminal(tmp_path, "chat", "--thread", "t/fork-1")
    two.until("Resuming the interrupted turn")
    two.until("after the kill.*\n")
    two.until("> ")
    two.type("\x1b[A again\r")
    two.until("bye.*\n")
    two.until("> ")
    two.type("\x04")
    assert two.ends() == 0
    shown = {thread: hrm("show", thread, "--json").json for thread in ("t", "t/fork-1")}
    assert [turn["prompt"] for turn in shown["t"]["turns"]] == ["Sleep", "Sleep and now?"]
    assert [turn["before"]["status"] for turn in shown["t"]["turns"]] == ["completed", "aborted"]
    assert [turn["prompt"] for turn in shown["t/fork-1"]["turns"]][-1] == "Sleep again again"
    assert len(shown["t/fork-1"]["calls"]) == 6, (
        "what had been answered before the kill was not asked again"
    )
    assert hrm("replay", "--check", "runs").code == 0 and hrm("lint", "runs").code == 0


def test_one_conversation_at_a_time_on_a_server(
    chat: Command, tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.create_database()
    policy = ("--policy", script(tmp_path / "s", "Hello.", "And again."))
    assert (
        chat("--store", url, "--thread", "t", *policy, lines=("Hi.", "Again.", "/replay")).code == 0
    )
    with open_store(url) as other, other.lease("t", "talked on"):
        refused = chat("--store", url, "--thread", "t", *policy, lines=("Hi.",))
    assert refused.code == 2 and "Thread 't' is being talked on already" in refused.err
    with open_store(url) as store:
        assert store.journal.trajectory("t").prompts == ("Hi.", "Again.")


def test_a_conversation_that_another_process_took_over(
    chat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session that lost the thread is warned before it adds to the other's turns, and goes on
    once it has seen them.
    """
    url, say = f"sqlite:///{tmp_path}/s.db", ChatSession.say
    policy = ("--policy", script(tmp_path / "s", "Hello.", "And again."))

    def taken_before(session: ChatSession, text: str) -> Trajectory:
        if text == "Lost.":
            execute(url, "UPDATE leases SET expires_at = 1")
            with open_store(url) as other, other.lease("t", CHAT):
                pass
        return say(session, text)

    monkeypatch.setattr(ChatSession, "say", taken_before)
    lines = ("Hi.", "Lost.", "Not yet.", "/threads t", "Here.")
    done = chat("--store", url, "--thread", "t", *policy, lines=lines)
    hello, first, second, *here = done.out.splitlines()
    assert done.code == 1 and [hello, *here] == ["Hello.", "On the thread t.", "And again."]
    assert "was taken over by another process" in first and "Run `/threads t` to continue" in second
    with open_store(url) as store:
        assert store.journal.trajectory("t").prompts == ("Hi.", "Here.")


def test_a_chat_gives_its_graph_what_is_configured(hrm: Command, scripted: str) -> None:
    words = (
        "chat",
        "--graph",
        "tests.support.graphs.forms:configured",
        "--policy",
        scripted,
        "--thread",
        "t",
        "--json",
    )
    assert (
        hrm(*words, "--config", "greeting=hello", "--say", "you").lines[-1]["answer"]
        == "hello to you"
    )
    assert (
        hrm("chat", "--thread", "t", "--say", "me", "--json").lines[-1]["answer"] == "hello to me"
    ), "it is kept"
