"""Weights that a worker of a server computes with: digests, and byte-wise comparison with a
trainer's weights.

The trainer's tensors are loaded once more, as in a reload, but separately from the model. vLLM's
loaders fuse these tensors, take this worker's share and round it, and vLLM's processing quantises
or packs the result. It is then compared with the model's tensors. So the comparison is exact even
for a model that is split over several GPUs, in half precision or quantised. Afterwards, the model
has its original tensors.

Matrices in the internal format of a kernel (such as packed matrices on a CPU) have no readable
bytes. They are compared by multiplying both sides by the same vectors and comparing the results bit
by bit. Each vector is nonzero in a few columns only, so that even a change of a weight's last bit
is detected.

A digest reads every parameter once, in place. It only shows if anything has changed since an
earlier digest of the same process.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["HeldWeights", "compare_adapter", "compare_weights", "digest_of"]

_PIECE = 1 << 22
"""Number of 8-byte numbers that are summed at once."""
_ROWS = 64
"""Number of vectors by which a packed matrix is multiplied."""
_TIED = "(tied to model.embed_tokens.weight)"
_RELOAD = "vllm.model_executor.model_loader.reload"
_LAYERWISE = (
    "initialize_layerwise_reload",
    "_layerwise_process",
    "_copy_and_restore_kernel_tensors",
)


@dataclass(slots=True)
class HeldWeights:
    """Result of a comparison of a model's tensors."""

    differing: list[str] = field(default_factory=list[str])
    """Names of tensors that differ from the trainer's."""
    unknown: list[str] = field(default_factory=list[str])
    """Names of tensors that could not be compared, some with a reason."""
    compared: int = 0
    """Number of compared tensors."""

    def take(self, name: str, same: bool | None) -> None:
        """Record the result for one tensor (None if it could not be compared)."""
        self.compared += same is not None
        if same is not True:
            (self.unknown if same is None else self.differing).append(name)


_REGISTERED = ("_parameters", "_buffers")
"""Attributes in which a module has its tensors. They are set directly, without the module's hooks,
since all tensors are put back afterwards.
"""


