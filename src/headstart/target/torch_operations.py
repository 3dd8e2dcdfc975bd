"""The operations that heads are written in, over PyTorch tensors. Autograd sees through all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.layer_sizes import LayerSizes
from headstart.target.torch_draft_layer import TorchDraftLayer, rms_norm


class TorchOperations:
    """Implements ``heads.operations.Operations`` in one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self.dtype, self.device = dtype, torch.device(device)

    def array(self, values: NDArray[np.float32]) -> Tensor:
        """Weights in the engine's dtype and on its device, as a copy."""
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def take(self, matrix: Tensor, ids: NDArray[np.int64]) -> Tensor:
        """Rows of an array or of a weight, as an array of their own."""
        return matrix.index_select(0, torch.as_tensor(ids, dtype=torch.int64, device=matrix.device))

    def select(self, weight: Tensor, ids: NDArray[np.int64]) -> Tensor:
        """Rows of a weight, as a weight."""
        return self.take(weight, ids)

    def stack(self, rows: Sequence[Tensor]) -> Tensor:
        """Hidden states of single rows, each [1, D], as [n, D]."""
        return torch.cat(tuple(rows))

    def concat(self, parts: Sequence[Tensor]) -> Tensor:
        """Arrays [n, D_i] side by side, as [n, sum of D_i]."""
        return torch.cat(tuple(parts), dim=-1)

    def fold(self, x: Tensor, width: int) -> Tensor:
        """``x`` [n, k * width] read as [n * k, width], row by row."""
        return x.reshape(-1, width)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x`` [n, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]."""
        return torch.nn.functional.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Rows of ``x`` [n, D] over their root mean square, times ``weight`` [D]."""
        return rms_norm(x, weight, epsilon)

    def silu(self, x: Tensor) -> Tensor:
        """X * sigmoid(x), elementwise."""
        return torch.nn.functional.silu(x)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Elementwise sum."""
        return a + b

    def draft_layer(
        self, sizes: LayerSizes, tensors: Mapping[str, Tensor], embedding: Tensor, output: Tensor
    ) -> TorchDraftLayer:
        """A decoder layer with caches of its own."""
        return TorchDraftLayer(sizes, tensors, embedding, output)

    def cell(self, inner: Tensor, project: Tensor, biases: Sequence[Tensor], embedding: Tensor, output: Tensor) -> None:
        """None: a cell is composed of the operations here."""

    def top_k(self, logits: Tensor, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices [n, k] of the k largest logits a row, largest first, and their softmax probabilities [n, k]."""
        x = logits.detach().float()
        values, ids = x.topk(k, dim=-1)
        probabilities = (values - x.logsumexp(dim=-1, keepdim=True)).exp()
        return ids.cpu().numpy(), probabilities.double().cpu().numpy()

    def numpy(self, x: Tensor) -> NDArray[np.float32]:
        """The values on the host."""
        values: NDArray[np.float32] = x.detach().float().cpu().numpy()
        return values
