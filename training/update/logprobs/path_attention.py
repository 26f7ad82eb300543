"""Attention in which each token sees only the tokens on its path to the root.

The forward and the backward pass loop over the rounds of a plan. States are lists of vectors, one
for each token and head, so that one look-up gathers a round. Query heads that share a key head are
stacked as if they were further queries of one head. Probabilities are kept for the backward pass,
or computed again in it if there are too many.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hrm_agent.training.update.logprobs.attention_plan import (
    AttentionPlan,
    AttentionRows,
    RoundRows,
)

__all__ = ["path_attention"]

KEPT_ELEMENTS = 2**23
"""Maximum number of probabilities in a layer that are kept for its backward pass: 32 MiB in single
precision.
"""


def path_attention(
    query_NHD: Float[Tensor, "N H D"],
    key_NGD: Float[Tensor, "N G D"],
    value_NGD: Float[Tensor, "N G D"],
    plan: AttentionPlan,
    scale: float,
) -> Float[Tensor, "N H D"]:
    """Attention output of each token over its path: softmax of scaled products, applied to the
    values (0 for a token that is no query). H is a multiple of G.
    """
    return _PathAttention.apply(query_NHD, key_NGD, value_NGD, plan, scale)  # type: ignore[no-any-return]


class _PathAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: AttentionPlan, scale: float
    ) -> Tensor:
        (tokens, heads, size), shared = query.shape, key.shape[1]
        rows = plan.rows(heads, shared)
        queries = _with_nothing(query, scale)
        keys = key.reshape(-1, size)
        values = value.reshape(-1, value.shape[2])
        found = queries.new_empty(rows.queries + 1, values.shape[1])
        found[-1] = 0
        ctx.keeps = any(ctx.needs_input_grad) and heads * plan.products <= KEPT_ELEMENTS
        kept: list[Tensor] = []
        for each in rows.rounds:
            here = found[each.asking].view(*each.query_shape, -1)
            chances = _probabilities(each.of_queries(queries), each.of_keys(keys), each)
            torch.bmm(chances, each.of_keys(values), out=here)
            if ctx.keeps:
                kept.append(chances)
        ctx.save_for_backward(queries, keys, values, *kept)
        ctx.rows = rows
        ctx.scale = scale
        return found.index_select(0, rows.query_places).view(tokens, heads, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        queries, keys, values, *kept = ctx.saved_tensors
        rows: AttentionRows = ctx.rows
        grad_found = _with_nothing(grads[0], 1.0)
        grad_queries = queries.new_empty(rows.queries + 1, queries.shape[1])
        grad_keys = keys.new_empty(rows.keys + 1, keys.shape[1])
        grad_values = values.new_empty(rows.keys + 1, values.shape[1])
        for grad in (grad_queries, grad_keys, grad_values):
            grad[-1] = 0
        for number, each in enumerate(rows.rounds):
            asking = each.of_queries(queries)
            grad = each.of_queries(grad_found)
            seen = each.of_keys(keys)
            chances = kept[number] if ctx.keeps else _probabilities(asking, seen, each)
            torch.bmm(
                chances.transpose(1, 2), grad, out=grad_values[each.known].view(*each.key_shape, -1)
            )
            scores = torch.bmm(grad, each.of_keys(values).transpose(1, 2))
            scores = torch.ops.aten._softmax_backward_data(scores, chances, -1, scores.dtype)
            torch.bmm(
                scores.transpose(1, 2), asking, out=grad_keys[each.known].view(*each.key_shape, -1)
            )
            torch.bmm(scores, seen, out=grad_queries[each.asking].view(*each.query_shape, -1))
        grad_query = grad_queries.index_select(0, rows.query_places).mul_(ctx.scale)
        grad_query = grad_query.view(*grads[0].shape[:2], -1)
        return grad_query, _gathered(grad_keys, rows), _gathered(grad_values, rows), None, None


def _with_nothing(states_NHD: Tensor, scale: float) -> Tensor:
    """Vectors times `scale`, followed by a zero vector for padding."""
    count = states_NHD.shape[0] * states_NHD.shape[1]
    vectors = states_NHD.new_empty(count + 1, states_NHD.shape[2])
    torch.mul(states_NHD, scale, out=vectors[:count].view(states_NHD.shape))
    vectors[-1] = 0
    return vectors


def _probabilities(queries: Tensor, keys: Tensor, each: RoundRows) -> Tensor:
    scores = torch.bmm(queries, keys.transpose(1, 2))
    scores.view(each.jobs, -1, *each.mask.shape[2:]).add_(each.mask)
    return scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(
        queries.dtype
    )


def _gathered(grads: Tensor, rows: AttentionRows) -> Tensor:
    """Gradients of keys in the order of their tokens. The gradient of a key is summed over the job
    whose interval contains it and all jobs that have it in their prefix.
    """
    whole = grads.index_select(0, rows.key_places).view(-1, rows.shared, grads.shape[1])
    for each in rows.rounds:
        block = grads[each.known].view(each.jobs, rows.shared, -1, grads.shape[1])
        for jobs, prefix in each.prefixes:
            size = sum(stop - start for start, stop in prefix)
            summed = block[jobs, :, :size].sum(0).transpose(0, 1)
            place = 0
            for start, stop in prefix:
                whole[start:stop] += summed[place : place + stop - start]
                place += stop - start
    return whole
