"""The loss of n future tokens, in an order that never holds more than one head's logits.

The sum of n cross-entropies has n logits of V entries a position. Computed as one graph all of them wait for the backward
pass, and memory grows with n V. Gloeckle et al. 2024 (figure 2) go head by head instead: the trunk's forward, once; then for
each head its forward, its loss and its backward, which frees its logits and leaves a gradient at the trunk's states; and with
the sum of those gradients one backward of the trunk. Memory grows with V + D, and the gradients are the same.

Where heads read each other (causal, anticausal, sequential) the same holds along the chain (their figure S11): a head's
backward waits until those that read it are done, with the gradient that they left at its state. :func:`_visit` does both.

Letters: n rows, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from headstart.pretrain.model import FutureModel, Node, Rows


def backward(model: FutureModel, tokens: Tensor, weights: Sequence[float], scale: float) -> Tensor:
    """Add the gradient of ``scale`` times the weighted mean losses to the parameters; the losses [n] of tokens [B, S + n].

    ``weights[i]`` is that of the token i + 1 positions ahead; 0 leaves it out, and its loss is NaN.
    """
    rows = model.rows(tokens)
    losses = torch.full((len(weights),), torch.nan, device=tokens.device)
    states = model.trunk(rows)
    leaf = states.detach().requires_grad_()
    factors = [scale * weight for weight in weights]
    for node in model.nodes():
        _visit(model, node, leaf, rows, factors, losses)
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]
    return losses


def _visit(model: FutureModel, node: Node, read: Tensor, rows: Rows, factors: Sequence[float], losses: Tensor) -> None:
    """Forward and backward of a head and of all that read it; the gradient of what it read stays in ``read.grad``."""
    if not _counts(node, factors):
        return
    states = node.run(read, rows)
    leaf = states.detach().requires_grad_()
    for below in node.below:
        _visit(model, below, leaf, rows, factors, losses)
    factor = factors[node.predicts - 1]
    if factor:
        loss = functional.cross_entropy(model.logits(leaf), rows.ahead(node.predicts))
        losses[node.predicts - 1] = loss.detach()
        (factor * loss).backward()  # type: ignore[no-untyped-call]
    states.backward(leaf.grad)  # type: ignore[no-untyped-call]


def _counts(node: Node, factors: Sequence[float]) -> bool:
    """Whether the head or one that reads it has a loss."""
    return factors[node.predicts - 1] > 0 or any(_counts(below, factors) for below in node.below)


@torch.no_grad()
def measure(model: FutureModel, tokens: Tensor, num_ranks: int) -> tuple[Tensor, Tensor]:
    """Mean losses [n] of tokens [B, S + n], and the share of positions where exactly guess r is right [n, R]."""
    rows = model.rows(tokens)
    count = model.sizes.num_future
    losses, shares = torch.zeros(count), torch.zeros(count, num_ranks)
    for ahead, states in model.states(rows):
        logits, right = model.logits(states), rows.ahead(ahead)
        losses[ahead - 1] = functional.cross_entropy(logits, right).cpu()
        ranked = logits.topk(min(num_ranks, logits.shape[1]), dim=1).indices
        hits = (ranked == right[:, None]).float().mean(0).cpu()
        shares[ahead - 1, : len(hits)] = hits
    return losses, shares
