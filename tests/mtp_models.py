"""A tiny MTP layer with random weights on each engine, and a text for it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.heads.mtp import BoundMtp, MtpConfig, MtpHeads
from headstart.target.base import BaseWeights
from headstart.target.native_operations import NativeOperations
from numpy_operations import NumpyOperations

VOCAB, WIDTH = 50, 64
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "vocab_size": VOCAB,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
}
CONFIG = MtpConfig(**SIZES, draft_vocab=(7, 3, 11, 40, *range(20, 35)))
RNG = np.random.default_rng(3)
EMBEDDING = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32)
OUTPUT = RNG.standard_normal((VOCAB, WIDTH)).astype(np.float32)
STATES = (3 * RNG.standard_normal((400, WIDTH))).astype(np.float32)
TOKENS = [int(token) for token in RNG.integers(0, VOCAB, 400)]


def trained(config: MtpConfig = CONFIG, seed: int = 0) -> MtpHeads:
    """Random tensors, none of them zero."""
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        noise = rng.standard_normal(shape)
        return (1 + 0.1 * noise if len(shape) == 1 else 1.5 * shape[1] ** -0.5 * noise).astype(np.float32)

    return MtpHeads(config, {name: values(name, shape) for name, shape in config.shapes().items()})


def native(dtype: str = "float32", heads: MtpHeads | None = None) -> BoundMtp:
    operations = NativeOperations(dtype)
    base = BaseWeights(operations.array(EMBEDDING), operations.array(OUTPUT))
    return (heads or trained()).bind(operations, base)


def on_numpy(heads: MtpHeads | None = None) -> BoundMtp:
    return (heads or trained()).bind(NumpyOperations(), BaseWeights(EMBEDDING, OUTPUT))


def states(bound: BoundMtp, values: NDArray[np.float32]) -> Any:
    """Hidden states as the engine wants them: never a weight."""
    return values if isinstance(bound.operations, (NativeOperations, NumpyOperations)) else bound.operations.array(values)
