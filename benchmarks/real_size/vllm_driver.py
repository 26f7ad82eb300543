"""Sampling by vLLM's build for CPUs, alone in a process of an interpreter that has it.

The engine runs in this process, so that its CPU seconds are those of the process. Prompts of a
group share their cache (prefix caching), which is emptied before each timing.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import os
import sys

from benchmarks.real_size.clock import begin, sampled, tell

CACHE_GIB = 2


def main() -> None:
    work = begin()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
    }
    with contextlib.redirect_stdout(sys.stderr):
        import vllm
        from vllm import LLM, SamplingParams

        longest = max(map(len, work["prompts"])) + work["tokens"]
        model = LLM(
            work["folder"],
            dtype=work["format"],
            max_model_len=longest + 1,
            max_num_seqs=len(work["prompts"]),
            enable_prefix_caching=True,
            seed=0,
        )
        prompts = [{"prompt_token_ids": each} for each in work["prompts"]]

        def answer(tokens: int) -> int:
            model.reset_prefix_cache()
            options = SamplingParams(
                temperature=1.0, max_tokens=tokens, ignore_eos=True, detokenize=False
            )
            found = model.generate(prompts, options, use_tqdm=False)
            return sum(len(each.outputs[0].token_ids) for each in found)

        found = sampled(work, answer)
    tell(found | {"version": f"vllm {vllm.__version__}", "load": os.getloadavg()})


if __name__ == "__main__":
    main()
