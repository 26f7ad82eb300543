from __future__ import annotations

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models.scripted import ScriptedEngine
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.trajectory import RunStatus, TaskRef


async def test_the_model_is_asked_once_with_the_callers_system_turn(
    store: RunStore, environment: LocalEnvironment
) -> None:
    graph = "hrm_agent.graphs.single_call:graph"
    task = TaskRef(id="1", family="test", prompt="6 * 7?")
    with ScriptedEngine(["42", "43"]) as engine:
        runner = EpisodeRunner(store, engine, "scripted", environment)
        found = await runner.run(Episode(task, "plain", graph=graph, seed=1))
        await runner.run(
            Episode(task, "told", graph=graph, context={"system": "Be brief."}, seed=1)
        )
        asked = [[(m.type, m.text) for m in request.messages] for request in engine.requests]
    assert (found.status, found.answer, len(found.calls)) == (RunStatus.COMPLETED, "42", 1)
    assert asked == [[("human", "6 * 7?")], [("system", "Be brief."), ("human", "6 * 7?")]]
