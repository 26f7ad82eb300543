"""Scores beside records, on both backends: one for each rubric, amended by many at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hrm_agent.store import RunStore
from hrm_agent.trajectory import Feedback, RewardScore, Scoring
from tests.support.trajectory.samples import make_trajectory


def scoring(trajectory_id: str, total: float | None, rubric: str = "mine") -> Scoring:
    score = RewardScore(name="correct", value=total)
    return Scoring(
        trajectory_id=trajectory_id,
        rubric=rubric,
        scores=(score,),
        outcome=total,
        total=total,
        scored_at=1.0,
    )


def test_what_many_add_at_the_same_moment_is_all_there(store: RunStore) -> None:
    store.journal.write_trajectory(make_trajectory())

    def add(number: int) -> None:
        given = Feedback(id=f"f-{number}", score=1, given_at=number)

        def change(standing: Scoring | None) -> Scoring:
            base = standing or scoring("trajectory-1", 1.0)
            return base.model_copy(update={"feedback": (*base.feedback, given)})

        assert store.scorings.amend("mine", "trajectory-1", change) is not None

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
    found = store.scorings.by_rubric("mine")["trajectory-1"]
    assert sorted(one.id for one in found.feedback) == sorted(f"f-{number}" for number in range(40))
    assert store.scorings.amend("mine", "trajectory-1", lambda _: None) == found, "left as it is"
    assert store.scorings.amend("other", "trajectory-1", lambda _: None) is None
    assert store.scorings.rubrics() == ["mine"]


def test_trajectories_are_found_by_their_reward(store: RunStore) -> None:
    store.scorings.write(
        [scoring("a", 1.0), scoring("b", 0.5), scoring("c", None), scoring("d", 1.0, "other")]
    )
    assert store.scorings.trajectory_ids("mine", 1) == ["a"]
    assert store.scorings.trajectory_ids("mine", 0.5) == ["a", "b"]
    assert store.scorings.trajectory_ids("mine", -9) == ["a", "b"], "what has no reward is not 0"
    assert store.scorings.trajectory_ids("nothing", 0) == []


def test_which_threads_have_a_state_is_known(store: RunStore) -> None:
    assert store.threads_with_checkpoints() == set()
    checkpoint = {
        "v": 4,
        "id": "1",
        "ts": "",
        "channel_values": {},
        "channel_versions": {},
        "versions_seen": {},
    }
    where = {"configurable": {"thread_id": "a", "checkpoint_ns": ""}}
    store.checkpointer.put(where, checkpoint, {}, {})  # pyright: ignore[reportArgumentType]
    assert store.threads_with_checkpoints() == {"a"}
