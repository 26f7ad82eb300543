"""Examples run from the command line as their docstrings state, with the stated results."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hrm_agent.cli.main import main
from hrm_agent.environment import LocalEnvironment
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, StopReason, Trajectory
from hrm_agent.trajectory.lint import lint
from tests.support.lent import lend

pytestmark = pytest.mark.whole

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
CALL = '<tool_call>{"name": "python", "arguments": {"code": "6 * 7"}}</tool_call>'
REMOTE = "openai:"
Runs = Callable[..., Trajectory]


def commands(name: str) -> list[list[str]]:
    """The words of each command in the docstring of an example."""
    said = (importlib.import_module(f"examples.{name}").__doc__ or "").replace("\\\n", " ")
    return [
        shlex.split(line)
        for line in said.splitlines()
        if line.startswith(("    hrm-agent ", "    python "))
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: LocalEnvironment) -> Path:
    """Folder in which the commands run. It has the examples and no record yet."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    lend(environment, monkeypatch)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Runs:
    """Function that runs a command by `hrm-agent`, greedily, and returns the only trajectory."""

    def run(words: list[str], *more: str, store: str = "runs/store.db") -> Trajectory:
        assert words[0] == "hrm-agent"
        greedy = ["--temperature", "0"] if words[1] == "run" else []
        assert main([*words[1:], *greedy, *more]) == 0
        with open_store(store, create=False) as opened:
            (trajectory,) = opened.journal.trajectories()
        assert lint(trajectory) == []
        return trajectory

    return run


def scripted(folder: Path, name: str, *answers: str) -> str:
    (folder / name).write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    return f"scripted:{folder / name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_of_a_docstring_is_one(name: str, folder: Path) -> None:
    found = commands(name)
    assert any(f"examples.{name}" in " ".join(words) for words in found)
    for words in found:
        if words[0] == "hrm-agent" and words[1] in ("run", "train"):
            assert main([*words[1:], "--dry-run"]) == 0


def test_a_graph_of_ones_own(run: Runs) -> None:
    trajectory = run(commands("own_graph")[0])
    assert trajectory.answer is not None and "226" in trajectory.answer
    assert [call.content for call in trajectory.tool_calls] == ["226"]


