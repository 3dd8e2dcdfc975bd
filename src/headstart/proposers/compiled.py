"""Drafting's inner loops as the compiled engine has them, for installations that have it.

A small model's step takes a few milliseconds, and Python runs slowly right behind a forward that has filled the caches with
weights. So what is done for every node of every draft is compiled (csrc/walks.h, csrc/copying.h). Python's own code stays the
definition, and serves where there was no compiler; tests hold the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart import _native
else:
    try:
        from headstart import _native
    except ImportError:
        _native = None

native = _native

__all__ = ["native"]
