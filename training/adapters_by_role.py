"""LoRA adapters under training, one for each of some roles of a graph, on one model whose own weights stay as they are.

All roles that are not named share an adapter. Engine and trainer run the same layers
(`hrm_agent.models.local.role_adapters`): the engine with tokens of several roles in one pass, the trainer with those of
one at a time (`hrm_agent.training.batch`). A role that samples nothing in a step, or that is frozen, has no gradient,
and its adapter stays as it is, to the bit: the optimiser passes over it, its weight decay too.

    FOLDER/                 the shared adapter, in PEFT's files; base.json names the model and the roles
    FOLDER/plan/            the adapter of the role plan, which can be served alone
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from torch import nn

from hrm_agent.errors import ConfigError
from hrm_agent.models.adapter_folder import roles_on_record, write_base
from hrm_agent.models.local.load_weights import need_package, quiet_libraries
from hrm_agent.models.local.role_adapters import AdapterRoute, put_adapters, read_adapter, write_adapter
from hrm_agent.training.adapter import Adapter, ReferencePolicy, fresh_config, recorded_config, refused_layers
from hrm_agent.training.config_parts import AdapterPart
from hrm_agent.training.schedule import dropout_seed

__all__ = ["AdaptersByRole"]


class AdaptersByRole(Adapter):
    """The layers of several adapters in a model."""

    def __init__(
        self, model: Any, base: str, *, route: AdapterRoute, configs: Sequence[Any], began_with: str | None
    ) -> None:
        """`configs` are PEFT's, of the shared adapter and of each role's; `base` is the string of the model."""
        super().__init__(model, base, began_with=began_with)
        self._route, self._configs = route, configs

    @classmethod
    def put_into(
        cls, model: Any, options: AdapterPart, *, base: str, folder: str, seed: int, start: str | None = None
    ) -> Self:
        """As `Adapter.put_into`. Adapters begin with those of their roles in `start`, or all with the one that it has.

        Raises `ConfigError` where `start` has adapters of other roles.
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
            config.base_model_name_or_path = str(Path(folder).resolve()) if Path(folder).is_dir() else folder
        for name, each in zip(route.names().values(), began_with or (), strict=False):
            read_adapter(model, name, each)
        return cls(model, base, route=route, configs=configs, began_with=start)

    def save(self, folder: Path) -> None:
        """The shared adapter, and in a folder for each role its own; each with the name of the model."""
        for (role, name), config in zip(self._route.names().items(), self._configs, strict=True):
            own = folder / role
            own.mkdir(parents=True, exist_ok=True)
            config.inference_mode = True
            config.save_pretrained(str(own))
            write_adapter(self._wrapped, name, own)
            write_base(own, self._base, () if role else self._route.roles)

    def load(self, folder: Path) -> None:
        """Take the weights that `save` wrote. Raises `ModelError` where they are other adapters'."""
        for role, name in self._route.names().items():
            read_adapter(self._wrapped, name, folder / role)

    def reference(self) -> nn.Module:
        """The policy that a training starts from, to be asked for before it: the model without adapters where they are
        fresh ones, else with the weights that they have now.
        """
        return ReferencePolicy(self._wrapped, self._route.off if self._began_with is None else None)


def _folders(start: str, roles: Sequence[str]) -> list[Path]:
    """Of the shared adapter that a training starts from, and of each role's."""
    known = roles_on_record(start)
    if not known:
        return [Path(start) for _ in ("", *roles)]
    if set(known) != set(roles):
        raise ConfigError(
            f"lora_roles = {', '.join(roles)}, and the adapters in {start} are of {', '.join(known)}.",
            f"Set lora_roles to {', '.join(known)} to train those on.",
        )
    return [Path(start), *(Path(start, role) for role in roles)]
