"""Trajectories with wanted properties, and a model small enough to train in a test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hrm_agent.testing import tiny_network
from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY = 64
ANSWER = "<reason>r</reason><answer>\\boxed{1}</answer>"


def place(thread: str, task: str = "task", node: str = "reason") -> GraphIdentity:
    return GraphIdentity(thread_id=thread, task_id=task, node=node)


def call(
    name: str, *, parent: str | None = None, thread: str = "t", text: str = ANSWER, **changes: Any
) -> Call:
    facts: dict[str, Any] = {
        "id": name,
        "identity": place(thread, name),
        "call_index": 0,
        "request_hash": name,
        "model": "m",
        "parent": parent,
        "branch_reason": None if parent else BranchReason.ROOT,
        "token_ids": (1, 2, 3, 4),
        "mask": (False, False, True, True),
        "logprobs": (0.0, 0.0, -1.0, -2.0),
        "logprob_kind": LogprobKind.RAW,
        "response": {"type": "ai", "content": text, "tool_calls": []},
        "started_at": 0.0,
        "ended_at": 1.0,
    }
    return Call(**{**facts, **changes})


def tool_call(
    name: str, status: ToolStatus | None = ToolStatus.OK, repeated_of: str | None = None
) -> ToolCall:
    return ToolCall(
        id=name,
        identity=place("t", name, "tools"),
        tool_call_id=name,
        name="python",
        arguments={"code": repeated_of or name},
        status=status,
        repeated_of=repeated_of,
    )


def trajectory(index: int = 0, reward: float = 1.0, **changes: Any) -> Trajectory:
    facts: dict[str, Any] = {
        "id": f"rollout-{index}",
        "thread_id": f"thread-{index}",
        "group_id": "group",
        "sample_index": index,
        "task": TaskRef(id="1", family="f", prompt="p"),
        "graph": "tool_loop",
        "policy": "m",
        "status": RunStatus.COMPLETED,
        "rewards": {"correct": reward},
        "started_at": 0.0,
        "calls": (call(f"call-{index}"),),
    }
    return Trajectory(**{**facts, **changes})


def rollout(
    index: int, reward: float, failed: int = 0, calls: int = 1, **changes: Any
) -> Trajectory:
    """A trajectory with `calls` tool calls, of which `failed` failed."""
    statuses = [ToolStatus.ERROR] * failed + [ToolStatus.OK] * (calls - failed)
    tools = tuple(tool_call(f"{index}-{i}", status) for i, status in enumerate(statuses))
    return trajectory(index, reward, **{"tool_calls": tools, **changes})


def group(positives: int, negatives: int) -> list[Trajectory]:
    return [rollout(i, float(i < positives)) for i in range(positives + negatives)]


def sampled_call(
    name: str, tokens: Sequence[int], inserted: int, parent: str | None = None
) -> Call:
    """A call whose first `inserted` tokens are prompt tokens. The others have invented log-probs
    near those of a uniform distribution.
    """
    mask = tuple(i >= inserted for i in range(len(tokens)))
    logprobs = tuple(
        -4.2 + 0.3 * ((7 * i + len(name)) % 5 - 2) if sampled else 0.0
        for i, sampled in enumerate(mask)
    )
    return call(name, parent=parent, token_ids=tuple(tokens), mask=mask, logprobs=logprobs)


class RareExpert(nn.Module):
    """An MLP, and beside it an expert to which only one token is routed."""

    TOKEN = 63

    def __init__(self, mlp: nn.Module, width: int) -> None:
        super().__init__()
        self.mlp, self.expert = mlp, nn.Linear(width, width)
        self.rare = torch.zeros(0, dtype=torch.bool)

    def look(self, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Hook before the model's forward pass, which looks for that token."""
        self.rare = (named.get("input_ids", *given[:1]) == self.TOKEN)[..., None]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.mlp(hidden)
        return found + self.rare * self.expert(hidden) if self.rare.any() else found


def model_with_unused_parts() -> Any:
    """A model with a tower that no text goes through, and an expert of a single token."""
    model: Any = tiny_model()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.tower = nn.Linear(4, 4)
        model.model.layers[0].mlp = rare = RareExpert(model.model.layers[0].mlp, 32)
    model.register_forward_pre_hook(rare.look, with_kwargs=True)
    return model


def tiny_model(seed: int = 0) -> PreTrainedModel:
    """Random model whose weight matrices are three times as large as usual, so that its
    probabilities are far from uniform.
    """
    model = tiny_network(
        seed,
        vocab_size=VOCABULARY,
        hidden_size=32,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10_000.0, "rope_type": "default"},
        bos_token_id=1,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0) if parameter.ndim > 1 else None
    return model
