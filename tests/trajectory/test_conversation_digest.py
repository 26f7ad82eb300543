"""Hashes of conversations. The memory for them is bounded."""

from __future__ import annotations

import tracemalloc

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from hrm_agent.trajectory import conversation_digest
from hrm_agent.trajectory.conversation_digest import context_hash

SIZE = 400_000


def a_hash(number: int) -> str:
    calls = [{"name": "python", "args": {"code": f"{number}" * 10}, "id": f"c{number}"}]
    return context_hash(
        [
            HumanMessage(f"{number} " + "x" * SIZE),
            AIMessage("", tool_calls=calls),
            HumanMessage("so"),
        ]
    )


def test_what_is_kept_of_long_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_digest, "_REMEMBERED_BYTES", 4 * SIZE)
    first = a_hash(0)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1, 40):
            a_hash(number)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 6 * SIZE, "all that was hashed is held on to"
    assert a_hash(0) == first
    monkeypatch.setattr(conversation_digest, "_REMEMBERED_BYTES", SIZE // 2)
    assert a_hash(0) == first
