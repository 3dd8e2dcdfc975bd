"""Profiles that were measured before, in the user's cache folder (``cache.py``).

A profile belongs to a machine, a model, an engine's build and settings. What cannot be read, or belongs to something else, is
measured anew, and so is what some forwards of now contradict: it may have been measured while the machine was busy.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from headstart.cache import recall, remember
from headstart.plan.profile import ROW_COUNTS, Clock, Profile, measured, spot_check
from headstart.target.base import Target
from headstart.target.machine import build, cpu_name, num_cores, runtime

KIND = "profile"
_VERSION = 4  # of how profiles are measured and stored


def profile_of(target: Target, *, clock: Clock = time.perf_counter) -> Profile:
    """The target's profile: the cached one if it is there and still true, else measured now and cached."""
    key = key_of(target)
    found = _profile(recall(KIND, key))
    if found is not None and spot_check(target, found, clock=clock):
        return found
    profile = measured(target, clock=clock)
    remember(KIND, key, asdict(profile))
    return profile


def key_of(target: Target) -> Mapping[str, Any]:
    """All that a profile depends on."""
    return {
        "version": _VERSION,
        "rows": list(ROW_COUNTS),
        "build": build(target.engine),
        "model": target.fingerprint,
        "engine": target.engine,
        "dtype": target.dtype,
        "kv_dtype": getattr(target, "kv_dtype", None),
        "machine": f"{platform.system()} {platform.machine()} {cpu_name()}",
        "cores": num_cores(),
        **runtime(target.engine),
    }


def _profile(stored: Any) -> Profile | None:
    try:
        rows, seconds = tuple(int(n) for n in stored["rows"]), tuple(float(t) for t in stored["seconds"])
        return Profile(rows, seconds, int(stored["context"]), float(stored["row_position_seconds"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
