"""What training unrolls is what the layer computes when it drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headstart.heads.mtp import MtpConfig  # noqa: E402
from headstart.target.base import Feed  # noqa: E402
from headstart.train.unroll import unrolled  # noqa: E402
from headstart.tree import Tree  # noqa: E402
from mtp_models import CONFIG, EMBEDDING, OUTPUT, STATES, TOKENS, on_numpy, trained  # noqa: E402


def remaining(*lengths: int) -> Any:
    return torch.tensor([left for length in lengths for left in range(length, 0, -1)])


def test_every_step_of_every_row_is_what_drafting_computes() -> None:
    """Two segments: each row is drafted from as the proposer would, behind the rows of its own segment alone."""
    lengths = (7, 5)
    heads = trained()
    tensors = {name: torch.from_numpy(values) for name, values in heads.tensors.items()}
    total = sum(lengths)
    arrays: Any = [torch.from_numpy(EMBEDDING), torch.from_numpy(STATES[:total]), torch.tensor(TOKENS[:total])]
    steps = unrolled(CONFIG, tensors, arrays[0], arrays[1], arrays[2], remaining(*lengths))
    bound = on_numpy()
    rows = np.array(CONFIG.draft_vocab)
    for start, length in ((0, 7), (7, 5)):
        for i in range(start, start + length):
            slot = bound.layer.open()
            committed = STATES[start : i + 1]
            states, end = committed, start + length
            for step in range(min(CONFIG.num_steps, end - i)):
                text = Tree.chain(TOKENS[start : i + step + 1])
                found = bound.layer.forward([Feed(slot, text)], states)
                last = (0, len(text) - 1)
                expected = found.logits([last])[0]
                np.testing.assert_allclose(steps[step][i].numpy() @ OUTPUT[rows].T, expected, rtol=1e-3, atol=1e-3)
                states = np.concatenate([states, found.hidden([last])])
                bound.layer.keep(slot, ())


def test_rows_of_half_a_segment_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="whole segments"):
        unrolled(CONFIG, {}, torch.zeros(9, 1), torch.zeros(3, 1), torch.zeros(3, dtype=torch.long), torch.tensor([5, 4, 3]))


def test_gradients_reach_every_tensor_through_all_steps() -> None:
    config = MtpConfig(**CONFIG.sizes() | {"num_steps": 2})
    tensors = {name: torch.from_numpy(values).requires_grad_() for name, values in trained().tensors.items()}
    last = unrolled(
        config, tensors, torch.from_numpy(EMBEDDING), torch.from_numpy(STATES[:9]), torch.tensor(TOKENS[:9]), remaining(9)
    )[-1]
    last.square().mean().backward()  # type: ignore[no-untyped-call]
    for name, tensor in tensors.items():
        assert tensor.grad is not None and tensor.grad.abs().max() > 0, name