def test_the_grid_puzzle(run: Runs, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, scored = commands("arc_toy")
    trajectory = run(one)
    assert trajectory.answer == "Answer: [[1, 1], [1, 0]]"
    # a script that is read out stays so
    (folder / "again.jsonl").write_text((EXAMPLES / "arc_toy.jsonl").read_text())
    words = [word.replace("examples/arc_toy.jsonl", "again.jsonl") for word in scored[1:]]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["pass_at_1"] == 1.0
    assert [call.content for call in trajectory.tool_calls[:2]] == [
        "['invert']",
        "[[1, 1], [1, 0]]",
    ]
    assert "assert len(grid)" in str(trajectory.tool_calls[2].arguments), "the critic's check"
    assert len({call.identity.checkpoint_ns.split(":")[0] for call in trajectory.calls}) == 1, (
        "all inside one node"
    )


def test_a_grid_that_is_none_is_not_the_solution() -> None:
    from examples.arc_toy import correct

    for said, solved in (
        ("Answer: [[1,1], [1, 0]]", True),
        ("Answer: [[1,,1]]", False),
        ("[[1, 1], [1, 0]]", False),
    ):
        assert correct(said, "[[1, 1], [1, 0]]") == solved


def test_the_word_problems(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from examples.word_maths import STORE
    from examples.word_maths import main as word_maths

    for _ in range(2):  # the second time they are read back
        word_maths([])
        said = capsys.readouterr().out.splitlines()
        assert (
            said[0].startswith("tank: Answer: 1279.43 (right)")
            and said[1].startswith("farm: ")
            and "(right)" in said[1]
        )
    with pytest.raises(SystemExit, match="There is no model folder 'nothing-here'"):
        word_maths(["--policy", "nothing-here"])
    with open_store(STORE, create=False) as store:
        for trajectory, line in zip(store.journal.trajectories(), said, strict=True):
            assert ("(right)" in line) == (trajectory.rewards == {"correct": 1.0}) and lint(
                trajectory
            ) == []


def test_a_role_of_ones_own_sends_the_answer_back(run: Runs) -> None:
    trajectory = run(commands("own_role")[0])
    assert trajectory.answer is not None and "\\boxed{1850}" in trajectory.answer
    assert [call.content for call in trajectory.tool_calls] == ["1.85", "1850"]
    assert [call.identity.checkpoint_ns.partition(":")[0] for call in trajectory.calls] == [
        *("solve", "solve", "check", "solve", "solve", "check")
    ]


def test_nothing_runs_before_a_person_has_agreed(
    run: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, resume = commands("human_approval")
    waiting = run(ask)
    assert (waiting.status, waiting.stop_reason) == (RunStatus.TRUNCATED, StopReason.INTERRUPT)
    assert waiting.tool_calls == () and "May this run?" in capsys.readouterr().out
    trajectory = run(resume)
    assert trajectory.answer is not None and "226" in trajectory.answer
    assert trajectory.calls[0] == waiting.calls[0] and len(trajectory.tool_calls) == 1


@pytest.mark.slow
def test_a_journey_when_the_wiki_is_gone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run both parts, each in its own process, then the commands on the record."""
    talk, travel, *on_record = commands("research_time_travel")
    assert [talk[-1], travel[-1]] == ["talk", "travel"]
    done = subprocess.run([sys.executable, *talk[1:-1]], capture_output=True, text=True, check=True)
    talked = travelled = done.stdout
    said = list[str]()
    for words in on_record:
        assert main(words[1:]) == 0
        said.append(capsys.readouterr().out)
    _, replayed, sources = said
    assert "It is almost 30 metres long [1]." in talked and "They come up to feed [1]." in talked
    assert (
        "@4   gather -> write" in travelled
        and "Played again, 28 checkpoints, 24 tasks: equal." in travelled
    )
    assert "It is about 98 feet long [1]." in travelled
    assert re.search(
        r"This needs the wiki: infrastructure: http://127\.0\.0\.1.* cannot be reached", travelled
    )
    assert (
        "The sources do not answer this." in travelled
        and "The model was asked 7 times." in travelled
    )
    assert "equal, byte for byte" in replayed and "They feed near the surface at night" in sources
    with open_store("runs/research_time_travel.db", create=False) as store:
        assert [lint(trajectory) for trajectory in store.journal.trajectories()] == [[], [], []]


def test_what_a_person_refuses_is_not_run(run: Runs, folder: Path) -> None:
    policy = scripted(folder, "refused.jsonl", CALL, r"<answer>\boxed{forty-two}</answer>")
    run(commands("human_approval")[0], "--policy", policy)
    trajectory = run(["hrm-agent", "resume", "farm", "--answer", "by heart, please"])
    assert (
        trajectory.tool_calls == () and trajectory.answer == r"<answer>\boxed{forty-two}</answer>"
    )
    assert trajectory.calls[1].parent == trajectory.calls[0].id


def test_several_models_for_several_roles(run: Runs) -> None:
    trajectory = run(commands("models_by_role")[0])
    assert trajectory.status is RunStatus.COMPLETED
    assert {call.model for call in trajectory.calls} == {"builtin:cold-start", "builtin:trained"}


def test_the_policy_in_force_judges_where_they_differ(run: Runs, folder: Path) -> None:
    one = scripted(folder, "one.jsonl", CALL, r"<answer>\boxed{42}</answer>")
    other = scripted(folder, "other.jsonl", r"<answer>\boxed{41}</answer>")
    judge = scripted(folder, "judge.jsonl", r"<answer>\boxed{42}</answer>")
    words = ["--policy", judge, "--context", f"first={one}", f"second={other}"]
    trajectory = run(commands("models_by_role")[0], *words)
    assert trajectory.answer == r"<answer>\boxed{42}</answer>"
    by_model = {call.model: call.identity.node for call in trajectory.calls}
    assert by_model == {one: "think", other: "think", judge: "judge"}
    assert [call.model for call in trajectory.calls][-1] == judge
