"""What a vLLM server runs to take weights from a trainer, and to say which of them it has: a worker extension.

    PYTHONPATH=<this folder> VLLM_SERVER_DEV_MODE=1 vllm serve MODEL \
        --worker-extension-cls hrm_agent_weights.WeightsFromTrainer

The modules in this folder import nothing of the package, since the server has an environment of its own. The methods
are called through `/collective_rpc`, with strings alone, in each worker of the server. Weights come from a safetensors
file, named by its path, or from the trainer itself, by an offer (`hrm_agent_group.py`).

`model.load_weights` on its own is not enough: where a backend keeps a packed copy of a matrix (oneDNN on a CPU, which
drops the plain one), that copy stays as it was, and with tied embeddings the output layer's does so without any error.
So weights are loaded by vLLM's own reload, layer by layer, and then each layer that shares its matrix with another is
packed again. Whether that has come to pass is not believed: `hrm_differing_weights` puts a vector through every layer
and compares.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from hrm_agent_group import Offer, gpu_of, receive
from safetensors import safe_open
from torch import Tensor, nn

__all__ = ["WeightsFromTrainer"]

_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_TIED = "lm_head.weight (tied to model.embed_tokens.weight)"
_SHOWN = 50
"""Names of tensors in one answer."""
_ROUNDING = {torch.float32: (1e-6, 1e-6)}
"""By dtype: what a rounded output may be off by, relative to it, and a sum, relative to the sum of the magnitudes."""


class WeightsFromTrainer:
    """Mixed into vLLM's worker class."""

    model_runner: Any
    vllm_config: Any
    rank: int
    device: torch.device | None

    def hrm_worker(self) -> dict[str, Any]:
        """Its rank among the server's workers, and its GPU if it has one that NCCL knows."""
        return {"rank": self.rank, "gpu": gpu_of(self.device)}

    def hrm_take_weights(self, source: str, version: str) -> dict[str, Any]:
        """Load all weights, by the names that Hugging Face's model gives them. `source`: a path, or an offer."""
        self.hrm_version: int | None = None  # until all are there
        failures: list[Exception] = []
        with closing(_to_an_end(_tensors(self, source), failures)) as tensors:
            try:
                self.reload_weights(weights_iterator=tensors)  # type: ignore[attr-defined]
                _pack_tied(self.model_runner.get_model())
            except Exception as error:
                failures.append(error.with_traceback(None))
            for _ in tensors:
                pass  # what the model does not read is sent nevertheless
        if failures:
            return _failed(failures[0])
        self.hrm_version = int(version)
        return {"version": self.hrm_version}

    def hrm_weights_version(self) -> dict[str, Any]:
        """The version that was taken last; None in a server that has only what it was started with."""
        return {"version": getattr(self, "hrm_version", None)}

    @torch.inference_mode()
    def hrm_differing_weights(self, source: str) -> dict[str, Any]:
        """Names of the tensors of a path, or an offer, that this worker does not compute with.

        `unknown`: names that cannot be looked at (the model is split over several cards, or its layers are not known
        here). Nothing is said about them.
        """
        if self.vllm_config.parallel_config.tensor_parallel_size > 1:
            return {"differing": [], "unknown": ["all: the model is split over several cards"]}
        model = self.model_runner.get_model()
        modules = dict(model.named_modules())
        fused = {**_FUSED, **(getattr(model, "packed_modules_mapping", None) or {})}
        differing: list[str] = []
        unknown: list[str] = []
        seen: set[str] = set()
        tied: Tensor | None = None
        failures: list[Exception] = []
        with closing(_to_an_end(_tensors(self, source), failures)) as tensors:
            for name, sent in tensors:
                tensor = sent.cpu()
                seen.add(name)
                try:
                    same = _same(name, tensor, modules, fused)
                except Exception as error:
                    return _failed(error)
                if same is None:
                    unknown.append(name)
                elif not same:
                    differing.append(name)
                if name == "model.embed_tokens.weight":
                    tied = tensor
        if failures:
            return _failed(failures[0])
        head = modules.get("lm_head")
        if "lm_head.weight" not in seen and head is not None and tied is not None:
            differing += [_TIED] if _same_matrix(head, tied, 0) is False else []
        return {"differing": differing[:_SHOWN], "unknown": unknown[:_SHOWN], "compared": len(seen) - len(unknown)}


