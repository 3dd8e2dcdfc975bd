"""Measuring: speed, acceptance and losslessness, side by side in one run.

The names are resolved when they are first used, so that reading the settings (the command line's help) loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headstart.measure.bench import measure
    from headstart.measure.prompts import Prompt, PromptSet, prompt_set
    from headstart.measure.report import Report
    from headstart.measure.settings import MeasureSettings

__all__ = ["MeasureSettings", "Prompt", "PromptSet", "Report", "measure", "prompt_set"]

_HOMES = {
    "MeasureSettings": "settings",
    "Prompt": "prompts",
    "PromptSet": "prompts",
    "Report": "report",
    "measure": "bench",
    "prompt_set": "prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headstart.measure' has no attribute {name!r}")
    return getattr(import_module(f"headstart.measure.{_HOMES[name]}"), name)
