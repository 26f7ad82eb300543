"""Teachers: log-probs of what the policy sampled, under a model of this process or of a vLLM server.

On-policy distillation (Agarwal et al., arXiv 2306.13649) needs only the log-probs of the student's
tokens, and not the teacher's samples. A teacher may read more than the student: with
`teacher_prompt` the reference answer stands in its prompt (on-policy self-distillation, Zhao et
al., arXiv 2601.18734). Families of tasks may have teachers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from hrm_agent.trajectory import Call, Trajectory

__all__ = ["LocalTeacher", "ServerTeacher", "Teacher", "Teachers", "open_teacher"]

Teacher = Callable[[MicroBatch], Float[Tensor, " K"]]
"""Function that returns the natural log-prob of each trained token of a micro-batch."""
_AT_ONCE = 32
"""Maximum number of sequences that a server is asked about at a time."""


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
        return self.all[batch.teacher](batch)

    def lesson(self, trajectory: Trajectory, root: Call) -> tuple[int, Preamble | None]:
        """Number of the trajectory's teacher, and what it reads in place of the prompt of `root`
        (None: the prompt).

        Raises `ModelError` if the task has no reference answer, or the call no message of the user
        on record.
        """
        number = self._numbers.get(trajectory.task.family, 0)
        return number, None if self._prompt is None else self._preamble(trajectory, root)

    def _preamble(self, trajectory: Trajectory, root: Call) -> Preamble:
        task = trajectory.task
        if task.answer is None:
            raise ModelError(
                f"Task {task.id!r} of {task.family} has no reference answer for teacher_prompt.",
                "Train on tasks that have one, or leave teacher_prompt out.",
            )
        messages = convert_to_messages([dict(each) for each in root.request or ()])
        added = (self._prompt or "").replace("{answer}", task.answer)
        asked = _with_addition(messages, added)
        if asked is None:
            raise ModelError(
                f"Call {root.id} has no message of the user on record, to which teacher_prompt"
                " could be added.",
                "Leave teacher_prompt out.",
            )
        token_ids = self._codec.encode(asked, list(root.tools or ()))
        return Preamble(tuple(token_ids), root.mask.index(True))


def _with_addition(messages: Sequence[BaseMessage], added: str) -> list[BaseMessage] | None:
    """Messages with a text at the end of the user's first one (None if there is none)."""
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
    return ServerTeacher(WeightsClient(address, look_up(address).model).logprobs, name)


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

    def __call__(self, batch: MicroBatch) -> Float[Tensor, " K"]:
        """Log-probs of the trained tokens, at the temperatures at which they were sampled. Raises
        `ModelError` for a sequence that is longer than the model takes.
        """
        fits = batch.forward == "padded" or self._packs
        if fits and not batch.preambles:
            self._refuse_longer(int(batch.positions_N.max()) + 1)
            return token_logprobs(self.model, batch)
        readings = _readings(batch)
        for reading in readings:
            self._refuse_longer(len(reading.token_ids))
        device = batch.token_ids_N.device
        # ranks that share weights have to call the model equally often
        budget = 1 << 40 if self._sharded else len(batch.token_ids_N)
        known: dict[int, Tensor] = {}
        for part in micro_batches(
            [_row(reading, number, batch) for number, reading in enumerate(readings)],
            token_budget=budget,
            forward=batch.forward if fits else "padded",
        ):
            depths = part.positions_N[part.loss_indices_K].tolist()
            entries = zip(part.sequences_K.tolist(), depths, strict=True)
            values = token_logprobs(self.model, part.to(device))
            for (number, depth), value in zip(entries, values, strict=True):
                known[readings[number].index_at(depth)] = value
        return torch.stack([known[at] for at in batch.loss_indices_K.tolist()])

    def _refuse_longer(self, tokens: int) -> None:
        if tokens > self._longest:
            raise ModelError(
                f"{self._name!r} takes at most {self._longest:,} tokens, but it is to teach a"
                f" sequence of {tokens:,}.",
                "Lower max_tokens or the turns of the graph, or take another teacher.",
            )


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
        readings = _readings(batch)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = pool.map(self._logprobs, [list(each.token_ids) for each in readings])
        known = {
            reading.index_at(depth): values[depth - 1]
            for reading, values in zip(readings, found, strict=True)
            for depth in reading.depths
        }
        entries = [known[at] for at in batch.loss_indices_K.tolist()]
        return torch.tensor(entries, device=batch.weights_K.device)


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

    def index_at(self, depth: int) -> int:
        """Index in N of a trained token."""
        return self.path[depth - self.shift]


def _readings(batch: MicroBatch) -> list[_Reading]:
    """Sequences with all trained tokens of a micro-batch, each of them once."""
    tokens: list[int] = batch.token_ids_N.tolist()
    trained: set[int] = set(batch.loss_indices_K.tolist())
    covered = set[int]()
    found: list[_Reading] = []
    for path in _paths(batch):
        told = batch.preambles.get(path[-1])
        head, replaces = (told.token_ids, told.replaces) if told is not None else ((), 0)
        shift = len(head) - replaces
        fresh = [depth for depth, at in enumerate(path) if at in trained and at not in covered]
        covered.update(path)
        found.append(
            _Reading(
                (*head, *(tokens[at] for at in path[replaces:])),
                tuple(path),
                shift,
                tuple(depth + shift for depth in fresh),
            )
        )
    return found


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


def _row(reading: _Reading, number: int, batch: MicroBatch) -> Row:
    """Row of a sequence, with the temperatures of its trained tokens."""
    entries = batch.loss_indices_K.tolist()
    temperatures = dict(zip(entries, batch.temperatures_K.tolist(), strict=True))
    size = len(reading.token_ids)
    mask = np.zeros(size, np.bool_)
    mask[list(reading.depths)] = True
    warmth = np.ones(size, np.float32)
    for depth in reading.depths:
        warmth[depth] = temperatures[reading.index_at(depth)]
    nothing = np.zeros(size, np.float32)
    return Row(
        token_ids=np.array(reading.token_ids, np.int64),
        loss_mask=mask,
        old_logprobs=nothing,
        weights=nothing,
        temperatures=warmth,
        old_temperatures=warmth,
        versions=np.zeros(size, np.int64),
        sequence=number,
        role=batch.role,
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
