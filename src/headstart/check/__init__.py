"""A user's own proof that speculation changes nothing: with this model, on this machine, with these heads.

The names are resolved when they are first used, so that reading the settings (the command line's help) loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.check.report import CheckReport
    from headstart.check.run import check
    from headstart.check.settings import CheckSettings

__all__ = ["CheckReport", "CheckSettings", "check"]

_HOMES = {"CheckReport": "report", "CheckSettings": "settings", "check": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headstart.check' has no attribute {name!r}")
    return getattr(import_module(f"headstart.check.{_HOMES[name]}"), name)
