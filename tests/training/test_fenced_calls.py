"""Calls that a model writes as fenced blocks are trained like any: a real model, its tokens and its
gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from hrm_agent.environment import LocalEnvironment
from hrm_agent.graphs.parts.prompts import TOOL_LOOP_PROMPT, loop_system_turn
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.runtime.episode import Episode, EpisodeRunner
from hrm_agent.store import RunStore
from hrm_agent.training.checkpoints import save_policy
from hrm_agent.training.config.commands import GrpoConfig, SftConfig
from hrm_agent.training.select.penalties import penalty_error
from hrm_agent.training.sft import Conversation, tokenize, train_sft
from hrm_agent.training.small_policy.architecture import new_model
from hrm_agent.training.small_policy.cold_start import answer_text, build_tokenizer
from hrm_agent.training.update.batch import build_batches, linearise
from hrm_agent.training.update.learner import Learner
from hrm_agent.trajectory import Overlay, Sampling, TaskRef, ToolStatus, Verdict

TASK = TaskRef(id="1", family="f", prompt="6 * 7?")
LESSON = Conversation(
    (
        SystemMessage(loop_system_turn(TOOL_LOOP_PROMPT, fenced=True)),
        HumanMessage(TASK.prompt),
        AIMessage("```python\n6 * 7\n```"),
        HumanMessage("Result 1 (ok):\n```output\n42\n```"),
        AIMessage("<answer>\\boxed{42}</answer>"),
    )
)


def learned(folder: Path) -> ChatTemplateCodec:
    """Train a policy until it knows this one conversation by heart, save it to `folder`, and return
    its codec.
    """
    tokenizer = build_tokenizer([LESSON])
    model, codec = new_model(tokenizer, 0), ChatTemplateCodec(tokenizer)
    config = SftConfig(steps=60, batch_size=1, learning_rate=3e-3, warmup_steps=1, weight_decay=0.0)
    assert train_sft(model, codec, [LESSON], config)[-1]["accuracy"] == 1.0
    save_policy(model, tokenizer, folder, "")
    return codec


async def test_the_tokens_of_a_fenced_call_are_trained(
    store: RunStore, environment: LocalEnvironment, tmp_path: Path
) -> None:
    codec = learned(tmp_path / "policy")
    config = GrpoConfig.of(
        policy=str(tmp_path / "policy"), learning_rate=1e-4, warmup_steps=0, weight_decay=0.0
    )
    policy = Learner(config, Accelerator())
    runner = EpisodeRunner(store, policy.engine, policy.name, environment, Sampling(max_tokens=64))
    trajectory = await runner.run(
        Episode(TASK, "thread", context={"tool_format": "fenced"}, seed=0)
    )

    assert [(c.status, c.value) for c in trajectory.tool_calls] == [(ToolStatus.OK, "42")]
    assert penalty_error(trajectory.tool_calls) == 0.0
    (row,) = linearise(trajectory, {c.id: 1.0 for c in trajectory.own_calls})
    (example,) = tokenize(LESSON, codec)
    assert (row.token_ids.tolist(), row.loss_mask.tolist()) == (
        list(example.token_ids),
        list(example.mask),
    )
    trained = codec.decode(row.token_ids[row.loss_mask].tolist())
    assert (
        trained == f"{answer_text(LESSON.messages[2])}<|im_end|>{answer_text(LESSON.messages[4])}"
    )

    block = torch.tensor(trajectory.calls[0].token_ids)[torch.tensor(trajectory.calls[0].mask)]
    before = _logprob(policy, trajectory.calls[0].token_ids, len(block))
    batches = build_batches([trajectory], [_overlay(trajectory, -1.0)], token_budget=4096)
    assert sum(batch.trained_tokens for batch in batches) == sum(example.mask)
    assert policy.update(batches, 1e-4)["grad_norm"] > 0
    assert _logprob(policy, trajectory.calls[0].token_ids, len(block)) < before, (
        "what was punished is less likely"
    )
    policy.engine.close()


def _overlay(trajectory: Any, advantage: float) -> Overlay:
    return Overlay(
        run_id="", step=0, trajectory_id=trajectory.id, group_id=trajectory.group_id, reward=0.0, verdict=Verdict.KEPT,
        reason="", penalty_error=0.0, penalty_format=0.0, advantage=advantage,
    )  # fmt: skip


def _logprob(policy: Learner, token_ids: tuple[int, ...], last: int) -> float:
    """Log-prob of the last tokens of a sequence, under the current weights."""
    ids = torch.tensor([token_ids])
    with torch.no_grad():
        logprobs = policy.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return float(logprobs.gather(1, ids[0, 1:, None])[-last:].sum())
