"""Rotary positions that depend on the length of a text: longrope (Phi-3.5, Phi-4-mini), and dynamic
scaling.

With longrope there are two sets of factors: short ones up to `original_max_position_embeddings`
tokens, long ones beyond. If any position of a pass is beyond this number, transformers uses the
long factors for the whole pass. An answer would then depend on the rest of its batch. In this
module, the factors of a text depend on nothing but the text:

    a token is predicted as by one pass over all previous tokens, without cache or batch

So tokens that follow at most `original_max_position_embeddings` others are predicted with the short
factors. All later tokens are predicted with the long factors *for the whole text before them*.
`generate` of transformers does the same with Phi-3: if a text grows beyond this length, its cache
is computed again. A server that uses one set of factors for all texts (as vLLM does, by its
`--max-model-len`) is a different policy for the texts that need the other set.

Dynamic scaling has other factors for every length beyond `max_position_embeddings`. A cache would
be useless there, so longer texts are refused.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hrm_agent.errors import ModelError
from hrm_agent.models.local.kv_cache import tensor_on

__all__ = ["LongRope", "depends_on_length", "dynamic_limit"]

_LONGROPE, _DYNAMIC = "longrope", "dynamic"


class LongRope:
    """Choice of long or short factors for the tokens of a pass. For one thread at a time."""

    def __init__(self, layers: list[nn.Module], switch: int) -> None:
        """`layers`: modules that compute rotary positions. `switch`: length up to which factors are
        short.
        """
        self.switch = switch
        self._layers = layers
        self._long: Tensor | bool = False

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """Choice of factors for a model, which may be inside wrappers (None if its factors are the
        same for all texts).
        """
        switches = {
            int(each["original_max_position_embeddings"]) for each in _tables(model, _LONGROPE)
        }
        if not switches:
            return None
        if len(switches) > 1:
            raise ModelError(
                f"The layers of {type(model).__name__} change their rotary factors at different"
                " lengths (original_max_position_embeddings ="
                f" {', '.join(map(str, sorted(switches)))}).",
                "Use another model. This one cannot process several texts in one pass.",
            )
        layers = [
            each for each in model.modules() if _LONGROPE in _kinds(getattr(each, "rope_type", ()))
        ]
        return cls(layers, switches.pop())

    @classmethod
    def installed_in(cls, model: nn.Module) -> Self | None:
        """Choice of factors for a model, installed so that every pass follows the last `by_token`
        (None if its factors are the same for all texts).
        """
        found = cls.of(model)
        if found is not None:
            found._hooked()
        return found

    def by_token(self, long_T: np.ndarray[Any, Any], device: torch.device) -> None:
        """Mark the tokens of the next pass, [1, T], that belong to texts longer than `switch`."""
        self._long = (
            tensor_on(device, long_T)[None]
            if long_T.any() and not long_T.all()
            else bool(long_T.any())
        )

    @contextmanager
    def sides(self, long_BT: Tensor) -> Generator[None]:
        """Use long factors inside the block for tokens where `long_BT` is True, and short factors
        for other tokens.
        """
        self._long = long_BT if bool(long_BT.any()) else False
        handles = self._hooked()
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooked(self) -> list[RemovableHandle]:
        return [
            layer.register_forward_hook(self._chosen, with_kwargs=True) for layer in self._layers
        ]

    def _chosen(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], _: Any
    ) -> tuple[Tensor, ...]:
        """Replace a layer's output by the chosen factors. The layer decides by the largest position
        of a call. So it is called with a position beyond the switch for long factors, and with
        smaller positions for short factors.

        Limiting positions for short factors changes no result: a token with short factors has a
        position below the switch, unless it is the last of its text.
        """
        call: Any = layer.forward
        named = {**dict(zip(("x", "position_ids", "layer_type"), given, strict=False)), **named}
        positions: Tensor = named.pop("position_ids")
        long = short = None
        if self._long is not False:
            beyond = positions.new_full((*positions.shape[:-1], 1), self.switch)
            found = call(position_ids=torch.cat([positions, beyond], -1), **named)
            long = tuple(each[..., :-1, :] for each in cast("tuple[Tensor, ...]", found))
        if self._long is not True:
            short = cast(
                "tuple[Tensor, ...]",
                call(position_ids=positions.clamp(max=self.switch - 1), **named),
            )
        if long is None or short is None:
            return cast("tuple[Tensor, ...]", long or short)
        side = cast("Tensor", self._long)[..., None]
        return tuple(torch.where(side, *each) for each in zip(long, short, strict=True))


def depends_on_length(model: nn.Module) -> bool:
    """True if the factors of a model differ with the length of a text."""
    return bool(_tables(model, _LONGROPE) or _tables(model, _DYNAMIC))


def dynamic_limit(model: nn.Module) -> int | None:
    """Length in tokens beyond which a model has other factors for every length (None if there is no
    such length).
    """
    if not _tables(model, _DYNAMIC):
        return None
    return int(_config(model).max_position_embeddings)


def _config(model: nn.Module) -> Any:
    inner = getattr(model, "module", model)
    config: Any = getattr(inner, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else None


def _tables(model: nn.Module, kind: str) -> list[Mapping[str, Any]]:
    """Parameters of rotary positions of one kind. If a model has several kinds of layers, each may
    have its own parameters.
    """
    table = getattr(_config(model), "rope_parameters", None) or {}
    tables = [table, *table.values()]
    return [
        each for each in tables if isinstance(each, Mapping) and kind in str(each.get("rope_type"))
    ]


def _kinds(named: Any) -> tuple[str, ...]:
    return tuple(named.values()) if isinstance(named, Mapping) else (named,)
