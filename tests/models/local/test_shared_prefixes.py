"""Prefixes that several rows have in common, compared with attention to each row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.local.cache_rows import Rows
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.kv_cache import KVPool, KVShape, LayerKeys
from hrm_agent.models.local.shared_prefixes import SharedPrefixes, shared_prefixes
from hrm_agent.trajectory import Sampling

LENGTH = 200
"""Tokens that are worth sharing."""


def found(stems: list[int], lengths: list[int], cached: int = 300) -> SharedPrefixes | None:
    return shared_prefixes(np.array(stems), np.array(lengths), np.full(len(stems), cached))


def test_attention_is_that_of_each_row() -> None:
    torch.manual_seed(0)
    stems = [7, 3, 7, 3, 0, 7, 3, 7]
    prefixes = found(stems, [LENGTH + 5 * stem for stem in stems])
    assert prefixes is not None
    assert prefixes.length == LENGTH + 15
    rows, heads, queries, size, positions = len(stems), 2, 3, 16, 256
    keys, values = torch.randn(2, rows + 1, heads, positions, size)
    for row, stem in enumerate(stems):
        if stem:
            keys[row, :, : LENGTH + 15] = keys[stems.index(stem), :, : LENGTH + 15]
            values[row, :, : LENGTH + 15] = values[stems.index(stem), :, : LENGTH + 15]
    query = torch.randn(rows, heads, queries, size)
    mask = torch.zeros(rows, 1, 1, positions)
    for row in range(rows):
        mask[row, ..., 220 + 4 * row :] = float("-inf")
    plain = functional.scaled_dot_product_attention(
        query, keys[:rows], values[:rows], attn_mask=mask, scale=0.3
    )
    seen = slice(prefixes.length, positions)
    rest = [(part, seen, mask[part, ..., seen]) for part in (slice(0, 5), slice(5, 8))]
    torch.testing.assert_close(prefixes.attend(query, keys, values, rest, 0.3), plain)


@pytest.mark.parametrize(
    ("stems", "lengths"),
    [
        ([0, 0, 0], [0, 0, 0]),
        ([1, 1, 1], [20, 20, 20]),  # too short
        ([1, 1, 0, 0], [LENGTH] * 4),  # most rows have theirs alone
        ([1] * 9 + [2, 3, 4], [LENGTH] * 12),  # padding to nine rows each
    ],
)
def test_prefixes_that_save_little_are_not_shared(stems: list[int], lengths: list[int]) -> None:
    assert found(stems, lengths) is None


def test_rows_know_what_they_have_in_common() -> None:
    shape = KVShape((LayerKeys(1, 4, 4),), torch.float32, torch.device("cpu"))
    rows = Rows(KVPool(shape, max_rows=4, max_length=64, max_bytes=1 << 20), share=True)
    rows.resize(4, 64)

    def place(prompt: list[int]) -> int:
        ids = np.array(prompt)
        row = rows.place(ids, rows.prefixes(ids))
        rows.cached[row] = len(prompt)
        return row

    question = list(range(30))
    first, second, other = place(question), place(question), place([*range(10), 99, 98, 97])
    assert rows.stem[first] == rows.stem[second] > 0
    assert rows.stem_length[first] == rows.stem_length[second] == 29
    assert rows.stem[other] == 0  # a shorter prefix: the first rows keep theirs
    longer = place([*question, 50, 51, 52])
    assert rows.stem[longer] == rows.stem[first] != rows.stem[second]
    assert rows.stem_length[longer] == rows.stem_length[first] == 30
    for row in range(4):
        rows.release(row)
    rows.used_at[first] = -1  # the row to take next is also the one with the longest prefix
    assert place([*question[:20], 77]) == first
    assert rows.stem_length[first] <= 20


def test_an_engine_samples_as_without(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    attend = SharedPrefixes.attend

    def counted(self: SharedPrefixes, *given: Any) -> torch.Tensor:
        calls.append(self.length)
        return attend(self, *given)

    monkeypatch.setattr(SharedPrefixes, "attend", counted)
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 250, LENGTH + 20 * i).tolist() for i in range(3)]
    texts = [tuple(prompts[i]) for i in (0, 0, 1, 0, 1, 0, 1, 1, 2)]
    with TransformersEngine(model, ByteCodec(), name="tiny") as engine:
        for turn in range(2):
            futures = [
                engine.submit(GenerationRequest(text, Sampling(seed=i, max_tokens=20 + i)))
                for i, text in enumerate(texts)
            ]
            answers = [future.result(60) for future in futures]
            for text, answer in zip(texts, answers, strict=True):
                with torch.inference_mode():
                    logits = model(torch.tensor([[*text, *answer.token_ids]])).logits[0]
                plain = logits[len(text) - 1 : -1].log_softmax(-1)
                chosen = plain[range(len(answer.token_ids)), list(answer.token_ids)]
                torch.testing.assert_close(
                    torch.tensor(answer.logprobs), chosen, atol=1e-4, rtol=1e-4
                )
            assert len(calls) > 20 * turn
            calls.clear()
            texts = [
                (*text, *answer.token_ids, turn)
                for text, answer in zip(texts, answers, strict=True)
            ]
