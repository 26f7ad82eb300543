"""A real vLLM server with the small policy: the same runs as in this process, and the same numbers.

One test, because tests may run side by side in processes of their own, and each would start a
server.
"""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
import torch
from langchain_core.messages import HumanMessage
from pydantic import BaseModel

from hrm_agent.environment import LocalEnvironment
from hrm_agent.models import Completion, GenerationRequest, policy, using_policy
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import load_policy, model_folder
from hrm_agent.models.vllm.engine import VllmEngine
from hrm_agent.runtime.episode import EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.testing import block_until
from hrm_agent.training.config.parts import AdapterPart, LossPart
from hrm_agent.training.rollout.rollout import group_episodes, rollout
from hrm_agent.training.select.roc import select
from hrm_agent.training.tasks import load_tasks
from hrm_agent.training.update.batch import build_batches
from hrm_agent.training.update.trained_policy import TrainedPolicy
from hrm_agent.trajectory import (
    Call,
    FinishReason,
    LogprobKind,
    Recording,
    RunStatus,
    Sampling,
    Trajectory,
    Verdict,
    recording,
)
from hrm_agent.trajectory.lint import lint
from tests.models.vllm.conftest import POLICY
from tests.models.vllm.fleet_checks import check_a_fleet, check_a_training_on_servers
from tests.support.vllm.server import VllmServer, find_python

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900)]


class Order(BaseModel):
    """Order of fruit."""

    fruit: Literal["apple", "pear"]
    count: Literal[1, 2, 3]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_pretrained(model_folder(POLICY), dtype="float32")[0]


