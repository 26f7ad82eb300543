"""Facts on which defaults depend, read before a model's weights are loaded: size, context, and
defaults in its configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

from hrm_agent.models.cached.downloads import reach_hub
from hrm_agent.models.loading.policy_loader import model_folder
from hrm_agent.models.own_defaults import OWN_KEY, OwnDefaults, own_defaults, usual_answer

__all__ = ["ModelFacts", "ModelSize", "facts_of", "facts_of_loaded"]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers from a model's architecture. Each is None if unknown."""

    parameters: int | None = None
    """Number of weights."""
    context: int | None = None
    """Maximum number of tokens that the model takes, including the answer."""
    training_bytes_per_token: int | None = None
    """Approximate memory of a token of a micro-batch in training, in bytes."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that defaults depend on."""

    own: OwnDefaults
    """Defaults in the model's own configuration."""
    measure: Callable[[], ModelSize]
    """Function that returns the size. It imports torch and transformers, so it is only called for a
    default that needs it.
    """

    @property
    def answer(self) -> int:
        """Maximum completion tokens of an answer without an explicit limit."""
        return self.own.run.max_tokens or usual_answer(self.measure().context)


def facts_of(name: str, *, adapter: bool = False) -> ModelFacts:
    """Facts about a model to be trained, or about the base model of an `adapter`. No weights are
    read.

    A GGUF file is converted if necessary (`to_be_converted`). Raises `ModelError` for a model that
    cannot be trained.
    """
    folder = model_folder(name, adapter=adapter)
    path = Path(folder, "config.json")
    if not Path(folder).is_dir():
        reach_hub(folder)
        config = _hub_config(folder)
        own = own_defaults({OWN_KEY: getattr(config, OWN_KEY, None)}, name)
        return ModelFacts(own, cache(partial(_measured, config)))
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # loading the model gives a clearer error
        read = {}
    own = own_defaults(cast("dict[str, Any]", read) if isinstance(read, dict) else {}, name)
    return ModelFacts(own, cache(lambda: _measured(_hub_config(folder))))


def facts_of_loaded(model: Any) -> ModelFacts:
    """Facts about a causal LM of transformers."""
    own = own_defaults(
        {OWN_KEY: getattr(model.config, OWN_KEY, None)},
        str(getattr(model.config, "name_or_path", "")),
    )
    return ModelFacts(own, partial(_size_of, model))


def _hub_config(path_or_name: str) -> Any:
    """Configuration as transformers reads it (None if this fails, since loading the model gives a
    clearer error).
    """
    try:
        import transformers

        library: Any = transformers
        return library.AutoConfig.from_pretrained(path_or_name, trust_remote_code=False)
    except Exception:  # the files may make the library raise anything
        return None


def _measured(config: Any) -> ModelSize:
    """Size, measured on a model that has the shapes of the weights but no memory for them."""
    try:
        import torch
        import transformers

        library: Any = transformers
        with torch.device("meta"):
            return _size_of(
                library.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            )
    except Exception:  # for example, an architecture that the library does not know
        return ModelSize()


def _size_of(model: Any) -> ModelSize:
    from hrm_agent.models.local.model_inspection import longest_conversation

    adapters = sum(each.numel() for name, each in model.named_parameters() if ".lora_" in name)
    try:
        context = longest_conversation(model)
    except (AttributeError, TypeError):  # an architecture without positions
        context = None
    return ModelSize(
        int(model.num_parameters()) - adapters,
        context,
        _training_bytes_per_token(model.config.get_text_config()),
    )


def _training_bytes_per_token(config: Any) -> int | None:
    """Memory of activations kept for the backward pass, in single precision, and of logits with
    their gradient (None if unknown).
    """
    try:
        width = int(config.hidden_size)
        layers = int(config.num_hidden_layers)
        inner = int(getattr(config, "intermediate_size", None) or 4 * width)
        return 4 * (layers * (16 * width + 6 * inner) + 3 * int(config.vocab_size))
    except (AttributeError, TypeError, ValueError):
        return None
