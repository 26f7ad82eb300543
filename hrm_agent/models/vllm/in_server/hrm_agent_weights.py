"""Worker extension of a vLLM server that takes weights from a trainer and reports its current ones.

    PYTHONPATH=<this folder> VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \
        --worker-extension-cls hrm_agent_weights.WeightsFromTrainer

The modules in this folder import nothing of the package, since the server may have another Python
environment. The methods are called through `/collective_rpc`, with strings only, in each worker of
the server. Weights come from a safetensors file, named by its path, or from the trainer itself, by
an offer (`hrm_agent_group.py`).

`model.load_weights` alone is not enough. If a backend computes with a packed copy of a matrix (as
oneDNN on a CPU, which drops the plain matrix), the copy would stay unchanged. For an output layer
that is tied to the embedding, there is not even an error. So weights are loaded by vLLM's reload,
layer by layer, and then a tied output layer is packed again. The result is verified:
`hrm_differing_weights` compares the tensors of every layer (`hrm_agent_held.py`), and `hrm_watch`
repeatedly checks that they are unchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from hrm_agent_group import Offer, gpu_of, receive
from hrm_agent_held import HeldWeights, compare_adapter, compare_weights, digest_of
from safetensors import safe_open
from torch import Tensor, nn

__all__ = ["WeightsFromTrainer"]

_SHOWN = 50
"""Maximum number of tensor names in one answer."""
_BOOT = secrets.token_hex(8)
"""Random id of this process. After a restart, it differs."""


class WeightsFromTrainer:
    """Mixin for vLLM's worker class."""

    model_runner: Any
    vllm_config: Any
    rank: int
    device: torch.device | None

    def hrm_worker(self) -> dict[str, Any]:
        """Rank of this worker among the server's workers, and the identifier of its GPU (empty if
        NCCL cannot use it).
        """
        return {"rank": self.rank, "gpu": gpu_of(self.device)}

    def hrm_take_weights(self, source: str, version: str) -> dict[str, Any]:
        """Load all weights, which have the names of Hugging Face's model. `source`: a path or an
        offer.
        """
        self.hrm_version: int | None = None  # no version until all weights are loaded
        self.hrm_taken = getattr(self, "hrm_taken", 0) + 1
        failures: list[Exception] = []
        with closing(_to_an_end(_tensors(self, source), failures)) as tensors:
            try:
                self.reload_weights(weights_iterator=tensors)  # type: ignore[attr-defined]
                _pack_tied(self.model_runner.get_model())
            except Exception as error:
                failures.append(error.with_traceback(None))
            for _ in tensors:
                pass  # receive the remaining tensors, since all are sent
        if failures:
            return _failed(failures[0])
        self.hrm_version = int(version)
        return {"version": self.hrm_version}

    def hrm_differing_weights(self, source: str) -> dict[str, Any]:
        """Compare this worker's weights with those of a path or an offer. `differing` has the names
        of tensors that differ, and `unknown` of those that could not be compared.

        If `source` is the folder of an adapter, the adapter that was loaded last is compared.
        `digest` is the digest of all weights of this worker.
        """
        model = self.model_runner.get_model()
        failures: list[Exception] = []
        if not source.startswith("{") and (Path(source) / "adapter_config.json").is_file():
            try:
                found = compare_adapter(self.model_runner.lora_manager, source)
            except Exception as error:
                return _failed(error)
            return _told(found) | {"digest": digest_of(model)}
        with torch.no_grad(), closing(_to_an_end(_tensors(self, source), failures)) as tensors:
            try:
                found = compare_weights(model, tensors)
            except Exception as error:
                failures.append(error.with_traceback(None))
                found = HeldWeights()
            for _ in tensors:
                pass
        if failures:
            return _failed(failures[0])
        return _told(found) | {"digest": digest_of(model)}

    def hrm_watch(self, digest: str = "") -> dict[str, Any]:
        """Identity of this process, the version last loaded, and the progress of its requests. It
        is called about once a second.

        `digest`: any text but the empty one to read all weights and return their digest.
        """
        said: dict[str, Any] = {
            "rank": self.rank,
            "boot": _BOOT,
            "version": getattr(self, "hrm_version", None),
        }
        said["taken"] = getattr(self, "hrm_taken", 0)
        if self.rank == 0:
            said["requests"] = _sampled(self.model_runner)
        if digest:
            said["digest"] = digest_of(self.model_runner.get_model())
        return said


def _told(found: HeldWeights) -> dict[str, Any]:
    shown = {"differing": found.differing[:_SHOWN], "unknown": found.unknown[:_SHOWN]}
    return {**shown, "compared": found.compared}


def _sampled(runner: Any) -> dict[str, int] | None:
    """Number of tokens of each running request, including its prompt (None if this vLLM does not
    report them).
    """
    requests = getattr(runner, "requests", None)
    if isinstance(requests, dict):
        return {name: int(each.num_tokens) for name, each in requests.items()}
    states = getattr(runner, "req_states", None)
    if states is None:
        return None
    return {
        name: int(states.num_computed_tokens_np[place])
        for name, place in states.req_id_to_index.items()
    }


def _tensors(worker: WeightsFromTrainer, source: str) -> Generator[tuple[str, Tensor]]:
    if source.startswith("{"):
        offer = Offer.of(source)
        device = worker.device if offer.backend == "nccl" else None
        yield from receive(offer, worker.rank + 1, device or torch.device("cpu"))
        return
    files = sorted(Path(source).glob("*.safetensors")) if Path(source).is_dir() else [Path(source)]
    if not files or not files[0].is_file():
        raise FileNotFoundError(
            f"no weights at {source}: the server does not see the trainer's folder"
        )
    for each in files:
        with safe_open(each, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a file is no dict
                yield name, file.get_tensor(name)


def _failed(error: Exception) -> dict[str, Any]:
    """Describe an error as a result, since it cannot be raised: if one of several workers raises,
    vLLM returns the other workers' results as the next answer.
    """
    return {"error": f"{type(error).__name__}: {error}"}


def _to_an_end(
    tensors: Generator[tuple[str, Tensor]], failures: list[Exception]
) -> Generator[tuple[str, Tensor]]:
    """Yield the tensors up to an error, which is added to `failures` instead of raised. If an error
    stopped a reload, some layers could not be loaded any more. A reload that only lacks tensors has
    no such effect.
    """
    with closing(tensors):
        try:
            yield from tensors
        except Exception as error:
            error.__context__ = error.__cause__ = None
            # the traceback would keep the group and its connections
            failures.append(error.with_traceback(None))


def _pack_tied(model: nn.Module) -> None:
    """Pack an output layer that is tied to the embedding. It gets no tensor of its own, so a reload
    does not pack it again.
    """
    head = getattr(model, "lm_head", None)
    embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
    head = _plain(head)
    embedding = _plain(embedding)
    if head is None or embedding is None or head is embedding or not hasattr(head, "quant_method"):
        return
    if getattr(head, "weight", None) is getattr(embedding, "weight", None):
        head.quant_method.process_weights_after_loading(head)


def _plain(module: nn.Module | None) -> Any:
    """Layer without its adapter wrapper."""
    return getattr(module, "base_layer", module)
