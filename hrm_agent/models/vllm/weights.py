"""Client of `in_server/hrm_agent_weights.py`. It sends weights to a vLLM server and checks which
weights the server has.

The server must run in dev mode with that extension. `launch.py` starts it in this way, and
docs/scale.md explains how to do it manually. In dev mode, anyone who can reach the port can run any
method of the workers, without a key. So keep the server on the loopback or in a closed network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from hrm_agent.errors import ModelError
from hrm_agent.models.vllm.server import (
    HTTP_OK,
    ServerGoneError,
    VllmAddress,
    client_options,
    object_of,
    refusal,
    unreachable,
)

__all__ = ["EXTENSION", "EXTENSION_FOLDER", "Compared", "ServerFacts", "Watched", "WeightsClient"]

EXTENSION = "hrm_agent_weights.WeightsFromTrainer"
EXTENSION_FOLDER = Path(__file__).parent / "in_server"
"""Folder for the server's PYTHONPATH."""
_SECONDS = 600.0
_HEALTH_SECONDS = 5.0
_WATCH_SECONDS = 60.0
"""Timeout of a status request. An engine answers between two of its iterations, each of which takes
less time even without a GPU.
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that a server reports about its engine."""

    kv_tokens: int
    """Number of tokens that its KV cache holds."""
    max_running: int
    """Maximum number of requests that it samples in parallel."""
    dtype: str
    """Number format of its weights: float32, bfloat16, float16."""
    replicas: int = 1
    """Number of worker sets, each with the whole model."""
    block_tokens: int = 16
    """Number of tokens of a cache block."""
    quantization: str = ""
    """Quantisation of its weights beyond their dtype (empty without any)."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of a server's weights with those sent to it."""

    differing: tuple[str, ...]
    """Names of tensors that differ from those that were sent."""
    unknown: tuple[str, ...]
    """Names of tensors that could not be compared, some with a reason."""
    digest: str
    """Digest of all weights that its workers compute with, as in `Watched`."""


@dataclass(frozen=True, slots=True)
class Watched:
    """State of a server at one moment."""

    identity: tuple[tuple[str, ...], ...]
    """Identity of each worker: its process, the version of the weights that it loaded last, and how
    many times it has loaded weights.
    """
    digest: str
    """Digest of all weights that its workers compute with (empty if not requested)."""
    tokens: Mapping[str, int] | None
    """Number of tokens of each running request, prompt and answer together, by the request's name
    (None if the server does not report them).
    """


