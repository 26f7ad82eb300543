"""Pages and command line show the same figures, for a run that training has made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hrm_agent.basics.intervals import wilson_interval
from hrm_agent.cli.main import main
from hrm_agent.store import open_store
from hrm_agent.trajectory import RunStatus, Scoring
from hrm_agent.viewer.json_text import NotThere, json_text
from hrm_agent.viewer.places import Place
from hrm_agent.viewer.projections import ENDPOINTS
from tests.support.trajectory.samples import make_trajectory

pytestmark = pytest.mark.whole

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def place(trained_run: Path) -> Iterator[Place]:
    found = Place("small", str(trained_run), trained_run)
    yield found
    found.close()


@pytest.fixture(scope="module")
def ask(place: Place) -> Ask:
    def asked(name: str, **query: str) -> dict[str, Any]:
        endpoint = ENDPOINTS[name]
        given = [place] if endpoint.everywhere else place
        with place.moment():
            return json.loads(json_text(endpoint.function(given, **endpoint.read(query))))

    return asked


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_in_the_list(ask: Ask, trained_run: Path) -> None:
    (run,) = ask("runs")["runs"]
    rows = rows_of(trained_run)
    assert (run["place"], run["run"], run["kind"]) == ("small", "small", "train rl")
    assert (run["steps"], run["of_steps"], run["status"]) == (3, 3, "ended")
    assert (run["accuracy"], run["accuracy_of"]) == (rows[-1]["eval/correct"], "held-out")
    assert run["spark"] == [row["rollout/correct"] for row in rows]
    assert run["trajectories"] == ask("trajectories", run="small")["total"]


def test_curves_are_the_metrics_with_the_console_s_steps(ask: Ask, trained_run: Path) -> None:
    rows, found = rows_of(trained_run), ask("metrics", run="small")
    assert found["steps"] == [row["step"] + 1 for row in rows] == [1, 2, 3]
    for key, values in found["series"].items():
        assert values == [row.get(key) for row in rows], key
    for role, keys in found["roles"].items():
        for key, values in keys.items():
            assert values == [row["roles"].get(role, {}).get(key) for row in rows], key
    assert found["config"]["rollout.group_size"] == 4
    assert ask("metrics", run="small", after="2")["series"]["loss"] == [rows[2]["loss"]]
    assert ask("metrics", run="another")["total"] == 0, "the folder's metrics are its own run's"


def test_held_out_accuracy_has_the_interval_of_an_evaluation(ask: Ask, trained_run: Path) -> None:
    measured = [row for row in rows_of(trained_run) if row["eval/correct"] is not None]
    found = ask("metrics", run="small")["held_out"]
    assert [each["step"] for each in found] == [row["step"] + 1 for row in measured]
    for each, row in zip(found, measured, strict=True):
        low, high = wilson_interval(row["eval/correct"] * 8, 8)
        assert each | {"step": 0} == {
            "step": 0, "value": row["eval/correct"], "low": low, "high": high, "problems": 8
        }  # fmt: skip


def test_metrics_grow_and_begin_anew(ask: Ask, trained_run: Path, tmp_path: Path) -> None:
    from hrm_agent.viewer.run_files import metrics_of

    lines = (trained_run / "metrics.jsonl").read_text().splitlines(keepends=True)
    path = tmp_path / "metrics.jsonl"
    path.write_text(lines[0] + lines[1][:20])
    tail = metrics_of(tmp_path)
    assert tail is not None and len(tail) == 1, "a row that is not whole is none yet"
    before = tail.generation
    with path.open("a") as file:
        file.write(lines[1][20:])
    assert len(metrics_of(tmp_path) or ()) == 2 and tail.generation == before
    (tmp_path / "part").write_text(lines[0])
    (tmp_path / "part").replace(path)
    again = metrics_of(tmp_path)
    assert again is not None and len(again) == 1 and again.generation != before


def test_rows_that_come_meanwhile_are_of_the_next_look(tmp_path: Path) -> None:
    from hrm_agent.viewer.run_files import metrics_of

    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0, "a": 1}\n')
    tail = metrics_of(tmp_path)
    with path.open("a") as file:
        file.write('{"step": 1, "a": NaN, "b": 2}\n')
    now = metrics_of(tmp_path)
    assert tail is not None and now is not None
    assert (list(tail.steps), tail.series("a"), list(tail.columns), tail.last("a")) == (
        [0],
        [1],
        ["step", "a"],
        1,
    )
    assert (list(now.steps), now.series("a"), now.series("b"), now.last("b")) == (
        [0, 1],
        [1, None],
        [None, 2],
        2,
    )


def test_a_reward_that_comes_after_the_end_counts(tmp_path: Path) -> None:
    ended = make_trajectory().model_copy(update={"run_id": "r", "rewards": {}})
    place = Place("x", str(tmp_path / "x.db"), None)
    with open_store(place.where) as store:
        store.journal.write_trajectory(ended)
        assert ENDPOINTS["runs"].function([place])["runs"][0]["accuracy"] is None
        scoring = Scoring(trajectory_id=ended.id, rubric="r", outcome=1.0, total=1.0, scored_at=1.0)
        store.scorings.write([scoring], as_rewards=True)
        assert ENDPOINTS["runs"].function([place])["runs"][0]["accuracy"] == 1.0
    place.close()


def test_a_step_is_what_the_trainer_made_of_it(ask: Ask, place: Place, trained_run: Path) -> None:
    found = ask("step", run="small", step="2")
    row = rows_of(trained_run)[1]
    judged = place.store().journal.overlays("small", 1)
    rollouts = {each["trajectory"]: each for group in found["groups"] for each in group["rollouts"]}
    assert found["metrics"]["loss"] == row["loss"] and (found["previous"], found["next"]) == (1, 3)
    assert len(rollouts) == row["rollout/count"] and len(found["groups"]) == 2
    for overlay in judged:
        told, whole = (
            rollouts[overlay.trajectory_id],
            place.store().journal.trajectory(overlay.trajectory_id),
        )
        assert (told["verdict"], told["reason"]["text"]) == (overlay.verdict.value, overlay.reason)
        assert (told["advantage"], told["reward"]) == (overlay.advantage, overlay.reward)
        assert (told["tokens"], told["model_calls"]) == (
            whole.used.output_tokens,
            len(whole.own_calls),
        )
        tools = [
            (call.id, call.status.value if call.status else None) for call in whole.own_tool_calls
        ]
        assert [(tool["id"], tool["status"]) for tool in told["tools"]] == tools
    with pytest.raises(NotThere, match="no step 9"):
        ask("step", run="small", step="9")


def test_the_list_is_history_s(
    ask: Ask, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = printed(capsys, "history", "--store", str(trained_run), "--limit", "1000")
    found = ask("trajectories", run="small", limit="5")
    rows = found["rows"]
    while found["next"] is not None:
        found = ask("trajectories", run="small", limit="5", after=str(found["next"]))
        rows += found["rows"]
    shown = [dict(zip(found["columns"], row, strict=True)) for row in rows]
    assert [(row["trajectory"], row["tokens"], row["tool_calls"]) for row in shown] == [
        (row["trajectory"], row["tokens"], row["tools"]) for row in listed
    ]
    assert {row["status"] for row in shown} <= set(RunStatus)


def test_a_trajectory_is_what_show_prints(
    ask: Ask, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = next(
        row for row in ask("trajectories", run="small")["rows"] if row[9] == "kept" and row[12]
    )
    told = printed(capsys, "show", row[1], "--store", str(trained_run))
    found, items = ask("trajectory", id=row[1]), ask("items", id=row[1])["items"]
    assert (
        found["header"]["answer"]["text"] == told["answer"]
        and found["header"]["rewards"] == told["rewards"]
    )
    assert found["overlays"][0]["advantage"] == told["overlays"][0]["advantage"]
    assert found["counts"]["model_calls"] == len(told["calls"])
    assert found["counts"]["tool_calls"] == len(told["tool_calls"])
    assert found["counts"]["tokens"] == sum(sum(call["mask"]) for call in told["calls"])
    assert [each["id"] for each in items if each["kind"] == "call"] == [
        call["id"] for call in told["calls"]
    ]
    for item in items:
        if item["kind"] == "tool":
            (call,) = [call for call in told["tool_calls"] if call["id"] == item["id"]]
            assert (item["status"], item["content"]["text"]) == (call["status"], call["content"])
            assert item["call"] in {each["id"] for each in told["calls"]}
    assert next(len(each["prompt_messages"]) for each in items if each["kind"] == "call") == 2
    paged = [
        ask("items", id=row[1], after=str(n), limit="1")["items"][0]["id"]
        for n in range(len(items))
    ]
    assert paged == [each["id"] for each in items]


def test_moments_are_history_s(
    ask: Ask, trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    thread = ask("trajectories", run="small")["rows"][-1][2]
    told = printed(capsys, "history", thread, "--store", str(trained_run))["moments"]
    moments: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = ask("moments", thread=thread, after=str(after), limit="2")
        moments += page["moments"]
        after = page["next"]
    assert [{name: each[name] for name in told[0]} for each in moments] == told
    assert [each["position"] for each in moments] == list(range(len(told)))
    assert ask("moments", thread=thread, limit="2", checkpoint=told[2]["checkpoint"])["after"] == 2
    state = ask("moment", thread=thread, checkpoint=told[-1]["checkpoint"])
    assert state["moment"] == told[-1]
    (messages,) = [channel for channel in state["channels"] if channel["name"] == "messages"]
    assert messages["kind"] == "messages" and messages["messages"][0]["type"] == "human"


def test_tokens_are_the_path_of_the_call(ask: Ask, place: Place) -> None:
    journal = place.store().journal
    id_ = next(
        row[1] for row in ask("trajectories", run="small")["rows"] if row[9] == "kept" and row[12]
    )
    whole = journal.trajectory(id_)
    call = whole.calls[-1]
    found = ask("tokens", call=call.id)
    path = [
        whole.calls[[each.id for each in whole.calls].index(each["call"])] for each in found["path"]
    ]
    assert found["ids"] == list(journal.path_tokens(call.id))
    assert found["mask"] == [int(sampled) for each in path for sampled in each.mask]
    overlay = next(each for each in journal.overlays("small") if each.trajectory_id == id_)
    assert {weight for weight in found["weight"] if weight is not None} == {overlay.advantage}
    assert all(
        (weight is None) is (not mask)
        for weight, mask in zip(found["weight"], found["mask"], strict=True)
    )
    assert "".join(found["text"]).count("<|im_start|>") >= 3
    assert found["logprob"][-1] == pytest.approx(call.logprobs[-1], abs=1e-6)
    part = ask("tokens", call=call.id, **{"from": "3", "to": "9"})
    assert part["ids"] == found["ids"][3:9] and part["truncated"] and found["entropy"] is None
    assert not found["analysis"]["there"] and found["analysis"]["steps"] in ("1", "2", "3")


def test_an_analysis_is_shown_where_there_is_one(
    ask: Ask, trained_run: Path, tmp_path: Path
) -> None:
    from hrm_agent.viewer.projections.trajectory.tokens import tokens

    rows = ask("trajectories", run="small")["rows"]
    id_ = next(row[1] for row in rows if row[9] == "kept")
    call = next(each for each in ask("items", id=id_)["items"] if each["kind"] == "call")
    length = call["prompt_tokens"] + call["sampled_tokens"]
    line = {
        "call": call["id"],
        "entropy": [None] * (length - 1) + [0.5],
        "forking": [length - 1],
        "reflection": [10**9],
    }
    (tmp_path / "analysis").mkdir()
    (tmp_path / "analysis" / "tokens.jsonl").write_text("no JSON\n" + json.dumps(line) + "\n")
    (tmp_path / "store.url").write_text(str(trained_run / "store.db"))
    place = Place("copy", str(tmp_path), tmp_path)
    found = tokens(place, call["id"])
    other = next(row[1] for row in ask("trajectories", run="small")["rows"] if row[1] != id_)
    without = tokens(
        place,
        next(each["id"] for each in ask("items", id=other)["items"] if each["kind"] == "call"),
    )
    place.close()
    assert (
        without["entropy"] is None and without["analysis"]["there"] and without["analysis"]["steps"]
    )
    assert (
        found["entropy"][-1] == 0.5
        and found["marks"][-1] == "forking"
        and found["entropy"][0] is None
    )


def test_the_other_pages(ask: Ask) -> None:
    rows = ask("trajectories", run="small")["rows"]
    a, b = rows[-1], rows[-2]
    drawn = ask("graph", thread=a[2])
    assert drawn["source"] == "built-in"
    assert {
        "from": "__start__",
        "to": "reason",
        "conditional": False,
        "label": None,
        "taken": 1,
    } in drawn["edges"]
    recorded = ask("environment", run="small")["recorded"]
    assert (
        recorded["tool_calls"]
        == sum(row[12] for row in rows)
        == sum(recorded["by_status"].values())
    )
    assert ask("search", q=a[1])["rows"][0]["trajectory"] == a[1]
    assert ask("search", q="no such words")["rows"] == []
    both = ask("compare", a=a[1], b=b[1])
    assert both["shared"] is None and both["a"]["trajectory"] == a[1]
    same = ask("compare", a=a[1], b=a[1])
    assert same["states"] == [] and all(row["equal"] and row["shared"] for row in same["rows"])
    groups = ask("groups", run="small", limit="2")
    assert len(groups["groups"]) == 2 and groups["next"] is not None
    assert ask("citations", id=a[1])["citations"] == []
    with pytest.raises(NotThere):
        ask("trajectory", id="nothing")
