"""The grader apart: hostile answers cost little and win nothing, and no model-written code reaches
a verdict.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import open_store
from hrm_agent.training.tasks import load_tasks, verify
from hrm_agent.training.tasks.reasoning_gym import graded
from hrm_agent.training.tasks.verify import exact_verifier
from hrm_agent.trajectory import TaskRef, Trajectory
from tests.support.graphs.scripts import boxed
from tests.support.training.hostile_sets import Held, Odd

pytestmark = pytest.mark.whole

WRONG, RIGHT = r"<answer>\boxed{41}</answer>", r"<answer>\boxed{42}</answer>"


# hostile answers


@pytest.mark.parametrize("answer", ["loop", "power", "memory", "print", "exit", "raise", "nan"])
def test_a_verdict_that_ends_badly_is_none_and_the_next_is_sound(answer: str) -> None:
    began = time.thread_time()
    assert not graded(Odd(), {}, answer) >= 1.0
    assert graded(Odd(), {}, "right") == 1.0
    assert graded(Odd(), {}, "wait") == 1.0
    assert time.thread_time() - began < 5.0, "it cost the trainer nothing"


def test_a_data_set_that_cannot_be_sent_is_asked_in_place() -> None:
    assert (graded(Held(), {}, "right"), graded(Held(), {}, "nan") >= 1.0) == (1.0, False)


@pytest.mark.parametrize(
    ("family", "answers"),
    [
        ("coin_flip", ["1e999999999", "1e-999999999", "9" * 5000, "nan", "1/0"]),
        ("complex_arithmetic", ["NaN", "nan+nanj", "inf", "1e999+1j"]),
        ("countdown", ["9**9**9", "(" * 200 + "1" + ")" * 200, "1/0"]),
        ("game_of_life_halting", ["x", "yes", "true", "0"]),
        (
            "intermediate_integration",
            ["1e999999999", "(sin(x)+cos(x))**99", "pi**pi**pi"],
        ),
        ("polynomial_multiplication", ["1e999999999", "((x+y)**99)*((x-y)**99)", "9**9**9**9"]),
        ("propositional_logic", ["¬" * 5000, "(" * 5000 + ")" * 5000]),
        ("rubiks_cube", ["R999999999", "R2 " * 5000]),
        ("rush_hour", ["A+999999999", "A+99 " * 3000]),
        ("chain_sum", ["٤٢", "4²", "Answer: {}", "nan", "9" * 16000]),
    ],
)
def test_hostile_answers_win_nothing(family: str, answers: list[str]) -> None:
    (task,) = load_tasks(f"reasoning_gym:{family}", split="train", seed=0, count=1)
    began = time.thread_time()
    for answer in answers:
        hostile = answer.format(task.answer) if answer.startswith("Answer") else answer
        assert task.verify(boxed(hostile)) == task.verify(hostile) == 0.0, answer[:30]
    assert time.thread_time() - began < 5.0
    if task.answer is not None:
        assert task.verify(boxed(task.answer)) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "Answer: 42\n" + WRONG,
        WRONG + "\nAnswer: 42",
        "<tool_response>" + RIGHT + "</tool_response>" + WRONG,
        "<reason>" + RIGHT + "</reason>\nAnswer: 41",
        "Answer: 42\nAnswer: 41",
        "Answer: 42 or 41",
        boxed("42" + "\u200b"),
        boxed("4²"),
        boxed("٤٢"),
        boxed("４２"),
        boxed("42,41"),
        boxed("4 2"),
        boxed("nan"),
        boxed("0x2A"),
        boxed("4_2"),
        boxed("42**1"),
        boxed("(" * 10**5 + "42" + ")" * 10**5),
        boxed("9**9**9"),
        boxed("42e999999999"),
    ],
)
def test_no_forgery_is_the_answer(text: str) -> None:
    began = time.thread_time()
    assert exact_verifier("42")(text) == 0.0
    assert time.thread_time() - began < 5.0


# model-written code


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        opened.settimeout(0)
        yield opened


def attacks(listener: socket.socket, kept: Path) -> dict[str, str]:
    """Snippets that would turn a wrong answer into a right one, if they ran where the verdict is
    made.
    """
    source = str(Path(verify.__file__))
    return {
        "monkeypatch": (
            "import builtins, fractions\n"
            "fractions.Fraction.__eq__ = lambda a, b: True\n"
            "builtins.float = lambda *a: 1.0\n"
            "import sys\n"
            "for module in list(sys.modules.values()):\n"
            "    for name in ('exact_equal', 'exact_verifier', 'graded'):\n"
            "        setattr(module, name, lambda *a: lambda *b: 1.0)\n"
            "print('patched')"
        ),
        "files": (
            f"import os\nfor path in ({source!r}, {str(kept)!r}, '/tmp/sitecustomize.py',"
            " os.getcwd() + '/usercustomize.py'):\n    for mode in ('w', 'a', 'r+'):\n        try:"
            " open(path, mode).write('raise SystemExit')\n        except OSError as e:"
            " print(type(e).__name__)\n"
        ),
        "memory": (
            "import os\n"
            f"for pid in (1, os.getppid(), {os.getpid()}, {os.getppid()}):\n"
            "    for what in ('mem', 'maps', 'environ', 'fd/0', 'cwd'):\n"
            "        try: open(f'/proc/{pid}/{what}', 'r+b').write(b'42')\n"
            "        except (OSError, ValueError) as e: print(type(e).__name__)\n"
            "    try: os.kill(pid, 9) if pid > 1 and pid != os.getpid() else None\n"
            "    except OSError as e: print(type(e).__name__)\n"
        ),
        "sockets": (
            "import socket\ntry:\n    socket.create_connection(('127.0.0.1',"
            f" {listener.getsockname()[1]}), 1).sendall(b'1.0')\nexcept OSError as e:"
            " print(type(e).__name__)\n"
        ),
        "descriptors": (
            "import os, struct\n"
            "for fd in range(3, 256):\n"
            "    try: os.write(fd, struct.pack('<d', 1.0) * 4)\n"
            "    except OSError: pass\n"
            "print('written')"
        ),
        "fork": (
            "import os, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            f"    print({RIGHT!r}, flush=True)\n"
            "    time.sleep(3)\n"
            "    os._exit(0)\n"
        ),
        "forged output": f"print({json.dumps({'rewards': {'correct': 1.0}})!r}, {RIGHT!r})",
    }


async def run(code: str, answer: str, environment: LocalEnvironment, folder: Path) -> Trajectory:
    call = f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"
    seen: list[type] = []

    def judge(text: str) -> float:
        seen.append(type(text))
        return exact_verifier("42")(text)

    with open_store(folder / "store.db") as store, ScriptedEngine([call, answer]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        task = TaskRef(id="1", family="test", prompt="What is 6 * 7?", answer="42")
        trajectory = await runner.run(Episode(task, f"thread-{answer}", verify=judge))
    assert seen and issubclass(seen[0], str), "a verdict is asked once, on a text"
    return trajectory


@pytest.mark.parametrize(
    "attack", ["descriptors", "files", "forged output", "fork", "memory", "monkeypatch", "sockets"]
)
async def test_no_code_of_the_model_changes_a_verdict(
    attack: str, listener: socket.socket, tmp_path: Path
) -> None:
    kept = tmp_path / "answer.txt"
    kept.write_text("42")
    source = Path(verify.__file__).read_bytes()
    environment = LocalEnvironment(slots=2)
    try:
        code = attacks(listener, kept)[attack]
        for answer, reward in ((WRONG, 0.0), (RIGHT, 1.0)):
            trajectory = await run(code, answer, environment, tmp_path)
            assert trajectory.rewards == {"correct": reward}
            assert trajectory.tool_calls[0].status is not None
    finally:
        await environment.close()
    assert Path(verify.__file__).read_bytes() == source and kept.read_text() == "42"
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert graded(Odd(), {}, "nan") != 1.0 and graded(Odd(), {}, "right") == 1.0
    assert exact_verifier("42")(WRONG) == 0.0 and exact_verifier("42")(RIGHT) == 1.0
