"""Survey of a model's attention: the requirements of each layer, and a test that nothing but
attention mixes tokens.

The engine packs tokens of many conversations into one sequence, and a trainer may do so, too. That
is correct only if the model mixes tokens in its attention alone, and if its attention can be
replaced without losing a feature. Names of architectures do not show this, but one pass over four
tokens does. All four tokens have the same position, and the first and the last token are equal. In
this pass, attention is replaced: each token gets a function of its own query and value. The first
and the last token then have equal results, unless something else mixes tokens (a convolution, a
state space, a memory) or counts positions along the sequence. The pass also records the arguments
of attention: keys and values of each layer, its window, its sinks.

The library tells a layer by a mask which tokens it may see. So the survey requests masks, and
`_mask_kind` replaces each mask by a single number, the window of its layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from hrm_agent.models.local.kv_cache import LayerKeys

__all__ = [
    "AttentionCall",
    "AttentionSurvey",
    "LayerAttention",
    "register_attention",
    "survey",
    "unknown_arguments",
    "window_of",
]

_KNOWN = {
    *(
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    ),
    *("position_ids", "s_aux", "sliding_window", "softcap", "use_cache"),
}
"""Arguments of an attention function that are supported, or that do not change its result in a
packed step.
"""
_FULL = 0
_OTHER = -1
_TOKENS = (1, 2, 3, 1)
_AT = 3
"""Position of all tokens of the pass."""
_ALIKE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
_ALIKE_EXACT = 1e-3
"""Largest difference of two logits that count as equal, relative to their spread."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """Call of attention by a layer of a model."""

    module: Any
    """Attention module of the layer."""
    query: Tensor
    """[1, heads, tokens, head size]"""
    key: Tensor
    """[1, key heads, tokens, head size]"""
    value: Tensor
    """[1, key heads, tokens, value size]"""
    mask: Tensor | None
    """Number in place of a mask, which `window_of` reads (None: all previous tokens are seen)."""
    scale: float | None
    """Factor of the scores (None: one over the root of the head size)."""
    options: Mapping[str, Any]
    """Other arguments, such as sinks (`s_aux`) and bounds of the scores."""


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Requirements of one layer for attention."""

    keys: LayerKeys
    """Shape of the layer's keys and values."""
    window: int | None
    """Number of tokens that a token sees, including itself (None: all previous tokens)."""
    sinks: bool
    """True if each head has a logit that takes a share of the attention and contributes nothing."""
    softcap: float | None
    """Bound of the scores, plus and minus, applied by a tanh (None: unbounded)."""


@dataclass(frozen=True, slots=True)
class AttentionSurvey:
    """Layers of a model, or the reason why it cannot run in packed steps."""

    layers: tuple[LayerAttention, ...]
    """Layers in order (empty if there is an objection)."""
    dtype: torch.dtype
    """Number format of keys and values."""
    objection: str | None
    """Reason why tokens of several texts cannot share one sequence, as a clause about the model
    (None if they can).
    """

    @property
    def plain(self) -> bool:
        """True if a fused kernel computes the attention of all layers."""
        return not any(
            each.sinks or each.softcap or each.keys.key_size != each.keys.value_size
            for each in self.layers
        )


def register_attention(name: str, attention: Callable[..., tuple[Tensor, None]]) -> None:
    """Register `attention` as an attention function for models, which call it with the layer's
    window in place of a mask.
    """
    cast("Any", AttentionInterface).register(name, attention)
    cast("Any", AttentionMaskInterface).register(name, _mask_kind)


def window_of(mask: Tensor | None) -> int | None:
    """Window of a layer, from its mask (None: it sees all previous tokens).

    Raises `ValueError` if the mask is neither causal nor of a sliding window, or was made by the
    model itself.
    """
    if mask is None:
        return None
    kind = int(mask.flatten()[0]) if mask.numel() == 1 and not mask.is_floating_point() else _OTHER
    if kind == _OTHER:
        raise ValueError("a mask of another kind")
    return kind or None


def unknown_arguments(options: Mapping[str, Any]) -> list[str]:
    """Arguments of a call of attention that would change its result but are not supported."""
    return sorted(
        name for name, value in options.items() if value is not None and name not in _KNOWN
    )