class WeightsClient:
    """Client for the weights of one server. Every method raises `ModelError` if the server fails or
    refuses. Thread-safe.
    """

    def __init__(self, address: VllmAddress, model: str, seconds: float = _SECONDS) -> None:
        """`model`: name of the server's base model. `seconds`: timeout of a request."""
        self.address = address
        self.model = model
        self._seconds = seconds
        self._root = address.url.removesuffix("/v1")
        self._client = httpx.Client(timeout=seconds, **client_options(address))

    def facts(self) -> ServerFacts:
        """Facts about the server's engine."""
        said = self._value("GET", "/server_info?config_format=json")
        try:
            config = said["vllm_config"]
            blocks = config["cache_config"]["num_gpu_blocks"]
            size = config["cache_config"]["block_size"]
            dtype = str(config["model_config"]["dtype"]).removeprefix("torch.")
            replicas = int(config["parallel_config"]["data_parallel_size"])
            most = int(config["scheduler_config"]["max_num_seqs"])
            rounded = str(config["model_config"].get("quantization") or "")
            return ServerFacts(int(blocks) * int(size), most, dtype, replicas, int(size), rounded)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"The vLLM server at {self.address.url} does not report the size of its cache.",
                "Take vLLM 0.32.",
            ) from error

    def is_healthy(self) -> bool:
        """True if the server answers within seconds."""
        try:
            return (
                self._client.get(f"{self._root}/health", timeout=_HEALTH_SECONDS).status_code
                == HTTP_OK
            )
        except httpx.HTTPError:
            return False

    def watch(self, *, digest: bool = False) -> Watched:
        """State of the server: its processes, the weights loaded last, and the progress of its
        requests.

        `digest`: True to read all weights for a digest. Raises `ServerSilentError` if the server
        does not answer in time.
        """
        answers = self._rpc(
            "hrm_watch",
            *(("digest",) if digest else ()),
            seconds=min(self._seconds, _WATCH_SECONDS),
        )
        said = sorted(tuple(str(each.get(key)) for key in _IDENTITY) for each in answers)
        counts = [
            cast("dict[str, int]", each["requests"])
            for each in answers
            if each.get("requests") is not None
        ]
        named = {
            found[1]: int(n)
            for each in counts
            for name, n in each.items()
            if (found := _NAMED.match(name))
        }
        return Watched(tuple(said), _digest(answers), named if counts else None)

    def cache_hits(self) -> tuple[float, float] | None:
        """Number of tokens that were looked up in the server's prefix cache so far, and number of
        those that were found (None if the server does not report them).
        """
        try:
            text = self._client.get(f"{self._root}/metrics").text
        except httpx.HTTPError as error:
            raise unreachable(self.address, error) from error
        found = [
            [
                float(value)
                for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
            ]
            for name in _CACHE
        ]
        return (sum(found[0]), sum(found[1])) if all(found) else None

    def gpus(self) -> list[str]:
        """Identifier of each worker's GPU, by rank (empty for a worker without a GPU or NCCL)."""
        found = {entry.get("rank"): str(entry.get("gpu", "")) for entry in self._rpc("hrm_worker")}
        if set(found) != set(range(len(found))):
            raise ModelError(
                f"The workers of the vLLM server at {self.address.url} do not report their ranks.",
                "Start it again.",
            )
        return [found[rank] for rank in range(len(found))]

    def take(self, source: str, version: int) -> None:
        """Load all weights, then drop the cache that belongs to the old weights.

        `source`: a safetensors file that the server can read, or an offer of the trainer
        (`in_server/`).
        """
        self._rpc("hrm_take_weights", source, str(version))
        self.drop_cache()

    def take_adapter(self, folder: Path, name: str) -> None:
        """Load an adapter in PEFT's files. Requests use its name as their model."""
        self._posted("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def drop_adapter(self, name: str) -> None:
        """Remove an adapter."""
        self._posted("/v1/unload_lora_adapter", {"lora_name": name})

    def drop_cache(self) -> None:
        """Drop the keys and values of all prefixes. No request may be running."""
        if self._value("POST", "/reset_prefix_cache").get("success") is not True:
            raise ModelError(
                f"The vLLM server at {self.address.url} cannot drop the cache of its former"
                " weights, since it is answering other requests.",
                "Make sure that nobody else uses the server while a training runs.",
            )

    def compared(self, source: str) -> Compared:
        """Compare each worker's weights with its share of `source`, which is a source as for
        `take`, or the folder of an adapter.
        """
        found = self._rpc("hrm_differing_weights", source)
        sides = [
            tuple(sorted({str(name) for entry in found for name in entry.get(key, ())}))
            for key in _SIDES
        ]
        return Compared(sides[0], sides[1], _digest(found))

    def logprobs(self, token_ids: Sequence[int], model: str | None = None) -> list[float]:
        """Log-prob of each token but the first, given those before it, computed without the
        cache.
        """
        asked = {
            "model": model or self.model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        said = self._value("POST", "/v1/completions", asked)
        try:
            after_first = said["choices"][0]["prompt_logprobs"][1:]
            return [
                float(at[str(token)]["logprob"])
                for token, at in zip(token_ids[1:], after_first, strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ModelError(
                f"The vLLM server at {self.address.url} does not return log-probs of a prompt.",
                "Take vLLM 0.32.",
            ) from error

    def sample(
        self, prompts: Sequence[Sequence[int]], count: int, model: str | None = None
    ) -> None:
        """Sample `count` tokens after each prompt, all in parallel like rollouts, to measure the
        cost.
        """
        asked = {
            "model": model or self.model,
            "prompt": [*map(list, prompts)],
            "max_tokens": count,
            "ignore_eos": True,
        }
        self._value(
            "POST",
            "/v1/completions",
            asked | {"temperature": 1.0, "top_k": 0, "logprobs": 0, "seed": 0},
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _rpc(self, method: str, *args: str, seconds: float | None = None) -> list[dict[str, Any]]:
        asked = {"method": method, "args": list(args)}
        try:
            found: Any = self._value("POST", "/collective_rpc", asked, seconds).get("results")
        except ModelError as error:
            if "Not Found" not in error.message and "has no attribute" not in error.message:
                raise
            raise ModelError(
                f"The vLLM server at {self.address.url} does not accept weights.",
                f"Start it with VLLM_SERVER_DEV_MODE=1, PYTHONPATH={EXTENSION_FOLDER} (of this"
                f" release) and --worker-extension-cls {EXTENSION} (docs/scale.md).",
            ) from error
        entries = cast("list[Any]", found) if isinstance(found, list) else []
        answers = [cast("dict[str, Any]", entry) for entry in entries if isinstance(entry, dict)]
        if not answers or len(answers) != len(entries):
            raise ModelError(
                f"The vLLM server at {self.address.url} does not report a result of {method}."
            )
        for said in (answer["error"] for answer in answers if "error" in answer):
            raise ServerGoneError(
                f"The vLLM server at {self.address.url} could not do {method}:"
                f" {' '.join(str(said).split())}.",
                "See its log; `hrm-agent resume` continues a run that stopped.",
            )
        return answers

    def _value(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        status, text = self._asked(method, path, body, seconds)
        if status != HTTP_OK:
            raise refusal(self.address, status, text)
        return object_of(self.address, text)

    def _posted(self, path: str, body: dict[str, Any]) -> None:
        status, text = self._asked("POST", path, body)
        if status == HTTP_OK:
            return
        if "Not Found" in text:
            raise ModelError(
                f"The vLLM server at {self.address.url} does not accept adapters.",
                "Start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                " (docs/scale.md).",
            )
        raise refusal(self.address, status, text)

    def _asked(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float | None = None
    ) -> tuple[int, str]:
        try:
            timeout = httpx.USE_CLIENT_DEFAULT if seconds is None else seconds
            answer = self._client.request(method, f"{self._root}{path}", json=body, timeout=timeout)
        except httpx.HTTPError as error:
            raise unreachable(self.address, error) from error
        return answer.status_code, answer.text


def _digest(answers: Sequence[Mapping[str, Any]]) -> str:
    """Digest of all workers, sorted (empty if none reported one)."""
    return " ".join(sorted(str(each["digest"]) for each in answers if each.get("digest")))


_SIDES = ("differing", "unknown")
_IDENTITY = ("rank", "boot", "version", "taken")
_NAMED = re.compile(r"cmpl-(.+)-0(?:-[0-9a-f]{8})?$")
"""Pattern of a request's name inside the server. The group is the name that the client gave."""
_CACHE = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
