"""One forward pass over whatever there is to feed, without padding.

A step packs one token of every conversation that is being sampled, and all new tokens of those that have just been
put or continued, into one sequence [1, tokens]. Every layer of the model then sees exactly the tokens that are
needed, at the efficiency of one large matrix product. Only attention has to know what belongs together, so the model
runs with an attention function of ours: it stores keys and values in the pool, and lets each conversation attend to
its own row.

Query heads that share a key head are laid side by side as if they were more query positions: keys and values are read
in place and never repeated in memory, which on a small model is the difference between attention dominating and not.

The model itself stays untouched: the engine runs a `replica` that shares its weights, with its own configuration and
its own train / eval flag. A trainer may go on using the original.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import functional
from transformers.modeling_utils import AttentionInterface

from hrm_agent.errors import ModelError
from hrm_agent.models.local.kv_cache import KVPool

__all__ = ["Feeding", "PackedStep", "replica"]

_NAME = "hrm_agent_packed"
_REFUSED = ("softcap", "s_aux", "position_bias")


@dataclass(frozen=True, slots=True)
class Feeding:
    """The conversations that get several tokens in this step: rows `first` to `first + count` of the pool."""

    first: int
    """First row of the pool."""
    count: int
    """Number of rows."""
    gather: torch.Tensor
    """[count * longest] index of each token among those fed; padding points anywhere."""
    scatter: torch.Tensor
    """[tokens fed] the inverse."""
    mask: torch.Tensor
    """[count, 1, longest, window] 0 where a token may look, minus infinity where not."""


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Who is fed what in one forward pass. The first `sampling` tokens are of rows 0 to `sampling`, one each."""

    pool: KVPool
    """Keys and values of all conversations."""
    written: torch.Tensor
    """[tokens * heads] where in a layer, seen as a list of vectors, each token's key goes."""
    sampling: int
    """Number of conversations that are being sampled."""
    sampling_mask: torch.Tensor | None
    """Attention mask of shape [sampling, 1, 1, window]; None if no conversation is being sampled."""
    feeding: Feeding | None
    """Conversations whose prompt is being prefilled in this step; None if there is no prefill."""

    def attend(
        self, layer: int, query_THD: torch.Tensor, key_TKD: torch.Tensor, value_TKD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Store the keys and values of this step, then attend: [tokens, heads, head size]."""
        keys, values = self.pool.layer(layer)
        size = keys.shape[-1]
        keys.view(-1, size).index_copy_(0, self.written, key_TKD.reshape(-1, size))
        values.view(-1, size).index_copy_(0, self.written, value_TKD.reshape(-1, size))
        parts: list[torch.Tensor] = []
        if self.sampling_mask is not None:
            parts.append(self._attend_sampling(query_THD[: self.sampling], keys, values, self.sampling_mask, scale))
        if self.feeding is not None:
            parts.append(_attend_feeding(self.feeding, query_THD[self.sampling :], keys, values, scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_sampling(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        count, window, heads = self.sampling, mask.shape[-1], keys.shape[1]
        grouped = query.reshape(count, heads, -1, query.shape[-1])
        found = functional.scaled_dot_product_attention(
            grouped, keys[:count, :, :window], values[:count, :, :window], attn_mask=mask, scale=scale
        )
        return found.reshape(count, -1, query.shape[-1])


def _attend_feeding(
    feeding: Feeding, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> torch.Tensor:
    longest, window = feeding.mask.shape[-2:]
    count, heads, size = feeding.count, keys.shape[1], query.shape[-1]
    groups = query.shape[1] // heads
    rows = slice(feeding.first, feeding.first + count)
    padded = query[feeding.gather].view(count, longest, heads, groups, size).permute(0, 2, 3, 1, 4)
    found = functional.scaled_dot_product_attention(
        padded.reshape(count, heads, groups * longest, size),
        keys[rows, :, :window],
        values[rows, :, :window],
        attn_mask=feeding.mask.repeat(1, 1, groups, 1),
        scale=scale,
    )
    by_token = found.view(count, heads, groups, longest, size).permute(0, 3, 1, 2, 4)
    return by_token.reshape(count * longest, heads * groups, size)[feeding.scatter]


def replica(model: Any) -> Any:
    """A model that shares every weight with `model`, and nothing else; it runs packed steps only."""
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(
            f"{type(model).__name__} does not let its attention be replaced, so it cannot be run in packed steps.",
            "Serve it by another engine, vLLM for example.",
        )
    cast("Any", AttentionInterface).register(_NAME, _attention)
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    shared |= {id(state): state for state in _states_of_8_bits(model)}
    twin = copy.deepcopy(model, cast("Any", shared))
    for config in (twin.config, twin.config.get_text_config()):
        config._attn_implementation = _NAME
    twin.gradient_checkpointing_disable()
    return twin.eval()


def _states_of_8_bits(model: Any) -> Iterator[Any]:
    """What the layers of 8 bits know of their weights.

    bitsandbytes moves it from a weight to its layer where the layer first runs. A copy of the layer would take it from
    the original, which shares the weight.
    """
    for module in model.modules():
        if hasattr(module, "init_8bit_state"):
            if module.weight.CB is not None:
                module.init_8bit_state()
            yield module.state


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_step: PackedStep,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """What the model's layers call; [1, heads, tokens, head size] each."""
    del attention_mask
    refused = [name for name in _REFUSED if options.get(name) is not None]
    if refused:
        raise ModelError(f"The model's attention uses {', '.join(refused)}, which this engine does not.", "Use vLLM.")
    found = packed_step.attend(
        module.layer_idx, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), scaling
    )
    return found.unsqueeze(0), None
