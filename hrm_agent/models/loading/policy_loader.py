"""Policies from one string, the same in every command and in code.

| string | policy |
|---|---|
| `builtin:trained`, `builtin:cold-start`, `builtin:roles-cold-start` | the small policies that the package ships |
| a folder | a model or an adapter saved by training, or any causal LM in Hugging Face's layout |
| `hf:NAME` | a causal LM from the Hugging Face hub |
| `smollm2-135m` | a small real model, after `hrm-agent models get smollm2-135m` |
| `gguf:FILE` | the weights and the tokenizer of a GGUF file |
| one of these and `?load=nf4&adapter=PATH` | with options (`hrm_agent.models.model_string`) |
| `vllm:URL` | a causal LM on a vLLM server |
| `scripted:FILE` | answers from a file, one JSON string a line: for trying out a graph |
| `provider:name` | any chat model that `langchain.chat_models.init_chat_model` knows; recorded, not trainable |
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hrm_agent.basics.async_bridge import may_block
from hrm_agent.errors import HrmError, ModelError, nearest, to_install
from hrm_agent.models.adapter_folder import is_adapter_folder, on_its_base, rank_on_record
from hrm_agent.models.cached.gguf_file import converted_folder, folder_of_gguf
from hrm_agent.models.cached.known import KNOWN_MODELS, fetched_folder
from hrm_agent.models.current_policy import DEFAULT_POLICY, Backend
from hrm_agent.models.engine import Codec
from hrm_agent.models.model_string import LoadOptions, ModelString, is_folder, parse_model
from hrm_agent.models.slow_start import told_if_slow

__all__ = [
    "BUILTIN_POLICIES",
    "DEFAULT_POLICY",
    "load_codec",
    "load_elsewhere",
    "load_policy",
    "load_without_retries",
    "loaded_policy",
    "local_folder",
    "model_folder",
    "size_of_weights",
    "stamp_of_weights",
    "time_of_weights",
    "to_be_converted",
    "trainable_weights",
]

BUILTIN_POLICIES = ("cold-start", "roles-cold-start", "trained")
_SHIPPED = Path(__file__).parents[1] / "builtin"
_loaded: dict[tuple[int, str, str], Backend] = {}
"""Backends by process id, folder and model string. The process id is a part of the key, since a
forked process lacks the threads that answer.
"""
_elsewhere: list[Callable[[str], Backend]] = []
_lock, _locks = threading.Lock(), dict[tuple[int, str, str], threading.Lock]()
"""One lock for each key. Parallel solvers request one model at the same moment, which is loaded
once. Different models may be loaded in parallel.
"""


def load_policy(name: str) -> Backend:
    """Load the policy of a model string, once per process. Raises `ModelError`."""
    ours = _key(name)
    with _lock:
        loading = _locks.setdefault(ours, threading.Lock())
    with loading:
        if ours not in _loaded:
            _loaded[ours] = _load(name)
        return _loaded[ours]


def load_without_retries(name: str) -> Backend:
    """Load a policy like `load_policy`. A provider's client does not repeat a failed request, whose
    cost is not known. Raises `ModelError`.
    """
    asked = parse_model(name)
    hosted = not (asked.local or asked.scheme in ("scripted", "vllm"))
    return _hosted(asked, max_retries=0) if hosted else load_policy(name)


def load_elsewhere(load: Callable[[str], Backend]) -> None:
    """Use engines of another process from now on. `load` returns the local proxy for a model
    string. Hosted models are still called from this process.
    """
    _elsewhere.append(load)


def loaded_policy(name: str) -> Backend | None:
    """Policy that `load_policy` has already loaded (None if it has not)."""
    return _loaded.get(_key(name))


def _key(name: str) -> tuple[int, str, str]:
    """Key of a backend. The working directory is a part of it if the string has a relative path,
    which means another model in another directory.
    """
    scheme, colon, path = name.partition(":")
    by_path = (
        not colon or "?" in name or (scheme in ("gguf", "scripted", "vllm") and "://" not in name)
    )
    if not by_path or Path(path if colon else name).is_absolute():
        return os.getpid(), "", name
    with may_block():  # this does not wait
        return os.getpid(), str(Path.cwd()), name


def _load(name: str) -> Backend:
    asked = parse_model(name)
    if _elsewhere and (asked.local or asked.scheme in ("scripted", "vllm")):
        return _elsewhere[-1](name)
    if asked.scheme == "scripted":
        from hrm_agent.models.scripted import ScriptedEngine

        script = Path(asked.name)
        try:
            lines = script.read_text(encoding="utf-8").splitlines()
            answers = [json.loads(line) for line in lines if line.strip()]
        except (OSError, ValueError) as error:
            raise ModelError(
                f"The script {script} cannot be read: {error}.", "Write one JSON string a line."
            ) from error
        return ScriptedEngine([str(answer) for answer in answers], name=name)
    if asked.scheme == "vllm":
        from hrm_agent.models.vllm.engine import open_vllm

        return open_vllm(name)
    if not asked.local:
        return _hosted(asked)
    whole = on_its_base(asked)
    folder = local_folder(whole)
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise ModelError(
            f"Policy {name!r} needs torch and transformers.", f"Run `{to_install('train')}`."
        )
    with told_if_slow(f"loading torch and {name}; the first time this takes up to a minute"):
        from hrm_agent.models.loading.load_weights import load_engine

        return load_engine(folder, name=name, options=whole.options, codec=whole.codec)


def load_codec(name: str) -> Codec:
    """Codec of a local policy, without its weights. Raises `ModelError`."""
    asked = parse_model(name)
    if "scripted" in (asked.scheme, asked.name):  # an engine made in a program has no file
        from hrm_agent.models.codec.bytes import ByteCodec

        return ByteCodec()
    if asked.scheme == "vllm":
        from hrm_agent.models.vllm.engine import load_vllm_codec

        return load_vllm_codec(name)
    whole = on_its_base(asked)
    folder = local_folder(whole)
    if find_spec("transformers") is None:
        raise ModelError(
            f"The tokenizer of {name!r} needs transformers.", f"Run `{to_install('train')}`."
        )
    from hrm_agent.models.cached.downloads import reach_hub
    from hrm_agent.models.codec.opening import load_codec_of

    reach_hub(folder)
    return load_codec_of(folder, whole.codec)


def to_be_converted(name: str) -> bool:
    """True if loading first converts a GGUF file, which takes a minute and gigabytes. Raises
    `ModelError`.
    """
    whole = on_its_base(parse_model(name))
    return whole.scheme == "gguf" and converted_folder(Path(whole.name)) is None


def model_folder(name: str, *, adapter: bool = False) -> str:
    """Folder or hub name of weights to train, see `trainable_weights`. Raises `ModelError`."""
    return local_folder(trainable_weights(name, adapter=adapter))


def stamp_of_weights(name: str) -> str:
    """Sizes and times of the files of a policy's weights, by which a folder that was trained on is
    another policy (empty for a policy without files here).
    """
    return " ".join(
        f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}"
        for file in _weight_files(name)
    )


def time_of_weights(name: str) -> float:
    """Unix time at which the folder of a policy, or a file of its weights, was last written,
    renamed or linked (0 for a policy without a folder here).
    """
    try:
        folder = Path(parse_model(name).name)
    except HrmError:
        return 0.0
    if not is_folder(str(folder)):
        return 0.0
    links = (each.lstat() for each in (folder, *folder.absolute().parents) if each.is_symlink())
    found = [*links, folder.stat(), *(each.stat() for each in _weight_files(name))]
    return max(max(each.st_mtime, each.st_ctime) for each in found)


def size_of_weights(name: str) -> int:
    """Total bytes of the files of a policy's weights, with those of an adapter (0 if they are not
    all here).
    """
    return sum(file.stat().st_size for file in _weight_files(name))


def _weight_files(name: str) -> list[Path]:
    """Files of a policy's weights, and of its adapter (empty if those of the model are not here)."""
    try:
        whole = on_its_base(parse_model(name))
        base = Path(local_folder(whole))
    except HrmError:
        return []
    files = sorted(base.glob("*.safetensors"))
    if files and whole.options.adapter:
        files += sorted(Path(whole.options.adapter).glob("**/*.safetensors"))
    return files