class _Kept:
    """Tensors and attributes of a module, from which it can be restored."""

    def __init__(self, module: nn.Module) -> None:
        self.own: dict[str, Any] = dict(module.__dict__)
        self._all: list[tuple[str, dict[str, Tensor | None]]] = [
            (name, dict(self.own[name])) for name in _REGISTERED
        ]
        (_, parameters), (_, buffers) = self._all
        self.parameters = {name: each for name, each in parameters.items() if each is not None}
        self.buffers = {name: each for name, each in buffers.items() if each is not None}
        self._fleeting: set[str] = set(self.own["_non_persistent_buffers_set"])

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, and the buffers that are part of a checkpoint."""
        return self.parameters | {
            name: each for name, each in self.buffers.items() if name not in self._fleeting
        }

    def put_back(self, module: nn.Module) -> None:
        for name in [name for name in module.__dict__ if name not in self.own]:
            del module.__dict__[name]
        module.__dict__.update(self.own)
        for name, held in self._all:
            module.__dict__[name].clear()
            module.__dict__[name].update(held)
        fleeting: set[str] = module.__dict__["_non_persistent_buffers_set"]
        fleeting.clear()
        fleeting.update(self._fleeting)


def compare_weights(model: nn.Module, tensors: Iterable[tuple[str, Tensor]]) -> HeldWeights:
    """Compare a model with a trainer's tensors, which have Hugging Face's names. No request may be
    running.
    """
    layerwise, skipped = _layer_by_layer()
    if layerwise is None:
        for _ in tensors:
            pass
        return HeldWeights(
            unknown=["all: this version of vLLM does not load its layers one by one"]
        )
    return _Shadow(model, layerwise, skipped).compared(tensors)


def _layer_by_layer() -> tuple[Any, Iterable[str]]:
    """Module of vLLM that reloads layer by layer (None if this vLLM has no such module), and names
    of tensors that it overwrites in place.
    """
    try:
        found = import_module(f"{_RELOAD}.layerwise")
        skipped = import_module(f"{_RELOAD}.meta").SKIP_TENSORS
    except (ImportError, AttributeError):
        return None, ()
    return (found, skipped) if all(hasattr(found, name) for name in _LAYERWISE) else (None, ())


class _Shadow:
    """Reload whose result is compared with the model's tensors, but not used."""

    def __init__(self, model: nn.Module, layerwise: Any, skipped: Iterable[str]) -> None:
        self._model, self._layerwise, self._skipped = model, layerwise, tuple(skipped)
        self._names = {
            module: name.replace(".base_layer", "") for name, module in model.named_modules()
        }
        self._kept = {module: _Kept(module) for module in self._names}
        self._found = HeldWeights()
        self._seen: set[int] = set()
        """Ids of the model's tensors that were compared, or reported as unknown."""

    def compared(self, tensors: Iterable[tuple[str, Tensor]]) -> HeldWeights:
        lay = self._layerwise
        takes = lay._copy_and_restore_kernel_tensors
        lay._copy_and_restore_kernel_tensors = self._compare
        try:
            for module in self._names:
                self._copy_what_is_written_to(module)
            lay.initialize_layerwise_reload(self._model)
            self._model.load_weights(tensors)  # type: ignore[operator]
            for module in self._names:
                self._complete(module)
        finally:
            lay._copy_and_restore_kernel_tensors = takes
            for module, kept in self._kept.items():
                kept.put_back(module)
                lay.get_layerwise_info(module).reset()
            lay.LOADING_LAYERS.clear()
        for module, kept in self._kept.items():
            for name, tensor in kept.parameters.items():
                if id(tensor) not in self._seen and tensor.numel():
                    self._found.take(f"{self._names[module]}.{name}", None)
        return self._found

    def _copy_what_is_written_to(self, module: nn.Module) -> None:
        """Copy tensors that a reload overwrites in place, such as a bias."""
        for name in self._skipped:
            live = self._kept[module].parameters.get(name)
            if live is None:
                continue
            own: Any = live.data.clone()
            own.__class__ = live.__class__
            own.__dict__.update(live.__dict__)
            module.__dict__["_parameters"][name] = own

    def _complete(self, module: nn.Module) -> None:
        """Finish a layer for which not all values were loaded. A padded layer never gets more."""
        info = self._layerwise.get_layerwise_info(module)
        if not info.can_load() or not info.load_numel:
            return
        if self._layerwise.is_deferred_attention_layer(module):
            for name in {name for name, _ in info.loaded_weights}:
                self._found.take(f"{self._names[module]}.{name}", None)
            return
        self._layerwise._layerwise_process(module, info)

    def _compare(self, module: nn.Module, info: Any) -> None:
        """Compare a layer, at the point where a reload would copy its new tensors over the current
        ones.
        """
        kept = self._kept[module]
        name = self._names[module]
        # a loader leaves missing places uninitialised, except for a vocabulary, where it sets them
        # to 0
        whole = info.load_numel >= (info.load_numel_total or 0) or hasattr(module, "shard_indices")
        fresh: dict[str, Any] = {**module.__dict__["_parameters"], **module.__dict__["_buffers"]}
        for each, live in kept.tensors().items():
            self._seen.add(id(live))
            if not live.numel():
                continue  # the kernel has the contents
            same = _same_bytes(live, fresh.get(each))
            self._found.take(f"{name}.{each}", same if same or whole else None)
        shape = getattr(info.restore_metadata[0].get("weight"), "shape", ())
        if "cpu_linear" in kept.own:
            self._found.take(
                f"{name}.weight", _same_results(kept.own, module.__dict__, shape, kept, fresh)
            )
        elif not any(live.numel() for live in kept.parameters.values()):
            self._found.take(f"{name}: its kernel keeps it in a form of its own", None)
        self._compare_tied(module, kept, fresh.get("weight"), shape)
        kept.put_back(module)  # frees the new tensors

    def _compare_tied(self, module: nn.Module, kept: _Kept, fresh: Any, shape: Any) -> None:
        """Compare an output layer that is tied to the embedding: it gets no tensor, but has a
        packed copy of the embedding.
        """
        shared = kept.parameters.get("weight")
        for head, other in self._kept.items():
            if head is module or shared is None or other.parameters.get("weight") is not shared:
                continue
            if "cpu_linear" not in other.own or fresh is None:
                continue
            made = copy.copy(head)
            made.__dict__["_parameters"] = {"weight": fresh}
            made.quant_method.process_weights_after_loading(made)  # type: ignore[union-attr]
            same = _same_results(other.own, made.__dict__, shape, other, {"weight": fresh})
            self._found.take(f"{self._names[head]}.weight {_TIED}", same)


def _same_bytes(live: Tensor, fresh: Any) -> bool | None:
    if (
        not isinstance(fresh, Tensor)
        or fresh.is_meta
        or fresh.dtype != live.dtype
        or fresh.shape != live.shape
    ):
        return None
    return torch.equal(_bytes(live), _bytes(fresh.to(live.device)))


def _same_results(
    live: dict[str, Any], fresh: dict[str, Any], shape: Any, kept: _Kept, made: Any
) -> bool | None:
    if len(shape) != 2 or "cpu_linear" not in fresh:
        return None
    dtype = kept.parameters["weight"].dtype
    rows = _vectors(int(shape[1]), dtype)
    ours = live["cpu_linear"](rows, kept.parameters["weight"], None)
    theirs = fresh["cpu_linear"](rows, made.get("weight"), None)
    return torch.equal(_bytes(ours), _bytes(theirs))


