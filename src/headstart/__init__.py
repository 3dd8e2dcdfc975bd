"""Headstart: several accepted tokens out of each forward pass of a language model, without changing what it says.

The public names are resolved when they are first used, so ``import headstart`` loads neither PyTorch nor the tokenizers.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.check import check
    from headstart.errors import DataError, HeadsError, HeadstartError, ModelError, RequestError, TrainingError
    from headstart.llm import LLM, Answer, Step, load
    from headstart.measure import measure
    from headstart.pretrain import pretrain
    from headstart.sampling import Sampling
    from headstart.stats import Stats
    from headstart.train import train

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Answer",
    "DataError",
    "HeadsError",
    "HeadstartError",
    "ModelError",
    "RequestError",
    "Sampling",
    "Stats",
    "Step",
    "TrainingError",
    "check",
    "load",
    "measure",
    "pretrain",
    "train",
]

_HOMES = {
    "check": ("check",),
    "errors": ("DataError", "HeadsError", "HeadstartError", "ModelError", "RequestError", "TrainingError"),
    "llm": ("LLM", "Answer", "Step", "load"),
    "measure": ("measure",),
    "pretrain": ("pretrain",),
    "sampling": ("Sampling",),
    "stats": ("Stats",),
    "train": ("train",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'headstart' has no attribute {name!r}")
    return getattr(import_module(f"headstart.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


class _Verb(ModuleType):
    """A subpackage that is called like the function of its name: ``headstart.measure(...)``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(self, self.__name__.rpartition(".")[2])(*args, **options)


class _Package(ModuleType):
    """Python binds an imported subpackage to its name here, in front of ``__getattr__``; a public name stays callable."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOME_OF and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
