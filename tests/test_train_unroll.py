"""What training unrolls is what the layer computes when it drafts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headstart.heads.mtp import MtpConfig  # noqa: E402
from headstart.target.base import Feed  # noqa: E402
from headstart.train.inputs import Inputs  # noqa: E402
from headstart.train.unroll import unrolled  # noqa: E402
from headstart.tree import Tree  # noqa: E402
from mtp_models import CONFIG, EMBEDDING, OUTPUT, STATES, TOKENS, on_numpy, trained  # noqa: E402


def texts(*borders: tuple[int, int], width: int = 1) -> Inputs:
    """Texts of (rows, of which so many guess, the last ones)."""
    ends = np.cumsum([length for length, _ in borders])
    places = [end - left for end, (_, count) in zip(ends, borders, strict=True) for left in range(count, 0, -1)]
    values = STATES[: ends[-1] * width].reshape(-1, width * STATES.shape[1])
    return Inputs(torch.from_numpy(values), torch.tensor(TOKENS[: ends[-1]]), torch.tensor(places), torch.from_numpy(ends))


@pytest.mark.parametrize("borders", [((7, 7), (5, 5)), ((9, 4), (5, 2), (3, 3))])
@pytest.mark.parametrize("layers", [None, (1, 2)])
def test_every_step_of_every_row_is_what_drafting_computes(
    borders: tuple[tuple[int, int], ...], layers: tuple[int, ...] | None
) -> None:
    """Each row is drafted from as the proposer would, behind all rows of its own text alone, those of its prompt included."""
    config = dataclasses.replace(CONFIG, eagle_aux_hidden_state_layer_ids=layers)
    heads = trained(config)
    tensors = {name: torch.from_numpy(values) for name, values in heads.tensors.items()}
    read = texts(*borders, width=config.num_features or 1)
    steps = unrolled(config, tensors, torch.from_numpy(EMBEDDING), read)
    bound = on_numpy(heads)
    fused = bound.fused(read.states.numpy())
    rows = np.array(config.draft_vocab)
    number = 0
    for end, (length, count) in zip(read.ends.tolist(), borders, strict=True):
        start = end - length
        for i in range(end - count, end):
            slot = bound.layer.open()
            states = fused[start : i + 1]
            for step in range(min(config.num_steps, end - i)):
                text = Tree.chain(TOKENS[start : i + step + 1])
                found = bound.layer.forward([Feed(slot, text)], states)
                last = (0, len(text) - 1)
                expected = found.logits([last])[0]
                np.testing.assert_allclose(steps[step][number].numpy() @ OUTPUT[rows].T, expected, rtol=1e-3, atol=1e-3)
                states = np.concatenate([states, found.hidden([last])])
                bound.layer.keep(slot, ())
            number += 1


def test_rows_of_half_a_text_are_a_mistake() -> None:
    read = texts((5, 3), (4, 4))
    assert read.of(slice(3, 7)).tokens.tolist() == TOKENS[5:9]
    for rows in (slice(0, 2), slice(1, 3), slice(0, 5)):
        with pytest.raises(ValueError, match="whole segments or texts"):
            read.of(rows)


def test_gradients_reach_every_tensor_through_all_steps() -> None:
    config = MtpConfig(**CONFIG.sizes() | {"num_steps": 2, "eagle_aux_hidden_state_layer_ids": (0, 3)})
    tensors = {name: torch.from_numpy(values).requires_grad_() for name, values in trained(config).tensors.items()}
    last = unrolled(config, tensors, torch.from_numpy(EMBEDDING), texts((9, 6), width=2))[-1]
    last.square().mean().backward()  # type: ignore[no-untyped-call]
    for name, tensor in tensors.items():
        assert tensor.grad is not None and tensor.grad.abs().max() > 0, name