def trainable_weights(name: str, *, adapter: bool = False) -> ModelString:
    """Weights that a training of `name` loads. Raises `ModelError` for a string that cannot be
    trained.

    The options of a model string control loading for answers. A trainer needs unquantized weights
    without an adapter, and chooses the precision itself. If it trains an `adapter` on frozen
    weights, these may be in 4 bits, and `name` may be the folder of an adapter, which names its
    base model.
    """
    asked = whole = parse_model(name)
    if not asked.local:
        why = f"{asked.scheme!r} names a provider, whose weights are not here"
        hint = _TRAINABLE
        if asked.scheme == "vllm":
            why = "the server has loaded its weights, and a trainer has to load them itself"
            hint = (
                f"Name its weights by --policy, and the server by --engine vllm --servers '{name}'."
            )
        elif asked.scheme == "scripted":
            why = "its answers are read from a file, and it has no weights"
        raise ModelError(f"{name!r} cannot be trained: {why}.", hint)
    if not asked.name or (not asked.scheme and not is_folder(asked.name)):
        raise ModelError(f"There is no model folder {asked.base!r}.", _TRAINABLE)
    if not asked.scheme and is_adapter_folder(asked.name):
        whole = on_its_base(asked)
        if not adapter:
            raise ModelError(
                f"{name!r} cannot be trained whole: it is an adapter, and not a model.",
                f"Continue the adapter's training with --lora-rank {rank_on_record(asked.name)};"
                f" or merge it into {whole.base} by PEFT, and train the result.",
            )
    in_4_bits = asked.options == LoadOptions(load="nf4")
    if asked.options == LoadOptions() or (adapter and in_4_bits):
        return whole
    if adapter:
        raise ModelError(
            f"{name!r} cannot be trained: an adapter is trained on weights as they are stored or in"
            " 4 bits, and the trainer chooses type and device itself.",
            f"Train {asked.base} or {asked.base}?load=nf4.",
        )
    raise ModelError(
        f"{name!r} cannot be trained: quantized weights have no gradient, an adapter is not part of"
        " the weights, and the trainer chooses type and device itself.",
        f"Train {asked.base}."
        + (" Or train an adapter on weights in 4 bits: --lora-rank 8." if in_4_bits else ""),
    )


