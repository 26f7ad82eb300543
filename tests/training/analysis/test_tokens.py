"""Entropies of recorded calls, the texts of their tokens, and which of them are forking and
reflection tokens.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hrm_agent.errors import ModelError
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.codec.chat_template import ChatTemplateCodec
from hrm_agent.training.analysis.entropy import CallEntropy, call_entropies
from hrm_agent.training.analysis.forking import (
    fork_threshold,
    forking_indices,
    reflection_indices,
    reflections,
    token_rows,
)
from hrm_agent.training.analysis.token_sample import token_texts
from hrm_agent.trajectory import LogprobKind, Sampling, ToolStatus, Trajectory
from hrm_agent.trajectory.forest import path_to, path_tokens
from tests.support.training.builders import sampled_call, tiny_model, tool_call, trajectory
from tests.support.training.families import four_roles, tool_loops


def at_temperatures(trajectories: list[Trajectory]) -> list[Trajectory]:
    """Calls in turn raw at 1, tempered at 0.7, greedy, and cut by top-p."""
    kinds = [
        {"sampling": Sampling(), "logprob_kind": LogprobKind.RAW},
        {"sampling": Sampling(temperature=0.7), "logprob_kind": LogprobKind.TEMPERED},
        {"sampling": Sampling(temperature=0.0), "logprob_kind": LogprobKind.RAW},
        {"sampling": Sampling(temperature=1.3, top_p=0.9), "logprob_kind": LogprobKind.SAMPLED},
    ]
    return [
        t.model_copy(
            update={
                "calls": tuple(
                    c.model_copy(update=kinds[n % 4]) for n, c in enumerate(t.calls, number)
                )
            }
        )
        for number, t in enumerate(trajectories)
    ]


def test_each_token_of_each_call_has_the_entropy_of_its_own_prefix() -> None:
    model = tiny_model()
    wanted = at_temperatures([*tool_loops(0), *four_roles(1)])
    found = {
        each.call_id: each
        for each in call_entropies(model, [(t, {call.id for call in t.calls}) for t in wanted])
    }
    assert found.keys() == {call.id for t in wanted for call in t.calls}
    for each in wanted:
        for call in each.calls:
            tokens = path_tokens(path_to(each.calls, call.id))
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([tokens])).logits[0]
            got, start = found[call.id], len(tokens) - len(call.token_ids)
            assert got.temperature == (call.sampled_with.temperature or 1.0), (
                "of a greedy call at 1"
            )
            for place, sampled in enumerate(call.mask):
                if not sampled:
                    assert math.isnan(got.entropies[place])
                    continue
                before = logits[start + place - 1].double()
                p = (before / got.temperature).softmax(-1)
                assert got.entropies[place] == pytest.approx(float(-(p * p.log()).sum()), abs=1e-5)
                if call.logprob_kind is LogprobKind.SAMPLED:
                    assert math.isnan(got.differences[place]), "cut by top-p: another distribution"
                    continue
                at = got.temperature if call.logprob_kind is LogprobKind.TEMPERED else 1.0
                computed = float((before / at).log_softmax(-1)[call.token_ids[place]])
                assert got.differences[place] == pytest.approx(
                    abs(computed - call.logprobs[place]), abs=1e-4
                )


def test_a_call_is_told_by_the_responses_before_it() -> None:
    calls = [
        sampled_call("a", [1, 2, 3], 1),
        sampled_call("b", [4, 5, 6], 1, "a"),
        sampled_call("c", [7, 8], 1, "b"),
    ]
    asking = [
        each.model_copy(
            update={"response": {"content": "", "tool_calls": [{"id": f"t-{each.id}"}]}}
        )
        for each in calls
    ]
    tools = (tool_call("t-a", ToolStatus.TIMEOUT), tool_call("t-b"))
    one = trajectory(calls=tuple(asking), tool_calls=tools)
    found = list(call_entropies(tiny_model(), [(one, {"a", "b", "c"})]))
    assert [(each.call_id, each.after, each.statuses) for each in found] == [
        ("a", "none", ()),
        ("b", "error", ("timeout",)),
        ("c", "ok", ("ok",)),
    ]


def test_tokens_beyond_the_vocabulary_are_another_models() -> None:
    one = trajectory(calls=(sampled_call("a", [1, 900, 3], 1),))
    with pytest.raises(ModelError, match="token 900, but the model's vocabulary has 64"):
        list(call_entropies(tiny_model(), [(one, {"a"})]))


@pytest.mark.parametrize(
    "text", ["<reason>6 * 7 ✓ déjà — 中文 🎉</reason>\n<answer>\\boxed{42}</answer>", "x", ""]
)
def test_texts_of_tokens_are_the_text_of_the_whole(text: str, codec: ChatTemplateCodec) -> None:
    for reader in (codec, ByteCodec()):
        ids = reader.encode_answer(text)
        texts = token_texts(reader, ids)
        assert len(texts) == len(ids) and "".join(texts[:-1]) == text
        assert texts[-1], "the end of the turn is a token like others"
    broken = token_texts(ByteCodec(), [0xE4, 0xB8] * 9)
    assert len(broken) == 18 and set("".join(broken)) == {"\ufffd"}


def call_of(name: str, values: list[float], after: str = "none") -> CallEntropy:
    """Two prompt tokens, then completion tokens of these entropies."""
    entropies = np.array([np.nan, np.nan, *values], np.float32)
    return CallEntropy(
        "t", name, tuple(range(len(entropies))), entropies, entropies, 1.0, after, ()
    )  # type: ignore[arg-type]


def test_marked_tokens_are_those_of_highest_entropy_and_stand_at_their_place() -> None:
    calls = [
        call_of("a", [0.1, 2.0, 0.2, 0.3, 0.1]),
        call_of("b", [0.1, 0.2, 1.5, 0.1, 0.1, 0.2], "error"),
        call_of("c", [1.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], "ok"),
    ]
    texts = {
        each.call_id: [f"{each.call_id}{n}" for n in range(len(each.entropies))] for each in calls
    }
    texts["a"][3] = texts["b"][4] = "wait"
    threshold = fork_threshold(calls, 0.15)
    assert [forking_indices(each, threshold) for each in calls] == [[3], [4], [2]]
    first, second = token_rows(calls, texts, lambda call: forking_indices(call, threshold))
    assert (first.text, first.count, first.occurrences) == ("wait", 2, 2)
    assert first.mean_entropy == pytest.approx(1.75) and first.share == pytest.approx(2 / 3)
    assert (second.text, second.count) == ("c2", 1)
    for example in (*first.examples, *second.examples):
        line = texts[example.call_id]
        assert line[example.index] == example.text
        assert example.before + example.text + example.after == "".join(line)
    assert [reflection_indices(each, threshold, window=16) for each in calls] == [[], [4], [2]]
    assert [reflection_indices(each, threshold, window=2) for each in calls] == [[], [], [2]]
    erred, went_well, neither = reflections(calls, texts, threshold, window=3)
    assert (erred.calls, erred.tokens, erred.marked_share) == (1, 3, pytest.approx(1 / 3))
    assert [row.text for row in went_well.rows] == ["c2"] and neither.calls == 1


def test_a_policy_that_is_sure_of_everything_has_no_forks() -> None:
    calls = [call_of("a", [0.0] * 20)]
    assert forking_indices(calls[0], fork_threshold(calls, 0.2)) == []
    assert math.isnan(fork_threshold([], 0.2))
