"""One forward of the compiled stack: feeds become flat arrays, and scored rows are found again in what comes back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.target.base import Feed
from headstart.target.native_scored import NativeScored, Watched


def forward(
    model: _native.Model,
    batch: Sequence[Feed],
    hidden: NDArray[np.float32] | None = None,
    watched: Watched | None = None,
) -> NativeScored:
    """Score all rows; ``hidden`` [R, D] are the states that a drafting layer reads. ValueError if slots are misused.

    ``watched``: which residual streams the model writes.
    """
    starts, first_row, tokens, parents = [0], list[int](), list[int](), list[int]()
    scored = 0
    for feed in batch:
        tree = feed.tree
        tokens.extend(tree.tokens)
        parents.extend(tree.parents)
        starts.append(len(tokens))
        first_row.append(scored - feed.first_scored)
        scored += len(tree) - feed.first_scored
    result = model.forward(
        np.array([feed.slot for feed in batch], dtype=np.int64),
        np.array(starts, dtype=np.int64),
        np.array(tokens, dtype=np.int32),
        np.array(parents, dtype=np.int32),
        np.array([feed.first_scored for feed in batch], dtype=np.int64),
        *(() if hidden is None else (hidden.reshape(-1),)),
    )
    return NativeScored(result, first_row, [feed.first_scored for feed in batch], starts, watched)
