"""LoRA adapters in training on a model with frozen weights: a single adapter, or a shared one and
one for each of some roles.

PEFT inserts its layers into the model in place, so the model remains the same object of the same
class. The engine's replica (`hrm_agent.models.local.packed_attention`) shares the adapter's weights
as it shares the model's, and the rest of a training is unaffected. The adapter's weights are in
single precision, even if the model's weights are in 4 bits.

A folder of an adapter has PEFT's two files and the model's name
(`hrm_agent.models.adapter_folder`). It has neither the model's weights nor its tokenizer, since a
training changes neither. A training that starts from such a folder continues the adapter, with its
rank, strength and layers.

Roles that `lora_roles` does not name share an adapter. Engine and trainer run the same layers
(`hrm_agent.models.local.role_adapters`): the engine with tokens of several roles in one pass, the
trainer with tokens of one role at a time (`hrm_agent.training.update.batch`). A role that is
frozen, or samples nothing in a step, has no gradient. Its adapter then stays unchanged to the bit,
since the optimiser skips it, including weight decay.

    FOLDER/                 the shared adapter, in PEFT's files; base.json names the model and the roles
    FOLDER/plan/            the adapter of the role plan, which can be served alone
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import nn

from hrm_agent.errors import ConfigError, ModelError
from hrm_agent.models.adapter_folder import rank_on_record, roles_on_record, write_base
from hrm_agent.models.loading.load_weights import need_package, quiet_libraries
from hrm_agent.models.local.role_adapters import (
    WEIGHTS_FILE,
    AdapterRoute,
    put_adapters,
    read_adapter,
    route_of,
    write_adapter,
)
from hrm_agent.training.config.parts import AdapterPart
from hrm_agent.training.update.model_mode import as_it_answers
from hrm_agent.training.update.schedule import dropout_seed

__all__ = [
    "Adapter",
    "AdaptersByRole",
    "ReferencePolicy",
    "fresh_config",
    "recorded_config",
    "refused_layers",
]

_ALL = ("all-linear",)
_BEYOND = (
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "monteclora_config",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
    "velora_config",
)
"""Keys of PEFT's configuration for kinds of adapters that cannot be trained here."""
_CHANGE_THE_MODEL = ("corda", "loftq", "olora", "pissa")
"""Initialisations that subtract a part from the model's weights."""


class Adapter:
    """Layers of an adapter in a model."""

    def __init__(self, wrapped: Any, base: str, *, began_with: str | None = None) -> None:
        """`wrapped` is PEFT's model. `base` is the string of the model. `began_with` is the folder
        of the initial weights (None if they are fresh).
        """
        self._wrapped = wrapped
        self._base = base
        self._began_with = began_with

    @classmethod
    def put_into(
        cls,
        model: Any,
        options: AdapterPart,
        *,
        base: str,
        folder: str,
        seed: int,
        start: str | None = None,
    ) -> Self:
        """Put an adapter into a model, whose other weights are frozen from here on. The adapter is
        a fresh one, which changes nothing yet, or the one in the folder `start`.

        `base` is the model's string, `folder` its folder or name on the hub. Raises `ModelError` if
        the model has none of the layers that `options` name, and `ConfigError` if `options` differ
        from the adapter in `start`.
        """
        need_package("peft", "adapters", f"lora_rank = {options.lora_rank}")
        quiet_libraries()
        import peft

        if start is not None and (roles := roles_on_record(start)):
            named = ", ".join(roles)
            raise ConfigError(
                f"lora_roles names no role, but {start} has an adapter for each of {named}.",
                f"Set lora_roles to {named}, or train the adapter of one role:"
                f" {Path(start, roles[0])}.",
            )
        with refused_layers(model, base, options.lora_targets), dropout_seed(seed):
            config = (
                fresh_config(options, model)
                if start is None
                else recorded_config(start, options, model)
            )
            wrapped = peft.get_peft_model(model, config)
        config.base_model_name_or_path = (
            str(Path(folder).resolve()) if Path(folder).is_dir() else folder
        )
        put = cls(wrapped, base, began_with=start)
        if start is not None:
            put.load(Path(start))
        return put

    def save(self, folder: Path) -> None:
        """Write weights and configuration of the adapter, and the name of its model."""
        folder.mkdir(parents=True, exist_ok=True)
        self._wrapped.save_pretrained(folder, save_embedding_layers=False)
        write_base(folder, self._base)

    def load(self, folder: Path) -> None:
        """Read the weights that `save` wrote. Raises `ModelError` if they do not fit
        this adapter.
        """
        import peft

        given = load_file(folder / WEIGHTS_FILE)
        own = peft.get_peft_model_state_dict(self._wrapped)
        shapes = [
            {name: weight.shape for name, weight in weights.items()} for weights in (given, own)
        ]
        if shapes[0] != shapes[1]:
            name = min(
                name
                for name in given.keys() | own.keys()
                if shapes[0].get(name) != shapes[1].get(name)
            )
            raise ModelError(
                f"The adapter in {folder} does not fit this one: {name!r} differs, for example."
            )
        peft.set_peft_model_state_dict(self._wrapped, given)

    def reference(self) -> nn.Module:
        """Policy that a training starts from; call this before the first update. It is the model
        without the adapter if the adapter is fresh, else with a copy of the adapter's current
        weights. The policy shares the weights of the model.
        """
        fresh = self._began_with is None
        return ReferencePolicy(
            self._wrapped.get_base_model(), self._wrapped.disable_adapter if fresh else None
        )


