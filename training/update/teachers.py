"""Teachers: log-probs of what the policy sampled, under a model of this process or of a vLLM server.

On-policy distillation (Agarwal et al., arXiv 2306.13649) needs only the log-probs of the student's
tokens, and not the teacher's samples. A teacher may read more than the student: with
`teacher_prompt` the reference answer stands in its prompt (on-policy self-distillation, Zhao et
al., arXiv 2601.18734). Families of tasks may have teachers of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from torch import Tensor, nn

from hrm_agent.errors import ModelError
from hrm_agent.models import Codec
from hrm_agent.models.adapter_folder import on_its_base
from hrm_agent.models.codec.messages import message_text
from hrm_agent.models.loading.load_weights import load_for_answers
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.local.model_inspection import longest_conversation
from hrm_agent.models.local.role_adapters import route_of
from hrm_agent.models.model_string import LoadOptions, parse_model
from hrm_agent.training.update.batch import MicroBatch, Preamble, Row, micro_batches
from hrm_agent.training.update.logprobs import token_logprobs
from hrm_agent.training.update.logprobs.packed import usable_forward
from hrm_agent.training.update.objectives import UNTAUGHT
from hrm_agent.training.update.reductions import idle_batch
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["LocalTeacher", "ServerTeacher", "Teacher", "Teachers", "open_teacher"]

Teacher = Callable[[MicroBatch], Float[Tensor, " K"]]
"""Function that returns the natural log-prob of each trained token of a micro-batch."""
_AT_ONCE = 32
"""Maximum number of sequences that a server is asked about at a time."""
_PATIENCE_SECONDS = 600.0
"""Longest wait for a server that is away."""
_SECONDS_BETWEEN_TRIES = 1.0


class Teachers:
    """Teachers of a training: one for each family that is named, and one for all others."""

    def __init__(
        self, everyone: Teacher, by_family: Mapping[str, Teacher], prompt: str | None, codec: Codec
    ) -> None:
        """`prompt`: text that is added to the first message of the user, in which {answer} stands
        for the reference answer (None: a teacher reads what the policy read). `codec`: the
        policy's.
        """
        self.all = (everyone, *by_family.values())
        self._numbers = {family: number for number, family in enumerate(by_family, start=1)}
        self._prompt = prompt
        self._codec = codec

    def __call__(self, batch: MicroBatch) -> Float[Tensor, " K"]:
        """Log-probs of the trained tokens, `UNTAUGHT` for those that no teacher can read."""
        if batch.teacher >= 0:
            return self.all[batch.teacher](batch)
        first = self.all[0]
        if isinstance(first, LocalTeacher):
            first.keep_step(batch)
        return torch.full_like(batch.weights_K, UNTAUGHT)

    def lesson(self, trajectory: Trajectory, root: Call) -> tuple[int, Preamble | None]:
        """Number of the trajectory's teacher, and what it reads in place of the prompt of `root`
        (None: the prompt). The number is -1 if the reference answer or a message of the user is
        missing, which is reported once on stderr.
        """
        number = self._numbers.get(trajectory.task.family, 0)
        if self._prompt is None:
            return number, None
        task = trajectory.task
        messages = convert_to_messages([dict(each) for each in root.request or ()])
        asked = _with_addition(messages, self._prompt.replace("{answer}", task.answer or ""))
        if task.answer is None or asked is None:
            lack = "no reference answer" if asked is not None else "a call without a user's message"
            _tell(f"a task of {task.family} has {lack} for teacher_prompt")
            return -1, None
        token_ids = self._codec.encode(asked, list(root.tools or ()))
        prompt = root.mask.index(True) if True in root.mask else len(root.mask)
        return number, Preamble(tuple(token_ids), prompt)


@cache
def _tell(what: str) -> None:
    sys.stderr.write(f"hrm-agent: {what}; the outcome alone teaches such rollouts.\n")


def _with_addition(messages: Sequence[BaseMessage], added: str) -> list[BaseMessage] | None:
    """Copy of the messages in which the user's first message ends with `added` (None if the user has
    no message).
    """
    for place, message in enumerate(messages):
        if isinstance(message, HumanMessage):
            told = HumanMessage(f"{message_text(message)}\n\n{added}")
            return [*messages[:place], told, *messages[place + 1 :]]
    return None


def open_teacher(
    name: str, student: str, tokenizer: Any, options: LoadOptions, roles: Collection[str] = ()
) -> Teacher:
    """Teacher of the policy `student`, which has this tokenizer, was loaded with `options`, and has
    an adapter for each of `roles`.

    Raises `ModelError` if the teacher has no weights here and is no vLLM server, or if it has
    another vocabulary or adapters of other roles.
    """
    asked = parse_model(name)
    if asked.scheme == "vllm":
        return _on_server(name, student, tokenizer)
    folder = model_folder(name)
    whole = on_its_base(asked)
    ours = replace(whole.options, dtype=options.dtype, device=options.device)
    model, theirs = load_for_answers(folder, ours, whole.codec)
    _refuse_other_vocabulary(name, theirs, student, tokenizer)
    route = route_of(model)
    if route is not None and (unknown := set(route.roles) - set(roles)):
        raise ModelError(
            f"{name!r} has an adapter for the role {min(unknown)!r}, but {student!r} is trained"
            " without one, so the calls of that role are not told apart.",
            f"Set lora_roles to {', '.join(route.roles)}, or take a teacher with one adapter.",
        )
    return LocalTeacher(model.eval().requires_grad_(False), name)


def _on_server(name: str, student: str, tokenizer: Any) -> Teacher:
    from hrm_agent.models.vllm.engine import load_vllm_codec
    from hrm_agent.models.vllm.server import look_up, parse_address
    from hrm_agent.models.vllm.weights import WeightsClient

    address = parse_address(name)
    codec: Any = load_vllm_codec(name)
    _refuse_other_vocabulary(name, codec.tokenizer, student, tokenizer)
    served = look_up(address)
    client = WeightsClient(address, served.model)
    return ServerTeacher(client.logprobs, name, served.max_length, client.is_healthy)


class LocalTeacher:
    """Teacher of this process."""

    def __init__(self, model: nn.Module, name: str = "the teacher") -> None:
        self.model = model
        self._name = name
        self._packs = usable_forward(model, "packed", quiet=True) == "packed"
        self._longest = longest_conversation(model)
        self._sharded = False

    def share(self, shard: Callable[[nn.Module], nn.Module]) -> None:
        """Share the weights among ranks, by a function that all of them call."""
        self.model = shard(self.model).eval().requires_grad_(False)
        self._sharded = True

    def keep_step(self, batch: MicroBatch) -> None:
        """Run the model for the sake of other ranks, which share its weights and run it now."""
        if self._sharded:
            token_logprobs(self.model, idle_batch(batch.token_ids_N.device))

    def __call__(self, batch: MicroBatch) -> Float[Tensor, " K"]:
        """Log-probs of the trained tokens, at the temperatures at which they were sampled.
        `UNTAUGHT` for those of a sequence that is longer than the model takes, which is reported
        once on stderr.
        """
        fits = batch.forward == "padded" or self._packs
        if fits and not batch.preambles and int(batch.positions_N.max()) < self._longest:
            return token_logprobs(self.model, batch)
        short = _short(_readings(batch), self._longest, self._name)
        if not short:
            self.keep_step(batch)
        device = batch.token_ids_N.device
        # ranks that share weights have to call the model equally often
        budget = 1 << 40 if self._sharded else len(batch.token_ids_N)
        entries = _entries(batch)
        warmth = dict(zip(entries, batch.temperatures_K.tolist(), strict=True))
        known: dict[_Entry, Tensor] = {}
        for part in micro_batches(
            [_row(reading, number, warmth, batch.role) for number, reading in enumerate(short)],
            token_budget=budget,
            forward=batch.forward if fits else "padded",
        ):
            depths = part.positions_N[part.loss_indices_K].tolist()
            places = zip(part.sequences_K.tolist(), depths, strict=True)
            values = token_logprobs(self.model, part.to(device))
            for (number, depth), value in zip(places, values, strict=True):
                known[short[number].entry(depth)] = value
        found = torch.full_like(batch.weights_K, UNTAUGHT)
        for place, entry in enumerate(entries):
            if entry in known:
                found[place] = known[entry]
        return found


class ServerTeacher:
    """Teacher whose server computes the log-probs of whole sequences of tokens."""

    def __init__(
        self,
        logprobs: Callable[[list[int]], list[float]],
        name: str,
        longest: int | None = None,
        is_healthy: Callable[[], bool] = lambda: True,
    ) -> None:
        """`logprobs`: function that returns the natural log-prob of each token but the first, at
        temperature 1. `longest`: maximum tokens of a sequence with one sampled token (None: not
        known). `is_healthy`: True if the server answers.
        """
        self._logprobs = logprobs
        self._name = name
        self._longest = longest
        self._is_healthy = is_healthy

    def __call__(self, batch: MicroBatch) -> Float[Tensor, " K"]:
        """Log-probs of the trained tokens, `UNTAUGHT` for those of a sequence that is longer than
        the server takes. Waits for a server that is away.

        Raises `ModelError` if the server fails, and for tokens that were sampled at another
        temperature than 1, whose distribution a server does not return.
        """
        if bool((batch.temperatures_K != 1).any()):
            raise ModelError(
                f"{self._name!r} returns log-probs at temperature 1, but the policy samples at"
                f" {float(batch.temperatures_K[batch.temperatures_K != 1][0]):g}.",
                "Sample at temperature 1, or take a teacher of this machine.",
            )
        readings = _short(_readings(batch), (self._longest or sys.maxsize) - 1, self._name)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._ask, [list(each.token_ids) for each in readings])
        known = {
            reading.entry(depth): values[depth - 1]
            for reading, values in zip(readings, found, strict=True)
            for depth in reading.depths
        }
        values = [known.get(each, UNTAUGHT) for each in _entries(batch)]
        return torch.tensor(values, device=batch.weights_K.device)

    def _ask(self, token_ids: list[int]) -> list[float]:
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._logprobs(token_ids)
            except ModelError:
                if self._is_healthy() or time.monotonic() > until:
                    raise
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _short(readings: Sequence[_Reading], longest: int, name: str) -> list[_Reading]:
    """Sequences of at most `longest` tokens. Others are reported once on stderr."""
    found = [each for each in readings if len(each.token_ids) <= longest]
    if len(found) < len(readings):
        _tell(f"a sequence is longer than the {longest:,} tokens of {name!r}")
    return found


_Entry = tuple[int, int]
"""Preamble (its `id`, 0 for none) and index in N of a trained token."""


class _Reading(NamedTuple):
    """Sequence that a teacher reads."""

    token_ids: tuple[int, ...]
    """Tokens, from the first one to the last trained one."""
    path: tuple[int, ...]
    """Indices in N of the tokens that the policy read or sampled."""
    shift: int
    """Number of tokens that the teacher reads more than the policy."""
    depths: tuple[int, ...]
    """Places in `token_ids` of the trained tokens that no earlier sequence has."""
    preamble: int
    """`id` of the preamble (0 without one)."""

    def entry(self, depth: int) -> _Entry:
        """Key of a trained token."""
        return self.preamble, self.path[depth - self.shift]


def _entries(batch: MicroBatch) -> list[_Entry]:
    """Keys of the entries of the loss, in their order."""
    indices: list[int] = batch.loss_indices_K.tolist()
    told = [
        batch.preambles.get((sequence, index))
        for sequence, index in zip(batch.sequences_K.tolist(), indices, strict=True)
    ]
    return [
        (0 if preamble is None else id(preamble), index)
        for preamble, index in zip(told, indices, strict=True)
    ]


def _readings(batch: MicroBatch) -> list[_Reading]:
    """Sequences with all trained tokens of a micro-batch, each of them once with each preamble."""
    tokens: list[int] = batch.token_ids_N.tolist()
    preambles = {id(each): each for each in batch.preambles.values()}
    trained: dict[int, set[int]] = {}
    for preamble, index in _entries(batch):
        trained.setdefault(preamble, set()).add(index)
    found: list[_Reading] = []
    for preamble, indices in trained.items():
        head, replaces = preambles[preamble] if preamble else ((), 0)
        shift = len(head) - replaces
        covered = set[int]()
        for path in _paths(batch, indices):
            left = indices - covered
            fresh = [depth for depth, at in enumerate(path) if at in left]
            covered.update(path)
            found.append(
                _Reading(
                    (*head, *(tokens[at] for at in path[replaces:])),
                    tuple(path),
                    shift,
                    tuple(depth + shift for depth in fresh),
                    preamble,
                )
            )
    return found


def _paths(batch: MicroBatch, indices: Collection[int]) -> Iterator[list[int]]:
    """Indices in N from the first token of a sequence to the last one of `indices` in it. Each of
    them is on a path.
    """
    parents: list[int] = batch.parents_N.tolist()
    depths: list[int] = batch.positions_N.tolist()
    covered = set[int]()
    for entry in sorted(indices, key=lambda at: -depths[at]):
        if entry in covered:
            continue
        path = list[int]()
        at = entry
        while at >= 0:
            path.append(at)
            at = parents[at]
        covered.update(path)
        yield path[::-1]


def _row(reading: _Reading, number: int, warmth: Mapping[_Entry, float], role: str) -> Row:
    """Row of a sequence. `warmth`: temperatures of the trained tokens."""
    size = len(reading.token_ids)
    mask = np.zeros(size, np.bool_)
    mask[list(reading.depths)] = True
    temperatures = np.ones(size, np.float32)
    for depth in reading.depths:
        temperatures[depth] = warmth[reading.entry(depth)]
    nothing = np.zeros(size, np.float32)
    return Row(
        token_ids=np.array(reading.token_ids, np.int64),
        loss_mask=mask,
        old_logprobs=nothing,
        weights=nothing,
        temperatures=temperatures,
        old_temperatures=temperatures,
        versions=np.zeros(size, np.int64),
        sequence=number,
        role=role,
    )


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
