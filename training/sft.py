"""Supervised fine-tuning on conversations: the cold start before reinforcement learning.

A conversation is cut into tokens by the codec, turn by turn, exactly as a rollout is: the prompt is encoded once, each
answer is appended, and after it only what the chat template inserts. So the policy is trained on sequences as it will
meet them, and on its own turns alone (their end-of-turn tokens included). If the template rewrites earlier turns, the
conversation continues as a second example, as a rollout continues with a new root.

One optimiser step is one batch, however it is cut into micro-batches: the loss is the mean over the batch's trained
tokens, in all micro-batches and processes together. Micro-batches hold conversations of similar length.
On one thread of one machine the weights are a function of the seed, to the bit.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel

from hrm_agent.errors import ConfigError, TaskError
from hrm_agent.models.codec.tool_calls import tool_call_text
from hrm_agent.models.engine import Codec, TemplateMismatch
from hrm_agent.training.configs import SftConfig
from hrm_agent.training.optimizers import RunningMean, make_optimizers
from hrm_agent.training.schedule import trapezoid

__all__ = ["Conversation", "Example", "answer_text", "read_chats", "save_policy", "tokenize", "train_sft"]

IGNORED = -100
"""Target of a token that is not trained."""

Metrics = dict[str, float]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A written conversation; the policy learns its AI messages."""

    messages: tuple[BaseMessage, ...]
    """The turns in order, AI messages and others."""
    tools: tuple[dict[str, Any], ...] = ()
    """In OpenAI's form."""


@dataclass(frozen=True, slots=True)
class Example:
    """Aligned tokens of one sequence."""

    token_ids: tuple[int, ...]
    """The prompt and the turns after it, in the model's vocabulary."""
    mask: tuple[bool, ...]
    """True where the policy is to write the token."""


def train_sft(
    model: PreTrainedModel,
    codec: Codec,
    conversations: Sequence[Conversation],
    config: SftConfig,
    *,
    metrics_path: Path | None = None,
    progress: Callable[[Metrics], None] | None = None,
) -> list[Metrics]:
    """Train `model` in place; one row of metrics per step, written to `metrics_path` as JSON lines as they come."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    if config.batch_size < accelerator.num_processes:
        raise ConfigError(
            f"A batch of {config.batch_size} conversations cannot be shared by {accelerator.num_processes} processes.",
            f"Set batch_size to {accelerator.num_processes} or more.",
        )
    examples = [example for conversation in conversations for example in tokenize(conversation, codec)]
    if not examples:
        raise TaskError("No conversation holds an answer to learn from.", "Add one with an assistant message.")
    optimizers = make_optimizers(model, config)
    schedules = [LambdaLR(each, partial(_rate, config)) for each in optimizers]
    wrapped, *prepared = accelerator.prepare(model, *optimizers)
    wrapped.train()
    mean = RunningMean(model, config.average) if config.average else None
    rows: list[Metrics] = []
    for step, batch in enumerate(_batches(examples, config), start=1):
        began, rate = time.perf_counter(), float(schedules[-1].get_last_lr()[0])
        row = _train_step(accelerator, wrapped, batch, config)
        for optimizer, schedule in zip(prepared, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if mean is not None:
            mean.update()
        rows.append({"step": step, **row, "learning_rate": rate, "seconds": time.perf_counter() - began})
        if accelerator.is_main_process:
            _report(rows[-1], metrics_path, progress)
    if mean is not None:
        mean.take_place()
    model.eval()
    return rows


def _rate(config: SftConfig, step: int) -> float:
    return trapezoid(step, config.steps, config.warmup_steps, config.cooldown)


def tokenize(conversation: Conversation, codec: Codec) -> list[Example]:
    """The token sequences of a conversation: one, or more where the template does not leave earlier turns alone."""
    examples: list[Example] = []
    ids: list[int] = []
    mask: list[bool] = []
    answered: int | None = None
    for i, message in enumerate(conversation.messages):
        if not isinstance(message, AIMessage):
            continue
        inserted = _continue(codec, conversation, i, answered)
        if inserted is None:
            if ids:
                examples.append(Example(tuple(ids), tuple(mask)))
            ids, mask = [], []
            inserted = codec.encode(conversation.messages[:i], conversation.tools)
        answer = codec.encode_answer(answer_text(message))
        ids += [*inserted, *answer]
        learned = message.additional_kwargs.get("weight", 1) != 0
        mask += [False] * len(inserted) + [learned] * len(answer)
        answered = i
    return [*examples, Example(tuple(ids), tuple(mask))] if ids else examples


def _continue(codec: Codec, conversation: Conversation, i: int, answered: int | None) -> list[int] | None:
    """Prompt tokens between the last answer and the i-th message; None if a new sequence has to begin."""
    if answered is None:
        return None
    try:
        return codec.extend(conversation.messages[:i], answered, ended=True, tools=conversation.tools)
    except TemplateMismatch:
        return None


def answer_text(message: AIMessage) -> str:
    """An AI message as the policy would have written it: its text, then its tool calls."""
    return message.text + "".join(tool_call_text(call["name"], call["args"]) for call in message.tool_calls)


def read_chats(path: Path) -> list[Conversation]:
    """Conversations of a JSONL file: rows `{"messages": [...], "tools": [...]}` in OpenAI's form; tools optional.

    An assistant message with `"weight": 0` is context: `export --format chat` marks what another row teaches.
    """
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would cut at U+2028, which JSON may hold
    return [_read_chat(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _read_chat(line: str, place: str) -> Conversation:
    try:
        row = json.loads(line)
        if not (isinstance(row["messages"], list) and all(isinstance(message, dict) for message in row["messages"])):
            raise TypeError("`messages` has to be a list of objects")
        messages = convert_to_messages(row["messages"])
        conversation = Conversation(tuple(messages), tuple(row.get("tools") or ()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        first = str(error).partition("\n")[0]  # of LangChain's errors, without the link to its pages
        raise TaskError(
            f"{place} is not a conversation: {type(error).__name__}: {first}.",
            'Write one JSON object per line: {"messages": [{"role": "user", "content": "..."}, ...]}',
        ) from error
    if not any(isinstance(message, AIMessage) for message in messages):
        raise TaskError(f"{place} has no assistant message to learn from.", "Add the answer, or drop the line.")
    return conversation


def save_policy(model: PreTrainedModel, tokenizer: Any, folder: Path, card: str) -> None:
    """Weights (safetensors), configuration, tokenizer with chat template, and the model card as README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(card, encoding="utf-8")


