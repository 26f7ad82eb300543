"""Log-probs from hidden states and the output layer's weight, without the logits of all positions
at once.

    log p(y | h) = (w_y . h + b_y) / T - log sum_v exp((w_v . h + b_v) / T)

Positions go through the output layer chunk by chunk, and of a chunk's logits one number is kept for
each entry. The backward pass computes the probabilities again, unless they are so few that all were
kept. If several entries are predicted at one position, which rows in a tree may share, its logits
are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

__all__ = ["entropies_from_hidden", "entropies_of", "logprobs_from_hidden"]

CHUNK_ELEMENTS = 2**23
"""Number of logits computed at once: 32 MiB in single precision."""
CHUNK_ELEMENTS_ON_GPU = 2**26
"""Number of logits computed at once on a GPU. The number is larger there, since each chunk costs a
pass over the gradient of the output layer's weight, which is as large as the layer.
"""
KEPT_ELEMENTS = 2**23
"""Maximum number of probabilities that are kept for the backward pass."""


def logprobs_from_hidden(
    hidden_PD: Float[Tensor, "P D"],
    layer: nn.Linear,
    places_K: Int[Tensor, " K"],
    token_ids_K: Int[Tensor, " K"],
    temperatures_K: Float[Tensor, " K"],
) -> Float[Tensor, " K"]:
    """Log-prob of each entry's token at the entry's temperature. `places_K`: index of the hidden
    state that predicts the token.
    """
    hidden_PD, places_K, temperatures_P = _at_one_temperature(hidden_PD, places_K, temperatures_K)
    return _Chunked.apply(
        hidden_PD, layer.weight, layer.bias, places_K, token_ids_K, temperatures_P
    )  # type: ignore[no-any-return]


@torch.no_grad()
def entropies_from_hidden(
    hidden_PD: Float[Tensor, "P D"],
    layer: nn.Linear,
    places_K: Int[Tensor, " K"],
    temperatures_K: Float[Tensor, " K"],
) -> Float[Tensor, " K"]:
    """Entropy in nats, over the whole vocabulary, of the distribution at each entry's state and
    temperature.
    """
    hidden_PD, places_K, temperatures_P = _at_one_temperature(hidden_PD, places_K, temperatures_K)
    weight = layer.weight
    bias = layer.bias
    exact = torch.promote_types(hidden_PD.dtype, torch.float32)
    scale_P = temperatures_P.reciprocal().to(exact)
    chunks = _chunks(places_K, len(hidden_PD), weight.shape[0])
    entropies_P = torch.empty(len(hidden_PD), dtype=exact, device=hidden_PD.device)
    buffer = _buffer(chunks, weight, exact)
    for start, stop, _ in chunks:
        entropies_P[start:stop] = entropies_of(
            _logits(hidden_PD[start:stop], weight, bias, scale_P[start:stop], exact, buffer)
        )
    return entropies_P[places_K]


def entropies_of(logits_PV: Float[Tensor, "P V"]) -> Float[Tensor, " P"]:
    """Entropy in nats of the softmax of each row: log sum exp z - sum p z. Overwrites the rows."""
    logits_PV.sub_(logits_PV.amax(-1, keepdim=True))
    masses_PV = logits_PV.exp()
    sums_P = masses_PV.sum(-1)
    return (sums_P.log() - masses_PV.mul_(logits_PV).sum(-1) / sums_P).clamp_(min=0.0)


def _at_one_temperature(
    hidden_PD: Tensor, places_K: Tensor, temperatures_K: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states, the index of each entry's state, and the temperature of each state.

    If entries share a state and differ in temperature, the states are repeated so that each entry
    has one.
    """
    temperatures_P = temperatures_K.new_ones(len(hidden_PD))
    temperatures_P[places_K] = temperatures_K
    if torch.equal(temperatures_P[places_K], temperatures_K):
        return hidden_PD, places_K, temperatures_P
    return hidden_PD[places_K], torch.arange(len(places_K), device=places_K.device), temperatures_K


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        places: Tensor,
        token_ids: Tensor,
        temperatures: Tensor,
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        scale = None if bool((temperatures == 1).all()) else temperatures.reciprocal().to(exact)
        chunks = _chunks(places, len(hidden), weight.shape[0])
        logprobs = torch.empty(len(places), dtype=exact, device=hidden.device)
        log_sums = torch.empty(len(hidden), dtype=exact, device=hidden.device)
        keeps = any(ctx.needs_input_grad) and len(hidden) * weight.shape[0] <= KEPT_ELEMENTS
        kept: list[Tensor] = []
        buffer = None if keeps else _buffer(chunks, weight, exact)
        for start, stop, entries in chunks:
            part = None if scale is None else scale[start:stop]
            logits = _logits(hidden[start:stop], weight, bias, part, exact, buffer)
            most = logits.amax(-1)
            chosen = logits[places[entries] - start, token_ids[entries]]
            logits.sub_(most[:, None]).exp_()
            sums = logits.sum(-1)
            log_sums[start:stop] = sums.log() + most
            logprobs[entries] = chosen - log_sums[places[entries]]
            if keeps:
                kept.append(logits.div_(sums[:, None]))
        ctx.save_for_backward(hidden, weight, bias, places, token_ids, scale, log_sums, *kept)
        ctx.chunks = chunks
        ctx.keeps = keeps
        ctx.exact = exact
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, places, token_ids, scale, log_sums, *kept = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        grad = grads[0]
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=ctx.exact) if needs_weight else None
        grad_bias = (
            torch.zeros_like(bias, dtype=ctx.exact) if needs_bias and bias is not None else None
        )
        blame = torch.zeros_like(log_sums).index_add_(0, places, grad)
        buffer = None if ctx.keeps else _buffer(ctx.chunks, weight, ctx.exact)
        for number, (start, stop, entries) in enumerate(ctx.chunks):
            part = None if scale is None else scale[start:stop]
            if ctx.keeps:
                grad_logits = kept[number] * -blame[start:stop, None]
            else:
                logits = _logits(hidden[start:stop], weight, bias, part, ctx.exact, buffer)
                grad_logits = (
                    logits.sub_(log_sums[start:stop, None]).exp_().mul_(-blame[start:stop, None])
                )
            grad_logits.index_put_(
                (places[entries] - start, token_ids[entries]), grad[entries], accumulate=True
            )
            if part is not None:
                grad_logits.mul_(part[:, None])
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            grad_logits = grad_logits.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad_logits, weight.to(hidden.dtype), out=grad_hidden[start:stop])
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits, hidden[start:stop])
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
            None,
            None,
            None,
        )


