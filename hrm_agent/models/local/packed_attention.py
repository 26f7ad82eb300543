"""Packed steps: one forward pass over all tokens to feed, without padding.

A step packs two kinds of tokens into one sequence [1, tokens]: one token of every conversation that
is being sampled, and all new tokens of conversations that were started or continued. Every layer of
the model then processes exactly the needed tokens, at the efficiency of one large matrix product.
Only attention has to know which tokens belong together. So the model runs with the attention
function of this module, which stores keys and values in the pool, and lets each conversation attend
to its own row.

Query heads that share a key head are arranged as additional query positions. So keys and values are
read in place and not repeated in memory, which would take most of the time of a small model.

A layer with a sliding window only reads the part of the rows that the window reaches. Sinks and
bounded scores are computed explicitly (`_written_out`), since no fused kernel supports them.

The model itself is unchanged: the engine runs a `replica` that shares its weights, with its own
configuration and its own train / eval flag. A trainer may continue to use the original.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch.nn import functional

from hrm_agent.errors import ModelError
from hrm_agent.models.local.attention_survey import AttentionCall, register_attention
from hrm_agent.models.local.kv_cache import KVPool
from hrm_agent.models.local.shared_prefixes import SharedPrefixes

__all__ = ["Feeding", "Mask", "Masks", "PackedStep", "not_in_process", "replica"]

_NAME = "hrm_agent_packed"


@dataclass(frozen=True, slots=True)
class Feeding:
    """Conversations that get several tokens in this step."""

    count: int
    """Number of rows."""
    longest: int
    """Maximum number of tokens of a row."""
    gather: torch.Tensor
    """[count * longest] index of each token among the tokens of these conversations. Padding has
    arbitrary indices.
    """
    scatter: torch.Tensor
    """[tokens of these conversations] inverse of `gather`."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Mask of the positions that each token sees in some rows."""

    rows: slice
    """Rows of the pool."""
    seen: slice
    """Range of positions that any token sees."""
    values: torch.Tensor
    """[rows, 1, tokens, positions] 0 for visible positions, minus infinity for others."""


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks for layers of one kind."""

    sampling: tuple[Mask, ...]
    """[rows, 1, 1, positions] masks for conversations that are being sampled, some rows each."""
    feeding: Mask | None
    """[count, 1, longest, positions] mask for conversations that are being fed (None without any)."""
    prefixes: SharedPrefixes | None = None
    """First tokens of the conversations that are being sampled, which `sampling` leaves out (None if
    every conversation reads all its positions by itself).
    """


@dataclass(frozen=True, slots=True)
class PackedStep:
    """Tokens of one forward pass. The first `sampling` tokens belong to rows 0 to `sampling`, one
    each.
    """

    pool: KVPool
    """Keys and values of all conversations."""
    written: Mapping[int, torch.Tensor]
    """Places to write each token's keys and values, by the number of key heads: [tokens * heads]
    indices in a layer that is viewed as a list of vectors.
    """
    sampling: int
    """Number of conversations that are being sampled."""
    feeding: Feeding | None
    """Conversations of which several tokens are fed in this step (None without any)."""
    masks: tuple[Masks, ...]
    """Masks for each layer."""

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Store the keys and values of this step, then attend. Returns [1, tokens, heads, value
        size].
        """
        layer = call.module.layer_idx
        keys, values = self.pool.layer(layer)
        for stored, new in ((keys, call.key), (values, call.value)):
            rows = new[0].transpose(0, 1).reshape(-1, new.shape[-1])
            stored.view(-1, new.shape[-1]).index_copy_(0, self.written[stored.shape[1]], rows)
        query_THD = call.query[0].transpose(0, 1)
        masks = self.masks[layer]
        how = _How(call.scale, call.options.get("s_aux"), call.options.get("softcap"))
        parts: list[torch.Tensor] = []
        if masks.sampling:
            parts.append(self._attend_sampling(query_THD, keys, values, masks, how))
        if self.feeding is not None and masks.feeding is not None:
            parts.append(
                _attend_feeding(
                    self.feeding, query_THD[self.sampling :], keys, values, masks.feeding, how
                )
            )
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0)

    def _attend_sampling(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, masks: Masks, how: _How
    ) -> torch.Tensor:
        grouped = query[: self.sampling].unflatten(1, (keys.shape[1], -1))
        if masks.prefixes is None:
            found = torch.cat(
                [
                    how.attend(
                        grouped[mask.rows],
                        keys[mask.rows, :, mask.seen],
                        values[mask.rows, :, mask.seen],
                        mask.values,
                        tokens=1,
                    )
                    for mask in masks.sampling
                ]
            )
        else:
            rest = [(mask.rows, mask.seen, mask.values) for mask in masks.sampling]
            found = masks.prefixes.attend(grouped, keys, values, rest, how.scale)
        return found.flatten(1, 2)