def _batches(examples: Sequence[Example], config: SftConfig) -> Iterator[list[Example]]:
    """One batch per step, drawn from reshuffled passes over the examples; the same in every process."""
    rng = random.Random(config.seed)
    order: list[int] = []
    for _ in range(config.steps):
        while len(order) < config.batch_size:
            order += rng.sample(range(len(examples)), len(examples))
        yield [examples[i] for i in order[: config.batch_size]]
        order = order[config.batch_size :]


def _micro_batches(examples: Sequence[Example], most_tokens: int) -> list[list[Example]]:
    """The examples, sorted by length and cut so that a padded micro-batch stays within `most_tokens`."""
    batches: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: len(example.token_ids)):
        if batches[-1] and (len(batches[-1]) + 1) * len(example.token_ids) > most_tokens:
            batches.append([])
        batches[-1].append(example)
    return batches


def _train_step(accelerator: Accelerator, model: Any, batch: Sequence[Example], config: SftConfig) -> Metrics:
    """Gradients of one batch, clipped. The loss is the mean over its trained tokens, in every process together."""
    trained = max(1, sum(sum(example.mask[1:]) for example in batch))
    shares = _micro_batches(batch[accelerator.process_index :: accelerator.num_processes], config.micro_batch_tokens)
    totals = torch.zeros(2, device=accelerator.device)
    for i, share in enumerate(shares):
        last = i == len(shares) - 1
        with nullcontext() if last else accelerator.no_sync(model):
            loss, hits = _loss(model, share, accelerator.device)
            accelerator.backward(loss * (accelerator.num_processes / trained))
        totals += torch.stack([loss.detach(), hits])
    norm = accelerator.clip_grad_norm_(model.parameters(), config.max_grad_norm)
    summed = cast("torch.Tensor", accelerator.reduce(totals, reduction="sum"))
    mean_loss, accuracy = (summed / trained).tolist()
    tokens = sum(len(example.token_ids) for example in batch)
    return {"loss": mean_loss, "accuracy": accuracy, "tokens": tokens, "grad_norm": float(norm or 0.0)}


def _loss(model: Any, examples: Sequence[Example], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed cross entropy of the trained tokens, and how many of them are the most probable ones.

    Padding stands at the end, where no trained token can see it, so that no attention mask is needed.
    """
    length = max(len(example.token_ids) for example in examples)
    ids_BT = torch.zeros(len(examples), length, dtype=torch.long)
    target_BT = torch.full((len(examples), length), IGNORED)
    for row, example in enumerate(examples):
        ids = torch.tensor(example.token_ids)
        ids_BT[row, : len(ids)] = ids
        target_BT[row, : len(ids)] = torch.where(torch.tensor(example.mask), ids, IGNORED)
    logits_NV = model(input_ids=ids_BT.to(device), use_cache=False).logits[:, :-1].flatten(0, 1)
    target_N = target_BT[:, 1:].flatten().to(device)
    loss = cross_entropy(logits_NV.float(), target_N, ignore_index=IGNORED, reduction="sum")
    return loss, (logits_NV.argmax(-1) == target_N).sum()


def _report(row: Metrics, path: Path | None, progress: Callable[[Metrics], None] | None) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    if progress is not None:
        progress(row)