def furthest(
    model: Any, prompt: tuple[int, ...], answer: tuple[int, ...], logprobs: tuple[float, ...]
) -> float:
    """Largest difference of `logprobs` from a plain forward pass of `transformers` over the
    recorded tokens.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *answer]])).logits[0].float()
    plain = logits.log_softmax(-1)[len(prompt) - 1 : -1][range(len(answer)), list(answer)]
    return float((torch.tensor(logprobs) - plain).abs().max())


def prompt_and_answer(store: RunStore, call: Call) -> tuple[tuple[int, ...], tuple[int, ...]]:
    seen = store.journal.path_tokens(call.id)
    return seen[: -call.sampled_tokens], seen[-call.sampled_tokens :]


def asked_again(server: VllmServer, prompt: tuple[int, ...], call: Call) -> dict[str, Any]:
    """Answer of the server itself, by a request outside the engine."""
    sampling = call.sampling
    said = httpx.post(
        f"{server.url}/completions",
        json={
            "prompt": list(prompt),
            "return_token_ids": True,
            **sampling.model_dump(include={"seed", "max_tokens", "temperature", "top_p"}),
        },
        timeout=120,
    )
    return said.raise_for_status().json()["choices"][0]


async def run(
    engine: VllmEngine, store: RunStore, environment: LocalEnvironment, graph: str
) -> list[Trajectory]:
    sampling = Sampling(temperature=0.8, max_tokens=256)
    runner = EpisodeRunner(store, engine, engine.name, environment, sampling, constrain=False)
    tasks = load_tasks("word_problems", split="eval", seed=3, count=4)
    episodes = group_episodes(tasks, 1, run_id="r", stage=graph, seed=5, graph=graph)
    return await rollout(runner, episodes, concurrency=4)


async def test_runs_on_a_server(
    server: VllmServer,
    engine: VllmEngine,
    store: RunStore,
    environment: LocalEnvironment,
    model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for graph in ("tool_loop", "reasoning"):
        await check_a_run_is_recorded_with_the_servers_own_tokens_and_logprobs(
            graph, server, engine, store, environment, model
        )
    await check_the_roles_are_held_to_their_schemas(engine, store, environment)
    await check_an_answer_is_held_to_a_schema_and_streamed(engine, store)
    await asyncio.to_thread(check_seeds_temperatures_streams_and_stops, engine, model)
    await asyncio.to_thread(check_a_cancelled_request_leaves_the_server, server, engine)
    await check_a_teacher_on_a_server_equals_one_in_this_process(server, engine, store, environment)
    python = find_python()
    assert python is not None
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(python.parents[1] / "cache"))
    await asyncio.to_thread(check_a_fleet, server, python, tmp_path / "fleet")
    await asyncio.to_thread(check_a_training_on_servers, server, python, tmp_path / "run")


async def check_a_run_is_recorded_with_the_servers_own_tokens_and_logprobs(
    graph: str,
    server: VllmServer,
    engine: VllmEngine,
    store: RunStore,
    environment: LocalEnvironment,
    model: Any,
) -> None:
    trajectories = await run(engine, store, environment, graph)
    for trajectory in trajectories:
        assert trajectory.status is RunStatus.COMPLETED and lint(trajectory) == []
        for call in trajectory.calls:
            assert (
                call.trainable
                and call.logprob_kind is LogprobKind.RAW
                and call.model == engine.name
            )
            prompt, answer = prompt_and_answer(store, call)
            sampled = tuple(p for p, mine in zip(call.logprobs, call.mask, strict=True) if mine)
            assert furthest(model, prompt, answer, sampled) < 1e-4
    calls = [call for trajectory in trajectories for call in trajectory.calls]
    assert any(call.parent for call in calls) and any(t.tool_calls for t in trajectories)
    assert {call.identity.node for call in calls} >= (
        {"reason"} if graph == "tool_loop" else {"plan", "synthesize"}
    )
    assert sum(trajectory.reward or 0 for trajectory in trajectories) >= 2, (
        "the policy that is shipped solves most"
    )
    for call in calls[:6]:
        prompt, answer = prompt_and_answer(store, call)
        again = asked_again(server, prompt, call)
        assert (tuple(again["prompt_token_ids"]), tuple(again["token_ids"])) == (prompt, answer)


def ask(engine: Any, seed: int, **more: Any) -> Future[Completion]:
    prompt = engine.codec.encode(
        [HumanMessage("Tom has 12 apples and buys 30 more. How many does he have?")]
    )
    parts = {name: more.pop(name) for name in ("on_token", "schema") if name in more}
    return engine.submit(
        GenerationRequest(tuple(prompt), Sampling(seed=seed, **{"max_tokens": 64, **more}), **parts)
    )


async def check_a_teacher_on_a_server_equals_one_in_this_process(
    server: VllmServer, engine: VllmEngine, store: RunStore, environment: LocalEnvironment
) -> None:
    student = TrainedPolicy.load(
        "builtin:cold-start", AdapterPart(), dtype="float32", device="cpu", seed=0
    )
    rollouts = await run(engine, store, environment, "tool_loop")
    overlays = [
        each.model_copy(update={"verdict": Verdict.KEPT, "advantage": 1.0})
        for each in select(rollouts, len(rollouts), "grpo", seed=0)
    ]
    on_server = student.teachers(LossPart(teacher=f"vllm:{server.url}"))
    here = student.teachers(LossPart(teacher=POLICY))
    assert on_server is not None and here is not None
    for batch in build_batches(rollouts, overlays, token_budget=512, forward="tree"):
        raw = replace(batch, temperatures_K=torch.ones_like(batch.temperatures_K))
        theirs = await asyncio.to_thread(on_server, raw)
        torch.testing.assert_close(theirs, here(raw), rtol=0, atol=1e-4)


def check_seeds_temperatures_streams_and_stops(engine: VllmEngine, model: Any) -> None:
    alone = [ask(engine, seed).result(120) for seed in range(3)]
    beside = [future.result(120) for future in [ask(engine, seed) for seed in range(24)]]
    assert [a.token_ids for a in alone] == [b.token_ids for b in beside[:3]]
    assert len({answer.token_ids for answer in beside}) > 6

    prompt = tuple(
        engine.codec.encode(
            [HumanMessage("Tom has 12 apples and buys 30 more. How many does he have?")]
        )
    )
    for temperature, top_p in ((0.0, 1.0), (0.6, 0.8), (1.4, 1.0)):
        seen: list[int] = []
        answer = ask(engine, 1, temperature=temperature, top_p=top_p, on_token=seen.append).result(
            120
        )
        assert tuple(seen) == answer.token_ids
        assert furthest(model, prompt, answer.token_ids, answer.logprobs) < 1e-4, (
            "raw, whatever it was sampled at"
        )
    local = load_policy(POLICY)
    greedy = [ask(each, 1, temperature=0.0).result(120).token_ids for each in (engine, local)]
    assert greedy[0] == greedy[1]

    text = engine.codec.decode(alone[0].token_ids)
    stopped = ask(engine, 0, stop=(text[5:9],)).result(120)
    assert alone[0].token_ids[: len(stopped.token_ids)] == stopped.token_ids
    assert text[5:9] in engine.codec.decode(stopped.token_ids) and len(stopped.token_ids) < len(
        alone[0].token_ids
    )


async def check_an_answer_is_held_to_a_schema_and_streamed(
    engine: VllmEngine, store: RunStore
) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=100)
    for constrain in (True, False):
        with using_policy(engine, sampling, constrain), recording(Recording(store.journal, seed=2)):
            chunks = [chunk async for chunk in policy(schema=Order).astream("Which fruit?")]
        said, call = (
            "".join(chunk.text for chunk in chunks),
            store.journal.find_call(chunks[-1].id or ""),
        )
        assert (
            call is not None and call.constrained is constrain and said == call.response["content"]
        )
        if constrain:
            assert Order.model_validate_json(said)
    assert not ask(engine, 1, schema={"type": "no such type"}).result(120).constrained


def check_a_cancelled_request_leaves_the_server(server: VllmServer, engine: VllmEngine) -> None:
    def running() -> float:
        lines = httpx.get(f"http://127.0.0.1:{server.port}/metrics").text.splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("vllm:num_requests_running")
        )

    asked, sampled, cancelled = threading.Event(), list[int](), list[bool]()
    futures: list[Future[Completion]] = []

    def cancel_at_the_first_token(seed: int) -> Any:
        def told(token: int) -> None:
            assert asked.wait(60)
            sampled.append(token)
            cancelled.append(futures[seed].cancel())

        return told

    for seed in range(8):
        heard = cancel_at_the_first_token(seed)
        futures.append(ask(engine, seed, max_tokens=900, temperature=2.0, on_token=heard))
    asked.set()
    wait(futures, 60)
    assert sampled and any(cancelled)
    block_until(lambda: running() == 0)
    assert len(sampled) < 8 * 900


async def check_the_roles_are_held_to_their_schemas(
    engine: VllmEngine, store: RunStore, environment: LocalEnvironment
) -> None:
    sampling = Sampling(temperature=0.8, max_tokens=256)
    runner = EpisodeRunner(store, engine, engine.name, environment, sampling)
    tasks = load_tasks("word_problems", split="eval", seed=3, count=2)
    trajectories = await rollout(
        runner,
        group_episodes(tasks, 1, run_id="r", stage="held", seed=5, graph="reasoning"),
        concurrency=2,
    )
    for trajectory in trajectories:
        # under the mask the policy writes what it was not taught, and its critic may not come to an
        # end
        assert (
            trajectory.status in (RunStatus.COMPLETED, RunStatus.TRUNCATED)
            and lint(trajectory) == []
        )
        held = [call for call in trajectory.calls if call.constrained]
        ended = [call for call in held if call.finish_reason is FinishReason.STOP]
        assert ended and all(
            isinstance(json.loads(call.response["content"]), dict) for call in ended
        )
        assert {call.identity.node for call in held} <= {"plan", "critique"}
