"""A stub of a server that takes weights. It answers every request of a fleet, keeps the bytes that
it received, and can lie.

It has two workers, each with half of each tensor. Its samples do not depend on the weights, since
the tests do not need them.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from safetensors.torch import load_file
from torch import Tensor

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.training.engines.fleet import EngineFleet
from hrm_agent.training.engines.scheduler import RolloutScheduler
from hrm_agent.training.engines.server import FleetOptions
from tests.support.vllm.stub import VllmStub, choice, logprob

__all__ = ["TOKEN_SECONDS", "FleetStub", "opened_on_stubs"]

POLICY = "builtin:cold-start"
TOKEN_SECONDS = 0.005
"""Time per token of a `costs` request, whatever else the server does, in seconds."""
WORKERS = 2
BLOCK = 32


class FleetStub(VllmStub):
    """Stub of a server with a cache of 4,096 tokens and room for 32 sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        """Requests, oldest first: `costs` for a completion with `ignore_eos`, `rollout` for any
        other completion, `reset` for a reset of the cache.
        """
        self.faults: set[str] = set()
        """Faults that are switched on. `ignores`, `ignores_once`: the server keeps its old weights.
        `half`: its second worker keeps its old weights. `keeps_cache`: a reset clears nothing.
        `turns`: its weights change while it samples. `unknown`: it cannot compare weights. `hangs`:
        calls to its workers hang.
        """
        self.held = [{"weight": "of the start"} for _ in range(WORKERS)]
        """Digests of each worker's tensors."""
        self.version: int | None = None
        self.taken = 0
        self.boot = secrets.token_hex(4)
        self.counts = False
        """True if each open request gains a token whenever the requests are listed."""
        self._tokens: dict[str, int] = {}
        self._found = self._looked_for = 0
        self._cached: set[tuple[str, tuple[int, ...]]] = set()

    def start_again(self) -> None:
        """Restart at once on the same port, with the initial weights and an empty cache."""
        self.held = [{"weight": "of the start"} for _ in range(WORKERS)]
        self.version, self.taken, self.boot = None, 0, secrets.token_hex(4)
        self._cached.clear()

    def take(self, source: str, version: int) -> None:
        self.version, self.taken = version, self.taken + 1
        if "ignores_once" in self.faults:
            self.faults.remove("ignores_once")
        elif "ignores" not in self.faults:
            kept = self.held[1]
            self.held = [_share(source, worker) for worker in range(WORKERS)]
            if "half" in self.faults:
                self.held[1] = kept

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._healthy),
            web.get("/metrics", self._metrics),
            web.get("/server_info", self._info),
            web.post("/collective_rpc", self._rpc),
            web.post("/reset_prefix_cache", self._reset),
        ]

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        counts = {"queries": self._looked_for, "hits": self._found}
        lines = [
            f'vllm:prefix_cache_{name}_total{{engine="0"}} {count}'
            for name, count in counts.items()
        ]
        return web.Response(text="\n".join(lines))

    async def _info(self, request: web.Request) -> web.Response:
        cache, batch = {"num_gpu_blocks": 128, "block_size": BLOCK}, {"max_num_seqs": 32}
        config = {
            "cache_config": cache,
            "scheduler_config": batch,
            "model_config": {"dtype": "torch.float32"},
        }
        return web.json_response(
            {"vllm_config": {**config, "parallel_config": {"data_parallel_size": 1}}}
        )

    async def _rpc(self, request: web.Request) -> web.Response:
        asked = await request.json()
        if "hangs" in self.faults:
            await asyncio.sleep(600)
        return web.json_response(
            {"results": [self._said(rank, asked["method"], asked["args"]) for rank in (0, 1)]}
        )

    def _said(self, rank: int, method: str, args: list[str]) -> dict[str, Any]:
        said: dict[str, Any] = {
            "rank": rank,
            "boot": self.boot,
            "version": self.version,
            "taken": self.taken,
        }
        digest = hashlib.sha256(repr(sorted(self.held[rank].items())).encode()).hexdigest()
        if method == "hrm_take_weights":
            if rank == 0:
                self.take(args[0], int(args[1]))
        elif method == "hrm_differing_weights":
            wanted = _share(args[0], rank)
            unknown = ["all: this kernel"] if "unknown" in self.faults else []
            differing = (
                []
                if unknown
                else [name for name, each in wanted.items() if self.held[rank].get(name) != each]
            )
            said |= {
                "differing": differing,
                "unknown": unknown,
                "compared": len(wanted),
                "digest": digest,
            }
        elif method == "hrm_watch":
            if rank == 0:
                self._tokens = {name: count + self.counts for name, count in self._tokens.items()}
                said["requests"] = {
                    f"cmpl-{name}-0-0a1b2c3d": count for name, count in self._tokens.items()
                }
            said |= {"digest": digest} if args else {}
        return said

    async def _reset(self, request: web.Request) -> web.Response:
        self.seen.append("reset")
        if "keeps_cache" not in self.faults:
            self._cached.clear()
        return web.json_response({"success": True})

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        prompt = body["prompt"]
        if "prompt_logprobs" in body:
            after_first = [{str(token): {"logprob": logprob(token)}} for token in prompt[1:]]
            return web.json_response({"choices": [{"prompt_logprobs": [None, *after_first]}]})
        self.seen.append("costs" if body.get("ignore_eos") else "rollout")
        if body.get("ignore_eos"):
            await asyncio.sleep(TOKEN_SECONDS * body["max_tokens"])
            return web.json_response({"choices": [choice([1], prompt=each) for each in prompt]})
        self._look_up(body.get("cache_salt", ""), prompt)
        if "turns" in self.faults:
            self.held[0] = {"weight": "of nobody"}
        name = body.get("request_id", "")
        self._tokens[name] = len(prompt)
        try:
            return await super()._answered(request, body)
        finally:
            del self._tokens[name]

    def _look_up(self, salt: str, prompt: list[int]) -> None:
        blocks = [(salt, tuple(prompt[:end])) for end in range(BLOCK, len(prompt), BLOCK)]
        self._looked_for += len(prompt)
        self._found += BLOCK * sum(block in self._cached for block in blocks)
        self._cached.update(blocks)


