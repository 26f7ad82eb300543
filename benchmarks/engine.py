"""Speed of the in-process engine, compared with `generate` of transformers and with the model
alone.

    python benchmarks/engine.py [--requests 256] [--threads 1] [--json FILE]

A randomly initialised policy of the shipped one's size, 16 samples of each prompt, as in a rollout:

* `floor`: bare forward passes over as many rows at the mean length of the turn, nothing sampled or
  kept.
* `engine`: `TransformersEngine`, all requests submitted at once. The second turn continues in the
  same cache, 20 tokens later.
* `generate`: `model.generate` on the whole batch. It ends when its longest row ends; here all rows
  are equally long, which is its best case.

Tokens a second count sampled tokens, not prompts. CPU time (`cpu`) is given as well, because the
clock is unreliable on a shared machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import Completion, GenerationRequest
from hrm_agent.models.local.attention_survey import survey
from hrm_agent.models.local.cache_rows import SAMPLING, Rows
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.kv_cache import KVPool
from hrm_agent.models.local.model_inspection import kv_shape
from hrm_agent.models.local.packed_attention import replica
from hrm_agent.testing import tiny_network
from hrm_agent.trajectory import Sampling

VOCABULARY, PROMPT, ANSWER, SAMPLES, TOOL_RESULT = 500, 80, 100, 16, 20


class OpenEnded(ByteCodec):
    """Codec without stop tokens: answers end only at the limit, so every way samples the same
    number of tokens.
    """

    end_of_turn = VOCABULARY
    control_token_ids = frozenset((VOCABULARY,))


def make_prompts(requests: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    prompts = [
        tuple(rng.integers(0, VOCABULARY, PROMPT).tolist()) for _ in range(-(-requests // SAMPLES))
    ]
    return [prompts[i // SAMPLES] for i in range(requests)]


def settle() -> None:
    """Wait for the pending work of a GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(name: str, tokens: int, work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    settle()
    clock, cpu = time.perf_counter(), time.process_time()
    result = work()
    settle()
    seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
    row = {
        "way": name,
        "tokens": tokens,
        "tok_s": tokens / seconds,
        "tok_cpu_s": tokens / cpu_seconds,
    }
    return row, result


def run_floor(model: Any, requests: int, turn: str, length: int) -> dict[str, Any]:
    twin = replica(model)
    rows = Rows(
        KVPool(kv_shape(twin, survey(twin)), max_rows=requests, max_length=512, max_bytes=1 << 32)
    )
    rows.resize(requests, 512)
    rows.known[:], rows.cached[:], rows.kind[:] = length + 1, length, SAMPLING
    step = rows.plan()
    assert step is not None
    mask = torch.zeros(1, 1, 1, 1, device=model.device)

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(ANSWER):
                twin(
                    input_ids=step.ids_1T,
                    position_ids=step.positions_1T,
                    attention_mask=mask,
                    use_cache=False,
                    packed_step=step.step,
                )

    forward()
    return timed(f"floor, {turn} turn", requests * ANSWER, forward)[0]


def run_engine(
    model: Any, prompts: list[tuple[int, ...]], threads: int | None
) -> list[dict[str, Any]]:
    def ask(texts: list[tuple[int, ...]]) -> list[Completion]:
        sampling = [Sampling(seed=i, max_tokens=ANSWER) for i in range(len(texts))]
        futures = [
            engine.submit(GenerationRequest(text, one))
            for text, one in zip(texts, sampling, strict=True)
        ]
        return [future.result() for future in futures]

    tokens = len(prompts) * ANSWER
    with TransformersEngine(
        model, OpenEnded(), name="bench", max_slots=len(prompts), threads=threads
    ) as engine:
        ask(prompts)
        engine.publish(1)
        first, answers = timed("engine, first turn", tokens, lambda: ask(prompts))
        extra = make_prompts(len(prompts))
        texts = [
            p + a.token_ids + e[:TOOL_RESULT]
            for p, a, e in zip(prompts, answers, extra, strict=True)
        ]
        second, _ = timed("engine, second turn", tokens, lambda: ask(texts))
    return [first, second]


def run_generate(model: Any, prompts: list[tuple[int, ...]]) -> dict[str, Any]:
    ids = torch.tensor(prompts, device=model.device)
    options = {
        "do_sample": True,
        "max_new_tokens": ANSWER,
        "min_new_tokens": ANSWER,
        "pad_token_id": 0,
    }

    def generate() -> Any:
        with torch.inference_mode():
            return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)

    model.generation_config.eos_token_id = None
    return timed("generate, first turn", len(prompts) * ANSWER, generate)[0]


def show(rows: list[dict[str, Any]]) -> None:
    table = Table("way", "tokens", "tok/s", "tok/cpu-s")
    for row in rows:
        table.add_row(
            row["way"], str(row["tokens"]), f"{row['tok_s']:,.0f}", f"{row['tok_cpu_s']:,.0f}"
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sampling speed of the in-process engine")
    parser.add_argument(
        "--requests", type=int, default=256, help="concurrent requests, 16 of each prompt"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, prompts = tiny_network(vocab_size=VOCABULARY), make_prompts(arguments.requests)
    first = run_floor(model, arguments.requests, "first", PROMPT + ANSWER // 2)
    second = run_floor(
        model, arguments.requests, "second", PROMPT + ANSWER + TOOL_RESULT + ANSWER // 2
    )
    rows = [
        first,
        second,
        *run_engine(model, prompts, arguments.threads),
        run_generate(model, prompts),
    ]
    show(rows)
    if arguments.json:
        settings = {
            "requests": arguments.requests,
            "threads": arguments.threads,
            "prompt": PROMPT,
            "answer": ANSWER,
        }
        arguments.json.write_text(json.dumps({"settings": settings, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
