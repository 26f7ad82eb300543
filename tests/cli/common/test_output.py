"""Tables in terminals of any width."""

from __future__ import annotations

import pytest

from hrm_agent.cli.common.output import Output, remark

IDS = [f"{n}" * 30 for n in range(3)]


def shown(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *table: object
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    Output(as_json=False).table(*table)  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line != line.rstrip()] == [], "blanks at the end"
    return lines


def test_a_narrow_terminal_leaves_out_what_can_be_spared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(id_, id_[::-1], "ok", 1.5) for id_ in IDS]
    table = ("id", "twin", "state", "reward"), rows, "", ("twin", "reward")
    wide = shown(100, capsys, monkeypatch, *table)
    assert [line.split() for line in wide] == [
        ["id", "twin", "state", "reward"],
        *([i, i, "ok", "1.500"] for i in IDS),
    ]
    narrow = shown(60, capsys, monkeypatch, *table)
    assert [line.split() for line in narrow[:-1]] == [
        ["id", "state", "reward"],
        *([i, "ok", "1.500"] for i in IDS),
    ]
    assert narrow[-1] == "Not shown at this width: twin (--json has all)."


@pytest.mark.parametrize("width", [30, 40, 80])
def test_no_word_of_a_table_is_broken(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        ("results/of_a_run", "stop_reason", "what was found there, in words that go over lines", n)
        for n in "123"
    ]
    lines = shown(width, capsys, monkeypatch, ("where", "why", "finding", "count"), rows)
    assert [line for line in lines if len(line) > width] == []
    words = " ".join(lines).split()
    assert {
        word: words.count(word) for word in ("results/of_a_run", "stop_reason", "lines", "2")
    } == {
        "results/of_a_run": 3,
        "stop_reason": 3,
        "lines": 3,
        "2": 1,
    }


def test_lines_break_between_words_and_commands_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "hrm-agent eval --policy runs/a/model --graph own:graph --rewards ./scores.py:rubric"
    text = (
        f"The run has two steps; go on with `{command}`, which asks the policy for answers to other"
        " problems."
    )
    output = Output(as_json=False)

    def told() -> list[str]:
        output.say(text)
        output.next(command, command)
        remark(text)
        said = capsys.readouterr()
        return said.out.splitlines() + said.err.splitlines()

    monkeypatch.setenv("COLUMNS", "60")
    lines = told()
    assert [line for line in lines if len(line) > 60 and command not in line] == []
    assert [line for line in lines if line == f"  {command}"] == [f"  {command}"] * 2
    assert sum(f"`{command}`" in line for line in lines) == 2
    monkeypatch.delenv("COLUMNS")
    assert told() == [text, "Next:", f"  {command}", f"  {command}", f"hrm-agent: {text}"]