class ReferencePolicy(nn.Module):
    """Runs a model with its adapters switched off, or with a copy of their current weights, and
    without dropout. It computes no gradients.
    """

    def __init__(self, model: Any, off: Callable[[], AbstractContextManager[Any]] | None) -> None:
        """`off` switches the adapters of `model` off (None: run with a copy of their weights)."""
        super().__init__()
        # the model is in a tuple, since a submodule would change its mode together with this module
        self._held = (model,)
        self._off = off
        named = () if off else model.named_parameters()
        self._kept = {
            name: weight.detach().clone() for name, weight in named if weight.requires_grad
        }

    @property
    def policy(self) -> nn.Module:
        """Model that is run."""
        return self._held[0]

    @property
    def adapter_route(self) -> AdapterRoute | None:
        """Adapter route of the model."""
        return route_of(self._held[0])

    def get_output_embeddings(self) -> nn.Module:
        """Output embeddings of the model."""
        return self._held[0].get_output_embeddings()

    def forward(self, **inputs: Any) -> Any:
        """Output of the model."""
        model = self._held[0]
        with as_it_answers(model), torch.no_grad(), self._off() if self._off else nullcontext():
            return torch.func.functional_call(model, self._kept, (), inputs)


def fresh_config(options: AdapterPart, model: nn.Module) -> Any:
    """PEFT's configuration of a fresh adapter, with target layers by their names in `model`.

    Experts that lie in one tensor are adapted as one parameter. The router of a mixture of experts
    has no adapter unless `options` name it. A changed router sends tokens to experts that were not
    trained for them. Even the engine's rounding is enough to route a token differently from the
    trainer.
    """
    import peft
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    every = options.lora_targets == _ALL
    routers = _routers(model) if every else []
    config: Any = peft.LoraConfig(
        r=options.lora_rank,
        lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]: a float serves as well
        lora_dropout=options.lora_dropout,
        target_modules="all-linear" if every else list(options.lora_targets),
        exclude_modules=[
            name for name in routers if isinstance(model.get_submodule(name), nn.Linear)
        ]
        or None,
        task_type="CAUSAL_LM",
    )
    # convert the configuration here: PEFT's own conversion would adapt the router, too
    convert_peft_config_for_transformers(config, model, None)
    if config.target_parameters:
        config.target_parameters = sorted(
            each
            for each in config.target_parameters
            if not any(f"{name}.weight".endswith(f".{each}") for name in routers)
        )
    return config


def _routers(model: nn.Module) -> list[str]:
    """Names of the layers that choose the experts of a token, or weigh an expert."""
    found: list[str] = []
    for name, layer in model.named_modules():
        path, _, last = name.rpartition(".")
        chooses = last in ("gate", "shared_expert_gate") and hasattr(
            model.get_submodule(path), "experts"
        )
        if (
            chooses
            or "router" in path.split(".")
            or "router" in f"{last} {type(layer).__name__}".lower()
        ):
            found.append(name)
    return found


def recorded_config(start: str, options: AdapterPart, model: nn.Module) -> Any:
    """Configuration of the adapter in a folder, with the dropout of `options`.

    Raises `ConfigError` if `options` name another rank, strength or layers, and `ModelError` for
    another kind of adapter.
    """
    import peft

    rank = rank_on_record(start)
    if not Path(start, WEIGHTS_FILE).is_file():
        raise ModelError(
            f"The adapter {start!r} has no weights ({WEIGHTS_FILE}).",
            "Save it by PEFT, as safetensors.",
        )
    config: Any = peft.PeftConfig.from_pretrained(start)
    beyond = [key for key in _BEYOND if getattr(config, key, None)]
    beyond += ["bias"] if getattr(config, "bias", "none") != "none" else []
    beyond += (
        ["init_lora_weights"] if str(config.init_lora_weights).startswith(_CHANGE_THE_MODEL) else []
    )
    if config.peft_type != peft.PeftType.LORA or beyond:
        what = ", ".join(beyond) or str(config.peft_type)
        raise ModelError(
            f"The adapter {start!r} is of a kind that is not trained here ({what}).",
            "Merge it into its model by PEFT, and train that.",
        )
    named = None if options.lora_targets == _ALL else _targets(fresh_config(options, model))
    asked = (
        ("lora_rank", options.lora_rank, rank),
        ("lora_alpha", options.lora_alpha, float(config.lora_alpha)),
        ("lora_targets", named, _targets(config)),
    )
    for key, given, known in asked:
        if given is not None and given != known:
            shown = [
                ", ".join(each) if isinstance(each, list) else f"{each:g}"
                for each in (given, known)
            ]
            raise ConfigError(
                f"{key} = {shown[0]}, but the adapter in {start} has {shown[1]}.",
                f"Set {key} to {shown[1]} to train that adapter on, or name its model as policy for"
                " a new one.",
            )
    config.lora_dropout = options.lora_dropout
    config.inference_mode = False
    config.init_lora_weights = True  # the weights come from the folder
    return config


