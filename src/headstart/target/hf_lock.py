"""One thread at a time in a PyTorch engine, so that decoding loops in several threads interleave call by call.

A model's hooks, its cache's aim and what a forward leaves for them belong to the call that runs. Between calls the state is a
slot's own, and a slot belongs to one loop. Targets that share modules share the lock (``hf_shallow.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class Locked(Protocol):
    """What has a lock, which the thread that holds it may take again."""

    lock: AbstractContextManager[Any]


Self = TypeVar("Self", bound=Locked)
Given = ParamSpec("Given")
Returned = TypeVar("Returned")


def alone(method: Callable[Concatenate[Self, Given], Returned]) -> Callable[Concatenate[Self, Given], Returned]:
    """The method, run under its object's lock."""

    @functools.wraps(method)
    def run(self: Self, /, *args: Given.args, **kwargs: Given.kwargs) -> Returned:
        with self.lock:
            return method(self, *args, **kwargs)

    return run
