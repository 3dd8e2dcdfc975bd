"""Training heads: the corpus, the captured states, the loss, the loop and its checkpoints.

The names are resolved when they are first used, so that reading the settings (the command line's help) loads no PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.train.run import Event, TrainResult, train
    from headstart.train.settings import TrainSettings

__all__ = ["Event", "TrainResult", "TrainSettings", "train"]

_HOMES = {"Event": "run", "TrainResult": "run", "TrainSettings": "settings", "train": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headstart.train' has no attribute {name!r}")
    return getattr(import_module(f"headstart.train.{_HOMES[name]}"), name)
