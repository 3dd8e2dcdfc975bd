"""Pretraining a small model from scratch to predict several tokens at once, and the folder that it is saved in.

The public names are resolved when they are first used: the command line's help reads the settings and loads no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headstart.errors import INSTALL_TORCH, TrainingError

if TYPE_CHECKING:
    from headstart.pretrain.run import PretrainResult, pretrain
    from headstart.pretrain.settings import PretrainSettings

__all__ = ["PretrainResult", "PretrainSettings", "pretrain"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headstart.pretrain' has no attribute {name!r}")
    if name == "PretrainSettings":
        return import_module("headstart.pretrain.settings").PretrainSettings
    try:
        import torch  # noqa: F401 - asked for here, so that its absence is one clear line
    except ImportError as error:
        raise TrainingError(f"Training needs PyTorch: {INSTALL_TORCH}") from error
    return getattr(import_module("headstart.pretrain.run"), name)
