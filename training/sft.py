"""Supervised fine-tuning on conversations, as the cold start before reinforcement learning.

The codec tokenises a conversation turn by turn, exactly as a rollout: the prompt is encoded once,
then each answer is appended, and after an answer only the tokens that the chat template inserts. So
the policy is trained on sequences as it meets them in rollouts, and only the tokens of answers are
trained (with their end-of-turn tokens). If the template rewrites earlier turns, the conversation
continues as a second example, as a rollout would continue with a new root.

One optimiser step trains on one batch: the loss is the mean over the batch's trained tokens, in all
micro-batches and processes together. A micro-batch has conversations of similar length side by
side. Or it is packed: conversations follow each other in one sequence, in which a token sees only
its own conversation. On one thread of one machine the weights depend only on the seed, to the bit.
The number of a step determines its batch, learning rate and dropout, and a checkpoint has weights,
optimisers and the running mean. So a resumed run reaches the same weights as an uninterrupted run,
no matter how it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from safetensors.torch import load_model
from transformers import PreTrainedModel

from hrm_agent.errors import ConfigError, RunError, TaskError
from hrm_agent.models.engine import Codec, TemplateMismatch
from hrm_agent.models.model_facts import facts_of_loaded
from hrm_agent.training.chat_rows import chat_of
from hrm_agent.training.checkpoints import Checkpoints
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.fitted import decided, fit_sft, left_open
from hrm_agent.training.config.rules import with_values
from hrm_agent.training.metrics import MetricsLog
from hrm_agent.training.update.accelerators import exact_accelerator
from hrm_agent.training.update.adapters import Adapter
from hrm_agent.training.update.gradients import SkippedSteps, step_if_finite
from hrm_agent.training.update.logprobs.packed import usable_forward
from hrm_agent.training.update.model_mode import learning_from_texts
from hrm_agent.training.update.optimizers import RunningMean, make_optimizers
from hrm_agent.training.update.schedule import Schedule, dropout_seed, refuse_other_course
from hrm_agent.training.update.sft_gradient import Example, gradient_of_batch
from hrm_agent.trajectory import derive_seed

__all__ = [
    "Conversation",
    "Example",
    "read_chats",
    "tokenize",
    "train_sft",
]

_OPTIMIZERS = "optimizers.pt"
_STATE = "state.json"

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Conversation whose AI messages the policy learns."""

    messages: tuple[BaseMessage, ...]
    """Messages of all speakers, in order."""
    tools: tuple[dict[str, Any], ...] = ()
    """Tools in OpenAI's form."""


def train_sft(
    model: PreTrainedModel,
    codec: Codec,
    conversations: Sequence[Conversation],
    config: SftConfig,
    *,
    metrics_path: Path | None = None,
    checkpoints: Checkpoints | None = None,
    adapter: Adapter | None = None,
    progress: Callable[[Metrics], None] | None = None,
) -> list[Metrics]:
    """Train `model` in place. Returns a row of metrics for each step. During the run the rows are
    also written to `metrics_path` as JSON lines.

    With `checkpoints` the run resumes from the newest complete checkpoint, and saves further ones.
    The returned rows are those of the steps taken in this call. `adapter`: the adapter that is
    trained (None: all weights are trained). Keys that the configuration leaves to the model are
    fitted here.

    A step whose gradient is not finite is skipped, and `stepped` is 0 in its row. Raises `RunError`
    if the checkpoints belong to other conversations, if the taken steps would have had other
    learning rates with the number of steps that is requested now, or if no step could be taken.
    Raises `ConfigError` for a batch smaller than the number of processes, and `TaskError` if there
    is no answer to learn from.
    """
    accelerator = exact_accelerator(cpu=not torch.cuda.is_available())
    config = _fitted(config, model, adapter, len(conversations))
    steps = decided(config.steps, "steps")
    batch_size = decided(config.batch_size, "batch_size")
    if batch_size < accelerator.num_processes:
        raise ConfigError(
            f"A batch of {batch_size} conversations cannot be shared by {accelerator.num_processes}"
            " processes.",
            f"Set batch_size to {accelerator.num_processes} or more.",
        )
    examples = [
        example for conversation in conversations for example in tokenize(conversation, codec)
    ]
    if config.forward == "packed":
        # a packed sequence cannot have examples without trained tokens
        examples = [example for example in examples if any(example.mask[1:])]
    if not examples:
        raise TaskError(
            "No conversation holds an answer to learn from.", "Add one with an assistant message."
        )
    course = _Course(model, config, examples, accelerator, adapter)
    taken = checkpoints.restore(course.read) if checkpoints is not None else None
    if checkpoints is not None and taken is not None:
        course.refuse_another(taken, checkpoints)
    start = int(taken["step"]) if taken is not None else 0
    main = accelerator.is_main_process
    log = (
        MetricsLog(metrics_path, before_step=start + 1)
        if main and metrics_path is not None
        else None
    )
    rows: list[Metrics] = []
    batches = _batches(examples, steps, batch_size, config.seed)
    for step, batch in islice(enumerate(batches, start=1), start, None):
        rows.append(course.step(step, batch))
        if main and log is not None:
            log.append(rows[-1])
        if main and checkpoints is not None and checkpoints.is_due(step, steps):
            if log is not None:
                log.sync()
            checkpoints.save(step, partial(course.write, step))
        if main and progress is not None:
            progress(rows[-1])
    course.end()
    return rows


