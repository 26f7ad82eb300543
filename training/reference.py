"""The policy that training is to stay near: the one that it started with, without gradients."""

from __future__ import annotations

import torch
from torch import nn

from hrm_agent.models.local.load_weights import load_pretrained
from hrm_agent.models.policy_loader import model_folder

__all__ = ["load_reference"]


def load_reference(policy: str, device: torch.device | str) -> nn.Module:
    """The weights that `policy` names, in single precision, as a second model: as much memory as they take."""
    model, _ = load_pretrained(model_folder(policy), dtype="float32", device=str(device))
    return model.requires_grad_(False)