def _share(source: str, worker: int) -> dict[str, str]:
    """Digests of a worker's half of each tensor of a file."""
    tensors: dict[str, Tensor] = load_file(source)
    parts = {
        name: tensor.chunk(WORKERS)[worker % len(tensor.chunk(WORKERS))]
        for name, tensor in tensors.items()
    }
    return {
        name: hashlib.sha256(part.contiguous().numpy().tobytes()).hexdigest()
        for name, part in parts.items()
    }


@contextmanager
def opened_on_stubs(
    folder: Path, scheduler: RolloutScheduler, stubs: Sequence[FleetStub], **options: Any
) -> Generator[EngineFleet]:
    """A fleet of these servers, whose trainer has the stubs' log-probs. `options` are those of the
    fleet.
    """
    policy = model_folder(POLICY)
    _, tokenizer = load_pretrained(policy, dtype="float32")

    def score(token_ids: Sequence[int]) -> list[float]:
        return [logprob(token) for token in token_ids[1:]]

    with ExitStack() as stack:
        urls = tuple(f"vllm:{stack.enter_context(stub).url}" for stub in stubs)
        given: dict[str, Any] = {
            "servers": urls,
            "tokenizer": policy,
            "weights": folder,
            "patience": 30.0,
            **options,
        }
        fleet = EngineFleet(
            "fleet",
            ChatTemplateCodec(tokenizer),
            FleetOptions(run=folder, **given),
            scheduler,
            score,
        )
        stack.callback(fleet.close)
        yield fleet
