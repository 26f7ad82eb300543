"""Rubrics applied to rollouts: values, weights, faults, and processes that are ended."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hrm_agent.basics.worker_process import WorkerProcess
from hrm_agent.errors import ConfigError, HrmError
from hrm_agent.import_by_name import import_by_name
from hrm_agent.rewards import Reward, Rollout, Rubric, Scored, opened_scorer, pool
from hrm_agent.trajectory import RewardFault, RunStatus, Scoring, StopReason, Trajectory
from tests.support.processes import children_that_run
from tests.support.trajectory.samples import make_trajectory

HOSTILE = "tests.support.rewards.hostile_rubric:rubric"


def rollout(text: str, **changes: Any) -> Rollout:
    return Rollout(make_trajectory(id=f"t-{text}", answer=text, **changes))


async def score(rubric: str | Rubric, *texts: str) -> dict[str, Scoring]:
    async with opened_scorer(rubric, folder=Path.cwd()) as scorer:
        found = await asyncio.gather(*(scorer.score([rollout(text)]) for text in texts))
    return {text: scoring for text, (scoring,) in zip(texts, found, strict=True)}


async def test_values_are_weighted_and_the_outcome_is_one_of_them() -> None:
    def right(text: str, reference: str | None) -> bool:
        return text == reference

    async def short(text: str) -> Scored:
        return Scored(-len(text) / 10, "by its length")

    def few_calls(tool_calls: Any, calls: Any) -> int:
        return len(tool_calls) - len(calls)

    def unsure() -> None:
        return None

    rubric = Rubric(
        [short, Reward(right, weight=2), Reward(few_calls, weight=0), unsure], outcome="right"
    )
    found = (await score(rubric, "42"))["42"]
    assert [(s.name, s.value, s.weight) for s in found.scores] == [
        ("short", -0.2, 1),
        ("right", 1.0, 2),
        ("few_calls", -1.0, 0),
        ("unsure", None, 1),
    ]
    assert found.scores[0].reason == "by its length"
    assert found.rewards == {
        "short": -0.2,
        "right": 1.0,
        "few_calls": -1.0,
        "correct": 1.0,
        "reward": 1.8,
    }


async def test_every_way_of_failing_is_typed_and_takes_nothing_else_with_it() -> None:
    texts = [
        "42",
        "sleep",
        "block",
        "wait",
        "raise",
        "nan",
        "exit",
        "quit",
        "stop",
        "fork",
        "abstain",
    ]
    others = [f"other {i}" for i in range(20)]
    found = await score(HOSTILE, *texts, *others)
    faults = {text: {s.name: s.fault for s in found[text].scores if s.fault} for text in texts}
    assert faults == {
        "42": {},
        "sleep": {"sleeps": RewardFault.TIMEOUT},
        "block": {"blocks": RewardFault.TIMEOUT},
        "wait": {"blocks": RewardFault.TIMEOUT},
        "raise": {"misbehaves": RewardFault.RAISED},
        "nan": {"misbehaves": RewardFault.NOT_A_NUMBER},
        "exit": {"misbehaves": RewardFault.PROCESS_ENDED},
        "quit": {"misbehaves": RewardFault.RAISED},
        "stop": {"misbehaves": RewardFault.RAISED},
        "fork": {},
        "abstain": {},
    }
    assert found["42"].rewards["reward"] == 2.25
    assert found["abstain"].rewards["reward"] == 1.0, "who abstains is left out of the sum"
    assert not any(found[text].rewards for text in texts if faults[text]), (
        "what has no value is not 0"
    )
    assert all(
        found[text].rewards == found["other 0"].rewards and found[text].rewards for text in others
    )
    assert "ValueError: of no use" in found["raise"].fault


async def test_a_function_that_returns_no_number_ends_the_scoring_with_its_name() -> None:
    with pytest.raises(HrmError, match=r"'misbehaves' returned 'good', a str\. Return a number"):
        await score(HOSTILE, "words")


async def test_what_a_reward_has_started_is_ended_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "leaving.py").write_text(
        "import subprocess\n"
        "def leaves(text):\n"
        "    process = subprocess.Popen(['sleep', '3600'])\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(process.pid))\n"
        "    return 1\n"
    )
    async with opened_scorer("./leaving.py:leaves", folder=tmp_path) as scorer:
        (found,) = await scorer.score([rollout("x")])
    assert found.rewards["reward"] == 1.0
    # A signal has been sent to it, which it takes as soon as it is given the processor.
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    while state.exists() and state.read_text().split()[2] != "Z":
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("turns", range(8))
def test_a_scoring_given_up_while_its_process_starts_leaves_none_behind_and_hangs_nobody(
    turns: int,
) -> None:
    """`turns` of the event loop after it began, all tasks are cancelled at once, as at the end of
    `asyncio.run`.
    """

    async def given_up() -> None:
        async with opened_scorer(HOSTILE, folder=Path.cwd()) as scorer:
            scoring.append(asyncio.create_task(scorer.score([rollout("42")])))
            for _ in range(turns):
                await asyncio.sleep(0)

    scoring: list[asyncio.Task[list[Scoring]]] = []
    asyncio.run(given_up())
    assert scoring[0].cancelled() or isinstance(scoring[0].exception(), ConfigError)
    assert children_that_run("hrm_agent.rewards.worker") == []


async def test_a_process_that_ended_before_it_was_connected_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ended(WorkerProcess):
        async def connect(self) -> None:
            await self.close()
            await super().connect()

    monkeypatch.setattr(pool, "WorkerProcess", Ended)
    with pytest.raises(ConfigError, match="ended the process that imported it"):
        await score(HOSTILE, "42")


async def test_a_group_is_compared_by_id_not_by_place() -> None:
    def place(group: list[Trajectory]) -> dict[str, float]:
        ranked = sorted(group, key=lambda t: t.answer or "")
        return {t.id: i / 10 for i, t in enumerate(ranked)}

    def wrong(group: list[Trajectory]) -> list[float]:
        return [1.0] * len(group)

    group = [rollout(text) for text in ("b", "c", "a")]
    async with opened_scorer(Rubric([place])) as scorer:
        assert [s.outcome for s in await scorer.score(group)] == [0.1, 0.2, 0.0]
    async with opened_scorer(Rubric([wrong])) as scorer:
        assert {s.scores[0].fault for s in await scorer.score(group)} == {RewardFault.RAISED}


async def test_a_truncated_run_is_not_right_and_keeps_its_other_rewards() -> None:
    def right() -> float:
        return 1.0

    def brief() -> float:
        return 0.5

    cut = rollout("42", status=RunStatus.TRUNCATED, stop_reason=StopReason.MAX_TOKENS)
    async with opened_scorer(Rubric([right, brief])) as scorer:
        (found,) = await scorer.score([cut])
    assert found.rewards == {"right": 0.0, "brief": 0.5, "correct": 0.0, "reward": 0.5}


async def test_a_state_that_is_not_on_record_is_said_and_not_scored() -> None:
    def length(state: dict[str, Any]) -> float:
        return float(len(state["notes"]))

    with_state = Rollout(make_trajectory(), {"notes": "a"})
    async with opened_scorer(Rubric([length])) as scorer:
        (found,), (lost,) = (
            await scorer.score([with_state]),
            await scorer.score([Rollout(make_trajectory())]),
        )
    assert found.outcome == 1.0
    assert lost.scores[0].fault is RewardFault.NOT_ON_RECORD
    assert "the state of thread 'thread-1' is not on record" in lost.fault


async def test_an_outcome_outside_of_its_range_is_a_fault() -> None:
    async with opened_scorer(Rubric([Reward(lambda: 3, name="much")])) as scorer:
        (found,) = await scorer.score([rollout("x")])
    assert found.scores[0].fault is RewardFault.OUT_OF_RANGE


@pytest.mark.parametrize(
    ("rubric", "said"),
    [
        (lambda: Rubric([]), "has no reward"),
        (
            lambda: Rubric([Reward(lambda txt: 1, name="a")]),
            r"unknown parameter 'txt'.*`?text",
        ),
        (
            lambda: Rubric([Reward(lambda: 1, name="a"), Reward(lambda: 1, name="a")]),
            "two rewards called 'a'",
        ),
        (lambda: Rubric([Reward(lambda: 1, name="a")], outcome="b"), "names 'b' as its outcome"),
        (lambda: Rubric([Reward(lambda: 1, name="a", weight=0)]), "All weights"),
        (lambda: Rubric([Reward(lambda: 1, name="reward")]), "cannot be called 'reward'"),
        (
            lambda: Rubric(
                [Reward(lambda: 1, name="correct"), Reward(lambda: 1, name="b")], outcome="b"
            ),
            "its outcome",
        ),
    ],
)
def test_a_rubric_that_cannot_be_is_refused(rubric: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rubric()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", "names no rubric"),
        ("no.such.module:rubric", "does not import: ModuleNotFoundError"),
        ("./broken.py:rubric", "does not import: ZeroDivisionError"),
        ("./ended.py:rubric", "does not import: SystemExit: 3"),
        ("./sound.py:rubrik", "has no 'rubrik'. It has .*rubric"),
        ("./sound.py:number", "is a int, not a rubric"),
        ("./sound.py:none", "is a NoneType, not a rubric"),
        ("answer:last_numbr", "no answer reader 'last_numbr'. Did you mean"),
        ("answer:last_number,near", "no comparison 'near'"),
    ],
)
async def test_a_name_that_names_no_rubric_is_refused(spec: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "ended.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "sound.py").write_text("number = 3\nnone = None\ndef rubric(text): return 1\n")
    with pytest.raises(ConfigError, match=said):
        async with opened_scorer(spec, folder=tmp_path):
            pass


async def test_a_rubric_of_a_file_says_which_source_it_had(tmp_path: Path) -> None:
    file, codes = tmp_path / "mine.py", []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        file = folder / "mine.py"
        file.write_text(f"def half(text):\n    return {number} / 4\n")
        async with opened_scorer("./mine.py:half", folder=folder) as scorer:
            (found,) = await scorer.score([rollout("x")])
        assert found.rubric == "./mine.py:half"
        assert found.outcome == number / 4
        codes.append(found.code)
    assert len(set(codes)) == 2
    assert all(codes)


async def test_a_rubric_with_a_name_of_its_own_is_loaded_by_the_string_that_names_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "from hrm_agent.rewards import Rubric\ndef half(text): return 0.5\nrubric = Rubric([half],"
        " name='halves')\n"
    )
    async with opened_scorer("./mine.py:rubric", folder=tmp_path) as scorer:
        (found,) = await scorer.score([rollout("x")])
    assert (found.rubric, found.outcome) == ("halves", 0.5)
    async with opened_scorer("./mine.py:rubric", folder=tmp_path, name="second") as scorer:
        (found,) = await scorer.score([rollout("x")])
    assert found.rubric == "second"


async def test_a_state_of_a_users_types_is_handed_over_or_the_fault_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "types_of_mine.py").write_text("class Note:\n    size = 0.25\n")
    (tmp_path / "rubric_of_mine.py").write_text("def size(state):\n    return state['note'].size\n")
    note = import_by_name("./types_of_mine.py", str(tmp_path)).Note()
    gone = type("Gone", (), {"__module__": "never_there"})
    module = ModuleType("never_there")
    module.__dict__["Gone"] = gone
    monkeypatch.setitem(sys.modules, "never_there", module)
    states: list[Any] = [{"note": note}, {"note": gone()}, {"note": lambda: 1}]
    async with opened_scorer("./rubric_of_mine.py:size", folder=tmp_path) as scorer:
        found = [await scorer.score([Rollout(make_trajectory(), state)]) for state in states]
    (sound,), (unread,), (unsent,) = found
    assert sound.outcome == 0.25
    assert "cannot be read in its process: ModuleNotFoundError" in unread.fault
    assert "cannot be handed to its process" in unsent.fault
    assert {s.scores[0].fault for s in (unread, unsent)} == {RewardFault.RAISED}
