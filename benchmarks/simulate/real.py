"""Rollouts on real vLLM servers, policy by policy, compared with the simulator.

    python -m benchmarks.simulate.real --engine FILE [--groups 8] [--group-size 8] [--repeats 5] [--model FOLDER]
                                       [--policies NAME ...] [--blocks 32] [--json FILE]

Lengths and tool delays are drawn once and replayed (`ignore_eos`, `max_tokens`), so that every
policy does the same work. The policies take turns, each with prompts that no cache holds. The
router is that of a training, and polls the servers once a second. FILE has the constants that
`benchmarks.simulate.measure` measured on such a server. Run the benchmark on a quiet machine with a
core for each server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.simulate.cases import read_model
from benchmarks.simulate.engine import EngineModel
from benchmarks.simulate.fleet import LOOK_SECONDS, simulate
from benchmarks.simulate.servers import BLOCK_TOKENS, counter, random_model, servers
from benchmarks.simulate.workload import Planned, Workload, drawn
from hrm_agent.errors import HrmError
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.vllm.server import parse_address
from hrm_agent.models.vllm.weights import WeightsClient
from hrm_agent.training.engines.policies import LengthCurve, SchedulingPolicy, scheduling_policy
from hrm_agent.training.engines.router import EngineRouter
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.trajectory import FinishReason, Sampling

POLICIES = ("static_rollouts", "static_prompts", "least_requests", "safe_maximum", "expected_peak")
COUNTERS = {"preempted": "vllm:num_preemptions_total", "asked": "vllm:prefix_cache_queries_total"}
COUNTERS["found"] = "vllm:prefix_cache_hits_total"
Row = dict[str, Any]


class Replayed:
    """Server behind the router's interface. A turn has its planned number of tokens, whatever
    tokens are sampled.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, name: str) -> None:
        self._url, self._client, self._name = url, client, name
        self._loop = asyncio.get_running_loop()

    def submit(self, request: GenerationRequest) -> Future[Completion]:
        return asyncio.run_coroutine_threadsafe(self._turn(request), self._loop)

    async def _turn(self, request: GenerationRequest) -> Completion:
        sampled = request.sampling.max_tokens
        asked = {
            "model": self._name,
            "prompt": list(request.prompt_ids),
            "max_tokens": sampled,
            "ignore_eos": True,
        }
        asked |= {"temperature": 1.0, "return_token_ids": True, "seed": request.sampling.seed}
        response = await self._client.post(
            f"{self._url}/v1/completions", json=asked | {"request_id": request.name}
        )
        answer = response.raise_for_status().json()["choices"][0]["token_ids"]
        assert len(answer) == sampled, f"{len(answer)} tokens in place of {sampled}"
        return Completion(tuple(answer), (), FinishReason.LENGTH, 0)


async def rolled_out(router: EngineRouter, plan: Planned, salt: str) -> None:
    name, tokens = (
        f"{plan.group}/{plan.name}",
        tokens_of(f"{salt} {plan.group}", plan.prompt_tokens),
    )
    for i, turn in enumerate(plan.turns):
        sampling = Sampling(temperature=1.0, max_tokens=turn.sampled, seed=len(tokens))
        asked = router.submit(GenerationRequest(tuple(tokens), sampling, thread=name))
        tokens += (await asyncio.wrap_future(asked)).token_ids
        if turn.tool_tokens:
            await asyncio.sleep(turn.tool_seconds)
            tokens += tokens_of(f"tool {plan.name} {i}", turn.tool_tokens)
    router.rollout_ended(name)


async def looked_at(router: EngineRouter, url: str) -> None:
    """Poll a server like a training, until cancelled."""
    client = WeightsClient(parse_address(f"vllm:{url}/v1"), "")
    while True:
        router.heard(url, (await asyncio.to_thread(client.watch)).tokens or {})
        await asyncio.sleep(LOOK_SECONDS)


def tokens_of(name: str, count: int) -> list[int]:
    chance = random.Random(name)
    return [chance.randrange(3, 250) for _ in range(count)]


