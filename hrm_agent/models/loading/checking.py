"""Check of a model string. It reports facts about the loaded model, or those that can be read
without loading the weights.

A model that loads may still not answer. So local models, and models of a vLLM server, have to
sample a few tokens. A hosted model is not called, since a call costs money.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from hrm_agent.errors import ModelError, to_install
from hrm_agent.models.adapter_folder import on_its_base
from hrm_agent.models.cached.folders import read_card
from hrm_agent.models.cached.gguf_file import converted_folder
from hrm_agent.models.cached.gguf_head import GgufFacts, read_facts
from hrm_agent.models.cached.known import fetched_folder
from hrm_agent.models.capabilities import Capabilities, Lack, Speech
from hrm_agent.models.current_policy import Backend
from hrm_agent.models.engine import Engine, GenerationRequest
from hrm_agent.models.loading.policy_loader import (
    load_codec,
    load_policy,
    local_folder,
    to_be_converted,
    trainable_weights,
)
from hrm_agent.models.model_string import LoadOptions, ModelString, parse_model
from hrm_agent.models.vllm.server import parse_address
from hrm_agent.trajectory import LogprobKind, Sampling

__all__ = ["ModelCheck", "check_model"]

_PROBE = GenerationRequest(
    (), Sampling(temperature=0.0, max_tokens=8, seed=0), (HumanMessage("What is 6 * 7?"),)
)
_PACKAGES = (
    ("torch", "local models", "train"),
    ("transformers", "local models", "train"),
    ("llguidance", "structured output", "train"),
    ("bitsandbytes", "4-bit and 8-bit loading", "quant"),
    ("peft", "adapters", "adapters"),
    ("gguf", "GGUF files", "gguf"),
)


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Result of a check."""

    model: str
    """Model string that was checked."""
    loaded: bool
    """False if the model was not loaded."""
    capabilities: Capabilities
    """Capabilities of the model."""
    load_seconds: float | None = None
    """Time that loading took (None if the model was not loaded)."""
    answer: str | None = None
    """First words of an answer (None if the model was not called)."""
    trained_by_adapter: bool = False
    """True if the loaded weights cannot be trained, but an adapter on them can (`--lora-rank`)."""
    origin: str | None = None
    """Source of the weights (None unless they are in the cache or in a GGUF file)."""


def check_model(text: str, *, load: bool = True) -> ModelCheck:
    """Check the model of `text`. Raises `ModelError` if it is not available at all."""
    asked = parse_model(text)
    if not load:
        head = None
        # the head of a file that is not converted yet can only be read with the package gguf
        if asked.local and to_be_converted(asked.text) and find_spec("gguf") is not None:
            head = read_facts(Path(on_its_base(asked).name))
        if asked.local:
            read = _local(asked, head)
        elif asked.scheme in ("vllm", "scripted"):
            read = _without_loading(asked)
        else:  # creating a provider's client loads and requests nothing
            read = _told(load_policy(asked.text), asked)
        by_adapter = not read.trainable and _takes_adapter(text)
        return ModelCheck(
            text, False, read, trained_by_adapter=by_adapter, origin=_origin(asked, head)
        )
    begun = time.monotonic()
    backend = load_policy(text)
    seconds = time.monotonic() - begun
    told = _told(backend, asked)
    answer = None
    if told.token_ids and told.kind != "scripted":
        engine: Engine = backend  # pyright: ignore[reportAssignmentType]
        prompt = tuple(engine.codec.encode(list(_PROBE.messages)))
        request = GenerationRequest(prompt, _PROBE.sampling, _PROBE.messages)
        answer = engine.codec.decode(engine.submit(request).result().token_ids)
    by_adapter = not told.trainable and _takes_adapter(text)
    return ModelCheck(text, True, told, seconds, answer, by_adapter, _origin(asked, None))


def _takes_adapter(text: str) -> bool:
    with suppress(ModelError):
        return bool(trainable_weights(text, adapter=True))
    return False


def _origin(asked: ModelString, head: GgufFacts | None) -> str | None:
    if head is not None:
        return f"GGUF file: {head}; not converted yet"
    asked = on_its_base(asked) if asked.local else asked
    if asked.scheme not in ("fetched", "gguf"):
        return None
    folder = (
        fetched_folder(asked.name)
        if asked.scheme == "fetched"
        else converted_folder(Path(asked.name))
    )
    card = None if folder is None else read_card(folder)
    return None if card is None else f"{card.title} ({card.origin}), in {folder}"


def _told(backend: Backend, asked: ModelString) -> Capabilities:
    says = getattr(backend, "capabilities", None)
    if says is not None:
        told: Capabilities = says()
        return replace(told, trainable=told.trainable and asked.options == LoadOptions())
    if isinstance(backend, BaseChatModel):
        own: Any = type(backend)
        return Capabilities(
            kind="hosted",
            tools=own.bind_tools is not BaseChatModel.bind_tools,
            token_ids=False,
            logprobs=LogprobKind.NONE,
            streaming=own._stream is not BaseChatModel._stream,  # pyright: ignore[reportPrivateUsage]
            structured=False,
            trainable=False,
        )
    longest = getattr(backend, "max_length", None)
    return replace(_without_loading(asked), logprobs=backend.logprob_kind, max_length=longest)


def _without_loading(asked: ModelString) -> Capabilities:
    served = asked.scheme == "vllm"
    if served:
        parse_address(asked.text)  # raises for an invalid address
    return Capabilities(
        kind=asked.scheme,
        tools=True,
        token_ids=True,
        logprobs=LogprobKind.RAW,
        streaming=True,
        structured=served,
        trainable=False,
        lacks=(
            ()
            if not served or find_spec("transformers")
            else (_lack("transformers", "its tokenizer", "train"),)
        ),
    )


def _local(asked: ModelString, head: GgufFacts | None) -> Capabilities:
    converts = to_be_converted(asked.text)
    asked = on_its_base(asked)
    options = asked.options
    needed = {"torch", "transformers", "llguidance"}
    needed |= {"bitsandbytes"} if options.load else set()
    needed |= {"peft"} if options.adapter else set()
    needed |= {"gguf"} if converts else set()
    folder = None if converts else Path(local_folder(asked))
    known: dict[str, Any] = {}
    speech: Speech | None = None
    if folder is not None and folder.is_dir():
        try:
            known = dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ModelError(
                f"The model folder {str(folder)!r} has no readable configuration (config.json).",
                "Name a folder written by `save_pretrained`.",
            ) from error
        if find_spec("transformers") is not None:
            # this loads the tokenizer, but not the weights
            speech = getattr(load_codec(asked.text), "speech", None)
    return Capabilities(
        kind="transformers",
        tools=None if speech is None else not any(fault.about_tools for fault in speech.faults),
        token_ids=True,
        logprobs=LogprobKind.TEMPERED,
        streaming=True,
        structured=find_spec("llguidance") is not None,
        trainable=options == LoadOptions(),
        quantized=options.load,
        dtype=None if options.dtype == "auto" else options.dtype,
        device=None if options.device == "auto" else options.device,
        max_length=known.get("max_position_embeddings") if head is None else head.context,
        parameters=None if head is None else head.parameters,
        speech=speech,
        lacks=tuple(
            _lack(*row) for row in _PACKAGES if row[0] in needed and find_spec(row[0]) is None
        ),
    )


def _lack(package: str, what: str, extra: str) -> Lack:
    return Lack(what, f"{package} is not installed: `{to_install(extra)}`.")
