"""Training heads: the corpus, the captured states, the loss, the loop and its checkpoints.

The public names are resolved when they are first used: the command line's help reads the settings and loads no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headstart.errors import INSTALL_TORCH, TrainingError

if TYPE_CHECKING:
    from headstart.train.run import Event, TrainResult, train
    from headstart.train.settings import TrainSettings

__all__ = ["Event", "TrainResult", "TrainSettings", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headstart.train' has no attribute {name!r}")
    if name == "TrainSettings":
        return import_module("headstart.train.settings").TrainSettings
    try:
        import torch  # noqa: F401 - asked for here, so that its absence is one clear line
        import transformers  # noqa: F401
    except ImportError as error:
        raise TrainingError(f"Training needs PyTorch and transformers: {INSTALL_TORCH}") from error
    return getattr(import_module("headstart.train.run"), name)
