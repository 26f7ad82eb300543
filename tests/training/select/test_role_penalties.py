"""RoC's penalties by role: figures by hand, what they have in common with those over the whole, and
a recorded run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_agent.answers.fenced_code import block_ids
from hrm_agent.store import RunStore, open_store
from hrm_agent.training.config.commands import CollectConfig, GrpoConfig
from hrm_agent.training.records.offline import train_on_record
from hrm_agent.training.rollout.collect import collect
from hrm_agent.training.select.penalties import (
    count_calls,
    mean_penalties,
    policy_tool_calls,
    role_penalties,
)
from hrm_agent.training.select.roc import RocOptions, select
from hrm_agent.trajectory import (
    Call,
    Overlay,
    RolePenalty,
    ToolCall,
    ToolStatus,
    Trajectory,
    Verdict,
    content_hash,
)
from tests.support.training.builders import call, place, rollout, tool_call, trajectory

OK, ERROR = ToolStatus.OK, ToolStatus.ERROR
BY_ROLE = RocOptions(penalties="by_role")
OFFERED = ({"type": "function", "function": {"name": "python"}},)


def turn(role: str, name: str, asked: Sequence[str] = (), answers: int = 0, **changes: Any) -> Call:
    """A model call of a role, which asks for tool calls of these ids and writes so many answer
    tags.
    """
    text = "<answer>1</answer>" * answers
    response = {
        "type": "ai",
        "content": text,
        "tool_calls": [{"id": each, "name": "python"} for each in asked],
    }
    return call(name, identity=place("t", name, role), response=response, **changes)


def made_of(
    calls: Sequence[Call], tools: Sequence[ToolCall] = (), index: int = 0, reward: float = 1.0
) -> Trajectory:
    return trajectory(index, reward, calls=tuple(calls), tool_calls=tuple(tools))


def judged(whole: Trajectory, options: RocOptions = BY_ROLE) -> Overlay:
    (overlay,) = select([whole], 2, "grpo-roc", seed=0, options=options)
    return overlay


# Plan, two solver turns with four calls of which one fails, a checker whose only call fails, and a
# final text.
FOUR_ROLES = made_of(
    [
        turn("plan", "1"),
        turn("solve", "2", ["a", "b", "c", "d"]),
        turn("solve", "3", answers=2, parent="2"),
        turn("check", "4", ["e"]),
        turn("check", "5", parent="4"),
        turn("synthesize", "6"),
    ],
    [tool_call("a"), tool_call("b", ERROR), tool_call("c"), tool_call("d"), tool_call("e", ERROR)],
)


def test_each_role_counts_once_however_many_calls_it_made() -> None:
    over_all, by_role = judged(FOUR_ROLES, RocOptions()), judged(FOUR_ROLES)
    assert (over_all.penalty_error, over_all.penalty_format) == (2 / 5, 1 / 6)
    assert over_all.penalty_by_role is None
    assert (by_role.penalty_error, by_role.penalty_format) == ((1 / 4 + 1) / 2, 1 / 2)
    assert by_role.penalty_by_role == {
        "plan": RolePenalty(failed=0, effective=0),
        "solve": RolePenalty(failed=1, effective=3, error=1 / 4, format=1 / 2),
        "check": RolePenalty(failed=1, effective=0, error=1.0),
        "synthesize": RolePenalty(failed=0, effective=0),
    }


@pytest.mark.parametrize(
    "offer",
    [
        {"tools": OFFERED, "tools_hash": content_hash(OFFERED)},
        {"tools_hash": content_hash(OFFERED)},
    ],
)
@pytest.mark.parametrize("none", [{}, {"tools": ()}, {"tools_hash": content_hash(())}])
def test_who_has_tools_and_calls_none_is_blamed_for_it_and_who_has_none_is_not(
    offer: dict[str, Any], none: dict[str, Any]
) -> None:
    def with_solver(*tools: ToolCall, **changes: Any) -> Overlay:
        solver = turn("solve", "2", [tool.tool_call_id for tool in tools], answers=1, **changes)
        return judged(made_of([turn("plan", "1", **none), solver], tools))

    assert with_solver(**offer).penalty_error == 0.5
    assert with_solver(tool_call("a"), **offer).penalty_error == 0.0, (
        "and not the mean with 0.5 of the planner"
    )
    assert with_solver(tool_call("a", ToolStatus.INFRASTRUCTURE), **offer).penalty_error == 0.5
    assert with_solver(**none).penalty_error == 0.5, "as over the whole: nobody has tools"


def test_the_answer_tag_is_asked_of_those_who_write_one_else_of_the_last() -> None:
    quiet = [turn("plan", "1"), turn("solve", "2"), turn("synthesize", "3")]
    found = judged(made_of(quiet))
    assert found.penalty_format == judged(made_of(quiet), RocOptions()).penalty_format == 1.0
    assert {role: each.format for role, each in (found.penalty_by_role or {}).items()} == {
        "plan": None,
        "solve": None,
        "synthesize": 1.0,
    }
    one = [quiet[0], turn("solve", "2", answers=1), quiet[2]]
    assert judged(made_of(one)).penalty_format == 0.0, (
        "the synthesizer's text is in the problem's own format"
    )
    both = [quiet[0], turn("solve", "2", answers=1), turn("synthesize", "3", answers=2)]
    assert judged(made_of(both)).penalty_format == (0.0 + 1.0) / 2
    assert judged(made_of(both), RocOptions()).penalty_format == 1 / 3


def test_a_conversation_that_two_roles_share_has_one_answer_of_each() -> None:
    handed = [turn("first", "1", answers=1), turn("second", "2", answers=1, parent="1")]
    assert judged(made_of(handed), RocOptions()).penalty_format == 1 / 2
    assert judged(made_of(handed)).penalty_format == 0.0


def test_a_tool_call_is_the_askers_whichever_node_carried_it_out() -> None:
    fenced = block_ids("2")[0]
    calls = [
        turn("plan", "1"),
        turn("solve", "2", ["a"]),
        turn("solve", "3", answers=1, parent="2"),
    ]
    own = tool_call("own").model_copy(update={"identity": place("t", "own", "fetch")})
    tools = [tool_call("a", ERROR), tool_call(fenced, ToolStatus.INVALID_CALL), own]
    found = judged(made_of(calls, tools)).penalty_by_role or {}
    assert {role: (each.failed, each.effective) for role, each in found.items()} == {
        "plan": (0, 0),
        "solve": (2, 0),
        "fetch": (0, 1),
    }, "one that no model asked for is of its own node"


def test_what_another_model_did_is_no_role_of_the_policy() -> None:
    others = turn("critique", "2", ["b"], answers=3, model="critic")
    calls = [turn("plan", "1"), others, turn("solve", "3", ["a"], answers=1)]
    found = judged(made_of(calls, [tool_call("a"), tool_call("b", ERROR)]))
    assert list(found.penalty_by_role or {}) == ["plan", "solve"]
    assert (found.penalty_error, found.penalty_format) == (0.0, 0.0)


def test_a_variable_that_one_role_sets_and_another_takes_was_of_use() -> None:
    def ran(name: str, code: str, shown: str = "") -> ToolCall:
        return tool_call(name).model_copy(
            update={"arguments": {"code": code}, "content": shown, "stdout": shown}
        )

    calls = [turn("solve", "1", ["a"], answers=1), turn("check", "2", ["b", "c"])]
    tools = [ran("a", "x = 6 * q"), ran("b", "print(x)", "42\n"), ran("c", "print( x )", "42\n")]
    found = judged(made_of(calls, tools)).penalty_by_role or {}
    assert [(each.effective, each.error) for each in found.values()] == [
        (1, 0.0),
        (1, 0.0),
    ], "c is b in other words"


@pytest.mark.parametrize("role", ["reason", ""])
@pytest.mark.parametrize("failed", [0, 1, 3])
def test_with_one_role_or_none_known_nothing_is_other_than_over_the_whole(
    role: str, failed: int
) -> None:
    """The tool loop, whose tools have a node of their own, and an imported run without nodes."""
    calls = (turn(role, "1", answers=failed), turn(role, "2", answers=1, parent="1"))
    group = [rollout(i, float(i % 2), failed, 3) for i in range(6)]
    group = [each.model_copy(update={"calls": calls[: each.sample_index]}) for each in group]
    for keep in (2, 4):
        assert select(group, keep, seed=1, options=BY_ROLE) == select(group, keep, seed=1)


statuses = st.sampled_from([*ToolStatus, None])
made = st.lists(
    st.tuples(st.sampled_from(["plan", "solve", "check"]), statuses, st.integers(0, 4)), max_size=12
)


@given(made, st.lists(st.integers(0, 2), min_size=3, max_size=3))
def test_the_roles_counts_add_up_to_the_wholes(
    rows: list[tuple[str, ToolStatus | None, int]], tags: list[int]
) -> None:
    tools = [
        tool_call(str(i), status, f"code {code}" if code else None)
        for i, (_, status, code) in enumerate(rows)
    ]
    asked = {
        role: [str(i) for i, row in enumerate(rows) if row[0] == role]
        for role in ("plan", "solve", "check")
    }
    calls = [
        turn(role, role, ids, count) for (role, ids), count in zip(asked.items(), tags, strict=True)
    ]
    whole = made_of(calls, tools)
    counted, roles = count_calls(policy_tool_calls(whole)), role_penalties(whole)
    assert sum(each.failed for each in roles.values()) == counted.failed
    assert sum(each.effective for each in roles.values()) == counted.effective
    assert all(0 <= figure <= 1 for figure in mean_penalties(roles.values()))


def test_the_selection_goes_by_it() -> None:
    """One checker that fails is hidden by a busy solver over the whole, and is not by role."""

    def run(index: int, solver: Sequence[ToolStatus], checker: ToolStatus) -> Trajectory:
        made = [tool_call(f"{index}-{i}", status) for i, status in enumerate([*solver, checker])]
        ids = [each.tool_call_id for each in made]
        calls = [
            turn("solve", f"{index} solve", ids[:-1], answers=1),
            turn("check", f"{index} check", ids[-1:]),
        ]
        return made_of(calls, made, index)

    busy, short = run(0, [OK] * 9, ERROR), run(1, [OK, OK, ERROR], OK)
    group = [busy, short, *(rollout(i, 0.0) for i in (2, 3))]
    drawn: dict[str, set[str]] = {}
    for over in ("whole", "by_role"):
        options = RocOptions(selection="lowest", min_positives=1, min_negatives=1, penalties=over)
        overlays = select(group, 2, "grpo-roc", seed=0, options=options)
        drawn[over] = {o.trajectory_id for o in overlays if o.verdict is Verdict.KEPT and o.reward}
        assert [o.penalty_error for o in overlays[:2]] == (
            [0.1, 0.25] if over == "whole" else [0.5, 1 / 6]
        )
    assert drawn == {"whole": {busy.id}, "by_role": {short.id}}


def test_what_was_counted_is_kept_and_nothing_is_written_of_it_by_default(store: RunStore) -> None:
    by_role, over_all = judged(FOUR_ROLES), judged(FOUR_ROLES, RocOptions())
    store.journal.write_overlays([by_role.model_copy(update={"run_id": "a"}), over_all])
    assert store.journal.overlays("a")[0].penalty_by_role == by_role.penalty_by_role
    assert store.journal.overlays("") == [over_all]


async def test_recorded_runs_of_four_roles_are_learned_from_by_role(tmp_path: Path) -> None:
    asked = CollectConfig(
        policy="builtin:roles-cold-start", count=1, samples=4, seed=5, graph="reasoning"
    )
    recorded = await collect(asked, tmp_path / "collected")
    for whole in recorded:
        roles = role_penalties(whole)
        assert list(roles)[:2] == ["plan", "solve"] and "synthesize" in roles
        assert {role for role, each in roles.items() if each.error is not None} == {"solve"}
        tagged = {
            call.identity.role for call in whole.calls if "<answer>" in call.response["content"]
        }
        assert (
            {role for role, each in roles.items() if each.format is not None} == tagged >= {"solve"}
        )
        tools = count_calls(whole.tool_calls)
        assert (roles["solve"].failed, roles["solve"].effective) == (tools.failed, tools.effective)

    config = GrpoConfig.of(
        policy=asked.policy, source=(str(tmp_path / "collected"),), graph="reasoning", group_size=2, steps=1,
        prompts_per_step=1, seed=1, penalties="by_role",
    )  # fmt: skip
    await train_on_record(config, tmp_path / "run")
    with open_store(tmp_path / "run") as opened:
        overlays = {overlay.trajectory_id: overlay for overlay in opened.journal.overlays("run")}
    assert {whole.id: role_penalties(whole) for whole in recorded} == {
        id_: overlay.penalty_by_role for id_, overlay in overlays.items()
    }
