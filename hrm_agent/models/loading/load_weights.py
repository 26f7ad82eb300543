"""Load a model and its tokenizer from a folder or from the Hugging Face hub, with clear errors for
missing parts.

Weights are loaded onto one device, unchanged or quantized (bitsandbytes: 4-bit nf4 or 8-bit, on a
GPU or a CPU). As in training, a LoRA adapter is not merged into the weights, since rounding to 4
bits would erase its changes.

The rest of this text is about packed 4-bit weights on a CPU.

If a CPU has AVX512-BF16, bitsandbytes packs the weight of a 4-bit layer at its first use for an
answer. Multiplying by the packed weight is 5 to 50 times as fast. bitsandbytes packs every layer,
which goes wrong in three cases. This module handles them by the layer's flag and two hooks:

* The packed kernel only supports layers whose rows are a multiple of 32 and whose columns are a
  multiple of the block (64). It fails for other layers.
* The packed kernel always computes in bfloat16. A layer that computes in another type is not
  packed, so its log-probs in float32 are the same on every CPU.
* A packed weight passes on no gradient, and cannot be saved. So it is unpacked before a forward
  pass with gradients and before saving. Its scales then stay rounded to bfloat16, as they were for
  the answers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers

from hrm_agent.errors import ModelError, to_install
from hrm_agent.models.adapter_folder import roles_on_record
from hrm_agent.models.cached.downloads import reach_hub
from hrm_agent.models.codec.opening import load_tokenizer, open_codec
from hrm_agent.models.loading.slow_formats import tell_of_slow_format
from hrm_agent.models.local.engine import TransformersEngine
from hrm_agent.models.local.role_adapters import put_adapters, read_adapter
from hrm_agent.models.model_string import CodecOptions, LoadOptions

__all__ = [
    "best_device",
    "choose_kernels",
    "has_packed_kernel",
    "load_engine",
    "load_for_answers",
    "load_pretrained",
    "need_package",
    "quiet_libraries",
    "takes_packed",
]

_ROWS = 32
"""Number of rows that the packed kernel processes at a time."""


def choose_kernels(model: Any, kernel: str = "auto") -> int:
    """Enable packing for suitable layers, if the CPU has the kernel and `kernel` is not `plain`.
    Returns their number.
    """
    from bitsandbytes.nn.modules import Linear4bit

    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, Linear4bit)]
    allowed = kernel != "plain" and has_packed_kernel()
    for layer in layers:
        state = layer.weight.quant_state
        packs = allowed and takes_packed(
            tuple(state.shape), state.blocksize, layer.compute_dtype, nested=state.nested
        )
        layer.support_avx512bf16_for_cpu = packs
        if packs:
            layer.register_forward_pre_hook(_before_forward)
            layer.register_state_dict_pre_hook(_before_saving)
    return sum(layer.support_avx512bf16_for_cpu for layer in layers)


def has_packed_kernel() -> bool:
    """True if bitsandbytes has found AVX512-BF16."""
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())


def takes_packed(
    shape: tuple[int, ...], block: int, computes: torch.dtype | None, *, nested: bool = False
) -> bool:
    """True if the kernel supports a layer of [rows, columns] with the type in which it computes.
    `nested`: scales in 8 bits.
    """
    fits = len(shape) == 2 and shape[0] % _ROWS == 0 and shape[1] % block == 0
    return fits and computes is torch.bfloat16 and not nested


def _before_forward(layer: Any, given: tuple[Any, ...]) -> None:
    if layer.training or given[0].requires_grad:
        _unpack(layer)


def _before_saving(layer: Any, prefix: str, keep_vars: bool) -> None:
    del prefix, keep_vars
    _unpack(layer)


def _unpack(layer: Any) -> None:
    """Restore the weight as it was loaded. The library's function alone would leave the scales in
    packed order.
    """
    library: Any = import_module("bitsandbytes.functional")
    state = layer.weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):
        layer.weight.data, _ = library._convert_weight_packed_for_cpu_inverse(
            layer.weight.data, state
        )
        state.absmax = state.absmax.T.reshape(-1).float()


_library: Any = transformers
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model")


def load_pretrained(
    path_or_name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    codec: CodecOptions | None = None,
) -> tuple[Any, Any]:
    """Causal LM in evaluation mode, and its tokenizer, which has a chat template. Raises
    `ModelError`.
    """
    model, tokenizer = _read(path_or_name, {"dtype": dtype}, codec)
    try:
        model = model.to(device).eval()
    except Exception as error:  # the device is missing or full
        raise ModelError(
            f"The model {path_or_name!r} cannot be put on {device!r}: {error}",
            "Leave device out, or write cpu.",
        ) from error
    tell_of_slow_format(model)
    return model, tokenizer


def load_engine(
    path_or_name: str,
    *,
    name: str,
    options: LoadOptions | None = None,
    codec: CodecOptions | None = None,
) -> TransformersEngine:
    """Engine for a local folder or a model of the Hugging Face hub. Raises `ModelError`."""
    model, tokenizer = load_for_answers(path_or_name, options or LoadOptions(), codec)
    return TransformersEngine(
        model, open_codec(tokenizer, codec, model.generation_config), name=name
    )


def load_for_answers(
    path_or_name: str, options: LoadOptions, codec: CodecOptions | None = None
) -> tuple[Any, Any]:
    """Load a model and its tokenizer with the options of a model string. Raises `ModelError`."""
    device = best_device() if options.device == "auto" else options.device
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(
            f"There is no GPU for {path_or_name!r}: torch finds none.",
            "Leave device out, or write cpu.",
        )
    reach_hub(path_or_name)
    if options.adapter:
        reach_hub(options.adapter, "adapter_config.json")
    if options.load is None:
        model, tokenizer = load_pretrained(
            path_or_name, dtype=options.dtype, device=device, codec=codec
        )
    else:
        need_package("bitsandbytes", "quant", f"load={options.load}")
        quiet_libraries()
        kinds = {
            "dtype": options.dtype,
            "quantization_config": _quantization(path_or_name, options),
        }
        model, tokenizer = _read(path_or_name, {**kinds, "device_map": {"": device}}, codec)
        choose_kernels(model, options.kernel)
    return (_adapted(model, options.adapter) if options.adapter else model).eval(), tokenizer


def best_device() -> str:
    """Name of the best device: a GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _read(
    path_or_name: str, options: dict[str, Any], codec: CodecOptions | None
) -> tuple[Any, Any]:
    _library.utils.logging.disable_progress_bar()
    if Path(path_or_name).is_dir():
        _check_folder(Path(path_or_name))
    _check_architecture(path_or_name)
    tokenizer = load_tokenizer(path_or_name, codec)
    try:
        model = _library.AutoModelForCausalLM.from_pretrained(
            path_or_name, trust_remote_code=False, **options
        )
        if getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
            # the library's other implementations ignore this bound of the scores
            model.set_attn_implementation("eager")
    except Exception as error:  # the files may make the library raise anything
        raise ModelError(
            f"The model {path_or_name!r} cannot be loaded: {' '.join(str(error).split())}",
            "Check the folder, or the name on huggingface.co/models and the network.",
        ) from error
    return model, tokenizer