def _vectors(width: int, dtype: torch.dtype) -> Tensor:
    """[rows, width] vectors. Vector i is nonzero in the columns i, i + rows, i + 2 rows and so on,
    with alternating signs.
    """
    rows = min(_ROWS, width)
    columns = torch.arange(width)
    vectors = torch.zeros(rows, width)
    vectors[columns % rows, columns] = 1.0 - 2.0 * ((columns // rows) % 2)
    return vectors.to(dtype)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


@torch.inference_mode()
def compare_adapter(manager: Any, folder: str) -> HeldWeights:
    """Compare the adapter that was loaded last, as it is in the slots of the model's layers, with
    the files in `folder`.
    """
    request = import_module("vllm.lora.request").LoRARequest
    found = HeldWeights()
    adapters = manager._adapter_manager
    newest = max(manager.list_adapters(), default=0)
    if newest not in adapters.lora_index_to_id:
        return HeldWeights(unknown=["the adapter: no layer has it"])
    slot = adapters.lora_index_to_id.index(newest)
    fresh = manager._load_adapter(request("compared", newest, folder))
    adapters._create_merged_loras_inplace(fresh)
    for name, module in adapters.modules.items():
        weights = adapters._get_lora_layer_weights(fresh, name)
        found.take(f"{name} (adapter)", _same_slot(module, slot, weights))
    return found


def _same_slot(module: nn.Module, slot: int, weights: Any) -> bool | None:
    stacked = {name: held for name, held in module.__dict__.items() if name.endswith("_stacked")}
    if set(stacked) != {"lora_a_stacked", "lora_b_stacked"}:
        return None
    made = copy.copy(module)
    for name, held in stacked.items():
        made.__dict__[name] = tuple(torch.zeros_like(each[slot : slot + 1]) for each in held)
    if weights:
        made.set_lora(0, weights.lora_a, weights.lora_b)  # type: ignore[operator]
    return all(
        torch.equal(_bytes(live[slot]), _bytes(fresh[0]))
        for name, held in stacked.items()
        for live, fresh in zip(held, made.__dict__[name], strict=True)
    )


@torch.inference_mode()
def digest_of(model: nn.Module) -> str:
    """Digest of everything that the model computes with: parameters, checkpointed buffers, packed
    matrices, adapters.
    """
    said = hashlib.blake2b(digest_size=16)
    sums = list[Tensor]()
    seen = set[int]()
    for name, tensor, made in _held(model):
        if (id(tensor) in seen and not made) or not tensor.numel():
            continue
        seen.add(0 if made else id(tensor))
        said.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sums.append(_sum(tensor))
    for device in sorted({str(each.device) for each in sums}):
        there = torch.stack([each for each in sums if str(each.device) == device])
        said.update(there.cpu().numpy().tobytes())
    return said.hexdigest()


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Names and tensors, each with True if the tensor was made for this check."""
    for name, module in model.named_modules():
        kept = _Kept(module)
        for each, tensor in kept.tensors().items():
            yield f"{name}.{each}", tensor, False
        for each, held in kept.own.items():
            if each.endswith("_stacked"):
                yield from (
                    (f"{name}.{each}.{place}", tensor, False) for place, tensor in enumerate(held)
                )
        layer = kept.own.get("cpu_linear")
        width = kept.own.get("input_size_per_partition")
        width = kept.own.get("embedding_dim") if width is None else width
        if layer is not None and isinstance(width, int) and "weight" in kept.parameters:
            weight = kept.parameters["weight"]
            yield f"{name}.packed", layer(_vectors(width, weight.dtype), weight, None), True


def _sum(tensor: Tensor) -> Tensor:
    """Two sums of a tensor's bytes as 8-byte integers: a plain sum, and a sum weighted by place.
    Both wrap around.
    """
    flat = _bytes(tensor)
    whole = len(flat) // 8 * 8
    words = flat[:whole] if flat.data_ptr() % 8 == 0 else flat[:whole].clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        words = words.view(torch.int64)
    places = (
        torch.arange(1, min(_PIECE, max(1, len(words))) + 1, device=flat.device, dtype=torch.int64)
        * 2
        + 1
    )
    plain = flat[whole:].to(torch.int64).sum()
    placed = flat[whole:].to(torch.int64).sum()
    for piece in words.split(_PIECE):
        plain = plain * 31 + piece.sum()
        placed = placed * 31 + (piece * places[: len(piece)]).sum()
    return torch.stack([plain, placed])
