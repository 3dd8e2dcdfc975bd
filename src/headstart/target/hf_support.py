"""Which transformers models the PyTorch engine can serve, found out before the first token.

Verification needs a cache that can forget rows, and a model that takes its masks and positions from the caller. Recurrent and
hybrid models carry a state that cannot be rolled back; others derive positions from the order of rows. What can be read off the
configuration is refused by name; for the rest a few tiny forwards compare trees with plain chains, so that an unusual
architecture is served rightly or refused, never silently wrong.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np

from headstart.errors import HeadstartError, ModelError
from headstart.target.base import Feed
from headstart.target.hf_masks import FULL, SLIDING, LayerKinds
from headstart.tree import Tree

if TYPE_CHECKING:
    from headstart.target.hf import HfTarget

_TOLERANCE = {"float64": 1e-6, "float32": 3e-3, "bfloat16": 0.1, "float16": 0.03}  # error over the spread of the logits


def layer_kinds(model: Any) -> LayerKinds:
    """The model's kinds of attention; ModelError if it has layers whose cache cannot be rolled back."""
    config = model.config.get_text_config(decoder=True)
    kind = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{kind} is an encoder-decoder model; Headstart serves decoder-only models")
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{kind} is recurrent or hybrid; its state cannot be rolled back after a rejected draft")
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or [FULL if window is None else SLIDING]
    unknown = sorted(set(types) - {FULL, SLIDING})
    if unknown:
        raise ModelError(f"{kind} has {unknown[0]} layers; Headstart serves full and sliding-window attention only")
    if SLIDING in types and window is None:
        raise ModelError(f"{kind} has sliding-window layers, but its configuration states no sliding_window")
    return LayerKinds(frozenset(types), window)


def cache_keyword(model: Any) -> str:
    """The name under which the model's forward takes a cache; ModelError if it takes none, or no positions."""
    parameters = inspect.signature(model.forward).parameters
    keyword = next((name for name in ("cache", "past_key_values") if name in parameters), None)
    if keyword is None or "position_ids" not in parameters:
        missing = "an attention cache" if keyword is None else "explicit positions"
        raise ModelError(f"{type(model).__name__} does not accept {missing}, which the verification of trees needs")
    if model.config._attn_implementation not in ("sdpa", "eager"):
        raise ModelError(
            f"{type(model).__name__} was loaded with the attention {model.config._attn_implementation!r}, which takes no "
            "explicit masks; load it with attn_implementation='sdpa'"
        )
    return keyword


def check_trees(target: HfTarget) -> None:
    """ModelError unless a tree, the path kept of it and two slots at once give the logits of plain forwards."""
    kind = type(target.model).__name__
    try:
        error = _largest_error(target)
    except HeadstartError:
        raise
    except Exception as reason:
        problem = str(reason).strip().split("\n")[0][:200]
        raise ModelError(f"{kind} cannot be run with explicit masks and positions: {problem}") from reason
    if not error <= _TOLERANCE[target.dtype]:
        raise ModelError(
            f"{kind} does not honour explicit masks and positions (a tree's logits are off by {error:.1%} of their spread); "
            "its drafts could not be verified"
        )


def _largest_error(target: HfTarget) -> float:
    """Run prompt [0..5), then a tree with siblings beside a second slot, then a step behind the kept branch."""
    ids = [(7 * i + 3) % target.vocab_size for i in range(10)]
    prompt, root, (a, b, c, d) = ids[:5], ids[5], ids[6:]
    if len(set(ids)) < len(ids):
        raise ModelError(f"a vocabulary of {target.vocab_size} ids is too small to check the model")
    tree = Tree((root, a, b, c, d), (-1, 0, 0, 1, 2), (1.0,) * 5)
    short, long = target.open(), target.open()
    try:
        target.forward([Feed(long, Tree.chain(prompt), len(prompt))])
        target.keep(long, tuple(range(len(prompt))))
        branching = target.forward([Feed(short, Tree.chain(ids[:3])), Feed(long, tree)])
        target.keep(short, (0, 1, 2))
        target.keep(long, (0, 2, 4))
        behind = target.forward([Feed(long, Tree.root(a))])
    finally:
        target.close(short)
        target.close(long)
    left = target.plain_logits([*prompt, root, a, c])
    right = target.plain_logits([*prompt, root, b, d, a])
    pairs = [
        (branching.logits([(0, row) for row in range(3)]), target.plain_logits(ids[:3])),
        (branching.logits([(1, 0), (1, 1), (1, 3)]), left[5:]),
        (branching.logits([(1, 2), (1, 4)]), right[6:8]),
        (behind.logits([(0, 0)]), right[8:]),
    ]
    return max(_error(found, expected) for found, expected in pairs)


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Root mean square error of logits over their spread."""
    spread = float(expected.astype(np.float64).std()) or 1.0
    return float(np.sqrt(np.mean((found.astype(np.float64) - expected) ** 2))) / spread
