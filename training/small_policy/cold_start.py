"""Cold start: trains, in minutes on a CPU, a policy from scratch that follows both conversation
forms (tool loop and hierarchical graph).

Demonstrations, tokenizer, fresh weights and their training depend only on one seed. The policy is
deliberately sloppy in the tool loop (`hrm_agent.training.small_policy.traces`), so that
reinforcement learning can improve it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from langchain_core.messages import AIMessage
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from hrm_agent.models.codec.calls.hermes import tool_call_text
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.fitted import conversations_taken
from hrm_agent.training.sft import Conversation, train_sft
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.small_policy.tokenizer import (
    CHAT_TEMPLATE,
    CONTROL_TOKENS,
    TAGS,
    train_tokenizer,
)
from hrm_agent.training.small_policy.traces import GUESS_SHARE, SLIP_SHARE, demonstrations

__all__ = ["COLD_START", "VOCABULARY", "answer_text", "build_cold_start", "build_tokenizer"]

VOCABULARY = 1024
"""Vocabulary size in tokens, including tags and control tokens."""
TOKENIZER_TEXTS = 3000
"""Number of demonstrations on which the tokenizer is trained."""
COLD_START = SftConfig(
    steps=1000,
    batch_size=32,
    optimizer="muon",
    learning_rate=3e-3,
    matrix_learning_rate=0.02,
    warmup_steps=30,
    cooldown=0.5,
    average=0.99,
    micro_batch_tokens=1024,
)
"""Recipe of the cold start, whose seed the caller replaces. Micro-batches of 1,024 tokens need
little padding, and fit into the cache.
"""
CARD = Path(__file__).with_name("cold_start_card.md")
_CONTROLS = re.compile("|".join(map(re.escape, CONTROL_TOKENS)))
_MARKS = re.compile("|".join(map(re.escape, (*CONTROL_TOKENS, *TAGS))))


def build_cold_start(
    out_dir: Path,
    seed: int = 0,
    progress: Callable[[dict[str, float]], None] | None = None,
    config: SftConfig = COLD_START,
) -> dict[str, float]:
    """Train a policy from scratch and save it to `out_dir`. Returns the figures of the model card.

    `progress` is called with each step's row. One thread is fastest on a busy machine
    (`OMP_NUM_THREADS=1`).
    """
    began = time.perf_counter()
    cpu_began = time.process_time()
    config = config.model_copy(update={"seed": seed})
    lessons = list(demonstrations("train", seed, conversations_taken(config)))
    tokenizer = build_tokenizer(lessons[:TOKENIZER_TEXTS])
    model = new_model(tokenizer, seed)
    last = train_sft(model, ChatTemplateCodec(tokenizer), lessons, config, progress=progress)[-1]
    metrics = {
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "conversations": len(lessons),
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_began,
    }
    card = CARD.read_text(encoding="utf-8").format(
        seed=seed, config=config, guesses=GUESS_SHARE, slips=SLIP_SHARE, **metrics
    )
    save_policy(model, tokenizer, out_dir, card)
    return metrics


def build_tokenizer(lessons: Sequence[Conversation]) -> PreTrainedTokenizerFast:
    """Train a tokenizer for the texts of these conversations, as rendered by the chat template."""
    return train_tokenizer(_texts(lessons), VOCABULARY)


def answer_text(message: AIMessage) -> str:
    """Text of an AI message as the policy would have written it, followed by its tool calls."""
    return message.text + "".join(
        tool_call_text(call["name"], call["args"]) for call in message.tool_calls
    )


def _texts(lessons: Sequence[Conversation]) -> Iterator[str]:
    """Yield the texts between control tokens and, in answers, between tags. In prompts tags are
    plain text.
    """
    for lesson in lessons:
        system, request = lesson.messages[:2]
        turns = [
            {"role": "system", "content": system.text},
            {"role": "user", "content": request.text},
        ]
        prompts, _ = render_jinja_template(
            [turns],
            tools=list(lesson.tools) or None,
            chat_template=CHAT_TEMPLATE.read_text(),
            add_generation_prompt=True,
        )
        yield from _CONTROLS.split(prompts[0])
        for message in lesson.messages[2:]:
            if isinstance(message, AIMessage):
                yield from _MARKS.split(answer_text(message))
            else:
                yield message.text
