"""Peak memory of a training step with n future tokens: heads one after the other, against all of them in one graph.

    python benchmarks/pretraining_memory.py RECORD

Every model has the same trunk, so that only the heads differ. What is counted are the bytes of all live tensors, operation by
operation, that a step makes beyond the weights and their gradients, which exist before: exact, and the same on any machine.
What a kernel holds within itself is not seen. A minute.
"""

from __future__ import annotations

import argparse
import sys
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headstart.measure.environment import commit, machine, versions
from headstart.measure.report import check_writable, save_json
from headstart.pretrain.model import FutureModel
from headstart.pretrain.objective import backward
from headstart.pretrain.settings import PretrainSettings
from headstart.pretrain.sizes import ModelSizes

NUM_FUTURE = (1, 2, 4, 8)
VOCABULARIES = (4096, 16384, 32768)
TRUNK_LAYERS, WIDTH, SEQUENCES, CONTEXT = 3, 256, 2, 128


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is on, until they die."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operation(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given | self._known:
                self._count(leaf.untyped_storage())
        return found

    def _count(self, storage: Any) -> None:
        size, key = storage.nbytes(), storage._cdata
        self._known.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def in_one_graph(model: FutureModel, tokens: Tensor) -> None:
    """The naive order: the sum of all losses, then one backward pass."""
    rows = model.rows(tokens)
    total = torch.zeros(())
    for ahead, states in model.states(rows):
        total = total + torch.nn.functional.cross_entropy(model.logits(states), rows.ahead(ahead))
    total.backward()


def head_by_head(model: FutureModel, tokens: Tensor) -> None:
    """The order in which models are trained here."""
    backward(model, tokens, [1.0] * model.sizes.num_future, 1.0)


def peak_bytes(step: Callable[[FutureModel, Tensor], None], sizes: ModelSizes, num_sequences: int) -> int:
    """Of one step, beyond weights and gradients."""
    model = FutureModel(sizes, 0)
    for values in model.parameters():
        values.grad = torch.zeros_like(values)
    shape = (num_sequences, sizes.context + sizes.num_future)
    tokens = torch.randint(sizes.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    with LiveBytes() as counted:
        step(model, tokens)
    return counted.peak


def sizes_of(num_future: int, vocab_size: int, trunk_layers: int = TRUNK_LAYERS, **options: Any) -> ModelSizes:
    """A model with this trunk."""
    chosen: dict[str, Any] = {"width": WIDTH, "context": CONTEXT} | options
    return ModelSizes.of(PretrainSettings(future_tokens=num_future, layers=trunk_layers + num_future, **chosen), vocab_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    wanted = parser.parse_args()
    check_writable(wanted.record)
    cases = []
    for vocab_size in VOCABULARIES:
        for num_future in NUM_FUTURE:
            sizes = sizes_of(num_future, vocab_size)
            case = {"vocab_size": vocab_size, "future_tokens": num_future}
            for name, step in (("head_by_head", head_by_head), ("in_one_graph", in_one_graph)):
                case[name] = peak_bytes(step, sizes, SEQUENCES)
            print(case, file=sys.stderr)
            cases.append(case)
    save_json(
        wanted.record,
        {
            "format": "headstart-pretraining-memory",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "trunk_layers": TRUNK_LAYERS,
            "width": WIDTH,
            "positions": SEQUENCES * CONTEXT,
            "cases": cases,
        },
    )
    print(f"wrote {wanted.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
