"""Code that is run against tests: correct code scores 1 in any form, wrong or hostile code 0."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hrm_agent.environment import ExecutionResult, SessionState, Submission, using_environment
from hrm_agent.environment.local.environment import LocalEnvironment
from hrm_agent.rewards import Reward, Rollout, Rubric, opened_scorer, passes_tests
from hrm_agent.trajectory import RewardFault, RewardScore, TaskRef, ToolStatus
from tests.support.rewards.hostile_programs import hostile_answers, misjudged
from tests.support.rewards.right_programs import ANSWERS
from tests.support.trajectory.samples import make_trajectory


@pytest.fixture(scope="module")
def environment() -> Iterator[LocalEnvironment]:
    opened = LocalEnvironment(slots=2)
    yield opened
    opened.shutdown()


async def scores(reward: Reward, asked: Sequence[tuple[str, Sequence[Any]]]) -> list[RewardScore]:
    """The score of each text with its tests."""

    async def score(text: str, tests: Sequence[Any]) -> RewardScore:
        task = TaskRef(id="t", family="mine", prompt="p", metadata={"tests": list(tests)})
        async with gate:
            (found,) = await scorer.score([Rollout(make_trajectory(answer=text, task=task))])
        return found.scores[0]

    gate = asyncio.Semaphore(4)
    async with opened_scorer(Rubric([reward])) as scorer:
        return await asyncio.gather(*(score(text, tests) for text, tests in asked))


async def test_right_code_scores_one_and_its_wrong_sibling_none(
    environment: LocalEnvironment,
) -> None:
    wrong = [(answer.text.replace(*answer.wrong), answer.tests) for answer in ANSWERS]
    right = [(answer.text, answer.tests) for answer in ANSWERS]
    with using_environment(environment):
        found = await scores(passes_tests(seconds=20.0), [*right, *wrong])
    missed = {
        answer.name: (one, other)
        for answer, one, other in zip(
            ANSWERS, found[: len(ANSWERS)], found[len(ANSWERS) :], strict=True
        )
        if (one.value, other.value) != (1.0, 0.0)
    }
    assert missed == {}
    assert len(ANSWERS) >= 60


RETURNS_FIVE = "```python\ndef f(n):\n    return 5\n```"
BROKEN = {
    "a number whose text is too long": (
        "class X:\n    def __repr__(s): return '0x' + 'f' * 9000\ndef f(n):\n    return X()"
    ),
    "a number of a million bits": "def f(n):\n    return 1 << 10**6",
    "brackets where the value goes": "import os\nos.write(3, b'1\\nx' + b'[' * 980)\nos._exit(0)",
    "a value that is no JSON": (
        "import os\ndef f(n):\n    os.write(3, b'1\\nx' + b'{' * 50)\n    os._exit(0)"
    ),
    "an object that equals all": (
        "class X:\n    def __eq__(self, o): return True\ndef f(n):\n    return X()"
    ),
    "an object that says it is an int": (
        "class X:\n    __class__ = int\n    def __int__(self): return 4\ndef f(n):\n    return X()"
    ),
    "a harness that says other things": (
        "import sys\nsys.modules['__main__'].data = lambda v: 6\ndef f(n):\n    return 5"
    ),
    "an exception without words": (
        "def f(n):\n    raise type('E', (BaseException,), {'__str__': lambda s: 1 / 0})()"
    ),
    "a thread that ends the process": (
        "import os, threading, time\n"
        "def f(n):\n    threading.Timer(0, os._exit, (0,)).start()\n    time.sleep(1)"
    ),
    "an endless value": "def f(n):\n    return iter(int, 1)",
    "half a character": "def f(n):\n    return '\\ud800'",
    "a cycle": "a = []\na.append(a)\ndef f(n): return a",
    "a null": "def f(n):\n    return 5\0",
}


@pytest.mark.parametrize("code", BROKEN.values(), ids=BROKEN.keys())
async def test_what_code_breaks_is_its_own_failed_test(
    environment: LocalEnvironment, code: str
) -> None:
    tests = [{"call": "f(1)", "equals": 5}]
    with using_environment(environment):
        broken, right = await scores(
            passes_tests(), [(f"```python\n{code}\n```", tests), (RETURNS_FIVE, tests)]
        )
    assert (broken.value, broken.fault, right.value) == (0.0, None, 1.0)
    assert "test 1: " in broken.reason


async def test_drawn_hostile_programs_score_zero_and_no_fault(
    environment: LocalEnvironment,
) -> None:
    wrong, _ = await misjudged(hostile_answers(seed=0, count=100), environment)
    assert wrong == []


@pytest.mark.slow
@pytest.mark.whole
async def test_many_drawn_hostile_programs_score_zero_and_no_fault(
    environment: LocalEnvironment,
) -> None:
    wrong, _ = await misjudged(hostile_answers(seed=1, count=300), environment)
    assert wrong == []


LOOKS_AROUND = """```python
import gc, linecache, os, re, sys

def seen():
    frame, held = sys._getframe(), [linecache.cache, sys.argv, os.environ]
    while frame is not None:
        held += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]
        frame = frame.f_back
    held += [each for each in gc.get_objects() if type(each) in (list, tuple, dict)]
    held = [list(each.values()) if hasattr(each, "values") else each for each in held]
    texts = [text for each in held for text in each if type(text) is str]
    for descriptor in range(10):
        try:
            texts.append(repr(os.pread(descriptor, 10**6, 0)))
        except OSError:
            pass
    return sorted(set(re.findall("inp" + r"ut_\\d", " ".join(texts))))

AT_FIRST = seen()

def f(given):
    return [name for name in AT_FIRST + seen() if name > given]

if __name__ == "__main__":
    print(input(), *seen())
```"""


async def test_code_sees_the_input_of_its_own_test_when_that_is_due(
    environment: LocalEnvironment,
) -> None:
    names = [f"input_{number}" for number in range(1, 5)]
    calls: list[Any] = [{"call": f"f({name!r})", "equals": []} for name in names]
    fed: list[Any] = [{"stdin": f"{name}\n", "stdout": f"{name} {name}"} for name in names]
    with using_environment(environment):
        (found,) = await scores(passes_tests(seconds=20.0), [(LOOKS_AROUND, [*calls, *fed])])
    assert found.reason == "8 of 8 tests passed"


class Counting(LocalEnvironment):
    """Counts the calls that it is given."""

    calls = 0
    lose = False
    slower = 0.0
    evicts = False

    async def run(self, submission: Submission) -> ExecutionResult:
        self.calls += 1
        found = await super().run(submission)
        found = replace(found, duration_seconds=found.duration_seconds + self.slower)
        if self.evicts and found.session is SessionState.KEPT:
            found = replace(found, session=SessionState.REPLAYED)
        return (
            replace(found, status=ToolStatus.INFRASTRUCTURE, stderr="it is gone")
            if self.lose
            else found
        )


@pytest.fixture(scope="module")
def counting() -> Iterator[Counting]:
    opened = Counting(slots=1)
    yield opened
    opened.shutdown()


SOMETIMES = (
    "```python\nimport os\ndef f(n):\n    if n == 2: os._exit(0)\n    return n + (n == 4)\n```"
)
CALLED: list[Any] = [{"call": f"f({n})", "equals": n} for n in range(1, 6)]


async def test_the_first_failure_is_the_last_test_where_only_the_whole_counts(
    counting: Counting,
) -> None:
    counting.calls = 0
    fed: list[Any] = [{"stdin": str(n), "stdout": "no"} for n in range(50)]
    with using_environment(counting):
        found = await scores(passes_tests(), [(SOMETIMES, CALLED), (RETURNS_FIVE, fed)])
    assert [one.value for one in found] == [0.0, 0.0]
    assert found[0].reason.startswith("1 of 5 tests passed; test 2: ")
    assert counting.calls == 3


async def test_the_share_counts_what_passes_before_and_after_a_process_that_has_ended(
    counting: Counting,
) -> None:
    with using_environment(counting):
        (found,) = await scores(passes_tests(partial=True), [(SOMETIMES, CALLED)])
    assert found.value == 3 / 5
    assert "sessions_known 0" in await counting.metrics(), "the processes of its calls are ended"


async def test_code_that_runs_into_its_time_again_and_again_is_given_up(counting: Counting) -> None:
    counting.calls = 0
    fed: list[Any] = [{"stdin": str(n), "stdout": "no"} for n in range(50)]
    with using_environment(counting):
        (found,) = await scores(
            passes_tests(partial=True, seconds=0.2), [("```python\nwhile True: pass\n```", fed)]
        )
    assert (found.value, counting.calls) == (0.0, 5)
    assert found.reason == "0 of 50 tests passed; test 1: timeout"


async def test_the_tests_of_a_program_have_a_time_together(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "slower", 45.0)
    counting.calls = 0
    fed: list[Any] = [{"stdin": str(n), "stdout": "no"} for n in range(50)]
    with using_environment(counting):
        (found,) = await scores(passes_tests(partial=True, seconds=50.0), [(RETURNS_FIVE, fed)])
    assert (found.value, found.fault, counting.calls) == (0.0, None, 45)


async def test_a_process_that_is_ended_to_make_room_counts_against_no_program(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "evicts", True)
    with using_environment(counting):
        (found,) = await scores(
            passes_tests(), [(RETURNS_FIVE, [{"call": "f(1)", "equals": 5}] * 40)]
        )
    assert found.value == 1.0


async def test_what_the_sandbox_loses_is_a_fault_and_no_failed_test(counting: Counting) -> None:
    counting.lose = True
    with using_environment(counting):
        (found,) = await scores(passes_tests(), [(RETURNS_FIVE, CALLED)])
    counting.lose = False
    assert found.fault is RewardFault.RAISED
    assert "the sandbox lost the call: it is gone" in found.reason


async def test_a_test_that_the_sandbox_cannot_take_is_named(counting: Counting) -> None:
    noise = "".join(map(chr, Random(0).choices(range(0x4E00, 0x9FFF), k=600_000)))
    with using_environment(counting):
        (found,) = await scores(passes_tests(), [(RETURNS_FIVE, [{"stdin": noise, "stdout": "5"}])])
        (long,) = await scores(
            passes_tests(), [(f"```python\n{'#' * 300_000}\n```", [{"stdin": "", "stdout": ""}])]
        )
    assert found.fault is RewardFault.RAISED
    assert "bytes to the program, more than the maximum of" in found.reason
    assert (long.value, long.reason) == (0.0, "the code is longer than 262,144 bytes")
