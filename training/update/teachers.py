"""Teachers: log-probs of what the policy sampled, under a model of this process or of a vLLM server.

On-policy distillation (Agarwal et al., arXiv 2306.13649) needs only the log-probs of the student's
tokens, and not the teacher's samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hrm_agent.errors import ModelError
from hrm_agent.models.adapter_folder import on_its_base
from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.model_string import LoadOptions, parse_model
from hrm_agent.training.update.batch import MicroBatch
from hrm_agent.training.update.logprobs import token_logprobs

__all__ = ["ServerTeacher", "Teacher", "open_teacher"]

Teacher = Callable[[MicroBatch], Float[Tensor, " K"]]
"""Function that returns the natural log-prob of each trained token of a micro-batch."""
_AT_ONCE = 32
"""Maximum number of sequences that a server is asked about at a time."""


def open_teacher(name: str, student: str, tokenizer: Any, options: LoadOptions) -> Teacher:
    """Teacher of the policy `student`, which has this tokenizer and was loaded with `options`.

    Raises `ModelError` if the teacher has no weights here and is no vLLM server, or if it has
    another vocabulary.
    """
    asked = parse_model(name)
    if asked.scheme == "vllm":
        return _on_server(name, student, tokenizer)
    folder = model_folder(name)
    whole = on_its_base(asked)
    ours = replace(whole.options, dtype=options.dtype, device=options.device)
    model, theirs = load_for_answers(folder, ours, whole.codec)
    _refuse_other_vocabulary(name, theirs, student, tokenizer)
    return partial(token_logprobs, model.eval().requires_grad_(False))


def _on_server(name: str, student: str, tokenizer: Any) -> Teacher:
    from hrm_agent.models.vllm.engine import load_vllm_codec
    from hrm_agent.models.vllm.server import look_up, parse_address
    from hrm_agent.models.vllm.weights import WeightsClient

    address = parse_address(name)
    codec: Any = load_vllm_codec(name)
    _refuse_other_vocabulary(name, codec.tokenizer, student, tokenizer)
    return ServerTeacher(WeightsClient(address, look_up(address).model).logprobs, name)


class ServerTeacher:
    """Teacher whose server computes the log-probs of whole sequences of tokens."""

    def __init__(self, logprobs: Callable[[list[int]], list[float]], name: str) -> None:
        """`logprobs`: function that returns the natural log-prob of each token but the first, at
        temperature 1.
        """
        self._logprobs = logprobs
        self._name = name

    def __call__(self, batch: MicroBatch) -> Float[Tensor, " K"]:
        """Log-probs of the trained tokens. Raises `ModelError` for tokens that were sampled at
        another temperature than 1, whose distribution a server does not return.
        """
        if bool((batch.temperatures_K != 1).any()):
            raise ModelError(
                f"{self._name!r} returns log-probs at temperature 1, but the policy samples at"
                f" {float(batch.temperatures_K[batch.temperatures_K != 1][0]):g}.",
                "Sample at temperature 1, or take a teacher of this machine.",
            )
        paths = list(_paths(batch))
        tokens = batch.token_ids_N.tolist()
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._logprobs, [[tokens[at] for at in path] for path in paths])
        known = {
            at: value
            for path, values in zip(paths, found, strict=True)
            for at, value in zip(path[1:], values, strict=True)
        }
        entries = [known[at] for at in batch.loss_indices_K.tolist()]
        return torch.tensor(entries, device=batch.weights_K.device)


def _paths(batch: MicroBatch) -> Iterator[list[int]]:
    """Indices in N from the first token of a sequence to its last trained one. Each trained token is
    on a path.
    """
    parents = batch.parents_N.tolist()
    depths = batch.positions_N.tolist()
    covered = set[int]()
    for entry in sorted(set(batch.loss_indices_K.tolist()), key=lambda at: -depths[at]):
        if entry in covered:
            continue
        path = list[int]()
        at = entry
        while at >= 0:
            path.append(at)
            at = parents[at]
        covered.update(path)
        yield path[::-1]


def _refuse_other_vocabulary(teacher: str, theirs: Any, name: str, ours: Any) -> None:
    """Raise `ModelError` if a token has another number for the teacher."""
    known: dict[str, int] = ours.get_vocab()
    taught: dict[str, int] = theirs.get_vocab()
    for token in sorted(known.keys() | taught.keys(), key=lambda each: known.get(each, -1)):
        if known.get(token) != taught.get(token):
            numbers = " and ".join(
                f"{vocabulary[token]} of {whose!r}"
                for vocabulary, whose in ((known, name), (taught, teacher))
                if token in vocabulary
            )
            raise ModelError(
                f"{teacher!r} cannot teach {name!r}: their vocabularies differ. The text {token!r} is"
                f" token {numbers}" + ("." if token in known.keys() & taught.keys() else " alone."),
                "Take a teacher of the same family, whose tokenizer is the same.",
            )