def _quantization(path_or_name: str, options: LoadOptions) -> Any:
    if options.load == "int8":
        # A threshold above 0 would make outliers depend on the whole batch. An answer would then
        # depend on the other answers in its batch.
        return _library.BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    compute = options.dtype
    # bitsandbytes would compute in float32 for any stored type
    if compute == "auto":
        try:
            compute = (
                _library.AutoConfig.from_pretrained(path_or_name, trust_remote_code=False).dtype
                or "float32"
            )
        except Exception:  # loading the model gives a clearer error
            compute = "float32"
    return _library.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
    )


def _adapted(model: Any, adapter: str) -> Any:
    """Model with the layers of an adapter."""
    need_package("peft", "adapters", f"adapter={adapter}")
    quiet_libraries()
    import peft

    before = {name for name, _ in model.named_parameters()}
    roles = roles_on_record(adapter)
    try:
        if roles:
            return _adapted_by_role(model, adapter, roles)
        adapted = peft.PeftModel.from_pretrained(model, adapter).get_base_model()
    except Exception as error:  # the files may make the library raise anything
        raise ModelError(
            f"The adapter {adapter!r} cannot be put on the model: {error}",
            "Name a folder that holds adapter_config.json and adapter_model.safetensors, made for"
            " this model.",
        ) from error
    if before == {name for name, _ in adapted.named_parameters()}:
        raise ModelError(
            f"The adapter {adapter!r} changes nothing in the model.", "Use one made for this model."
        )
    return adapted.requires_grad_(False)