def _attend_feeding(
    feeding: Feeding,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: Mask,
    how: _How,
) -> torch.Tensor:
    count = feeding.count
    longest = feeding.longest
    heads = keys.shape[1]
    size = query.shape[-1]
    groups = query.shape[1] // heads
    padded = query[feeding.gather].view(count, longest, heads, groups, size).permute(0, 2, 3, 1, 4)
    found = how.attend(
        padded.reshape(count, heads, groups * longest, size),
        keys[mask.rows, :, mask.seen],
        values[mask.rows, :, mask.seen],
        mask.values.repeat(1, 1, groups, 1),
        tokens=longest,
    )
    by_token = found.view(count, heads, groups, longest, -1).permute(0, 3, 1, 2, 4)
    return by_token.reshape(count * longest, heads * groups, -1)[feeding.scatter]


@dataclass(frozen=True, slots=True)
class _How:
    """Treatment of the scores of one layer."""

    scale: float | None
    """Factor of the scores (None: one over the root of the head size)."""
    sinks: torch.Tensor | None
    """[heads] logits that take a share of the attention and contribute nothing (None without
    sinks).
    """
    softcap: float | None
    """Bound of the scores, applied by a tanh (None: unbounded)."""

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor,
        *,
        tokens: int,
    ) -> torch.Tensor:
        """Attention of queries [rows, key heads, groups * tokens, size] to keys [rows, key heads,
        positions, size].
        """
        if self.sinks is None and self.softcap is None:
            return functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=self.scale
            )
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = (query @ keys.transpose(2, 3)).float() * scale
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores + mask
        if self.sinks is None:
            return scores.softmax(-1).to(values.dtype) @ values
        heads = keys.shape[1]
        sinks = (
            self.sinks.float().view(heads, -1, 1).expand(-1, -1, tokens).reshape(1, heads, -1, 1)
        )
        scores = torch.cat([scores, sinks.expand(len(scores), -1, -1, -1)], dim=-1)
        return scores.softmax(-1)[..., :-1].to(values.dtype) @ values


def replica(model: Any) -> Any:
    """Model that shares all weights with `model`, but nothing else. It can only run packed steps."""
    if not getattr(model, "_supports_attention_backend", False):
        raise not_in_process(type(model).__name__, "it does not let its attention be replaced")
    register_attention(_NAME, _attention)
    shared: dict[int, Any] = {
        id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())
    }
    shared |= {id(state): state for state in _states_of_8_bits(model)}
    twin = copy.deepcopy(model, cast("Any", shared))
    for config in (twin.config, twin.config.get_text_config()):
        config._attn_implementation = _NAME
    for module in twin.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.gradient_checkpointing = False
    return twin.eval()


def not_in_process(model: str, objection: str) -> ModelError:
    """Error for a model whose answers would be wrong in packed steps."""
    return ModelError(
        f"{model} cannot answer in this process, which packs tokens of all conversations into one"
        f" sequence: {objection}.",
        "Serve the model by vLLM, and name the server as the model: vllm:http://127.0.0.1:8000/v1.",
    )


def _states_of_8_bits(model: Any) -> Iterator[Any]:
    """States of 8-bit layers.

    bitsandbytes moves a state from a weight to its layer when the layer first runs. A copy of the
    layer shares the weight, and would take the state from the original layer.
    """
    for module in model.modules():
        if hasattr(module, "init_8bit_state"):
            if module.weight.CB is not None:
                module.init_8bit_state()
            yield module.state


class _Attending(Protocol):
    def attend(self, call: AttentionCall) -> torch.Tensor: ...


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    packed_step: _Attending | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function of the model's layers, with tensors [1, heads, tokens, head size]."""
    if packed_step is None:
        raise TypeError("its layers hand no arguments on to their attention")
    return (
        packed_step.attend(
            AttentionCall(module, query, key, value, attention_mask, scaling, options)
        ),
        None,
    )