async def step(
    rollouts: Sequence[Planned],
    urls: Sequence[str],
    model: EngineModel,
    policy: SchedulingPolicy,
    curve: LengthCurve,
    salt: str,
) -> Row:
    """Run one step with uncached prompts. Return its seconds and the servers' counters."""
    scheduler = RolloutScheduler(policy, curve)
    # a new connection for each turn, since a server closes connections that are idle
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, timeout=3_600, limits=limits) as client:
        name = (await client.get(f"{urls[0]}/v1/models")).json()["data"][0]["id"]
        before = {what: sum(counter(url, key) for url in urls) for what, key in COUNTERS.items()}
        router, begin = EngineRouter(scheduler), time.perf_counter()
        for url in urls:
            sizes = (model.capacity_tokens, model.max_running)
            router.join(
                url, Replayed(url, client, name), *sizes, model.costs, block_tokens=BLOCK_TOKENS
            )
        async with asyncio.TaskGroup() as watching:  # a poll that fails ends the step
            looks = [watching.create_task(looked_at(router, url)) for url in urls]
            async with asyncio.TaskGroup() as group:
                for plan in rollouts:
                    group.create_task(rolled_out(router, plan, salt))
            seconds = time.perf_counter() - begin
            for look in looks:
                look.cancel()
    after = {what: sum(counter(url, key) for url in urls) for what, key in COUNTERS.items()}
    return {
        "seconds": seconds,
        "moves": scheduler.load().moves,
        **{what: after[what] - before[what] for what in after},
    }


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    work = Workload(
        groups=options.groups,
        group_size=options.group_size,
        prompt_tokens=64,
        mean_response=100,
        max_response=256,
        tool_tokens=10,
    )
    rollouts = drawn(work, options.seed)
    curve = LengthCurve.of(each.response_tokens for each in drawn(work, options.seed + 1))
    model = replace(
        options.constants, capacity_tokens=options.blocks * BLOCK_TOKENS, block_tokens=BLOCK_TOKENS
    )
    extra: dict[str, dict[str, float]] = {
        "safe_maximum": {"max_response_tokens": work.max_response}
    }
    found: dict[str, list[Row]] = {name: [] for name in options.policies}
    network = options.model or random_model(folder / "model")
    with servers(options.servers, network, folder, options.blocks) as urls:
        for repeat in range(options.repeats):
            for name in options.policies:
                policy = scheduling_policy(name, **extra.get(name, {}))
                found[name].append(
                    asyncio.run(step(rollouts, urls, model, policy, curve, f"{name} {repeat}"))
                )
                Console(stderr=True).print(
                    f"{name} {repeat}: {found[name][-1]['seconds']:.1f} s", style="dim"
                )
    rows: list[Row] = []
    for name, steps in found.items():
        policy = scheduling_policy(name, **extra.get(name, {}))
        said = simulate(rollouts, model, options.servers, policy, curve)
        medians = {what: statistics.median(each[what] for each in steps) for what in steps[0]}
        rows.append(
            {
                "policy": name,
                **medians,
                "simulated": said.seconds,
                "simulated preempted": said.preemptions,
            }
        )
        rows[-1]["all"] = [each["seconds"] for each in steps]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", type=Path, required=True, help="constants, measured")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument(
        "--blocks", type=int, default=32, help=f"of {BLOCK_TOKENS} tokens, of each server's cache"
    )
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--model", type=Path, help="a model's folder; without it a 0.5B one with random weights"
    )
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args()
    try:
        options.constants = read_model(options.engine)
        with tempfile.TemporaryDirectory() as name:
            rows = measure(options, Path(name))
    except HrmError as error:
        raise SystemExit(str(error)) from None
    table = Table(
        "policy",
        "seconds",
        "simulated",
        "simulated / real",
        "x static_rollouts",
        "preempted",
        "of cache",
        "moves",
    )
    base = next((row["seconds"] for row in rows if row["policy"] == "static_rollouts"), None)
    for row in rows:
        table.add_row(
            row["policy"],
            f"{row['seconds']:.1f}",
            f"{row['simulated']:.1f}",
            f"{row['simulated'] / row['seconds']:.2f}",
            f"{base / row['seconds']:.2f}" if base else "-",
            f"{row['preempted']:.0f}",
            f"{row['found'] / max(1.0, row['asked']):.0%}",
            f"{row['moves']:.0f}",
        )
    Console().print(table)
    if options.json:
        settings = {
            "load": os.getloadavg(),
            "cores": os.cpu_count(),
            "constants": options.constants.source,
        }
        options.json.write_text(
            json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