_TRAINABLE = (
    "Name a model folder, hf:NAME, gguf:FILE, or a built-in policy such as builtin:cold-start."
)


def local_folder(asked: ModelString) -> str:
    """Folder or hub name of weights that are loaded here. A GGUF file is converted. Raises
    `ModelError`.
    """
    rest = asked.name
    if asked.scheme == "builtin":
        if rest not in BUILTIN_POLICIES:
            raise ModelError(
                f"There is no built-in policy {rest!r}.",
                f"{nearest(rest, BUILTIN_POLICIES)} Known: {BUILTIN_POLICIES}.",
            )
        if not (_SHIPPED / rest / "config.json").exists():
            raise ModelError(
                f"The built-in policy {rest!r} is not in this installation.",
                "Run `make policy` to build it.",
            )
        return str(_SHIPPED / rest)
    if asked.scheme == "hf" and rest:
        return rest
    if asked.scheme == "gguf" and rest:
        return str(folder_of_gguf(Path(rest)))
    if asked.scheme == "fetched":
        return str(fetched_folder(rest))
    if asked.scheme or not is_folder(rest):
        hint = (
            "Name a folder, builtin:trained, hf:NAME, or a provider's model such as openai:gpt-5."
        )
        if rest.endswith(".gguf"):
            hint = f"Write gguf:{rest} for a GGUF file."
        raise ModelError(
            f"There is no model folder {asked.base!r}.",
            f"{nearest(rest, KNOWN_MODELS)} {hint}".strip(),
        )
    return rest


_EXTRAS = {
    "anthropic": "anthropic",
    "azure_openai": "openai",
    "google_genai": "google",
    "openai": "openai",
}
"""Extras of this package by provider, which install langchain and the provider's package."""


def _hosted(asked: ModelString, **options: Any) -> Backend:
    name = asked.text
    extra = _EXTRAS.get(asked.scheme)
    install = (
        "Run `pip install langchain` and the provider's package, for example langchain-ollama."
    )
    if extra is not None:
        install = f"Run `{to_install(extra)}`."
    if find_spec("langchain") is None:
        raise ModelError(f"Policy {name!r} names a hosted model, which needs langchain.", install)
    from langchain.chat_models import init_chat_model  # pyright: ignore[reportMissingImports]

    try:
        return init_chat_model(name, **options)  # pyright: ignore[reportUnknownVariableType]
    except ImportError as error:
        raise ModelError(
            f"Policy {name!r} cannot be loaded: a package is missing ({error}).", install
        ) from error
    # each provider has its own error classes, for example for a missing key
    except Exception as error:
        raise ModelError(
            f"Policy {name!r} cannot be loaded: {error}",
            "See LangChain's package for the provider.",
        ) from error
