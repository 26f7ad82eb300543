"""Sampling by our engine, or by `generate` of transformers, alone in a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks.real_size.arithmetic import measured_rates
from benchmarks.real_size.clock import begin, sampled, tell
from hrm_agent.models.codec.bytes import ByteCodec
from hrm_agent.models.engine import GenerationRequest
from hrm_agent.models.loading.load_weights import load_pretrained
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.trajectory import Sampling


class OpenEnded(ByteCodec):
    """Codec without stop tokens, so that answers end only at their limit."""

    def __init__(self, vocabulary: int) -> None:
        self.end_of_turn = vocabulary
        self.control_token_ids = frozenset((vocabulary,))
        self.ends = self.control_token_ids


def by_engine(model: Any, work: dict[str, Any]) -> tuple[TransformersEngine, Callable[[int], int]]:
    engine = TransformersEngine(
        model,
        OpenEnded(model.config.vocab_size),
        name="real size",
        max_slots=len(work["prompts"]),
        threads=work["threads"],
        captured=work.get("captured", False),
    )

    def answer(tokens: int) -> int:
        engine.publish(engine.policy_version + 1)  # drops the cache
        futures = [
            engine.submit(GenerationRequest(tuple(each), Sampling(seed=i, max_tokens=tokens)))
            for i, each in enumerate(work["prompts"])
        ]
        return sum(len(future.result().token_ids) for future in futures)

    return engine, answer


def by_generate(model: Any, work: dict[str, Any]) -> Callable[[int], int]:
    """Sampling of one batch, padded on the left."""
    model.generation_config.eos_token_id = None
    rows = [torch.tensor(each) for each in work["prompts"]]
    pad = torch.nn.utils.rnn.pad_sequence
    ones = [torch.ones_like(row) for row in rows]
    ids = pad(rows, batch_first=True, padding_side="left").to(model.device)
    mask = pad(ones, batch_first=True, padding_side="left").to(model.device)

    def answer(tokens: int) -> int:
        with torch.inference_mode():
            whole = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
        return whole[:, ids.shape[1] :].numel()

    return answer


def main() -> None:
    work = begin()
    torch.set_num_threads(work["threads"])
    model, _ = load_pretrained(work["folder"], dtype=work["format"])
    if work["way"] == "generate":
        found = sampled(work, by_generate(model, work))
        version = f"transformers {transformers.__version__}"
    else:
        engine, answer = by_engine(model, work)
        with engine:
            found = sampled(work, answer)
        version = f"torch {torch.__version__}"
    tell(found | {"version": version, "load": os.getloadavg(), **measured_rates(work["format"])})


if __name__ == "__main__":
    main()
