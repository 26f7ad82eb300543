"""Which weights a worker of a server computes with: compared with a trainer's, byte by byte, and
digested.

The trainer's tensors are loaded once more, as a reload does it, but beside the model: vLLM's own
loaders fuse them, take this worker's share of them and round them, its own processing quantises or
packs them, and what comes of it is compared with what the model has. So a model that is split over
several cards, in half precision or quantised, is compared as closely as any other. Afterwards the
model has the very tensors that it had.

What a kernel keeps in a form of its own (the packed matrices of a CPU) has no bytes to be read.
There both sides are put to the same vectors, and the results compared bit by bit: each vector
reaches a few columns, so that a change of a weight's last bit is seen.

A digest reads every parameter once, where it lies. It says whether anything has changed since
another digest of the same process, and nothing else.
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
"""Numbers of 8 bytes that are summed at once."""
_ROWS = 64
"""Vectors that a packed matrix is put to."""
_TIED = "(tied to model.embed_tokens.weight)"
_RELOAD = "vllm.model_executor.model_loader.reload"
_LAYERWISE = (
    "initialize_layerwise_reload",
    "_layerwise_process",
    "_copy_and_restore_kernel_tensors",
)


@dataclass(slots=True)
class HeldWeights:
    """Result of comparing a model's tensors."""

    differing: list[str] = field(default_factory=list[str])
    """Names of those that are others than the trainer's."""
    unknown: list[str] = field(default_factory=list[str])
    """Names of those that could not be compared, some with a reason."""
    compared: int = 0
    """Number of those that were."""

    def take(self, name: str, same: bool | None) -> None:
        """Note one tensor; None: it could not be compared."""
        self.compared += same is not None
        if same is not True:
            (self.unknown if same is None else self.differing).append(name)


_REGISTERED = ("_parameters", "_buffers")
"""Attributes in which a module has its tensors. Hooks on adding and removing are bypassed: all is
put back.
"""


class _Kept:
    """All that a module had."""

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
    """Hold a model to a trainer's tensors, by Hugging Face's names. No request may be under way."""
    layerwise, skipped = _layer_by_layer()
    if layerwise is None:
        for _ in tensors:
            pass
        return HeldWeights(
            unknown=["all: this version of vLLM does not load its layers one by one"]
        )
    return _Shadow(model, layerwise, skipped).compared(tensors)


def _layer_by_layer() -> tuple[Any, Iterable[str]]:
    """VLLM's module that reloads so, and names of tensors that it writes to in place; None where it
    has none.
    """
    try:
        found, skipped = (
            import_module(f"{_RELOAD}.layerwise"),
            import_module(f"{_RELOAD}.meta").SKIP_TENSORS,
        )
    except (ImportError, AttributeError):
        return None, ()
    return (found, skipped) if all(hasattr(found, name) for name in _LAYERWISE) else (None, ())


class _Shadow:
    """A reload whose result is compared in place of being taken."""

    def __init__(self, model: nn.Module, layerwise: Any, skipped: Iterable[str]) -> None:
        self._model, self._layerwise, self._skipped = model, layerwise, tuple(skipped)
        self._names = {
            module: name.replace(".base_layer", "") for name, module in model.named_modules()
        }
        self._kept = {module: _Kept(module) for module in self._names}
        self._found = HeldWeights()
        self._seen: set[int] = set()
        """Ids of the model's tensors that were compared, or said to be unknown."""

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
        """A reload writes some tensors in place, such as a bias."""
        for name in self._skipped:
            live = self._kept[module].parameters.get(name)
            if live is None:
                continue
            own: Any = live.data.clone()
            own.__class__ = live.__class__
            own.__dict__.update(live.__dict__)
            module.__dict__["_parameters"][name] = own

    def _complete(self, module: nn.Module) -> None:
        """Load what came of a layer that did not become whole; where it is padded, what came is
        all.
        """
        info = self._layerwise.get_layerwise_info(module)
        if not info.can_load() or not info.load_numel:
            return
        if self._layerwise.is_deferred_attention_layer(module):
            for name in {name for name, _ in info.loaded_weights}:
                self._found.take(f"{self._names[module]}.{name}", None)
            return
        self._layerwise._layerwise_process(module, info)

    def _compare(self, module: nn.Module, info: Any) -> None:
        """Called where a reload copies a layer's new tensors over those that it has."""
        kept, name = self._kept[module], self._names[module]
        # a loader that leaves places out leaves them as they come, but that of a vocabulary, which
        # makes them 0
        whole = info.load_numel >= (info.load_numel_total or 0) or hasattr(module, "shard_indices")
        fresh: dict[str, Any] = {**module.__dict__["_parameters"], **module.__dict__["_buffers"]}
        for each, live in kept.tensors().items():
            self._seen.add(id(live))
            if not live.numel():
                continue  # a kernel has it
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
        kept.put_back(module)  # which frees what was made

    def _compare_tied(self, module: nn.Module, kept: _Kept, fresh: Any, shape: Any) -> None:
        """An output layer that has its own packed copy of the embedding gets no tensor of its
        own.
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
    """Each reaches the columns of one rest of a division,
    with signs that go from one to the next.
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
    """Hold the adapter that was loaded last to the files in `folder`, as the model's layers have it
    in their slots.
    """
    request = import_module("vllm.lora.request").LoRARequest
    found, adapters = HeldWeights(), manager._adapter_manager
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
    """One word for all that the model computes with: parameters, checkpointed buffers, packed
    matrices, adapters.
    """
    said, sums, seen = hashlib.blake2b(digest_size=16), list[Tensor](), set[int]()
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
    """Names and tensors, and whether one was made to be looked at."""
    for name, module in model.named_modules():
        kept = _Kept(module)
        for each, tensor in kept.tensors().items():
            yield f"{name}.{each}", tensor, False
        for each, held in kept.own.items():
            if each.endswith("_stacked"):
                yield from (
                    (f"{name}.{each}.{place}", tensor, False) for place, tensor in enumerate(held)
                )
        layer, width = kept.own.get("cpu_linear"), kept.own.get("input_size_per_partition")
        width = kept.own.get("embedding_dim") if width is None else width
        if layer is not None and isinstance(width, int) and "weight" in kept.parameters:
            weight = kept.parameters["weight"]
            yield f"{name}.packed", layer(_vectors(width, weight.dtype), weight, None), True


def _sum(tensor: Tensor) -> Tensor:
    """Two sums of its bytes, one by place; of 8 bytes as integers, which wrap around."""
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
    plain, placed = flat[whole:].to(torch.int64).sum(), flat[whole:].to(torch.int64).sum()
    for piece in words.split(_PIECE):
        plain = plain * 31 + piece.sum()
        placed = placed * 31 + (piece * places[: len(piece)]).sum()
    return torch.stack([plain, placed])