@contextmanager
def refused_layers(model: nn.Module, base: str, targets: Iterable[str]) -> Generator[None]:
    """Turn PEFT's error for an adapter without a matching layer into `ModelError`, within the
    block.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        linear = {
            name.rpartition(".")[2]
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear)
        }
        raise ModelError(
            f"{base!r} takes no adapter on {', '.join(targets)}: {str(error).partition('. ')[0]}.",
            f"lora_targets of this model: {', '.join(sorted(linear)) or 'it has no linear layer'}.",
        ) from error


def _targets(config: Any) -> list[str]:
    given: str | Iterable[str] = config.target_modules or ()
    modules = [given] if isinstance(given, str) else sorted(given)
    return [*modules, *sorted(config.target_parameters or ())]


class AdaptersByRole(Adapter):
    """Layers of several adapters in a model."""

    def __init__(
        self,
        model: Any,
        base: str,
        *,
        route: AdapterRoute,
        configs: Sequence[Any],
        began_with: str | None,
    ) -> None:
        """`configs` are PEFT's configurations of the shared adapter and of the adapter of each role.
        `base` is the string of the model.
        """
        super().__init__(model, base, began_with=began_with)
        self._route = route
        self._configs = configs

    @classmethod
    def put_into(
        cls,
        model: Any,
        options: AdapterPart,
        *,
        base: str,
        folder: str,
        seed: int,
        start: str | None = None,
    ) -> Self:
        """Put an adapter for each role and a shared one into a model, whose other weights are
        frozen from here on. The adapters are fresh if `start` is None. If the folder `start` has an
        adapter for each role, each begins with the adapter of its role. If it has a single adapter,
        all begin with it.

        `base` is the model's string, `folder` its folder or name on the hub. Raises `ModelError` if
        the model has none of the layers that `options` name, and `ConfigError` if `start` has
        adapters of other roles or with other options.
        """
        need_package("peft", "adapters", f"lora_rank = {options.lora_rank}")
        quiet_libraries()
        roles = options.lora_roles
        began_with = _folders(start, roles) if start is not None else None
        if began_with is None:
            configs = [fresh_config(options, model) for _ in ("", *roles)]
        else:
            configs = [recorded_config(str(each), options, model) for each in began_with]
        with refused_layers(model, base, options.lora_targets), dropout_seed(seed):
            route = put_adapters(model, configs, roles)
        for config in configs:
            config.base_model_name_or_path = (
                str(Path(folder).resolve()) if Path(folder).is_dir() else folder
            )
        for name, each in zip(route.names().values(), began_with or (), strict=False):
            read_adapter(model, name, each)
        return cls(model, base, route=route, configs=configs, began_with=start)

    def save(self, folder: Path) -> None:
        """Write the shared adapter to `folder` and each role's adapter to a subfolder. Each is
        written with the name of the model.
        """
        for (role, name), config in zip(self._route.names().items(), self._configs, strict=True):
            own = folder / role
            own.mkdir(parents=True, exist_ok=True)
            config.inference_mode = True
            config.save_pretrained(str(own))
            write_adapter(self._wrapped, name, own)
            write_base(own, self._base, () if role else self._route.roles)

    def load(self, folder: Path) -> None:
        """Read the weights that `save` wrote. Raises `ModelError` if they do not fit these
        adapters.
        """
        for role, name in self._route.names().items():
            read_adapter(self._wrapped, name, folder / role)

    def reference(self) -> nn.Module:
        """Policy that a training starts from; call this before the first update. It is the model
        without adapters if they are fresh, else with a copy of their current weights.
        """
        return ReferencePolicy(self._wrapped, self._route.off if self._began_with is None else None)


def _folders(start: str, roles: Sequence[str]) -> list[Path]:
    """Folders that a training starts from: of the shared adapter, then of the adapter
    of each role.
    """
    known = roles_on_record(start)
    if not known:
        return [Path(start) for _ in ("", *roles)]
    if set(known) != set(roles):
        raise ConfigError(
            f"lora_roles = {', '.join(roles)}, but the adapters in {start} are of"
            f" {', '.join(known)}.",
            f"Set lora_roles to {', '.join(known)} to train those on.",
        )
    return [Path(start), *(Path(start, role) for role in roles)]