def _add_product(onto: Tensor, grad_logits: Tensor, hidden: Tensor) -> None:
    if onto.dtype == hidden.dtype:
        onto.addmm_(grad_logits.T, hidden)
    else:
        onto += grad_logits.T @ hidden


def _buffer(
    chunks: Sequence[tuple[int, int, Tensor]], weight: Tensor, exact: torch.dtype
) -> Tensor:
    """Allocate one buffer for the logits of all chunks in turn, since an allocation for each chunk
    would fragment the heap.
    """
    most = max((stop - start for start, stop, _ in chunks), default=0)
    return torch.empty(most, weight.shape[0], dtype=exact, device=weight.device)


def _logits(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    exact: torch.dtype,
    out: Tensor | None,
) -> Tensor:
    """Logits of hidden states, scaled. Written to the first rows of `out` if given."""
    weight = weight.to(hidden.dtype)
    bias = None if bias is None else bias.to(hidden.dtype)
    if out is None or hidden.dtype != exact:
        logits = nn.functional.linear(hidden, weight, bias)
        logits = logits.to(exact) if out is None else out[: len(hidden)].copy_(logits)
    elif bias is None:
        logits = torch.mm(hidden, weight.T, out=out[: len(hidden)])
    else:
        logits = torch.addmm(bias, hidden, weight.T, out=out[: len(hidden)])
    return logits if scale is None else logits.mul_(scale[:, None])


def _chunks(places: Tensor, count: int, vocabulary: int) -> list[tuple[int, int, Tensor]]:
    """Chunks of positions, each with the entries that are predicted in it."""
    size = max(1, (CHUNK_ELEMENTS_ON_GPU if places.is_cuda else CHUNK_ELEMENTS) // vocabulary)
    order = places.argsort(stable=True)
    starts = range(0, count, size)
    bounds = torch.searchsorted(
        places[order], torch.tensor([*starts, count], device=places.device)
    ).tolist()
    spans = zip(starts, bounds[:-1], bounds[1:], strict=True)
    return [(start, min(count, start + size), order[first:last]) for start, first, last in spans]