def _tensors(worker: WeightsFromTrainer, source: str) -> Generator[tuple[str, Tensor]]:
    if source.startswith("{"):
        offer = Offer.of(source)
        device = worker.device if offer.backend == "nccl" else None
        yield from receive(offer, worker.rank + 1, device or torch.device("cpu"))
        return
    if not Path(source).is_file():
        raise FileNotFoundError(f"no weights at {source}: the server does not see the trainer's folder")
    with safe_open(source, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - a file is no dict
            yield name, file.get_tensor(name)


def _failed(error: Exception) -> dict[str, Any]:
    """Said and not raised: where one of several workers raises, vLLM takes what the others say for the next answer."""
    return {"error": f"{type(error).__name__}: {error}"}


def _to_an_end(tensors: Generator[tuple[str, Tensor]], failures: list[Exception]) -> Generator[tuple[str, Tensor]]:
    """A reload that an error ends leaves layers that cannot be loaded any more; one that lacks tensors does not."""
    with closing(tensors):
        try:
            yield from tensors
        except Exception as error:
            error.__context__ = error.__cause__ = None
            failures.append(error.with_traceback(None))  # which would keep the group and its connections


def _pack_tied(model: nn.Module) -> None:
    """An output layer tied to the embedding gets no tensor of its own, and so is not packed anew by a reload."""
    head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
    head, embedding = _plain(head), _plain(embedding)
    if head is None or embedding is None or head is embedding or not hasattr(head, "quant_method"):
        return
    if getattr(head, "weight", None) is getattr(embedding, "weight", None):
        head.quant_method.process_weights_after_loading(head)


def _plain(module: nn.Module | None) -> Any:
    """Without the layer that adds adapters."""
    return getattr(module, "base_layer", module)


def _same(name: str, tensor: Tensor, modules: dict[str, nn.Module], fused: dict[str, Any]) -> bool | None:
    owner, _, leaf = name.rpartition(".")
    module, first = modules.get(owner), 0
    if module is None:
        before, _, last = owner.rpartition(".")
        for whole, parts in fused.items():
            module = modules.get(f"{before}.{whole}") if last in parts else None
            if module is not None:
                first = sum(_plain(module).output_sizes[: list(parts).index(last)])
                break
    module = _plain(module)
    if module is None:
        return None
    if leaf == "weight" and tensor.ndim == 2:
        return _same_matrix(module, tensor, first)
    there = getattr(module, leaf, None)
    if not isinstance(there, Tensor):
        return None
    return torch.equal(there[first : first + len(tensor)].cpu(), tensor.to(there.dtype))


def _same_matrix(module: Any, matrix_NK: Tensor, first: int) -> bool | None:
    """By what the layer makes of a vector: the matrix itself may be in a form that only its kernel can read."""
    module = _plain(module)
    method: Any = getattr(module, "quant_method", None)
    rows = len(matrix_NK)
    if not type(method).__name__.startswith("Unquantized"):
        return None
    there: Tensor = module.weight
    if there.ndim == 2 and len(there) >= first + rows and "Head" not in type(module).__name__:
        kept = there[first : first + rows].cpu()
        if not torch.equal(kept, matrix_NK.to(kept.dtype)):
            return False
        if type(module).__name__.endswith("Embedding"):
            return True
    dtype, width = there.dtype, matrix_NK.shape[1]
    vector_K = torch.sin(torch.arange(1, width + 1, dtype=torch.float64) * 12.9898).to(dtype)
    made = method.apply(module, vector_K.unsqueeze(0).to(there.device), None)
    made_N = made[0, first : first + rows].cpu().double()
    exact_NK, exact_K = matrix_NK.to(dtype).double(), vector_K.double()
    wanted_N, scale_N = exact_NK @ exact_K, exact_NK.abs() @ exact_K.abs()
    output, sums = _ROUNDING.get(dtype, (2**-7, 1e-4))
    return bool(((made_N - wanted_N).abs() <= output * wanted_N.abs() + sums * scale_N + 1e-12).all())