def _adapted_by_role(model: Any, adapter: str, roles: Sequence[str]) -> Any:
    """Model with an adapter for each role. Calls of a role are answered with its adapter."""
    import peft

    folders = [Path(adapter), *(Path(adapter, role) for role in roles)]
    configs = [peft.PeftConfig.from_pretrained(str(folder)) for folder in folders]
    route = put_adapters(model, configs, roles)
    for name, folder in zip(route.names().values(), folders, strict=True):
        read_adapter(model, name, folder)
    return model.requires_grad_(False)


def quiet_libraries() -> None:
    """Silence two libraries. bitsandbytes, which PEFT imports, too, warns about a downloadable
    kernel, and about casts in every step. PEFT wrongly warns that the ranks of experts are ignored.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    warnings.filterwarnings(
        "ignore", r"The following \w+_pattern keys did not match", RuntimeWarning
    )


def need_package(package: str, extra: str, why: str) -> None:
    """Raise `ModelError`, with the command that installs the extra, if `package` is missing."""
    if find_spec(package) is None:
        raise ModelError(f"{why} needs {package}.", f"Run `{to_install(extra)}`.")


def _check_architecture(path_or_name: str) -> None:
    """Raise `ModelError` for an architecture that the installed transformers does not have as a
    causal LM.
    """
    try:
        kind = _library.PreTrainedConfig.get_config_dict(path_or_name)[0].get("model_type")
    except Exception:  # loading the model gives the error
        return
    known = kind in _library.CONFIG_MAPPING
    if kind and not (
        known and _library.CONFIG_MAPPING[kind] in _library.MODEL_FOR_CAUSAL_LM_MAPPING
    ):
        what = (
            "has no causal language model of that architecture"
            if known
            else "does not know that architecture"
        )
        raise ModelError(
            f"The model {path_or_name!r} has model_type {kind!r} in its config.json, and"
            f" transformers {_library.__version__} {what}.",
            "Run `pip install --upgrade transformers`, or serve the model by vLLM, and name the"
            " server as the model: vllm:http://127.0.0.1:8000/v1.",
        )


def _check_folder(folder: Path) -> None:
    wanted = (
        ("config.json", "configuration", (folder / "config.json").is_file()),
        (
            "model.safetensors",
            "weights",
            any(folder.glob("*.safetensors")) or any(folder.glob("*.bin")),
        ),
        (
            "tokenizer.json",
            "tokenizer",
            any((folder / name).is_file() for name in _TOKENIZER_FILES),
        ),
    )
    for file, what, there in wanted:
        if not there:
            files = sorted(folder.glob("*.gguf"))
            hint = (
                "Name a folder written by `save_pretrained` for both the model and its tokenizer."
            )
            if files:
                hint = f"Write gguf:{files[0]} for the GGUF file in it."
            raise ModelError(f"The model folder {str(folder)!r} has no {what} ({file}).", hint)
