"""Cold start of the four roles: fine-tunes the small policy on roles with faults, in two minutes on
a CPU.

`builtin:cold-start` makes faults in the tool loop only, and its roles solve almost every problem.
The result of this module makes faults in every role of the hierarchical graph
(`hrm_agent.training.small_policy.role_faults`), so that reinforcement learning on that graph has
something to improve. Demonstrations and weights depend only on the seed and the cold start.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.commands import SftConfig
from hrm_agent.training.config.fitted import conversations_taken
from hrm_agent.training.sft import Conversation, train_sft
from hrm_agent.training.small_policy.role_faults import (
    CRITIC_KINDS,
    NO_FAULTS,
    RoleFaults,
    faulty_demonstrations,
)
from hrm_agent.trajectory import derive_seed

__all__ = [
    "LOOKING",
    "ROLES_COLD_START",
    "build_roles_cold_start",
    "erring_lessons",
    "looking_lessons",
]

LOOKING = SftConfig(
    steps=250,
    batch_size=32,
    learning_rate=1e-3,
    warmup_steps=10,
    cooldown=0.5,
    micro_batch_tokens=1024,
)
"""First part of the recipe: demonstrations without faults. Most are of the critic, which learns to
detect flaws.
"""
ROLES_COLD_START = SftConfig(
    steps=150,
    batch_size=32,
    learning_rate=5e-4,
    warmup_steps=10,
    cooldown=0.8,
    average=0.97,
    micro_batch_tokens=1024,
)
"""Second part of the recipe: demonstrations with faults. The caller replaces the seed of both
parts.
"""
CARD = Path(__file__).with_name("roles_cold_start_card.md")


def build_roles_cold_start(
    start: Path,
    out: Path,
    seed: int = 0,
    progress: Callable[[dict[str, float]], None] | None = None,
    configs: tuple[SftConfig, SftConfig] = (LOOKING, ROLES_COLD_START),
    faults: RoleFaults | None = None,
) -> dict[str, float]:
    """Fine-tune the policy in `start` and save it to `out`. Returns the figures of the model card.

    `progress` is called with each row of the second part.
    """
    cpu_began = time.process_time()
    faults = faults or RoleFaults()
    looking, erring = (config.model_copy(update={"seed": seed}) for config in configs)
    model = AutoModelForCausalLM.from_pretrained(start, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(start)
    codec = ChatTemplateCodec(tokenizer)
    train_sft(model, codec, looking_lessons(seed, conversations_taken(looking)), looking)
    lessons = erring_lessons(seed, conversations_taken(erring), faults)
    last = train_sft(model, codec, lessons, erring, progress=progress)[-1]
    metrics = {
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "conversations": len(lessons),
        "cpu_seconds": time.process_time() - cpu_began,
    }
    card = CARD.read_text(encoding="utf-8").format(
        seed=seed, looking=looking, erring=erring, **asdict(faults), **metrics
    )
    save_policy(model, tokenizer, out, card)
    return metrics


def looking_lessons(seed: int, count: int) -> list[Conversation]:
    """Demonstrations of the first part."""
    return list(
        faulty_demonstrations("train", derive_seed(seed, "looking"), count, NO_FAULTS, CRITIC_KINDS)
    )


def erring_lessons(seed: int, count: int, faults: RoleFaults | None = None) -> list[Conversation]:
    """Demonstrations of the second part."""
    return list(faulty_demonstrations("train", seed, count, faults))