def _mask_kind(*_: Any, mask_function: Any, local_size: int | None = None, **__: Any) -> Tensor:
    """Number in place of a mask: `_FULL`, the size of a window, or `_OTHER`."""
    kinds = (_FULL,) if local_size is None else (local_size, _FULL)
    found = next(
        (kind for kind in kinds if _is_of_kind(mask_function, kind, local_size or 2)), _OTHER
    )
    return torch.full((1, 1, 1, 1), found, dtype=torch.int64)


def _is_of_kind(mask_function: Any, kind: int, size: int) -> bool:
    first = torch.zeros((), dtype=torch.int64)
    places = sorted({0, 1, size - 1, size, size + 1, 2 * size, 2 * size + 1})
    for last in places:
        for seen in places:
            expected = seen <= last and (kind == _FULL or seen > last - kind)
            try:
                if (
                    bool(mask_function(first, first, torch.tensor(last), torch.tensor(seen)))
                    != expected
                ):
                    return False
            # a mask function of the texts, which fails for the few tokens of this test
            except Exception:
                return False
    return True


class _Notes:
    """Object that takes the place of a packed step in the pass of a survey, and records the calls."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerAttention] = {}
        self.dtype = torch.float32
        self.objection: str | None = None

    def attend(self, call: AttentionCall) -> Tensor:
        """Record one call. Returns [1, tokens, heads, value size], for each token a function of its
        own query and value.
        """
        module: Any = call.module
        query = call.query
        key = call.key
        value = call.value
        options = call.options
        kind = type(module).__name__
        if unknown := unknown_arguments(options):
            self._object(f"{kind} asks for {', '.join(unknown)} in attention")
        if not (options.get("is_causal", True) and getattr(module, "is_causal", True)):
            self._object(f"{kind} is not causal")
        window = None
        try:
            window = window_of(call.mask)
        except ValueError:
            self._object(f"{kind} has a mask that is neither causal nor a sliding window")
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int) or number in self.layers:
            self._object(f"{kind} attends more than once a layer")
            number = len(self.layers)
        keys = LayerKeys(key.shape[1], key.shape[3], value.shape[3])
        sinks = options.get("s_aux") is not None
        softcap = options.get("softcap")
        self.layers[number] = LayerAttention(keys, window, sinks, softcap)
        self.dtype = key.dtype
        own = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1) + query.mean(
            -1, keepdim=True
        )
        return own.transpose(1, 2).contiguous()

    def _object(self, objection: str) -> None:
        self.objection = self.objection or objection


def survey(twin: Any) -> AttentionSurvey:
    """Survey the attention of a model. `twin` calls an attention function that delegates to
    `packed_step.attend`.

    The survey takes one pass over a few tokens, about as long as a step of sampling.
    """
    config = twin.config.get_text_config()
    notes = _Notes()
    device = twin.get_input_embeddings().weight.device
    ids = torch.tensor([_TOKENS], device=device)
    try:
        with torch.inference_mode():
            output = twin(
                input_ids=ids,
                position_ids=torch.full_like(ids, _AT),
                attention_mask=torch.ones_like(ids),
                use_cache=False,
                packed_step=notes,
                logits_to_keep=torch.tensor([0, len(_TOKENS) - 1], device=device),
            )
    # any error may occur, since the library's code is not made for such a call
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        notes.objection = notes.objection or f"a packed step fails ({type(error).__name__}: {said})"
        return AttentionSurvey((), notes.dtype, notes.objection)
    objection = notes.objection
    if objection is None:
        total = int(config.num_hidden_layers)
        if sorted(notes.layers) == list(range(total)):
            objection = _mixes(output.logits)
        else:
            others = total - len(notes.layers)
            objection = (
                f"in {others} of its {total} layers something other than attention mixes tokens"
            )
    layers = () if objection else tuple(notes.layers[number] for number in sorted(notes.layers))
    return AttentionSurvey(layers, notes.dtype, objection)


def _mixes(logits: Tensor) -> str | None:
    if logits.shape[1] != 2:
        return "it gives logits of all tokens instead of the requested tokens"
    first, last = logits[0].float()
    if not bool(torch.isfinite(logits).all()):
        return None  # these weights are broken, which is an error later, when sampling
    spread = float(first.std())
    bound = _ALIKE.get(logits.dtype, _ALIKE_EXACT)
    if math.isclose(spread, 0.0) or float((first - last).abs().max()) <= bound * spread:
        return None
    return (
        "something other than attention mixes its tokens, or depends on their place in the sequence"
    )
