"""A small, valid trajectory: two turns with a tool call between them, then a second conversation on
the same thread.
"""

from __future__ import annotations

from typing import Any

from hrm_agent.trajectory import (
    BranchReason,
    Call,
    GraphIdentity,
    LogprobKind,
    RunStatus,
    Sampling,
    SessionState,
    StopReason,
    TaskRef,
    ToolCall,
    ToolStatus,
    Trajectory,
    call_id,
    tool_record_id,
)

THREAD = "thread-1"
MODEL = "builtin:trained"


def identity(task_id: str, thread_id: str = THREAD, node: str = "reason") -> GraphIdentity:
    return GraphIdentity(
        thread_id=thread_id,
        checkpoint_id="c",
        checkpoint_ns=f"{node}:{task_id}",
        task_id=task_id,
        node=node,
        path="1",
    )


def make_call(task_id: str, index: int = 0, **changes: Any) -> Call:
    """A root with two prompt tokens and two completion tokens, unless `changes` says otherwise."""
    where = changes.pop("identity", identity(task_id))
    facts: dict[str, Any] = {
        "id": call_id(where.thread_id, where.task_id, index, changes.get("sample_index", 0)),
        "identity": where,
        "call_index": index,
        "request_hash": f"request-{task_id}-{index}",
        "model": MODEL,
        "policy_version": 3,
        "branch_reason": None if changes.get("parent") else BranchReason.ROOT,
        "token_ids": (5, 6, 7, 2),
        "mask": (False, False, True, True),
        "logprobs": (0.0, 0.0, -0.5, -0.25),
        "logprob_kind": LogprobKind.RAW,
        "sampling": Sampling(max_tokens=8, seed=11),
        "response": {
            "type": "ai",
            "content": "<reason>add</reason>",
            "tool_calls": [],
            "invalid_tool_calls": [],
        },
        "started_at": 100.0,
        "ended_at": 101.5,
        "queue_seconds": 0.25,
    }
    return Call(**{**facts, **changes})


def make_tool_call(tool_call_id: str = "tc-0", **changes: Any) -> ToolCall:
    where = changes.pop("identity", identity("task-b", node="tools"))
    facts: dict[str, Any] = {
        "id": tool_record_id(where.thread_id, where.task_id, tool_call_id),
        "identity": where,
        "tool_call_id": tool_call_id,
        "name": "python",
        "arguments": {"code": "17 + 25"},
        "status": ToolStatus.OK,
        "content": "42",
        "value": "42",
        "duration_seconds": 0.01,
        "started_at": 101.6,
        "isolation": "L2",
        "session": SessionState.KEPT,
        "cpu_seconds": 0.008,
        "peak_memory_bytes": 31_000_000,
        "queued_seconds": 0.25,
        "attempt": 2,
        "refused": {"io_setup": 3},
    }
    return ToolCall(**{**facts, **changes})


def make_trajectory(**changes: Any) -> Trajectory:
    """Trajectory that is valid unless `changes` breaks it: a test asserts that the linter finds
    nothing.
    """
    asked = make_call(
        "task-a",
        response={
            "type": "ai",
            "content": "<reason>add</reason>",
            "tool_calls": [
                {"name": "python", "args": {"code": "17 + 25"}, "id": "tc-0", "type": "tool_call"}
            ],
            "invalid_tool_calls": [],
        },
    )
    answered = make_call(
        "task-c",
        parent=asked.id,
        started_at=102.0,
        ended_at=103.0,
        response={
            "type": "ai",
            "content": r"<answer>\boxed{42}</answer>",
            "tool_calls": [],
            "invalid_tool_calls": [],
        },
    )
    checked = make_call("task-c", 1, started_at=103.0, ended_at=104.0)
    facts: dict[str, Any] = {
        "id": "trajectory-1",
        "thread_id": THREAD,
        "run_id": "run-1",
        "group_id": "group-1",
        "task": TaskRef(
            id="wp-1",
            family="word_problems",
            prompt="What is 17 + 25?",
            answer="42",
            metadata={"n": 2},
        ),
        "graph": "tool_loop",
        "policy": MODEL,
        "policy_version": 3,
        "status": RunStatus.COMPLETED,
        "stop_reason": StopReason.ANSWER,
        "answer": r"<answer>\boxed{42}</answer>",
        "rewards": {"correct": 1.0},
        "started_at": 99.0,
        "ended_at": 105.0,
        "calls": (asked, answered, checked),
        "tool_calls": (
            make_tool_call(),
            make_tool_call("tc-1", repeated_of=make_tool_call().id, started_at=101.9),
        ),
    }
    return Trajectory(**{**facts, **changes})