def _fitted(
    config: SftConfig, model: PreTrainedModel, adapter: Adapter | None, conversations: int
) -> SftConfig:
    if not left_open(config):
        return config
    fitted = fit_sft(
        config, facts_of_loaded(model), adapter=adapter is not None, conversations=conversations
    )
    return with_values(config, fitted.values)


class _Course:
    """State of a fine-tuning run."""

    def __init__(
        self,
        model: PreTrainedModel,
        config: SftConfig,
        examples: Sequence[Example],
        accelerator: Accelerator,
        adapter: Adapter | None,
    ) -> None:
        optimizers = make_optimizers(model, config)
        self._adapter = adapter
        forward = usable_forward(model, config.forward, quiet=not accelerator.is_main_process)
        self._model = model
        self._accelerator = accelerator
        self._config = config.model_copy(update={"forward": forward})
        self._wrapped, *self._optimizers = accelerator.prepare(model, *optimizers)
        self._rates = [group["lr"] for group in self._groups]
        self._mean = RunningMean(model, config.average) if config.average else None
        self._steps = decided(config.steps, "steps")
        warmup_steps = decided(config.warmup_steps, "warmup_steps")
        self._schedule = Schedule(self._steps, warmup_steps, config.cooldown, config.fall)
        self._examples = examples
        self._skipped = SkippedSteps()
        learning_from_texts(self._wrapped)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self._optimizers for group in optimizer.param_groups]

    @cached_property
    def _fingerprint(self) -> str:
        """Digest of the tokens, by which other conversations or another tokenizer are
        recognised.
        """
        digest = hashlib.sha256()
        for example in self._examples:
            digest.update(array("q", example.token_ids).tobytes() + bytes(example.mask))
        return digest.hexdigest()

    def step(self, step: int, batch: Sequence[Example]) -> Metrics:
        """Take the step with number `step`, counted from 1, and return its row of metrics."""
        began = time.perf_counter()
        config = self._config
        share = self._schedule.share(step - 1)
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate * share
        with dropout_seed(
            derive_seed(config.seed, "dropout", step, self._accelerator.process_index)
        ):
            row = gradient_of_batch(self._accelerator, self._wrapped, batch, config)
        norm = torch.tensor(row["grad_norm"])
        stepped = step_if_finite(self._model, self._optimizers, norm, self._accelerator)
        self._skipped.count(stepped=stepped)
        if stepped and self._mean is not None:
            self._mean.update()
        row |= {"stepped": float(stepped), "learning_rate": self._rates[-1] * share}
        return {"step": step, **row, "seconds": time.perf_counter() - began}

    def end(self) -> None:
        """Give the model its final weights. Raises `RunError` if no step could be taken."""
        self._skipped.end()
        if self._mean is not None:
            self._mean.take_place()
        self._model.eval()

    def write(self, step: int, folder: Path) -> None:
        """Write everything on which the next step depends, and data by which the run is
        recognised.
        """
        self._model.save_pretrained(folder) if self._adapter is None else self._adapter.save(folder)
        kept = {"optimizers": [optimizer.state_dict() for optimizer in self._optimizers]}
        torch.save(
            kept | ({"mean": self._mean.state_dict()} if self._mean else {}), folder / _OPTIMIZERS
        )
        skipped = self._skipped
        taken = skipped.taken_before or skipped.skipped < skipped.steps
        state = {"step": step, "steps": self._steps, "examples": self._fingerprint, "taken": taken}
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def read(self, folder: Path) -> dict[str, Any]:
        """Restore the state that `write` wrote, and return its metadata."""
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        kept = torch.load(folder / _OPTIMIZERS, weights_only=True)
        if self._adapter is None:
            load_model(self._model, folder / "model.safetensors")
        else:
            self._adapter.load(folder)
        for optimizer, each in zip(self._optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        if self._mean is not None:
            self._mean.load_state_dict(kept["mean"])
        self._skipped.taken_before = state.get("taken", True)  # missing in earlier versions
        return state

    def refuse_another(self, taken: dict[str, Any], checkpoints: Checkpoints) -> None:
        """Raise `RunError` if the restored checkpoint is not of the beginning of this run."""
        if taken["examples"] != self._fingerprint:
            raise RunError(
                f"The run in {checkpoints.run} was begun on other conversations.",
                "Give it the file on which it was begun, or name another folder with --out.",
            )
        newest = max(int(taken["step"]), checkpoints.newest_step)
        refuse_other_course(self._schedule, int(taken["steps"]), newest, checkpoints.run)


def tokenize(conversation: Conversation, codec: Codec) -> list[Example]:
    """Token sequences of a conversation: one, or more if the template rewrites earlier turns."""
    examples: list[Example] = []
    ids: list[int] = []
    mask: list[bool] = []
    answered: int | None = None
    for i, message in enumerate(conversation.messages):
        if not isinstance(message, AIMessage):
            continue
        inserted = _continue(codec, conversation, i, answered, ids)
        if inserted is None:
            if ids:
                examples.append(Example(tuple(ids), tuple(mask)))
            ids = []
            mask = []
            inserted = codec.encode(conversation.messages[:i], conversation.tools)
        answer = codec.encode_turn(conversation.messages[: i + 1], conversation.tools)
        ids += [*inserted, *answer]
        learned = message.additional_kwargs.get("weight", 1) != 0
        mask += [False] * len(inserted) + [learned] * len(answer)
        answered = i
    return [*examples, Example(tuple(ids), tuple(mask))] if ids else examples


def _continue(
    codec: Codec, conversation: Conversation, i: int, answered: int | None, ids: Sequence[int]
) -> list[int] | None:
    """Prompt tokens between the last answer and the i-th message (None if a new example has to
    begin).
    """
    if answered is None:
        return None
    try:
        messages = conversation.messages[:i]
        tools = conversation.tools
        return codec.extend(messages, answered, ended_by=ids[-1], tools=tools)
    except TemplateMismatch:
        return None


def read_chats(path: Path) -> list[Conversation]:
    """Read conversations from a JSONL file with the rows `{"messages": [...], "tools": [...]}`;
    `tools` is optional.

    `hrm_agent.training.chat_rows` describes the accepted forms of messages, calls and tools. An
    assistant message with `"weight": 0` is context: `export --format chat` marks answers in this
    way if another row teaches them. Raises `TaskError` for a row that is not a conversation.
    """
    try:
        # not splitlines(), which would also split at U+2028, a valid character in JSON
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TaskError(f"{path} is not UTF-8: {error}.", "Write it as UTF-8.") from error
    return [
        _read_chat(line, f"{path}, line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]


def _read_chat(line: str, place: str) -> Conversation:
    try:
        written, tools = chat_of(json.loads(line))
        messages = convert_to_messages(written)
        conversation = Conversation(tuple(messages), tuple(tools))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        # take the first line, since LangChain's errors end with a link
        first = str(error).partition("\n")[0]
        raise TaskError(
            f"{place} is not a conversation: {type(error).__name__}: {first}.",
            'Write one JSON object per line: {"messages": [{"role": "user", "content": "..."},'
            " ...]}",
        ) from error
    if not any(isinstance(message, AIMessage) for message in messages):
        raise TaskError(
            f"{place} has no assistant message to learn from.", "Add the answer, or drop the line."
        )
    return conversation


def _batches(
    examples: Sequence[Example], steps: int, batch_size: int, seed: int
) -> Iterator[list[Example]]:
    """Yield one batch per step, drawn from passes over the examples. Each pass is shuffled anew, in
    the same way in every process.
    """
    rng = random.Random(seed)
    order: list[int] = []
    for _ in range(steps):
        while len(order) < batch_size:
            order += rng.sample(range(len(examples)), len(examples))
        yield [examples[i] for i in order[:batch_size]]
        order = order[batch_size:]
