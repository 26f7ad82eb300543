"""A GGUF file of a llama of two layers, written as llama.cpp's converter writes them, and the
weights in it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel

__all__ = ["CHATML", "CONTROL", "WIDTH", "gguf_tokens", "write_gguf"]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] +"
    " '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%"
    " endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ Ġ", "t h", "th e", "1 2")
WIDTH = 64
HEADS = 4
KV_HEADS = 2
INNER = 96
LAYERS = 2
CONTEXT = 256


def gguf_tokens() -> list[str]:
    return [*CONTROL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def weights(tokens: int) -> dict[str, np.ndarray]:
    """Random weights under the names that they have in GGUF, in the order of Hugging Face's rotary
    embedding.
    """
    draw = np.random.default_rng(0)
    shapes = {"token_embd.weight": (tokens, WIDTH), "output_norm.weight": (WIDTH,)}
    for n in range(LAYERS):
        shapes |= {
            f"blk.{n}.attn_q.weight": (WIDTH, WIDTH),
            f"blk.{n}.attn_k.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{n}.attn_v.weight": (WIDTH // HEADS * KV_HEADS, WIDTH),
            f"blk.{n}.attn_output.weight": (WIDTH, WIDTH),
            f"blk.{n}.ffn_gate.weight": (INNER, WIDTH),
            f"blk.{n}.ffn_up.weight": (INNER, WIDTH),
            f"blk.{n}.ffn_down.weight": (WIDTH, INNER),
            f"blk.{n}.attn_norm.weight": (WIDTH,),
            f"blk.{n}.ffn_norm.weight": (WIDTH,),
        }
    return {name: draw.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys in llama.cpp's order, which interleaves the two halves of a head's
    dimensions.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    pre: str | None = "smollm",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    template: str | None = CHATML,
    scaling: str | None = None,
    rope_freqs: Sequence[float] = (),
    without: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Write the file. Return the weights as a reader has to find them: matrices are rounded to the
    format `kind` and back.
    """
    tokens = gguf_tokens()
    writer = GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL] * len(CONTROL)
        + [gguf.TokenType.NORMAL] * (len(tokens) - len(CONTROL))
    )
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)
    if scaling is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
        writer.add_rope_scaling_factor(4.0)
    if rope_freqs:
        writer.add_tensor("rope_freqs.weight", np.array(rope_freqs, np.float32))
    found = weights(len(tokens))
    for name, value in found.items():
        stored = kind if value.ndim == 2 else GGMLQuantizationType.F32
        packed = gguf.quantize(value, stored)
        found[name] = gguf.dequantize(packed, stored).reshape(value.shape)
        heads = HEADS if ".attn_q." in name else KV_HEADS if ".attn_k." in name else 0
        if name not in without:
            written = gguf.quantize(interleaved(value, heads), stored) if heads else packed
            writer.add_tensor(name, written, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found
