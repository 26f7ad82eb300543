"""A stub of a server that takes weights: it answers all that a fleet asks, and loads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.models.local.load_weights import load_pretrained
from hrm_agent.models.policy_loader import model_folder
from hrm_agent.training.engine_fleet import EngineFleet
from hrm_agent.training.fleet_server import FleetOptions
from hrm_agent.training.scheduler import RolloutScheduler
from tests.support.vllm.stub import VllmStub, choice, logprob

__all__ = ["TOKEN_SECONDS", "FleetStub", "opened_on_stubs"]

POLICY = "builtin:cold-start"
TOKEN_SECONDS = 0.005
"""That a request which only takes time waits for each token, whatever else it has."""


class FleetStub(VllmStub):
    """With a cache of 4,096 tokens and room for 32 sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        """In order: `costs` for a request that only takes time, `rollout` for one of others, `reset` of the cache."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._healthy),
            web.get("/server_info", self._info),
            web.post("/collective_rpc", self._rpc),
            web.post("/reset_prefix_cache", self._reset),
        ]

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        cache, batch = {"num_gpu_blocks": 128, "block_size": 32}, {"max_num_seqs": 32}
        config = {"cache_config": cache, "scheduler_config": batch, "model_config": {"dtype": "torch.float32"}}
        return web.json_response({"vllm_config": {**config, "parallel_config": {"data_parallel_size": 1}}})

    async def _rpc(self, request: web.Request) -> web.Response:
        return web.json_response({"results": [{"version": None, "differing": [], "unknown": []}]})

    async def _reset(self, request: web.Request) -> web.Response:
        self.seen.append("reset")
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
        return await super()._answered(request, body)


@contextmanager
def opened_on_stubs(folder: Path, scheduler: RolloutScheduler, stubs: Sequence[FleetStub]) -> Generator[EngineFleet]:
    """A fleet of these servers, whose trainer has the stubs' log-probs."""
    policy = model_folder(POLICY)
    _, tokenizer = load_pretrained(policy, dtype="float32")

    def score(token_ids: Sequence[int]) -> list[float]:
        return [logprob(token) for token in token_ids[1:]]

    with ExitStack() as stack:
        urls = tuple(f"vllm:{stack.enter_context(stub).url}" for stub in stubs)
        options = FleetOptions(run=folder, servers=urls, tokenizer=policy, weights=folder, patience=30)
        fleet = EngineFleet("fleet", ChatTemplateCodec(tokenizer), options, scheduler, score)
        stack.callback(fleet.close)
        yield fleet
